"""Treatments: what a level of a factor or setting does to a trial, as a study declares it.

A study names the treatments of its factors and settings: ``Study(treatments={"wait":
BusyPolling()})``. Each says where it is feasible, is applied by the protocol, and is checked in
every window. A factor or setting without a treatment is a value that only the protocol reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from labkit.campaign.background import Captured, capture_packets
from labkit.errors import ManipulationError, RigError
from labkit.hosts import LocalHost, Tuning
from labkit.hosts.packet_steering import LEVELS, infeasible, read_queues, steer
from labkit.placement import Placement, bare, docker
from labkit.rig import Rig

Levels = Mapping[str, Any]
Mechanisms = Mapping[str, float]


class Treatment:
    """A treatment that is feasible on every rig and changes nothing; subclasses say otherwise."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why a rig cannot run the level of a condition with these levels, or None."""
        return None

    def apply(
        self, rig: Rig, level: Any, label: str, *args: Any, **options: Any
    ) -> AbstractContextManager[Any]:
        """Return the context in which the level holds; `label` marks whatever is started."""
        return nullcontext()

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return the validity rules that a window at the level breaks.

        Raises
        ------
        ManipulationError
            The level had no effect: the trial is not what its label says.
        """
        return []


@dataclass(frozen=True)
class Pinning(Treatment):
    """The affinity of both ends: a level of `labkit.rig.base.AFFINITIES`.

    Parameters
    ----------
    wait : str
        The factor whose level "spin" has both ends spin: they cannot share a CPU.
    """

    wait: str = "wait"

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the ends cannot be pinned so, or None."""
        capability = {"split": "two-cpus", "same": "one-machine"}.get(level, "")
        if capability in rig.missing:
            return rig.missing[capability]
        if level == "same" and levels.get(self.wait) == "spin":
            return (
                "two spinning ends on one CPU hand over at the timer tick: one message takes "
                "milliseconds, and measures the scheduler"
            )
        return None

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return a flag where a pinned server migrated."""
        migrations = mechanisms.get("migrations", 0)
        pinned = level in ("split", "same")
        return [f"server migrated {migrations:.0f} times"] if pinned and migrations > 0 else []


class BusyPolling(Treatment):
    """How the ends wait for a message; the kernel polls for them at the level "busy_poll"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the kernel cannot poll, or None."""
        return rig.missing.get("busy-poll") if level == "busy_poll" else None

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return a flag where polling took no packet."""
        polled = level != "busy_poll" or mechanisms.get("TcpExt.BusyPollRxPackets")
        return [] if polled else ["busy polling took no packet"]


class IdlePolicy(Treatment):
    """The idle policy of the machines, which `Rig.idle` holds for a whole campaign."""

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise where the policy was not held to the end of the window."""
        request = mechanisms.get("latency_request_us")
        if level == "held" and request is not None and request > 0:
            raise ManipulationError(
                "the idle policy was not held",
                why=f"the machine was allowed {request:.0f} us to wake up",
                remedy="did another program end the hold? labkit clean, then run again",
            )
        return []


class ColdCache(Treatment):
    """Whether a host's file caches are dropped, by a process of its own, at the level "cold"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why caches cannot be dropped, or None."""
        if level != "cold":
            return None
        return rig.missing.get("cold-cache") or rig.infeasible(bare("rules"))


class RealTime(Treatment):
    """The scheduling class of the server; "fifo" is SCHED_FIFO."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why there is no real-time class, or None."""
        return rig.missing.get("realtime") if level == "fifo" else None


class ContainerStorage(Treatment):
    """The storage of Docker containers: a level of `labkit.placement.DRIVERS` or ``MOUNTS``."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the rig has no such storage, or None."""
        return rig.infeasible(docker("host", storage=level))


