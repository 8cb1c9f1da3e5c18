"""Treatments: levels that labkit applies around a trial, and verifies in every window.

A study declares one as the levels of a factor, ``"wait": BusyPolling("block", "busy_poll")``, or as
a setting, ``"idle": IdlePolicy("held")``. Any other factor or setting is a value that only the
protocol reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

from labkit.errors import CpusDisturbed, ManipulationError, RigError, UsageError, suggestion
from labkit.hosts import Host, LocalHost, Settings, script
from labkit.hosts.cache_line import apart
from labkit.hosts.packet_steering import read_queues, steer
from labkit.hosts.settings import LATENCY_REQUEST
from labkit.placement import cpu_set, docker
from labkit.rig import Rig
from labkit.rig.base import AFFINITIES
from labkit.rig.layers import LayeredImage
from labkit.runtimes import Server

#: The level of a treatment that leaves the host as it is.
AS_FOUND = "as found"
#: The hosts of the server, and of a client in a container.
ENDS = ("sut", "peer")
#: A CPU is slow if the reference operation takes more than this many times the least that was
#: read. On an Intel Xeon of 2023, nine of ten readings at full speed were within 1.12 times the
#: least; where the other thread of the core was in use, opening a file took 1.6 times as long.
SLOW = 1.25
#: The flag of a window in which it was.
CPU_SLOW = "the CPU was slow before, between or after the operations"
Levels = Mapping[str, Any]
Counters = Mapping[str, float]


class Treatment:
    """The base of treatments, without any effect; its arguments are levels, or lists of them.

    A treatment's options are attributes of its class.
    """

    #: All levels; None where any value is one.
    known: ClassVar[Collection[Any] | None] = None

    def __init__(self, *levels: Any, **options: Any) -> None:
        lists = [one if isinstance(one, list | tuple) else [one] for one in levels]
        self.levels: list[Any] = [level for one in lists for level in one]
        name = type(self).__name__
        for level in self.levels:
            if self.known is not None and level not in self.known:
                remedy = suggestion(level, self.known)
                raise UsageError(f"{name} has no level {level!r}", remedy=remedy)
        for option, value in options.items():
            if not hasattr(self, option):
                raise UsageError(f"{name} has no option {option!r}")
            setattr(self, option, value)

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of `Rig.open` for some levels: peer, collector, layers."""
        return {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why a rig cannot run `level` in a condition with `levels`, or None."""
        return None

    def apply(self, rig: Rig, level: Any, label: str) -> AbstractContextManager[Any]:
        """Return the context of a trial at the level; the trial's record keeps what it yields."""
        return nullcontext()

    def placed(self, level: Any, server: Server) -> None:
        """Apply the level inside a placement that has just been verified."""

    def ready(self, rig: Rig, level: Any) -> None:
        """Wait until a window may begin."""

    def begin(self, rig: Rig, level: Any) -> None:
        """Apply what may only be there in the window itself, after every treatment is ready."""

    def check(self, level: Any, counters: Counters) -> list[str]:
        """Return flags of a window; raise `ManipulationError` if the level had no effect."""
        return []


class _Needs(Treatment):
    """The base of treatments whose `level` only needs a `capability` of the rig."""

    level: ClassVar[str] = ""
    capability: ClassVar[str] = ""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        return rig.missing.get(self.capability) if level == self.level else None


class BusyPolling(_Needs):
    """Busy polling by the kernel, at the level "busy_poll"."""

    level, capability = "busy_poll", "busy-poll"

    def check(self, level: Any, counters: Counters) -> list[str]:
        polled = level != self.level or counters.get("TcpExt.BusyPollRxPackets")
        return [] if polled else ["busy polling took no packet"]


class RealTime(_Needs):
    """The real-time scheduling class SCHED_FIFO, at the level "fifo", of the server or a client."""

    known = ("other", "fifo")
    level, capability = "fifo", "realtime"


class ColdCache(_Needs):
    """Dropping a host's file caches just before a window, at the level "cold"."""

    level, capability = "cold", "cold-cache"

    def begin(self, rig: Rig, level: Any) -> None:
        if level == self.level:
            # Dirty pages could not be dropped.
            rig.targets["sut"].host.run(*script("sync; echo 3 >/proc/sys/vm/drop_caches"))


class ContainerStorage(Treatment):
    """The storage of Docker containers, a level of `labkit.placement.STORAGES`."""

    #: Those of its containers.
    images: Sequence[LayeredImage] = ()

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"layers": self.images}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        return rig.infeasible(docker("host", storage=level))


