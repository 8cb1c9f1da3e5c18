"""Treatments: settings that the level of a factor applies around a trial.

A study declares them by factor or setting: ``Study(treatments={"wait": BusyPolling()})``. A
treatment says which rigs are able to run it, is applied by the protocol, and is verified in every
window. A factor or setting without a treatment is a value that only the protocol reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from labkit.campaign.background import Captured, capture_packets
from labkit.errors import CpusDisturbed, ManipulationError, RigError
from labkit.hosts import Host, LocalHost, Tuning, script
from labkit.hosts.journal import offload
from labkit.hosts.packet_steering import LEVELS, infeasible, read_queues, steer
from labkit.hosts.tuning import LATENCY_REQUEST, takes_latency_request
from labkit.placement import CPU_SLOW, Placement, apart, bare, docker, slow
from labkit.rig import Rig
from labkit.rig.base import AFFINITIES
from labkit.runtimes import Server

#: The level of a treatment that leaves the host as it is.
AS_FOUND = "as found"
Levels = Mapping[str, Any]
Mechanisms = Mapping[str, float]


class Treatment:
    """The base of treatments: feasible on every rig, without any effect."""

    #: All levels; None where any value is one.
    known: ClassVar[Collection[Any] | None] = None

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why a rig cannot run `level` in a condition with `levels`, or None."""
        return None

    def apply(
        self, rig: Rig, level: Any, label: str, *args: Any, **options: Any
    ) -> AbstractContextManager[Any]:
        """Return the context in which the level is applied; `label` marks what it starts."""
        return nullcontext()

    def placed(self, level: Any, server: Server) -> None:
        """Apply the level inside a placement that has just been verified."""

    def ready(self, rig: Rig, level: Any) -> None:
        """Wait until a window may begin."""

    def begin(self, rig: Rig, level: Any) -> None:
        """Apply what may only be there in the window itself, after every treatment is ready."""

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return flags: the validity rules that a window at the level breaks.

        Raises
        ------
        ManipulationError
            The level had no effect.
        """
        return []


@dataclass(frozen=True)
class Pinning(Treatment):
    """The affinity of server and client, a level of `labkit.rig.base.AFFINITIES`.

    Parameters
    ----------
    wait : str
        The factor whose level "spin" makes both ends spin; they cannot share a CPU then.
    """

    known = AFFINITIES
    wait: str = "wait"

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the rig lacks the CPUs, or None."""
        capability = {"split": "two-cpus", "same": "one-machine"}.get(level, "")
        if capability in rig.missing:
            return rig.missing[capability]
        if level == "same" and levels.get(self.wait) == "spin":
            return (
                "two spinning ends on one CPU alternate at the timer tick, so that a message takes "
                "milliseconds and measures the scheduler"
            )
        return None

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return a flag where a pinned server migrated."""
        migrations = mechanisms.get("migrations", 0)
        pinned = level in ("split", "same")
        return [f"server migrated {migrations:.0f} times"] if pinned and migrations > 0 else []


class BusyPolling(Treatment):
    """Busy polling by the kernel, at the level "busy_poll"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the kernel cannot poll, or None."""
        return rig.missing.get("busy-poll") if level == "busy_poll" else None

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Return a flag where polling took no packet."""
        polled = level != "busy_poll" or mechanisms.get("TcpExt.BusyPollRxPackets")
        return [] if polled else ["busy polling took no packet"]


