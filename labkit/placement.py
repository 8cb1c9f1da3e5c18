"""Where a workload runs, as a frozen value: runtime x network x baseline level x limits x storage.

Pure: planning with placements needs no engine. ``labkit.runtimes`` makes them real, and proves it.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.errors import UsageError

#: The ladder of baselines, from the plainest process to the one nearest to a container.
BASELINE_LEVELS = ("clean", "rules", "chroot", "cgroup")
#: What starts a container; `bare` starts none.
ENGINES = tuple(
    module.name
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "runtimes" / "engines")])
    if module.name != "bare"
)
#: What the networks mean here; a study that uses a paper's word says which of these it is.
#:
#: ========= ==============================================================================
#: host      the host's own stack, shared
#: bridge    layer 2: the container and a lab interface of the host on one bridge
#: nat       a bridge of its own, reached through a port that the host publishes
#: routed    a bridge of its own, which the host routes to, without address translation
#: macvlan   an interface beside the host's own, on the same link
#: vxlan     a bridge whose port is a VXLAN tunnel, laid by hand
#: overlay   the VXLAN of Docker's Swarm, between engines
#: encrypted the same, with its traffic between hosts in IPsec
#: weave     Weave Net
#: none      no network; container: the network of another container
#: ========= ==============================================================================
NETWORKS = (
    *("host", "bridge", "nat", "routed", "macvlan"),
    *("vxlan", "overlay", "encrypted", "weave", "none", "container"),
)
#: Where a container keeps what it writes below ``/data``: its own layer under a storage driver of
#: an engine, or something mounted there. "" is its layer under the driver that the engine has.
DRIVERS = ("overlay2", "fuse-overlayfs", "btrfs", "vfs", "aufs")
MOUNTS = ("bind", "volume", "unionfs-fuse")


@dataclass(frozen=True)
class Workload:
    """A server to be placed.

    Parameters
    ----------
    argv : tuple of str
        The command, found in the image and, for the bare levels, on the host.
    port : int
        The port that it listens on; 0 for one that listens nowhere, and is ready once it runs.
    protocol : {"udp", "tcp"}
        Its transport.
    image : str
        The image that holds it.
    beside : {"", "udp", "tcp"}
        The other transport, where it takes that on the same port too once it is asked to.
    """

    argv: tuple[str, ...]
    port: int
    protocol: str = "udp"
    image: str = "net"
    beside: str = ""

    @property
    def protocols(self) -> tuple[str, ...]:
        """Every transport on which a client may reach its port; the first says that it is ready."""
        return (self.protocol, self.beside) if self.beside else (self.protocol,)


def waiting(image: str) -> Workload:
    """Return a workload that only waits, for what is then run inside its placement."""
    return Workload(("sleep", "infinity"), 0, image=image)


@dataclass(frozen=True)
class Limits:
    """Limits of a control group; None leaves a resource as the engine's default has it.

    Parameters
    ----------
    cpuset : str, optional
        CPU list as the kernel prints it, ``"1"`` or ``"0-1"``.
    shares : int, optional
        CPU weight on the scale of cgroup v1 (``cpu.shares``, default 1024).
    period_us, quota_us : int, optional
        CPU bandwidth: at most ``quota_us`` of CPU time in each ``period_us``.
    memory : int, optional
        Memory limit in bytes.
    fifo : int, optional
        Real-time class ``SCHED_FIFO`` with this priority, 1 to 99; the default class otherwise.
    """

    cpuset: str | None = None
    shares: int | None = None
    period_us: int | None = None
    quota_us: int | None = None
    memory: int | None = None
    fifo: int | None = None

    def __post_init__(self) -> None:
        for name in ("shares", "period_us", "quota_us", "memory", "fifo"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise UsageError(f"limit {name}={value!r} is not a positive integer")
        if self.shares is not None and self.shares < 2:
            raise UsageError("the kernel takes no fewer than 2 CPU shares")
        if self.fifo is not None and self.fifo > 99:
            raise UsageError(f"invalid priority: fifo={self.fifo}", remedy="1 to 99")
        if (self.period_us is None) != (self.quota_us is None):
            raise UsageError(
                "a CPU quota needs both period_us and quota_us",
                remedy="give both, for example Limits(period_us=10_000, quota_us=2_000)",
            )

    def set(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


#: ``0-3,5``: a CPU or a range of them, separated by commas.
_CPUS = re.compile(r"\s*[0-9]{1,4}\s*(-\s*[0-9]{1,4}\s*)?(,\s*[0-9]{1,4}\s*(-\s*[0-9]{1,4}\s*)?)*")
#: No kernel is built for more CPUs than this.
_MOST_CPUS = 8192


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a Linux CPU list such as ``0-3,5``, sorted, each once; none for ""."""
    if not text.strip():
        return ()
    parts = text.split(",") if _CPUS.fullmatch(text) else []
    pairs = [(int(low), int(high or low)) for low, _, high in (one.partition("-") for one in parts)]
    if not pairs or any(not low <= high < _MOST_CPUS for low, high in pairs):
        raise UsageError(
            f"invalid CPU list: {text!r}", remedy='separate CPUs and ranges by commas: "0-3,5"'
        )
    return tuple(sorted({cpu for low, high in pairs for cpu in range(low, high + 1)}))


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPUs as the shortest CPU list, as the kernel prints it: ``0-3,5``."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def cpu_set(text: str) -> frozenset[int]:
    """Return the CPUs of a CPU list as a set."""
    return frozenset(parse_cpus(text))


