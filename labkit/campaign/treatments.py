"""Treatments: levels that labkit applies around a trial, and verifies in every window.

A study declares one as a factor, ``"wait": BusyPolling("block", "busy_poll")``, or as a setting,
``"idle": IdlePolicy("held")``. The protocol gets any other factor or setting as a value.
"""

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from labkit.data import CPU_SLOW, CPUS_APART, refuse_unknown
from labkit.design import Levels
from labkit.errors import CpusDisturbed, ManipulationError, RigError, UsageError
from labkit.hosts import Host, Settings, script
from labkit.hosts.agent import BUSY_POLLING, LATENCY
from labkit.placement import RELEASES, cpu_mask, docker, format_cpus, parse_cpus
from labkit.rig import Rig
from labkit.rig.images import LayeredImage
from labkit.runtimes.base import Server, differences, raise_different

#: The level of a treatment that leaves the host as it is; hosts of a server, and of its client.
AS_FOUND, ENDS = "as found", ("sut", "peer")
#: A CPU is slow if the reference operation takes more than this many times the least that was
#: read. On an Intel Xeon of 2023, nine of ten readings at full speed were within 1.12 times the
#: least; where the other thread of the core was in use, opening a file took 1.6 times as long.
SLOW = 1.25
#: Two CPUs share no cache if a line takes this many times the least that was read. On an AMD EPYC
#: of 2022, 30 to 95 ns are read for two that share one, up to 130 where they were idle, and 150 to
#: 230 for others. Other processors are not timed: on an Intel Xeon of 2023 a line takes 110 to
#: 220 ns within one cache. Two threads of a core are nearer than CPUs ever need to be.
APART, LEAST_NS = 2.0, 65.0
Counters = Mapping[str, float]


class Treatment:
    """The base of treatments; its arguments are levels or lists of them, and class attributes."""

    #: All levels; None where any value is one.
    known: ClassVar[Collection[Any] | None] = None
    #: The capability of the rig that a level needs.
    capabilities: ClassVar[Mapping[Any, str]] = {}

    def __init__(self, *levels: Any, **options: Any) -> None:
        lists = (one if isinstance(one, list | tuple) else [one] for one in levels)
        self.levels: list[Any] = list(itertools.chain(*lists))
        name = type(self).__name__
        if self.known is not None:
            refuse_unknown(f"level of {name}", self.levels, self.known)
        for option, value in options.items():
            if not hasattr(self, option):
                raise UsageError(f"{name} has no option {option!r}")
            setattr(self, option, value)

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of `Rig.open` for some levels: peer, collector, layers."""
        return {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        """Return why a rig cannot run `level` in a condition with `levels`, or None."""
        return rig.missing.get(self.capabilities.get(level, ""))

    def values(self, rig: Rig, level: Any) -> Iterator[tuple[Host, dict[str, str]]]:
        """Yield hosts, each with the values of files or offloads that a trial at the level has."""
        yield from ()

    def apply(self, rig: Rig, level: Any, settings_of: Callable[[Host], Settings]) -> None:
        """Apply the level by settings of hosts, which are restored after the trial."""
        for host, values in self.values(rig, level):
            settings = settings_of(host)
            _require(settings.set_files(values), settings, f"{type(self).__name__}({level!r})")

    def resume(self, rows: Sequence[Levels]) -> None:
        """Go on from the rows that a campaign has already."""

    def placed(self, level: Any, server: Server) -> None:
        """Apply the level inside a placement that has just been verified."""

    def ready(self, rig: Rig, level: Any) -> list[int]:
        """Wait until a window may begin; return two CPUs that a cache line is timed between."""
        return []

    def begin(self, rig: Rig, level: Any) -> None:
        """Apply what may only be there in the window itself, after every treatment is ready."""

    def timed(self, line: Sequence[float]) -> dict[str, float]:
        """Return counters from these times in ns."""
        return {}

    def check(self, level: Any, counters: Counters) -> list[str]:
        """Return flags of a window; raise `ManipulationError` if the level had no effect."""
        return []


def _require(done: bool, settings: Settings, what: str) -> None:
    if not done:
        where, why = f"host {settings.host.name}", "; ".join(settings.notes)[-800:]
        remedy = 'measure with "as found", or leave the level out on this rig'
        raise RigError(f"{what} cannot be set", where=where, why=why, remedy=remedy)


class BusyPolling(Treatment):
    """Busy polling by the kernel, at the level "busy_poll"."""

    capabilities: ClassVar = {"busy_poll": "busy-poll"}

    def check(self, level: Any, counters: Counters) -> list[str]:
        polled = level != "busy_poll" or counters.get(BUSY_POLLING)
        return [] if polled else ["busy polling took no packet"]


class RealTime(Treatment):
    """The real-time scheduling class SCHED_FIFO, at the level "fifo", of the server or a client."""

    known = ("other", "fifo")
    capabilities: ClassVar = {"fifo": "realtime"}


class QuotaBurst(Treatment):
    """The CPU time in us, up to its quota, that a server may save up and use besides; 0: none."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        host = rig.hosts["sut"]
        known = not level or host.call("files", pattern="/sys/fs/cgroup/*/cpu*burst*")
        return None if known else f"{host.name}: the kernel has no burst of a CPU quota"

    def placed(self, level: Any, server: Server) -> None:
        if level and server.placement.limits.quota_us:
            server.host.call("set_burst", pid=server.pid, burst_us=level)
            server.verification.update(server.host.call("observe", **server.reading))


