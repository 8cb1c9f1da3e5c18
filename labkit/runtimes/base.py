"""The `Runtime` interface, and the life cycle of a placement: start, ready, verified, stopped.

`labkit.runtimes.observed` reads where the process really runs, and `labkit.runtimes.verify`
compares that with the placement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from labkit.errors import HostUnreachable, ManipulationError, PlacementError
from labkit.hosts import Host, script
from labkit.hosts.target import Network, Target
from labkit.placement import Placement, Workload
from labkit.runtimes.networks import NEVER, network_of, reached_at
from labkit.runtimes.observed import observe
from labkit.runtimes.verify import Expectation, problems


@dataclass(frozen=True)
class Instance:
    """A workload to run in a placement on a target.

    `cpus` is the CPU list of its affinity; `label` names its container, job and files.
    """

    target: Target
    placement: Placement
    workload: Workload
    cpus: str
    label: str

    @property
    def network(self) -> Network | None:
        """The placement's network, None for the host's; `PlacementError` if it is not set up."""
        if self.placement.network == "host":
            return None
        return network_of(self.target, self.placement)

    @property
    def rootfs(self) -> str:
        """The directory of the image's root file system; `PlacementError` if there is none."""
        image = self.target.images.get(self.workload.image)
        if image is None or not image.rootfs:
            raise PlacementError(
                f"the root file system of image {self.workload.image!r} is missing",
                where=f"host {self.target.host.name}",
                remedy="open the rig anew, which builds it from containers/",
            )
        return image.rootfs


@dataclass(frozen=True)
class Started:
    """A started workload: its process on the host, and the engine's identifier of its container."""

    pid: int
    container: str = ""


@dataclass(frozen=True)
class Server:
    """A verified server.

    Parameters
    ----------
    address, port : str, int
        Where a client reaches it.
    pid : int
        Its process, as seen by the host.
    host : Host
        Where it runs.
    verification : dict
        What verification observed.
    cpus : str
        CPU list of its affinity.
    enter : callable
        Takes the argument list of a command; returns the host's command that runs it inside this
        placement, on the same CPUs.
    ends_with_client : bool
        As of its workload.
    """

    address: str
    port: int
    pid: int
    host: Host
    verification: dict[str, Any]
    cpus: str
    enter: Callable[[Sequence[str]], list[str]]
    ends_with_client: bool = False

    @property
    def own_address(self) -> str:
        """Its address in its own network namespace, or the host's if it shares that."""
        addresses = self.verification["addresses"]
        own = (ip for name in sorted(addresses) if name != "lo" for ip in addresses[name])
        return next(own, self.address)


