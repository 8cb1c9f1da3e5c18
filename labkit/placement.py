"""Where a workload runs, as a value: runtime x network x baseline level x limits x storage."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labkit.errors import UsageError, suggestion

#: The ladder of baselines, from a plain process to one that is nearly a container.
BASELINE_LEVELS = ("clean", "rules", "chroot", "cgroup")
#: The runtimes that start containers, that is all but ``bare``.
ENGINES = ("docker", "lxc", "rkt")
#: The networks of placements: the host's own stack; a layer-2 bridge of the container and a lab
#: interface of the host; a separate bridge, reached through a port that the host publishes; a
#: second interface on the link of a lab interface; the VXLAN of Docker Swarm; Weave Net.
NETWORKS = ("host", "bridge", "nat", "macvlan", "overlay", "weave")
#: The storages of ``/data``: the container's own layer under the engine's driver (`DRIVER`), or a
#: mount of a directory, a volume, or a union of the image's layers (`UNIONS`). "" means the layer
#: under whatever driver the engine has.
DRIVER, UNIONS = "overlay2", ("fuse-overlayfs", "aufs")
STORAGES = (DRIVER, "bind", "volume", *UNIONS)
#: Releases of Docker besides the installed one, each with the suite of Debian that packages it.
RELEASES = {"debian12": "bookworm", "debian13": "trixie", "sid": "sid"}
#: The filters of a container's system calls.
SECCOMP = ("default", "unconfined")


@dataclass(frozen=True)
class Workload:
    """A server to be placed."""

    #: The command, which exists in the image and, for bare placements, on the host.
    argv: tuple[str, ...]
    #: The port that it listens on, 0 for none, and its transports; it is ready with the first.
    port: int
    protocols: tuple[str, ...] = ("udp",)
    image: str = "net"
    #: Whether it ends when its client does; it is then compared up to the window only.
    ends_with_client: bool = False


def waiting(image: str) -> Workload:
    """Return a workload that only sleeps, for commands that are run inside its placement."""
    return Workload(("sleep", "infinity"), 0, image=image)


@dataclass(frozen=True)
class Limits:
    """Limits of a control group; None leaves a resource at the engine's default."""

    #: CPU list, such as ``"0-1"``.
    cpuset: str | None = None
    #: CPU weight on the scale of cgroup v1 (``cpu.shares``, default 1024).
    shares: int | None = None
    #: CPU bandwidth: at most `quota_us` of CPU time in each `period_us`.
    period_us: int | None = None
    quota_us: int | None = None
    #: Memory in bytes.
    memory: int | None = None
    #: Priority in the real-time class ``SCHED_FIFO``, 1 to 99; without it, the default class.
    fifo: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.set().items():
            low, high = 2 if name == "shares" else 1, 99 if name == "fifo" else math.inf
            if name != "cpuset" and not (isinstance(value, int) and low <= value <= high):
                remedy = f"an integer from {low} to {high}"
                raise UsageError(f"invalid limit: {name}={value!r}", remedy=remedy)
        if (self.period_us is None) != (self.quota_us is None):
            raise UsageError("a CPU quota needs both period_us and quota_us")

    def set(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a Linux CPU list such as ``0-3,5``, sorted, each once; none for ""."""
    cpus: set[int] = set()
    for part in text.split(",") if text.strip() else []:
        found = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not low <= high < 8192:  # so many CPUs a kernel supports
            remedy = 'separate CPUs and ranges by commas: "0-3,5"'
            raise UsageError(f"invalid CPU list: {text!r}", remedy=remedy)
        cpus |= {*range(low, high + 1)}
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """Return CPUs as the shortest CPU list, as the kernel prints it: ``0-3,5``."""
    known = set(cpus)
    firsts = [cpu for cpu in sorted(known) if cpu - 1 not in known]
    lasts = [cpu for cpu in sorted(known) if cpu + 1 not in known]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in pairs)


def cpu_mask(cpus: str) -> str:
    """Return a CPU list as the kernel's mask: ``3`` for ``0-1``, ``2,00000001`` for ``0,33``."""
    bits = f"{sum(1 << cpu for cpu in parse_cpus(cpus)):x}"
    first = len(bits) % 8 or 8
    return ",".join([bits[:first], *(bits[at : at + 8] for at in range(first, len(bits), 8))])


@dataclass(frozen=True)
class Placement:
    """Where a workload runs; created by `bare`, `docker` or `container`."""

    #: ``bare``, or one of `ENGINES`; one of `NETWORKS`; of ``bare``, one of `BASELINE_LEVELS`.
    runtime: str
    network: str = "host"
    baseline_level: str = ""
    limits: Limits = field(default_factory=Limits)
    #: Of Docker: one of `STORAGES`, or "" for the engine's driver; one of `SECCOMP`; and one of
    #: `RELEASES`, or "" for the installed one.
    storage: str = ""
    seccomp: str = "default"
    release: str = ""

    def __post_init__(self) -> None:
        in_docker, is_bare = self.runtime == "docker", self.runtime == "bare"
        for name, value, allowed in (
            ("runtime", self.runtime, ("bare", *ENGINES)),
            ("baseline level", self.baseline_level, BASELINE_LEVELS if is_bare else ("",)),
            ("storage", self.storage, ("", *STORAGES) if in_docker else ("",)),
            ("release", self.release, ("", *RELEASES) if in_docker else ("",)),
            ("network", self.network, NETWORKS),
            ("seccomp", self.seccomp, SECCOMP if in_docker else SECCOMP[:1]),
        ):
            if value not in allowed:
                what, known = f"unknown {name} {value!r} of {self.runtime}", filter(None, allowed)
                raise UsageError(what, remedy=suggestion(value, known))
        if is_bare and self.baseline_level != "cgroup" and set(self.limits.set()) - {"fifo"}:
            what = f"baseline level {self.baseline_level!r} has no control group to limit"
            raise UsageError(what, remedy='use bare("cgroup", limits=...)')

    @property
    def label(self) -> str:
        """The short name in plans, datasets and figures, such as ``docker bridge``."""
        parts = [self.runtime, self.baseline_level or self.network]
        parts += [f"storage={self.storage}"] if self.storage else []
        parts += [f"release={self.release}"] if self.release else []
        parts += [f"seccomp={self.seccomp}"] if self.seccomp != "default" else []
        parts += [f"{name}={value}" for name, value in self.limits.set().items()]
        return " ".join(parts)

    def limited(self, **limits: Any) -> Placement:
        """Return this placement with other limits, named as in `Limits`; 0 and None unset one."""
        return replace(self, limits=Limits(**{k: value for k, value in limits.items() if value}))

    def with_seccomp(self, seccomp: str) -> Placement:
        """Return this placement with one of `SECCOMP`; a bare process never has a filter."""
        return self if self.runtime == "bare" else replace(self, seccomp=seccomp)

    def with_release(self, release: str) -> Placement:
        """Return this placement by one of `RELEASES` of the engine, or the "installed" one."""
        return replace(self, release="" if release == "installed" else release)

    def __str__(self) -> str:
        return self.label


def bare(level: str = "clean", limits: Limits | None = None) -> Placement:
    """Return the placement of a process without an engine, at a level of the ladder of baselines.

    ``clean`` is a host without an engine, ``rules`` one with its firewall rules, ``chroot`` also in
    the image's root file system, and ``cgroup`` also in a control group, which can be limited.
    """
    return Placement("bare", "host", level, limits or Limits())


def docker(
    network: str = "host", limits: Limits | None = None, storage: str = "", release: str = ""
) -> Placement:
    """Return the placement of a Docker container on one of `NETWORKS`.

    With one of `STORAGES`, and by one of `RELEASES` of the engine; "" is the one that is installed.

    Examples
    --------
    >>> [str(docker(network)) for network in ("host", "nat")]
    ['docker host', 'docker nat']
    """
    return Placement("docker", network, "", limits or Limits(), storage, release=release)


def container(runtime: str, network: str = "host", limits: Limits | None = None) -> Placement:
    """Return the placement of a container of one of `ENGINES` on one of `NETWORKS`.

    A network that an engine cannot have is infeasible on every rig.
    """
    return Placement(runtime, network, "", limits or Limits())