class ColdCache(Treatment):
    """Dropping a host's file caches just before a window, at the level "cold"."""

    capabilities: ClassVar = {"cold": "cold-cache"}

    def begin(self, rig: Rig, level: Any) -> None:
        if level == "cold":
            # Dirty pages could not be dropped.
            rig.targets["sut"].host.run(*script("sync; echo 3 >/proc/sys/vm/drop_caches"))


class ContainerStorage(Treatment):
    """The storage of Docker containers, a level of `labkit.placement.STORAGES`."""

    images: Sequence[LayeredImage] = ()

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"layers": self.images}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        return rig.infeasible(docker("host", storage=level))


class EngineRelease(Treatment):
    """The release of Docker: "installed", or one of `labkit.placement.RELEASES`."""

    known = ("installed", *RELEASES)

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"releases": [level for level in levels if level in RELEASES]}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        return rig.infeasible(docker("host").with_release(level))


class PacketCapture(Treatment):
    """Capturing traffic at the switch (`Trial.capture`), "on" or "off"."""

    known = ("off", "on")
    capabilities: ClassVar = {"on": "collector"}
    #: The roles whose ports are mirrored to the collector.
    of: Sequence[str] = ("sut", "clean")

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"collector": tuple(self.of)} if "on" in levels else {}


class SecondHost(Treatment):
    """Placements on a second host with an engine, ``peer``, at the level `at`."""

    at: Any = None
    #: Names of ``containers/`` for its engine, and whether the placement is then on both hosts.
    images: Sequence[str] = ()
    spread = False

    def needs(self, levels: Sequence[Any]) -> dict[str, Any]:
        return {"peer": self.images, "clean_peer": self.spread} if self.at in levels else {}

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        if level != self.at:
            return None
        clean = any(getattr(one, "baseline_level", "") == "clean" for one in levels.values())
        lacking = self.spread and clean and "clean-peer" not in rig.targets
        why = "the rig has one host without an engine" if lacking else None
        return rig.missing.get("peer", why)


class Pinning(Treatment):
    """The affinity of server and client: "split", one CPU for each, or "free"."""

    known = ("free", "split")
    capabilities: ClassVar = {"split": "two-cpus"}

    def check(self, level: Any, counters: Counters) -> list[str]:
        migrations = counters.get("migrations", 0) if level == "split" else 0
        return [f"server migrated {migrations:.0f} times"] if migrations > 0 else []


class SharedCache(Treatment):
    """The cache that the kernel says generator and SUT share: "kept", or "as found".

    A hypervisor may move virtual CPUs to cores without one, which takes longer. At "kept" a window
    waits until they share it, and is measured again if they do not after it; where they never do,
    each is flagged. It is timed on one machine with AMD's processor, just before and after loads.
    """

    known = (AS_FOUND, "kept")
    #: Seconds for which a window waits: at most, and at least after ever more waits in vain.
    MOST, LEAST = 120.0, 2.0
    #: The least time of a cache line so far in the campaign.
    least_ns = math.inf
    _patience = MOST  # where they shared it when the last window began

    def resume(self, rows: Sequence[Levels]) -> None:
        known = (row for row in rows if row.get("cache_line_ratio"))
        least = (row["cache_line_ns"] / row["cache_line_ratio"] for row in known)
        self.least_ns = min([self.least_ns, *least])

    def timed(self, line: Sequence[float]) -> dict[str, float]:
        if not line:
            return {}
        self.least_ns = max(min(*line, self.least_ns), LEAST_NS)
        return {"cache_line_ns": max(line), "cache_line_ratio": max(line) / self.least_ns}

    def ready(self, rig: Rig, level: Any) -> list[int]:
        ends = [parse_cpus(rig.cpu_map.get(role, ""))[:1] for role in ("generator", "sut")]
        cpus = [*ends[0], *ends[1]] if rig.shared_kernel and ends[0] != ends[1] else []
        if level == "kept":
            deadline = time.monotonic() + self._patience
            while (moved := self._apart(rig, cpus)) and time.monotonic() < deadline:
                time.sleep(0.2)
            self._patience = max(self._patience / 2, self.LEAST) if moved else self.MOST
        return cpus

    def _apart(self, rig: Rig, cpus: Sequence[int]) -> bool:
        """Tell whether two CPUs share no cache now, though they are said to."""
        line = rig.hosts["sut"].call("cache_line", cpus=cpus) if cpus else []
        return self.timed(line).get("cache_line_ratio", 0.0) > APART

    def check(self, level: Any, counters: Counters) -> list[str]:
        moved = counters.get("cache_line_ratio", 0.0) > APART
        if level == "kept" and self._patience == self.MOST and moved:
            what = "the hypervisor moved the CPUs of generator and SUT apart in the window"
            why = f"a cache line takes {counters['cache_line_ns']:.0f} ns there and back"
            remedy = 'the trial is repeated; shared_cache "as found" keeps such trials'
            raise CpusDisturbed(what, why=f"{why}: they share no cache", remedy=remedy)
        return [CPUS_APART] if moved else []


