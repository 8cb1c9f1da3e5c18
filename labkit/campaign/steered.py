"""Steering of received packets as a treatment: set on the lab's interfaces, read back, proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from labkit.errors import ManipulationError, RigError
from labkit.hosts import LocalHost, Tuning
from labkit.hosts.queues import read_queues, refusal
from labkit.hosts.steering import LEVELS, steer
from labkit.rig import Rig

#: Both hosts that receive: of the server, and of a client in a container.
ENDS = ("sut", "peer")


def lacking(rig: Rig, level: str) -> str | None:
    """Return why the lab's interfaces cannot be brought to a level of `LEVELS`, or None."""
    for role in ENDS:
        if role not in rig.sites:
            return f"the rig has no host {role}"
        for device in rig.interfaces.get(role, ()) if LEVELS[level] else ():
            queues = read_queues(rig.hosts[role], device, sysfs=rig.sites[role].sysfs)
            reasons = (refusal(queues, what) for what in LEVELS[level])
            if reason := next(filter(None, reasons), None):
                return f"{role}: {reason}"
    return None


@contextmanager
def held(
    rig: Rig, level: str, cpus: str, label: str, at: Sequence[str] = ENDS
) -> Iterator[dict[str, Any]]:
    """Have the lab's interfaces of some hosts at a level, and yield what was read back."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        own = [stack.enter_context(Tuning(LocalHost(), label))] if rig.kind == "virtual" else []
        for role in at:
            if role not in rig.sites:
                raise RigError(f"nothing is steered on {role}", why="the rig has no such host")
            tuning = stack.enter_context(Tuning(rig.hosts[role], label))
            sysfs, machine = rig.sites[role].sysfs, own[0] if own else None
            wanted = _cpus(rig, role, cpus)
            found[role] = {
                one: steer(tuning, one, level, wanted, sysfs=sysfs, machine=machine).record()
                for one in rig.interfaces[role]
            }
        yield found


def check(level: str, found: Mapping[str, float]) -> None:
    """Raise unless a window at a level saw packets steered.

    Parameters
    ----------
    level : str
        Of `LEVELS`.
    found : mapping
        Mechanisms of the window; ``rps_ipis`` counts the calls from CPU to CPU of RPS.
    """
    if level != "off" and not found.get("rps_ipis"):
        raise ManipulationError(
            "no packet was steered",
            why="in the whole window RPS called no other CPU: it did nothing"
            if "rps_ipis" in found
            else "this kernel does not count what RPS hands over",
            remedy="steer to a CPU that does not receive anyway, on a device that receives",
        )


def _cpus(rig: Rig, role: str, cpus: str) -> str:
    """Return the CPU list that is meant; what a host of its own kernel has is all of its CPUs."""
    if cpus == "all" or (cpus == "own" and not rig.shared_kernel):
        return rig.cpus(role, "free")
    return rig.cpus(role, "split") if cpus == "own" else cpus