def weight(shares: int) -> int:
    """Return the weight of cgroup v2 for CPU shares, by runc's conversion; it is coarser."""
    return 1 + ((shares - 2) * 9999) // 262142


@dataclass(frozen=True)
class Placement:
    """Where a workload runs; make one with `bare`, `docker` or `container`.

    Parameters
    ----------
    runtime : str
        ``bare``, or one of `ENGINES`: the module of ``labkit.runtimes`` that starts it.
    network : str
        One of `NETWORKS`.
    baseline_level : str
        For a bare process, one of `BASELINE_LEVELS`; empty otherwise.
    limits : Limits
        Control-group limits and scheduling class.
    storage : str
        One of `DRIVERS` or `MOUNTS`, for a container; "" for the engine's own driver.
    """

    runtime: str
    network: str = "host"
    baseline_level: str = ""
    limits: Limits = field(default_factory=Limits)
    storage: str = ""

    def __post_init__(self) -> None:
        if self.runtime not in ("bare", *ENGINES):
            raise UsageError(
                f"unknown runtime {self.runtime!r}", remedy=f"one of {('bare', *ENGINES)}"
            )
        if self.storage not in ("", *DRIVERS, *MOUNTS):
            raise UsageError(
                f"unknown storage {self.storage!r}", remedy=f"one of {(*DRIVERS, *MOUNTS)}"
            )
        if self.storage and self.runtime == "bare":
            raise UsageError(
                f"a bare process has no storage {self.storage!r}", remedy="place it in a container"
            )
        if self.network not in NETWORKS:
            raise UsageError(f"unknown network {self.network!r}", remedy=f"one of {NETWORKS}")
        if self.runtime == "bare" and self.baseline_level not in BASELINE_LEVELS:
            raise UsageError(
                f"unknown baseline level {self.baseline_level!r}",
                remedy=f"one of {BASELINE_LEVELS}",
            )
        if (
            self.runtime == "bare"
            and self.baseline_level != "cgroup"
            and set(self.limits.set()) - {"fifo"}
        ):
            raise UsageError(
                f"baseline level {self.baseline_level!r} has no control group to limit",
                remedy='use bare("cgroup", limits=...)',
            )

    @property
    def label(self) -> str:
        """The short name that plans, datasets and figures show, such as ``docker bridge``."""
        parts = [self.runtime, self.baseline_level or self.network]
        parts += [f"storage={self.storage}"] if self.storage else []
        parts += [f"{name}={value}" for name, value in self.limits.set().items()]
        return " ".join(parts)

    def limited(self, **limits: Any) -> Placement:
        """Return this placement with these limits of `Limits`; 0 and None leave one unset."""
        return replace(
            self,
            limits=Limits(**{name: value for name, value in limits.items() if value}),
        )

    def __str__(self) -> str:
        return self.label


def bare(level: str = "clean", limits: Limits | None = None) -> Placement:
    """Return the placement of a process without an engine, on a level of the ladder of baselines.

    Parameters
    ----------
    level : {"clean", "rules", "chroot", "cgroup"}
        ``clean``: a host without an engine; ``rules``: beside an engine and its firewall rules;
        ``chroot``: there, in the image's root file system; ``cgroup``: the chroot in a control
        group equal to a container's.
    limits : Limits, optional
        Only for the level ``cgroup``; a scheduling class for every level.
    """
    return Placement("bare", "host", level, limits or Limits())


def docker(network: str = "host", limits: Limits | None = None, storage: str = "") -> Placement:
    """Return the placement of a Docker container.

    Parameters
    ----------
    network : str
        One of `NETWORKS`.
    limits : Limits, optional
        Control-group limits and scheduling class.
    storage : str
        Where it keeps what it writes below ``/data``, of `DRIVERS` or `MOUNTS`.
    """
    return Placement("docker", network, "", limits or Limits(), storage)


def container(runtime: str, network: str = "host", limits: Limits | None = None) -> Placement:
    """Return the placement of a container of any engine.

    Parameters
    ----------
    runtime : str
        One of `ENGINES`.
    network : str
        One of `NETWORKS`; a rig refuses a pair that cannot be, with the reason.
    limits : Limits, optional
        Control-group limits and scheduling class.
    """
    if runtime == "bare":
        raise UsageError("a bare process has no container", remedy="use bare(...)")
    return Placement(runtime, network, "", limits or Limits())