class PacketCapture(Treatment):
    """Capturing traffic at the switch (`Trial.capture`), "on" or "off"."""

    known = ("off", "on")
    #: The roles whose ports are mirrored to the collector.
    of: Sequence[str] = ("sut", "clean")

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"collector": tuple(self.of)} if "on" in levels else {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        if level != "on" or "collector" in rig.targets:
            return None
        return rig.missing.get("collector", "the rig has no collector")


class SecondHost(Treatment):
    """Placements on a second host with an engine, ``peer``, at the level `at`."""

    at: Any = None
    #: Names of ``containers/`` for its engine.
    images: Sequence[str] = ()
    #: Whether the condition's placement is then on both hosts.
    spread = False

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"peer": self.images, "clean_peer": self.spread} if self.at in levels else {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        if level != self.at:
            return None
        if "peer" not in rig.targets:
            return rig.missing.get("peer", "the rig has no second host with an engine")
        clean = any(getattr(one, "baseline_level", "") == "clean" for one in levels.values())
        lacking = self.spread and clean and "clean-peer" not in rig.targets
        return "the rig has one host without an engine" if lacking else None


class Pinning(Treatment):
    """The affinity of server and client: "split", one CPU for each, or "free"."""

    known = AFFINITIES

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        return rig.missing.get("two-cpus") if level == "split" else None

    def check(self, level: Any, counters: Counters) -> list[str]:
        migrations = counters.get("migrations", 0) if level == "split" else 0
        return [f"server migrated {migrations:.0f} times"] if migrations > 0 else []


class SharedCache(Treatment):
    """The cache that the kernel says generator and SUT share: "kept", or "as found".

    A hypervisor may move virtual CPUs to cores without one; what passes between them then takes 1.2
    to 2.5 times as long. At "kept" a window waits until they share it, and one in which they did
    not for a while is measured again: alone (`Trial.repeated`), or with its trial. Where they do
    not come to share it, each window is flagged. It is timed on one machine with AMD's processor.
    """

    known = (AS_FOUND, "kept")
    #: Seconds for which a window waits: at most, and at least after ever more waits in vain.
    MOST, LEAST = 120.0, 2.0
    _patience = MOST
    #: Whether they shared it when the last window began.
    _shared = True

    def ready(self, rig: Rig, level: Any) -> None:
        if level != "kept":
            return
        deadline = time.monotonic() + self._patience
        while (moved := apart(rig.cache_line())) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._shared = not moved
        self._patience = max(self._patience / 2, self.LEAST) if moved else self.MOST

    def check(self, level: Any, counters: Counters) -> list[str]:
        if level == "kept" and self._shared and apart(counters):
            raise CpusDisturbed(
                "the hypervisor moved the CPUs of generator and SUT apart in the window",
                why=f"a cache line takes {counters['cache_line_ns']:.0f} ns there and back: they "
                "share no cache",
                remedy='the trial is repeated; shared_cache "as found" keeps such trials',
            )
        return []


class CpuSpeed(Treatment):
    """The speed of the CPU that runs file operations: "kept", or "as found".

    Another guest may use the other thread of its core, which steal does not show; the CPU then runs
    at 0.6 to 0.7 of its speed, for a tenth of a second to minutes. A trial is slow in which opening
    and closing /dev/null (``reference_ns``) took more than `SLOW` times the shortest time of the
    campaign so far. At "kept" it is repeated at most twice, and then flagged, as at "as found".
    """

    known = (AS_FOUND, "kept")
    REPETITIONS = 2
    #: The shortest time so far in the campaign, and the slow attempts in a row.
    least_ns, _slow = math.inf, 0

    def check(self, level: Any, counters: Counters) -> list[str]:
        self.least_ns = min(self.least_ns, counters.get("reference_ns", math.inf))
        if counters.get("reference_ns", 0.0) <= SLOW * self.least_ns:
            self._slow = 0
            return []
        self._slow += 1
        if level != "kept" or self._slow > self.REPETITIONS:
            self._slow = 0
            return [CPU_SLOW]
        raise CpusDisturbed(
            "the CPU was slow in the window",
            why=f"to open and close /dev/null took {counters['reference_ns']:.0f} ns, where it "
            f"takes {self.least_ns:.0f}: another guest may have used the other thread of its core",
            remedy='the trial is repeated; cpu_speed "as found" flags and keeps it',
        )


class IdlePolicy(Treatment):
    """The idle states of every machine: "held" at polling, which takes no time to leave.

    An open file holds it, so the kernel reverts it even after a kill. It is held from the window
    on: a hypervisor brings CPUs back to a shared cache (`SharedCache`) only where they go idle and
    wake each other.
    """

    known = (AS_FOUND, "held")

    #: Role and settings of every machine that is still to be held.
    _machines: tuple[tuple[str, Settings], ...] = ()

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for role in _machines(rig, level):
            writable = rig.hosts[role].run("test", "-w", LATENCY_REQUEST, check=False)
            if writable.status != 0:
                return f"{role}: idle states cannot be held: {LATENCY_REQUEST} is not writable"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        with ExitStack() as stack:
            roles = _machines(rig, level)
            entered = [stack.enter_context(Settings(rig.hosts[role], label)) for role in roles]
            self._machines = tuple(zip(roles, entered, strict=True))
            stack.callback(setattr, self, "_machines", ())
            yield

    def begin(self, rig: Rig, level: Any) -> None:
        machines, self._machines = self._machines, ()
        for role, settings in machines:
            _require(settings.hold_idle(), settings, role, 'the idle policy "held"')

    def check(self, level: Any, counters: Counters) -> list[str]:
        request = counters.get("latency_request_us", 0)
        if level == "held" and request > 0:
            raise ManipulationError(
                "the idle policy was not held",
                why=f"the machine was allowed wake-up latencies of {request:.0f} us",
                remedy="another program may have ended it: labkit clean, then run again",
            )
        return []


def _machines(rig: Rig, level: Any) -> Sequence[str]:
    """Return a role for each machine of the rig that is to be held."""
    roles = ["sut"] if rig.shared_kernel else list(rig.hosts)
    return roles if level == "held" else []


def _require(done: bool, settings: Settings, role: str, what: str) -> None:
    """Raise `RigError` where a host did not take a setting."""
    if not done:
        raise RigError(
            f"{what} cannot be set",
            where=f"host {role}",
            why="; ".join(settings.notes),
            remedy='measure with "as found"',
        )


class Interrupts(Treatment):
    """The interrupts of the server's machine: "moved" off the CPU of the server, or "as found"."""

    known = (AS_FOUND, "moved")

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[dict[str, Any]]:
        moved: dict[str, Any] = {}
        with ExitStack() as stack:
            for role in ("sut", "clean") if level == "moved" else ():
                if role not in rig.hosts or (role == "clean" and rig.shared_kernel):
                    continue
                others = cpu_set(rig.cpus(role, "free")) - cpu_set(rig.cpus(role, "split"))
                if others:  # there may be one CPU only
                    settings = stack.enter_context(Settings(rig.hosts[role], label))
                    moved[role] = settings.move_irqs(",".join(map(str, sorted(others))))
            yield moved


_TCP = "/proc/sys/net/ipv4/tcp_"
_CONGESTION, _ALLOWED = f"{_TCP}congestion_control", f"{_TCP}allowed_congestion_control"
_CONTROLS = f"[ -w {_CONGESTION} ] && cat {_TCP}available_congestion_control"
_SET_CONTROL = (
    f"""nsenter -t "$1" -n sh -c 'echo "$1" >{_CONGESTION}; cat {_CONGESTION}' sh "$2" """
)


class CongestionControl(Treatment):
    """The TCP congestion control of every end, such as "cubic"; "as found" changes nothing.

    Each network namespace has its own: those of the hosts are set and restored, those of containers
    are set when the container runs and end with it.
    """

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for role, host in _controlled(rig, level):
            # None where it cannot be set.
            known = host.run(*script(_CONTROLS), check=False).stdout.split()
            if level not in known:
                has = f"it has {', '.join(known)}" if known else "it cannot be set there"
                return f"{role}: no TCP congestion control {level!r}: {has}"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        hosts = _controlled(rig, level)
        with ExitStack() as stack:
            if hosts and rig.kind == "virtual":
                # Only the machine's own namespace may allow an algorithm to the others.
                machine = stack.enter_context(Settings(LocalHost(), label))
                allowed = machine.host.run("cat", _ALLOWED, check=False).stdout.split()
                if level not in allowed:
                    machine.set_file(_ALLOWED, " ".join([*allowed, level]))
            for role, host in hosts:
                settings = stack.enter_context(Settings(host, label))
                done = settings.set_file(_CONGESTION, level)
                _require(done, settings, role, f"the TCP congestion control {level!r}")
            yield

    def placed(self, level: Any, server: Server) -> None:
        """Set it inside a placement with a network of its own, and verify it in any."""
        if level == AS_FOUND:
            return
        found = server.verification.get("congestion control", "")
        if server.verification["network"] == "its own":
            argv = script(_SET_CONTROL, str(server.pid), level)
            found = server.host.run(*argv, check=False).stdout.strip()
            server.verification["congestion control"] = found
        if found != level:
            raise ManipulationError(
                f"the TCP congestion control is {found or 'unknown'}, not {level}",
                where=f"host {server.host.name}, process {server.pid}",
                remedy="something else has set it: leave the rig alone while it measures",
            )


def _controlled(rig: Rig, level: Any) -> list[tuple[str, Host]]:
    return [] if level == AS_FOUND else list(rig.hosts.items())


class TunnelOffload(Treatment):
    """Segmentation of tunnelled packets by the hosts' interfaces; "off", or "as found".

    Where it is off, the sending kernel cuts a stream into packets before they leave.
    """

    known = (AS_FOUND, "off")
    #: What sends a packet in a tunnel as one of up to 64 KB, which the other end takes whole.
    FEATURES = ("tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation")

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for role, device in _devices(rig, ENDS) if level == "off" else ():
            for feature in self.FEATURES:
                target = f"{device} {feature}"
                if rig.hosts[role].call("get_value", target=target) is None:
                    return f"{role}: the offload {feature} of {device} cannot be changed"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[None]:
        with ExitStack() as stack:
            for role, device in _devices(rig, ENDS) if level == "off" else ():
                settings = stack.enter_context(Settings(rig.hosts[role], label))
                done = all(settings.set_offload(device, name, "off") for name in self.FEATURES)
                _require(done, settings, role, f"{device} without tunnel offloads")
            yield


def _devices(rig: Rig, roles: Sequence[str]) -> list[tuple[str, str]]:
    """Return role and name of each interface of the lab on some hosts."""
    return [(role, device) for role in roles for device in rig.interfaces.get(role, ())]


class PacketSteering(Treatment):
    """Receive Packet Steering at both ends: "on", to the CPUs of the receiving host, or "off"."""

    known: ClassVar[Collection[Any] | None] = ("off", "on")

    def ends(self, rig: Rig, level: Any) -> Sequence[str]:
        """Return the hosts whose received packets are steered, or are to be left unsteered."""
        return ENDS

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        roles = self.ends(rig, level)
        if absent := [role for role in roles if role not in rig.targets]:
            return f"the rig has no host {absent[0]}"
        for role, device in _devices(rig, roles) if level != "off" else ():
            if not read_queues(rig.hosts[role], device, sysfs=rig.targets[role].sysfs):
                return f"{role}: {device} is not there, or has no receive queue with rps_cpus"
        return None

    @contextmanager
    def apply(self, rig: Rig, level: Any, label: str) -> Iterator[dict[str, Any]]:
        """Steer, and yield what was read back, by role and device."""
        found: dict[str, Any] = {}
        with ExitStack() as stack:
            for role, device in _devices(rig, self.ends(rig, level)):
                settings = stack.enter_context(Settings(rig.hosts[role], label))
                # All of its CPUs where the host has its own kernel.
                cpus = rig.cpus(role, "split" if rig.shared_kernel else "free")
                cpus, sysfs = "" if level == "off" else cpus, rig.targets[role].sysfs
                found.setdefault(role, {})[device] = steer(settings, device, cpus, sysfs=sysfs)
            yield found

    def check(self, level: Any, counters: Counters) -> list[str]:
        """Raise unless packets were steered: ``rps_ipis`` counts interrupts between CPUs."""
        if level != "off" and not counters.get("rps_ipis"):
            raise ManipulationError(
                "no packet was steered",
                why="RPS interrupted no other CPU in the whole window"
                if "rps_ipis" in counters
                else "this kernel does not count the interrupts of RPS",
            )
        return []


class ReceivingCpu(PacketSteering):
    """The CPU that takes in what a host receives: one of its "own", or "as found".

    Between namespaces of one kernel the CPU of the sender takes packets in, up to the receiver's
    socket. "own" moves the packets of the lab's interfaces to the CPUs of the host that receives
    them, as the interrupt of a network card would. Other rigs are left as they are.
    """

    known = (AS_FOUND, "own")

    #: Whether packets are moved in this trial.
    _moves = False

    def ends(self, rig: Rig, level: Any) -> Sequence[str]:
        one_kernel = rig.shared_kernel and "separate-cpu-time" not in rig.missing
        roles = rig.interfaces if one_kernel and level == "own" else ()
        found = [role for role in roles if role in rig.targets and role != "collector"]
        self._moves = bool(found)
        return found

    def check(self, level: Any, counters: Counters) -> list[str]:
        return super().check(level, counters) if self._moves else []
