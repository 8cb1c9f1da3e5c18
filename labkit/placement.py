"""Where a workload runs, as a frozen value: runtime x network x rung x limits x storage.

Pure: planning with placements needs no engine. ``labkit.runtimes`` makes them real, and proves it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.errors import UsageError

#: The ladder of baselines, from the plainest process to the container's nearest twin.
RUNGS = ("clean", "rules", "chroot", "cgroup")
#: What the networks mean here; a study that uses a paper's word says which of these it is.
NETWORKS = ("host", "bridge", "nat")


@dataclass(frozen=True)
class Workload:
    """A server to be placed.

    Parameters
    ----------
    argv : tuple of str
        The command, found in the image and, for the bare rungs, on the host.
    port : int
        The port that it listens on.
    protocol : {"udp", "tcp"}
        Its transport.
    image : str
        The image that holds it.
    """

    argv: tuple[str, ...]
    port: int
    protocol: str = "udp"
    image: str = "net"


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
    """

    cpuset: str | None = None
    shares: int | None = None
    period_us: int | None = None
    quota_us: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("shares", "period_us", "quota_us", "memory"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise UsageError(f"limit {name}={value!r} is not a positive integer")
        if self.shares is not None and self.shares < 2:
            raise UsageError("the kernel takes no fewer than 2 CPU shares")
        if (self.period_us is None) != (self.quota_us is None):
            raise UsageError(
                "a CPU quota needs both period_us and quota_us",
                remedy="give both, for example Limits(period_us=10_000, quota_us=2_000)",
            )

    def set(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Placement:
    """Where a workload runs; make one with `bare` or `docker`.

    Parameters
    ----------
    runtime : str
        The module of ``labkit.runtimes`` that starts it.
    network : {"host", "bridge", "nat"}
        ``host`` shares the host's stack; ``bridge`` is layer 2, the lab interface enslaved to the
        container's bridge, without NAT; ``nat`` is a published port.
    rung : str
        For a bare process, its rung on the ladder of baselines (`RUNGS`); empty otherwise.
    limits : Limits
        Control-group limits.
    """

    runtime: str
    network: str = "host"
    rung: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise UsageError(f"unknown network {self.network!r}", remedy=f"one of {NETWORKS}")
        if self.runtime == "bare" and self.rung not in RUNGS:
            raise UsageError(f"unknown rung {self.rung!r}", remedy=f"one of {RUNGS}")

    @property
    def label(self) -> str:
        """The short name that plans, datasets and figures show, such as ``docker bridge``."""
        parts = [self.runtime, self.rung or self.network]
        parts += [f"{name}={value}" for name, value in self.limits.set().items()]
        return " ".join(parts)

    def __str__(self) -> str:
        return self.label


def bare(rung: str = "clean", limits: Limits | None = None) -> Placement:
    """Return the placement of a process without an engine, on a rung of the ladder of baselines.

    Parameters
    ----------
    rung : {"clean", "rules", "chroot", "cgroup"}
        ``clean``: a host without an engine; ``rules``: beside an engine and its firewall rules;
        ``chroot``: there, in the image's root file system; ``cgroup``: the chroot in a control
        group equal to a container's, the container's nearest twin.
    limits : Limits, optional
        Only for the rung ``cgroup``.
    """
    if limits and limits.set() and rung != "cgroup":
        raise UsageError(
            f"the rung {rung!r} has no control group of its own to limit",
            remedy='use bare("cgroup", limits=...)',
        )
    return Placement("bare", "host", rung, limits or Limits())


def docker(network: str = "host", limits: Limits | None = None) -> Placement:
    """Return the placement of a Docker container on ``host``, ``bridge`` (layer 2) or ``nat``."""
    return Placement("docker", network, "", limits or Limits())