class Runtime(ABC):
    """One engine: how to start and stop a workload, and what must be true of it then.

    An engine is one file of ``labkit/runtimes/engines`` with one class derived from this, named
    after the file. An object of it serves a whole campaign.
    """

    #: Networks that it cannot have on any rig, with the reason, besides those in `NEVER`.
    impossible: ClassVar[Mapping[str, str]] = {}
    #: The program that a host needs for it; "" for none.
    program: ClassVar[str] = ""
    #: The Debian package of that program, or else how to get it.
    package: ClassVar[str] = ""
    source: ClassVar[str] = ""
    #: Capabilities that a rig needs for it besides ``runtime:NAME``.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether it publishes ports itself; otherwise the rig sets up a network for that.
    publishes_ports: ClassVar[bool] = True

    @classmethod
    def infeasible(cls, network: str) -> str:
        """Return why it can never have a network; "" if it can."""
        return NEVER.get(network, "") or cls.impossible.get(network, "")

    @classmethod
    def unusable(cls, host: Host) -> str:
        """Return why a host that has `program` cannot use it; "" if it can."""
        return ""

    @abstractmethod
    def start(self, instance: Instance) -> Started:
        """Start the workload on the host."""

    @abstractmethod
    def stop(self, target: Target, label: str) -> None:
        """Stop it and remove everything that belongs to it, if there is anything.

        After an error it can be called again.
        """

    @abstractmethod
    def logs(self, target: Target, label: str) -> str:
        """Return what it printed."""

    @abstractmethod
    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the host's command that runs `argv` inside the placement."""

    @abstractmethod
    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what verification must find."""

    def ready(self, target: Target, started: Started, workload: Workload) -> None:
        """Return as soon as the workload serves; raise `PlacementError` if it does not."""
        wait_ready(target.host, started, workload)

    def churn(self, instance: Instance) -> list[str]:
        """Return a command that starts, awaits and removes placements in an endless loop.

        It prints a line for each that was started.
        """
        raise PlacementError(
            f"{instance.placement.runtime} does not support starting containers in a loop",
            remedy="use docker(...)",
        )


# The workload is ready if its own process has a socket on the port: another server that listens
# there does not count.
LISTENS = """
pid=$1 port=$2 table=/proc/$1/net/$3 tries=0
while [ "$tries" -lt "$4" ]; do
    [ -d "/proc/$pid" ] || { echo "the process has ended" >&2; exit 3; }
    rows=$(cat "$table" "${table}6" 2>/dev/null) || true  # it may end meanwhile: looked at next
    for inode in $(echo "$rows" | awk -v port=":$port" '$2 ~ port "$" { print $10 }'); do
        for fd in /proc/"$pid"/fd/*; do
            [ "$(readlink "$fd" 2>/dev/null)" = "socket:[$inode]" ] && exit 0
        done
    done
    tries=$((tries + 1))
    sleep 0.01
done
echo "nothing listens on the port yet" >&2
exit 4
"""

# A workload without a port is ready once its process is no longer the program that started it.
RUNS = """
pid=$1 tries=0 wanted=$3
while [ "$tries" -lt "$2" ]; do
    [ -d "/proc/$pid" ] || { echo "the process has ended" >&2; exit 3; }
    [ "$(tr '\\0' ' ' <"/proc/$pid/cmdline")" != "$wanted" ] || exit 0
    tries=$((tries + 1))
    sleep 0.01
done
echo "process $pid runs $(tr '\\0' ' ' <"/proc/$pid/cmdline")" >&2
exit 4
"""

# With real-time groups (cgroup v1), a group needs real-time budget, at most that of its parent: the
# budget is passed down from the root.
_FIFO = """
path=$(awk -F: '$2 ~ /(^|,)cpu(,|$)/ { print $3 }' "/proc/$1/cgroup")
for base in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct; do
    [ -e "$base/cpu.rt_runtime_us" ] && [ -n "$path" ] || continue
    group=$base given=$(($(cat "$base/cpu.rt_runtime_us") * 9 / 10)) IFS=/
    for part in $path; do
        [ -n "$part" ] || continue
        group=$group/$part
        [ "$(cat "$group/cpu.rt_runtime_us")" -gt 0 ] || echo "$given" >"$group/cpu.rt_runtime_us"
    done
    break
done
chrt --all-tasks --fifo --pid "$2" "$1"
"""


def set_fifo(host: Host, pid: int, priority: int) -> None:
    """Put every thread of a process into the real-time class, or raise `PlacementError`."""
    result = host.run(*script(_FIFO, str(pid), str(priority)), check=False)
    if result.status != 0:
        raise PlacementError(
            "cannot set the real-time scheduling class",
            where=f"host {host.name}, process {pid}",
            why=result.stderr.strip()[-400:],
            remedy="run as root on a host that allows it, or leave out the level fifo",
        )


def wait_ready(host: Host, started: Started, workload: Workload, seconds: float = 10.0) -> None:
    """Return as soon as the process listens on its port, or runs if it has none."""
    pid, tries = str(started.pid), str(int(seconds * 100))
    argv = script(LISTENS, pid, f"{workload.port:04X}", workload.protocol, tries)
    if not workload.port:
        argv = script(RUNS, pid, tries, "".join(f"{word} " for word in workload.argv))
    result = host.run(*argv, timeout=seconds * 3 + 10, check=False)
    if result.status != 0:
        raise PlacementError(
            f"{workload.argv[0]} did not become ready",
            where=f"host {host.name}, process {started.pid}",
            why=result.stderr.strip()[-400:],
        )


def _verified(runtime: Runtime, instance: Instance, started: Started) -> dict[str, Any]:
    """Return what was observed of the process; raise `ManipulationError` if it is not expected."""
    target, placement = instance.target, instance.placement
    network = target.networks.get(placement.network)
    observed = observe(target, started.pid, started.container, network)
    differences = problems(runtime.expect(instance, started), observed)
    if differences:
        raise ManipulationError(
            f"this is not {placement.label}: {'; '.join(differences)}",
            where=f"host {target.host.name}, process {started.pid}",
            remedy="the trial is discarded; compare the placement with the host's configuration",
            evidence={"problems": differences, "verification": observed},
        )
    return observed


@contextmanager
def placed(
    runtime: Runtime,
    target: Target,
    placement: Placement,
    workload: Workload,
    *,
    cpus: str,
    label: str,
    logs: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Run a workload in its placement for the duration of a ``with`` block."""
    instance = Instance(target, placement, workload, cpus, label)
    try:
        started = runtime.start(instance)
        runtime.ready(target, started, workload)
        if placement.limits.fifo:
            set_fifo(target.host, started.pid, placement.limits.fifo)
        observed = _verified(runtime, instance, started)
        yield Server(
            reached_at(target, placement),
            workload.port,
            started.pid,
            target.host,
            observed,
            cpus,
            lambda argv: runtime.enter(instance, ["taskset", "-c", cpus, *argv]),
            workload.ends_with_client,
        )
    finally:
        try:
            if logs is not None:
                logs["server.log"] = runtime.logs(target, label)
        finally:
            try:
                runtime.stop(target, label)
            except HostUnreachable:
                # Placements of a host share its connection, so one loss interrupts the stopping of
                # all of them.
                runtime.stop(target, label)
