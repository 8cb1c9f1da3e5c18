"""Why a rig cannot run a placement or a condition: asked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.placement import Placement, bare, docker
from labkit.rig import collector, peer
from labkit.runtimes import RUNTIMES
from labkit.runtimes.held import Holding

if TYPE_CHECKING:
    from labkit.rig.base import Rig

#: The capability of a rig that a rung or a network asks for; of other networks, one of that name.
_NEEDS = {"clean": "clean-host", "rules": "", "chroot": "chroot", "cgroup": "cgroup"}
_NEEDS |= {"host": "", "bridge": "layer2", "nat": "nat"}


def placement(rig: Rig, wanted: Placement) -> str | None:
    """Return why a rig cannot run a placement, or None."""
    if reason := RUNTIMES[wanted.runtime].refusal(wanted.network):
        return reason
    way = wanted.rung or wanted.network
    # Whatever is not on a clean host is beside an engine's rules, and is checked to be so.
    asked = ["rules"] if way != "clean" else []
    asked += ["docker"] if wanted.runtime in ("docker", "gvisor") else []
    asked += [f"runtime:{wanted.runtime}", _NEEDS.get(way, f"network:{way}")]
    asked += [f"storage:{wanted.storage}"] if wanted.storage else []
    asked += ["realtime"] if wanted.limits.fifo else []
    # These publish nothing by themselves: a bridge is laid for them.
    held = issubclass(RUNTIMES[wanted.runtime], Holding)
    asked += ["network:nat"] if way == "nat" and held else []
    return next((rig.missing[one] for one in asked if one in rig.missing), None)


def condition(rig: Rig, levels: Mapping[str, Any]) -> str | None:
    """Return why a rig cannot run a condition, or None; see `Rig.refuse`."""
    wanted = levels.get("placement")
    if isinstance(wanted, Placement) and (reason := placement(rig, wanted)):
        return reason
    affinity, wait = levels.get("affinity"), levels.get("wait")
    for level, capability in (("split", "two-cpus"), ("same", "one-machine")):
        if affinity == level and capability in rig.missing:
            return rig.missing[capability]
    if affinity == "same" and wait == "spin":
        return (
            "two spinning ends on one CPU hand over at the timer tick: one message takes "
            "milliseconds, and measures the scheduler"
        )
    if reason := _hosts(rig, levels, wanted):
        return reason
    asked = ["busy-poll"] if wait == "busy_poll" else []
    asked += ["cold-cache"] if levels.get("cache") == "cold" else []
    asked += ["realtime"] if levels.get("scheduling") == "fifo" else []
    reasons = [rig.missing[one] for one in asked if one in rig.missing]
    # What such a level is measured in: a container, and a process of the host that drops.
    used = [docker("host", storage=levels["storage"])] if "storage" in levels else []
    used += [bare("rules")] if levels.get("cache") == "cold" else []
    return next(filter(None, [*reasons, *(placement(rig, one) for one in used)]), None)


def _hosts(rig: Rig, levels: Mapping[str, Any], wanted: Any) -> str | None:
    """Return why there are not as many hosts as a condition asks for."""
    two = levels.get("sides") == "both" or levels.get("hosts") == 2
    if two and peer.ROLE not in rig.sites:
        return rig.missing.get(peer.ROLE, "the rig has no second host with an engine")
    if levels.get("hosts") == 2 and getattr(wanted, "rung", "") == "clean":
        return "the rig has one host without an engine"
    if levels.get("capture") == "on" and collector.ROLE not in rig.sites:
        return rig.missing.get(collector.ROLE, "the rig has no host that listens at the switch")
    return None