class IdlePolicy(Treatment):
    """The idle states of every machine: "held" at polling, which takes no time to leave.

    An open file holds it, so the kernel reverts it even after a kill. "as found" changes nothing.
    It is held from the window on: a hypervisor brings CPUs back to a shared cache (`SharedCache`)
    only where they go idle and wake each other.
    """

    known = (AS_FOUND, "held")

    def __init__(self) -> None:
        #: The tuning of every machine to hold, by its role.
        self._machines: dict[str, Tuning] = {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why a machine cannot be held, or None."""
        for role in _machines(rig) if level == "held" else ():
            if not takes_latency_request(rig.hosts[role]):
                return f"{role}: idle states cannot be held: {LATENCY_REQUEST} is not writable"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        """Let windows keep the CPUs of every machine from idle states that take time to leave."""
        roles = _machines(rig) if level == "held" else ()
        with ExitStack() as stack:
            for role in roles:
                self._machines[role] = stack.enter_context(Tuning(rig.hosts[role], label))
            stack.callback(self._machines.clear)
            yield

    def begin(self, rig: Rig, level: Any) -> None:
        """Keep them from those until the treatment ends."""
        while self._machines:
            role, tuning = self._machines.popitem()
            if not tuning.hold_idle():
                raise _not_set('the idle policy "held"', role, tuning)

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise where the policy was not in effect at the end of the window."""
        request = mechanisms.get("latency_request_us")
        if level == "held" and request is not None and request > 0:
            raise ManipulationError(
                "the idle policy was not held",
                why=f"the machine was allowed wake-up latencies of {request:.0f} us",
                remedy="another program may have ended it: labkit clean, then run again",
            )
        return []


class SharedCache(Treatment):
    """The cache that the kernel says generator and SUT share: "kept", or "as found".

    A hypervisor may move virtual CPUs to cores without one; all that passes between them then takes
    longer, by 1.2 to 2.5 times. At "kept" a window waits until they share it, and one in which
    they did not for a while is measured again: alone (`Trial.repeated`), or with its trial. Where
    they do not come to share it, each window is flagged. Nothing is kept on separate machines,
    which share none, and on processors other than AMD's, where it cannot be told.
    """

    known = (AS_FOUND, "kept")
    #: Seconds for which a window waits at most; half of it after each that waited in vain, to 2.
    _PATIENCE = 120.0

    def __init__(self) -> None:
        self._patience = self._PATIENCE
        #: Whether they shared it when the last window began.
        self._shared = True

    def ready(self, rig: Rig, level: Any) -> None:
        """Wait until the CPUs share a cache."""
        if level != "kept":
            return
        deadline = time.monotonic() + self._patience
        while (moved := apart(rig.cache_line())) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._shared = not moved
        self._patience = max(self._patience / 2, 2.0) if moved else self._PATIENCE

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise `CpusDisturbed` where the CPUs were moved apart in the window."""
        if level == "kept" and self._shared and apart(mechanisms):
            raise CpusDisturbed(
                "the hypervisor moved the CPUs of generator and SUT apart in the window",
                why=f"a cache line takes {mechanisms['cache_line_ns']:.0f} ns there and back: they "
                "share no cache",
                remedy='the trial is repeated; shared_cache "as found" keeps such trials',
            )
        return []


class CpuSpeed(Treatment):
    """The speed of the CPU that runs file operations: "kept", or "as found".

    Another guest may use the other thread of its core, which steal does not show; the CPU then runs
    at 0.6 to 0.7 of its speed, for a tenth of a second to minutes. A trial is slow in which a
    reference operation (``reference_ns``, opening and closing /dev/null) took more than 1.25 times
    the shortest time of the campaign so far. At "kept" it is repeated, after a pause; where the CPU
    stays slow, it is flagged, as at "as found".
    """

    known = (AS_FOUND, "kept")
    #: So many slow attempts in a row are repeated at most: half as many, but at least 1, after each
    #: time that this did not help.
    _PATIENCE = 8
    #: Seconds before the first repetition; twice as many before each further one.
    _PAUSE = 0.25

    def __init__(self) -> None:
        #: The shortest time so far in the campaign.
        self.least_ns = math.inf
        self._patience, self._slow = self._PATIENCE, 0

    def ready(self, rig: Rig, level: Any) -> None:
        """Pause after attempts at which the CPU was slow."""
        if self._slow:
            time.sleep(self._PAUSE * 2 ** (self._slow - 1))

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise `CpusDisturbed` where the CPU was slow before, between or after the operations."""
        self.least_ns = min(self.least_ns, mechanisms.get("reference_ns", math.inf))
        if not slow(mechanisms, self.least_ns):
            self._patience, self._slow = self._PATIENCE, 0
            return []
        if level != "kept":
            return [CPU_SLOW]
        self._slow += 1
        if self._slow > self._patience:
            self._patience, self._slow = max(self._patience // 2, 1), 0
            return [CPU_SLOW]
        raise CpusDisturbed(
            "the CPU was slow in the window",
            why=f"to open and close /dev/null took {mechanisms['reference_ns']:.0f} ns, where it "
            f"takes {self.least_ns:.0f}: another guest may have used the other thread of its core",
            remedy='the trial is repeated; cpu_speed "as found" flags and keeps it',
        )


def _machines(rig: Rig) -> Sequence[str]:
    """Return a role for each machine of the rig."""
    return ["sut"] if rig.shared_kernel else list(rig.hosts)


_TCP = "/proc/sys/net/ipv4/tcp_"
_CONGESTION, _ALLOWED = f"{_TCP}congestion_control", f"{_TCP}allowed_congestion_control"
_CONTROLS = f"[ -w {_CONGESTION} ] && cat {_TCP}available_congestion_control"
_SET_CONTROL = f"""
nsenter -t "$1" -n sh -c 'echo "$1" >{_CONGESTION}; cat {_CONGESTION}' sh "$2"
"""


class CongestionControl(Treatment):
    """The TCP congestion control of every end, such as "cubic"; "as found" changes nothing.

    Each network namespace has its own: those of the hosts are set and restored, those of containers
    are set when the container runs and end with it.
    """

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why an end cannot have the algorithm, or None."""
        if level == AS_FOUND:
            return None
        for role, host in rig.hosts.items():
            known = _controls(host)
            if level not in known:
                has = f"it has {', '.join(known)}" if known else "it cannot be set there"
                return f"{role}: no TCP congestion control {level!r}: {has}"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        """Set the congestion control of the hosts' own network namespaces."""
        with ExitStack() as stack:
            roles = {} if level == AS_FOUND else rig.hosts
            if roles and rig.kind == "virtual":
                # Only the machine's own namespace may allow an algorithm to the others.
                machine = stack.enter_context(Tuning(LocalHost(), label))
                allowed = machine.host.run("cat", _ALLOWED, check=False).stdout.split()
                if level not in allowed:
                    machine.set_file(_ALLOWED, " ".join([*allowed, level]))
            for role, host in roles.items():
                tuning = stack.enter_context(Tuning(host, label))
                if not tuning.set_file(_CONGESTION, level):
                    raise _not_set(f"the TCP congestion control {level!r}", role, tuning)
            yield

    def placed(self, level: Any, server: Server) -> None:
        """Set it inside a placement with a network of its own, and verify it in any."""
        if level == AS_FOUND:
            return
        namespaces = server.verification["namespaces"], server.verification["host_namespaces"]
        found = server.verification.get("congestion_control", "")
        if namespaces[0]["net"] != namespaces[1]["net"]:
            argv = script(_SET_CONTROL, str(server.pid), level)
            found = server.host.run(*argv, check=False).stdout.strip()
            server.verification["congestion_control"] = found
        if found != level:
            raise ManipulationError(
                f"the TCP congestion control is {found or 'unknown'}, not {level}",
                where=f"host {server.host.name}, process {server.pid}",
                remedy="place it inside the treatment's context: with trial.apply(...):",
            )


def _not_set(what: str, role: str, tuning: Tuning) -> RigError:
    """Return the error of a host that does not take a setting."""
    return RigError(
        f"{what} cannot be set",
        where=f"host {role}",
        why="; ".join(tuning.notes),
        remedy='measure with "as found"',
    )


def _controls(host: Host) -> list[str]:
    """Return the algorithms of a host's kernel; none where it cannot be set."""
    return host.run(*script(_CONTROLS), check=False).stdout.split()


#: What sends a packet in a tunnel as one of up to 64 KB, which the other end need not put together.
_TUNNEL_OFFLOADS = ("tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation")


class TunnelOffload(Treatment):
    """Segmentation of tunnelled packets by the hosts' interfaces; "off", or "as found".

    Where it is off, the sending kernel cuts a stream into packets before they leave.
    """

    known = (AS_FOUND, "off")

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why an interface of the lab cannot be without it, or None."""
        for role, device in _ends(rig) if level == "off" else ():
            for feature in _TUNNEL_OFFLOADS:
                if offload(rig.hosts[role], f"{device} {feature}") is None:
                    return f"{role}: the offload {feature} of {device} cannot be changed"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        """Turn it off on the interfaces of both ends."""
        with ExitStack() as stack:
            for role, device in _ends(rig) if level == "off" else ():
                tuning = stack.enter_context(Tuning(rig.hosts[role], label))
                if not all(tuning.set_offload(device, name, "off") for name in _TUNNEL_OFFLOADS):
                    raise _not_set(f"{device} without tunnel offloads", role, tuning)
            yield


def _ends(rig: Rig) -> list[tuple[str, str]]:
    """Return role and name of each interface of the lab at both ends."""
    return [(role, device) for role in ENDS for device in rig.interfaces.get(role, ())]


class ColdCache(Treatment):
    """Dropping a host's file caches, at the level "cold"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why caches cannot be dropped, or None."""
        if level != "cold":
            return None
        return rig.missing.get("cold-cache") or rig.infeasible(bare("rules"))


class RealTime(Treatment):
    """The real-time scheduling class SCHED_FIFO, at the level "fifo", of the server or a client."""

    known = ("other", "fifo")

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why there is no real-time class, or None."""
        return rig.missing.get("realtime") if level == "fifo" else None


class ContainerStorage(Treatment):
    """The storage of Docker containers, a level of `labkit.placement.STORAGES`."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the rig has no such storage, or None."""
        return rig.infeasible(docker("host", storage=level))


@dataclass(frozen=True)
class SecondHost(Treatment):
    """Placements on a second host with an engine, ``peer``, at one level.

    Parameters
    ----------
    at : object
        The level that needs the second host.
    spread : bool
        Whether the condition's placement is then on both hosts.
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
        clean = any(one.baseline_level == "clean" for one in placements)
        if self.spread and clean and "clean-peer" not in rig.targets:
            return "the rig has one host without an engine"
        return None


class PacketCapture(Treatment):
    """Capturing traffic at the switch on the collector, "on" or "off"."""

    known = ("off", "on")

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why nothing can be captured, or None."""
        if level != "on" or "collector" in rig.targets:
            return None
        return rig.missing.get("collector", "the rig has no collector")

    @contextmanager
    def apply(
        self, rig: Rig, level: Any, label: str, *, expression: str = "udp"
    ) -> Iterator[Captured]:
        """Capture packets that match a filter of tcpdump; none at "off"."""
        if level == "off":
            yield Captured()
            return
        if "collector" not in rig.targets:
            raise RigError(
                "the rig has no collector", remedy="run inside `with lab.collector(): ...`"
            )
        target, interface = rig.targets["collector"], rig.interfaces["collector"][0]
        cpus = rig.cpu_map["collector"]
        with (
            rig.mirror(),
            capture_packets(target, interface, f"{label}-capture", cpus, expression) as captured,
        ):
            yield captured


#: The hosts of the server, and of a client in a container.
ENDS = ("sut", "peer")


class PacketSteering(Treatment):
    """Steering received packets to CPUs, a level of `labkit.hosts.packet_steering.LEVELS`."""

    known = LEVELS

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why the interfaces of the lab do not support the level, or None."""
        for role in ENDS:
            if role not in rig.targets:
                return f"the rig has no host {role}"
            if reason := _unsteerable(rig, role, LEVELS[level]):
                return reason
        return None

    @contextmanager
    def apply(
        self, rig: Rig, level: Any, label: str, *, cpus: str = "own", at: Sequence[str] = ENDS
    ) -> Iterator[dict[str, Any]]:
        """Steer packets that the hosts `at` receive; yield what was read back, by role.

        `cpus` is a CPU list: "own" for the CPUs of the receiving host, "all" for its machine's.
        """
        record: dict[str, Any] = {}
        with ExitStack() as stack:
            virtual = rig.kind == "virtual"
            machine = stack.enter_context(Tuning(LocalHost(), label)) if virtual else None
            for role in at:
                if role not in rig.targets:
                    raise RigError(
                        f"cannot steer packets on {role}", why="the rig has no such host"
                    )
                tuning = stack.enter_context(Tuning(rig.hosts[role], label))
                cpu_list, sysfs = _steering_cpus(rig, role, cpus), rig.targets[role].sysfs
                record[role] = {
                    device: steer(
                        tuning, device, level, cpu_list, sysfs=sysfs, machine=machine
                    ).record()
                    for device in rig.interfaces[role]
                }
            yield record

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise unless packets were steered: ``rps_ipis`` counts interrupts between CPUs."""
        if level != "off" and not mechanisms.get("rps_ipis"):
            raise ManipulationError(
                "no packet was steered",
                why="RPS interrupted no other CPU in the whole window"
                if "rps_ipis" in mechanisms
                else "this kernel does not count the interrupts of RPS",
                remedy="steer to a CPU that does not receive the device's interrupts",
            )
        return []


class ReceivingCpu(Treatment):
    """The CPU that takes in what a host receives: one of its "own", or "as found".

    Between namespaces of one kernel the CPU of the sender takes packets in, up to the receiver's
    socket. "own" moves the packets of the lab's interfaces to the CPUs of the host that receives
    them, as the interrupt of a network card would. Other rigs are left as they are.
    """

    known = (AS_FOUND, "own")

    def __init__(self) -> None:
        self._steering = PacketSteering()
        #: The level of packet steering that is in effect; None outside a trial.
        self._level: str | None = None

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why an interface of the lab cannot move packets, or None."""
        roles = _receivers(rig) if level == "own" else []
        return next(filter(None, (_unsteerable(rig, role, LEVELS["on"]) for role in roles)), None)

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[dict[str, Any]]:
        """Move packets to the receiving host's CPUs; yield what was read back, by role."""
        at = _receivers(rig) if level == "own" else []
        self._level = "on" if at else "off"
        moved: AbstractContextManager[dict[str, Any]] = nullcontext({})
        if at:
            moved = self._steering.apply(rig, "on", label, at=at)
        try:
            with moved as record:
                yield record
        finally:
            self._level = None

    def check(self, level: Any, mechanisms: Mechanisms) -> list[str]:
        """Raise unless packets were moved."""
        if level == "own" and self._level is None:
            raise ManipulationError(
                "no packet was moved to the CPU of the host that receives it",
                why="the protocol does not apply the treatment",
                remedy='measure inside `with trial.apply("receiving_cpu")`',
            )
        return self._steering.check(self._level, mechanisms) if level == "own" else []


def _unsteerable(rig: Rig, role: str, mechanisms: Sequence[str]) -> str | None:
    """Return why an interface of a host cannot have the mechanisms of packet steering, or None."""
    for device in rig.interfaces.get(role, ()) if mechanisms else ():
        queues = read_queues(rig.hosts[role], device, sysfs=rig.targets[role].sysfs)
        reasons = (infeasible(queues, what) for what in mechanisms)
        if reason := next(filter(None, reasons), None):
            return f"{role}: {reason}"
    return None


def _receivers(rig: Rig) -> list[str]:
    """Return the hosts whose packets the CPU of the sender takes in."""
    apart = rig.shared_kernel and "separate-cpu-time" not in rig.missing
    roles = rig.interfaces if apart else ()
    return [role for role in roles if role in rig.targets and role != "collector"]


def _steering_cpus(rig: Rig, role: str, cpus: str) -> str:
    """Return the CPU list; "own" are all CPUs where the host has its own kernel."""
    if cpus == "all" or (cpus == "own" and not rig.shared_kernel):
        return rig.cpus(role, "free")
    return rig.cpus(role, "split") if cpus == "own" else cpus