class CpuSpeed(Treatment):
    """The speed of the CPU that runs file operations: "kept", or "as found".

    Another guest may use the other thread of its core, which steal does not show; the CPU then runs
    at 0.6 to 0.7 of its speed. A trial is slow in which opening and closing /dev/null
    (``reference_ns``) took more than `SLOW` times the shortest time of the campaign so far. At
    "kept" it is repeated at most twice, and then flagged, as at "as found".
    """

    known = (AS_FOUND, "kept")
    #: The most repetitions; the shortest time so far in the campaign, and slow attempts in a row.
    REPETITIONS, least_ns, _slow = 2, math.inf, 0

    def resume(self, rows: Sequence[Levels]) -> None:
        times = (row["reference_ns"] for row in rows if "reference_ns" in row)
        self.least_ns = min([self.least_ns, *times])

    def check(self, level: Any, counters: Counters) -> list[str]:
        took = counters.get("reference_ns", 0.0)
        self.least_ns = min(self.least_ns, took or math.inf)
        self._slow = self._slow + 1 if took > SLOW * self.least_ns else 0
        if level == "kept" and 0 < self._slow <= self.REPETITIONS:
            why = f"to open and close /dev/null took {took:.0f} ns, where it takes "
            why += f"{self.least_ns:.0f}: another guest may have used the other thread of its core"
            remedy = 'the trial is repeated; cpu_speed "as found" flags and keeps it'
            raise CpusDisturbed("the CPU was slow in the window", why=why, remedy=remedy)
        flags = [CPU_SLOW] if self._slow else []
        self._slow = 0
        return flags


class IdlePolicy(Treatment):
    """The idle states of every machine: "held" at polling, which takes no time to leave.

    An open file holds it, so the kernel reverts it even after a kill. It is held from the window
    on: a hypervisor brings CPUs back to a shared cache only where they go idle and wake each other.
    """

    known = (AS_FOUND, "held")
    _machines: Sequence[Settings] = ()

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for host in self._hosts(rig, level):
            if host.run("test", "-w", LATENCY, check=False).status != 0:
                return f"{host.name}: idle states cannot be held: {LATENCY} is not writable"
        return None

    def apply(self, rig: Rig, level: Any, settings_of: Callable[[Host], Settings]) -> None:
        self._machines = [settings_of(host) for host in self._hosts(rig, level)]

    def begin(self, rig: Rig, level: Any) -> None:
        machines, self._machines = self._machines, ()
        for settings in machines:
            _require(settings.hold_idle(), settings, 'the idle policy "held"')

    def check(self, level: Any, counters: Counters) -> list[str]:
        request = counters.get("latency_request_us", 0)
        if level == "held" and request > 0:
            why = f"the machine was allowed wake-up latencies of {request:.0f} us"
            remedy = "another program may have ended it: labkit clean, then run again"
            raise ManipulationError("the idle policy was not held", why=why, remedy=remedy)
        return []

    def _hosts(self, rig: Rig, level: Any) -> list[Host]:
        hosts = [rig.hosts["sut"]] if rig.shared_kernel else [*rig.hosts.values()]
        return hosts if level == "held" else []


class Interrupts(Treatment):
    """The interrupts of the server's machine: "moved" off the CPU of the server, or "as found"."""

    known = (AS_FOUND, "moved")

    def apply(self, rig: Rig, level: Any, settings_of: Callable[[Host], Settings]) -> None:
        separate = "clean" in rig.hosts and not rig.shared_kernel
        for role in ("sut", "clean") if separate else ("sut",):
            free, own = (parse_cpus(rig.cpus(role, one)) for one in ("free", "split"))
            if level == "moved" and (others := {*free} - {*own}):  # there may be one CPU only
                paths = rig.hosts[role].call("files", pattern="/proc/irq/[0-9]*/smp_affinity_list")
                # Some interrupts cannot be moved.
                settings_of(rig.hosts[role]).set_files(dict.fromkeys(paths, format_cpus(others)))