@dataclass(frozen=True)
class SecondHost(Treatment):
    """Placements on a second host with an engine, ``peer``, at one level.

    Parameters
    ----------
    at : object
        The level that takes the second host.
    spread : bool
        Whether the condition's own placement is on both hosts.
    """

    at: Any
    spread: bool = False

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why there is no second host for the condition, or None."""
        if level != self.at:
            return None
        if "peer" not in rig.targets:
            return rig.missing.get("peer", "the rig has no second host with an engine")
        placements = [one for one in levels.values() if isinstance(one, Placement)]
        if self.spread and any(one.baseline_level == "clean" for one in placements):
            return "the rig has one host without an engine"
        return None


class PacketCapture(Treatment):
    """Whether traffic is captured at the switch by the collector: "on" or "off"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why nothing can be captured, or None."""
        if level != "on" or "collector" in rig.targets:
            return None
        return rig.missing.get("collector", "the rig has no host that listens at the switch")

    @contextmanager
    def apply(
        self, rig: Rig, level: Any, label: str, *, expression: str = "udp"
    ) -> Iterator[Captured]:
        """Capture packets that match a tcpdump expression; at "off" none."""
        if level == "off":
            yield Captured()
            return
        if "collector" not in rig.targets:
            raise RigError(
                "the rig has no collector", remedy="with lab.collector(): ... has one listen"
            )
        target, interface = rig.targets["collector"], rig.interfaces["collector"][0]
        cpus = rig.cpu_map["collector"]
        with (
            rig.mirror(),
            capture_packets(target, interface, f"{label}-capture", cpus, expression) as captured,
        ):
            yield captured


#: Both hosts that receive: of the server, and of a client in a container.
ENDS = ("sut", "peer")


class PacketSteering(Treatment):
    """Steering of received packets to CPUs: a level of `labkit.hosts.packet_steering.LEVELS`."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the lab's interfaces cannot be brought to the level, or None."""
        for role in ENDS:
            if role not in rig.targets:
                return f"the rig has no host {role}"
            for device in rig.interfaces.get(role, ()) if LEVELS[level] else ():
                queues = read_queues(rig.hosts[role], device, sysfs=rig.targets[role].sysfs)
                reasons = (infeasible(queues, what) for what in LEVELS[level])
                if reason := next(filter(None, reasons), None):
                    return f"{role}: {reason}"
        return None

    @contextmanager
    def apply(
        self, rig: Rig, level: Any, label: str, *, cpus: str = "own", at: Sequence[str] = ENDS
    ) -> Iterator[dict[str, Any]]:
        """Steer what the hosts `at` receive, and yield what was read back from each interface.

        `cpus` is a CPU list: "own" for the CPUs of the receiving host, "all" for its machine's.
        """
        record: dict[str, Any] = {}
        with ExitStack() as stack:
            own = [stack.enter_context(Tuning(LocalHost(), label))] if rig.kind == "virtual" else []
            for role in at:
                if role not in rig.targets:
                    raise RigError(f"nothing is steered on {role}", why="the rig has no such host")
                tuning = stack.enter_context(Tuning(rig.hosts[role], label))
                sysfs, machine = rig.targets[role].sysfs, own[0] if own else None
                wanted = _steering_cpus(rig, role, cpus)
                record[role] = {
                    one: steer(tuning, one, level, wanted, sysfs=sysfs, machine=machine).record()
                    for one in rig.interfaces[role]
                }
            yield record

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise unless packets were steered; ``rps_ipis`` counts the calls from CPU to CPU."""
        if level != "off" and not mechanisms.get("rps_ipis"):
            raise ManipulationError(
                "no packet was steered",
                why="in the whole window RPS called no other CPU: it did nothing"
                if "rps_ipis" in mechanisms
                else "this kernel does not count what RPS hands over",
                remedy="steer to a CPU that does not receive anyway, on a device that receives",
            )
        return []


def _steering_cpus(rig: Rig, role: str, cpus: str) -> str:
    """Return the CPU list that is meant; a host with a kernel of its own has all of its CPUs."""
    if cpus == "all" or (cpus == "own" and not rig.shared_kernel):
        return rig.cpus(role, "free")
    return rig.cpus(role, "split") if cpus == "own" else cpus