_TCP = "/proc/sys/net/ipv4/tcp_"
_CONGESTION, _ALLOWED = f"{_TCP}congestion_control", f"{_TCP}allowed_congestion_control"


class CongestionControl(Treatment):
    """The TCP congestion control of hosts and containers, such as "cubic"; or "as found"."""

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        # A host where it cannot be set has none.
        known = script(f"[ -w {_CONGESTION} ] && cat {_TCP}available_congestion_control")
        for role, host in rig.hosts.items() if level != AS_FOUND else ():
            has = host.run(*known, check=False).stdout.split()
            if level not in has:
                names = ", ".join(has) or "none can be set"
                return f"{role}: no TCP congestion control {level!r}; known: {names}"
        return None

    def values(self, rig: Rig, level: Any) -> Iterator[tuple[Host, dict[str, str]]]:
        if level == AS_FOUND:
            return
        if rig.kind == "virtual":
            # Only the machine's own namespace may allow an algorithm to the others.
            allowed = Host().run("cat", _ALLOWED, check=False).stdout.split()
            yield Host(), {_ALLOWED: " ".join(dict.fromkeys([*allowed, level]))}
        for host in rig.hosts.values():
            yield host, {_CONGESTION: level}

    def placed(self, level: Any, server: Server) -> None:
        if level == AS_FOUND:
            return
        # Each network namespace has its own, which ends with its container.
        if server.verification["network"] == "its own":
            inside = ("nsenter", "-t", str(server.pid), "-n")
            server.host.run(*inside, "tee", _CONGESTION, input=level)
            server.verification["congestion control"] = level
        problems = differences({"congestion control": level}, server.verification)
        raise_different(f"host {server.host.name} has another TCP congestion control", problems)


def _devices(rig: Rig, roles: Sequence[str]) -> list[tuple[str, str]]:
    there = [role for role in roles if role in rig.targets]
    return [(role, device) for role in there for device in rig.targets[role].interfaces]


class TunnelOffload(Treatment):
    """Segmentation of tunnelled packets by interfaces; "off" leaves it to the sending kernel."""

    known = (AS_FOUND, "off")
    #: What sends a packet in a tunnel as one of up to 64 KB, which the other end takes whole.
    FEATURES = ("tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation")

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for host, values in self.values(rig, level):
            for target in values:
                if host.call("get_value", target=target) is None:
                    return f"{host.name}: the offload {target} cannot be changed"
        return None

    def values(self, rig: Rig, level: Any) -> Iterator[tuple[Host, dict[str, str]]]:
        for role, device in _devices(rig, ENDS) if level == "off" else ():
            yield rig.hosts[role], {f"{device} {name}": "off" for name in self.FEATURES}


class PacketSteering(Treatment):
    """The CPUs that take in what a host receives, by Receive Packet Steering of lab interfaces.

    "on" steers packets at both ends to the CPUs of the receiving host, "off" does not. Between
    namespaces of one kernel the CPU of the sender takes packets in, up to the receiver's socket:
    there "own" moves them at every host to its CPUs, as a network card's interrupt would elsewhere.
    """

    known = (AS_FOUND, "off", "on", "own")
    #: Whether packets are moved in this trial.
    _moves = False

    def feasibility(self, rig: Rig, level: Any, levels: Levels) -> str | None:
        for host, masks in self.values(rig, level) if level != "off" else ():
            if not masks:
                return f"{host.name}: an interface has no receive queue with rps_cpus"
        return None

    def values(self, rig: Rig, level: Any) -> Iterator[tuple[Host, dict[str, str]]]:
        one_kernel = rig.shared_kernel and "separate-cpu-time" not in rig.missing
        everyone = [role for role in rig.targets if one_kernel and role != "collector"]
        roles: Sequence[str] = {"off": ENDS, "on": ENDS, "own": everyone}.get(level, ())
        self._moves = level != "off" and bool(roles)
        for role, device in _devices(rig, roles):
            host, folder = rig.hosts[role], f"{rig.targets[role].sysfs}/class/net/{device}/queues"
            # All of its CPUs where the host has its own kernel.
            cpus = rig.cpus(role, "split" if rig.shared_kernel else "free")
            mask = cpu_mask("" if level == "off" else cpus)
            yield host, dict.fromkeys(host.call("files", pattern=f"{folder}/rx-*/rps_cpus"), mask)

    def check(self, level: Any, counters: Counters) -> list[str]:
        if (level == "on" or self._moves) and not counters.get("rps_ipis"):
            interrupts = counters.get("rps_ipis", "an unknown number of")
            why = f"RPS made {interrupts} interrupts of other CPUs in the whole window"
            raise ManipulationError("no packet was steered", why=why)
        return []
