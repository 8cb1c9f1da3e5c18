"""Engines without a daemon: a program holds each container, as a job that labkit starts and ends.

The process is found among the descendants of its holder, labkit assigns its address, and ports are
published by rules that are removed with the placement, since these engines publish none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import Job, script, start_job
from labkit.hosts.target import Network, Target
from labkit.placement import Placement, Workload
from labkit.runtimes import networks
from labkit.runtimes.base import Runtime, Started, rootfs_of
from labkit.runtimes.verify import Expectation

# The workload is what runs below the holder under the command line that it was given, with a root
# of its own: what still prepares it has another one.
_FIND = """
holder=$1 wanted=$2 tries=0
below() {
    awk -v top="$1" '{
        line = $0; sub(/^.*\\) /, "", line); split(line, rest, " "); above[$1] = rest[2]
    } END {
        found[top] = 1
        do { more = 0; for (pid in above) if (above[pid] in found && !(pid in found)) {
            found[pid] = 1; more = 1 } } while (more)
        for (pid in found) print pid
    }' /proc/[0-9]*/stat 2>/dev/null
}
mine=$(readlink /proc/self/ns/mnt)
while [ "$tries" -lt "$3" ]; do
    [ -d "/proc/$holder" ] || { echo "what holds the container has ended" >&2; exit 3; }
    for pid in $(below "$holder"); do
        [ "$(tr '\\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)" = "$wanted" ] || continue
        [ "$(readlink "/proc/$pid/ns/mnt")" != "$mine" ] || continue
        echo "$pid"
        exit 0
    done
    tries=$((tries + 1))
    sleep 0.02
done
echo "the container does not run its command" >&2
exit 4
"""

# With a comment by which they are taken away again, whatever else is in the tables by then.
_PUBLISH = """
label=$1 host=$2 protocol=$3 port=$4 to=$5
set -- -m comment --comment "labkit=$label"
iptables -w -t nat -A PREROUTING -d "$host" -p "$protocol" --dport "$port" "$@" \\
    -j DNAT --to-destination "$to:$port"
"""
_WITHDRAW = """
iptables -w -t nat -S PREROUTING | grep -E -- "labkit=$1"'"?( |$)' | sed 's/^-A/-D/' |
    while read -r rule; do eval "iptables -w -t nat $rule"; done
"""


class DaemonlessRuntime(Runtime):
    """Starts each container by a program that holds it; one instance a campaign."""

    #: The program that holds it, as the host sees it.
    holder: ClassVar[str] = ""
    publishes_ports = False

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._published: set[str] = set()

    @abstractmethod
    def hold(
        self,
        target: Target,
        placement: Placement,
        rootfs: str,
        network: Network | None,
        command: Sequence[str],
        label: str,
    ) -> list[str]:
        """Return the command of the host that starts and holds a container."""

    def attach(self, target: Target, network: Network, pid: int) -> None:
        """Give the container its address, where its engine does not do that."""

    def end(self, target: Target, label: str) -> None:
        """End a container whose holder would not do that when it is told to end."""

    def clear(self, target: Target, label: str) -> None:
        """Remove what is left of a container once its holder has ended."""

    def start(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Start the holder as a detached job, and find the workload below it."""
        network = self._network(target, placement)
        command = ["taskset", "-c", cpus, *workload.argv]
        rootfs = rootfs_of(target, workload)
        argv = self.hold(target, placement, rootfs, network, command, label)
        directory = f"{target.directory}/{label}"
        # Registered first: interrupted while it starts, it is ended all the same.
        self._jobs[label] = Job(target.host, directory)
        job = start_job(target.host, argv, directory=directory, label=label)
        pid = self._find(target, job, workload, placement)
        if network:
            self.attach(target, network, pid)
        if placement.network == "nat" and workload.port and network:
            self._published.add(label)
            for protocol in workload.protocols:
                values = (label, target.address, protocol, str(workload.port))
                target.host.run(*script(_PUBLISH, *values, network.address(target.place)))
        return Started(pid, networks.reached_at(target, placement))

    def stop(self, target: Target, label: str) -> None:
        """End the holder, and remove rules, control groups and files of the container."""
        try:
            if label in self._published:
                target.host.run(*script(_WITHDRAW, label))
                self._published.remove(label)
        finally:
            job = self._jobs.pop(label, None)
            if job:
                self.end(target, label)
                job.stop()
                self.clear(target, label)
                target.host.run("rm", "-rf", "--", job.directory)

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed on both streams."""
        job = self._jobs.get(label)
        return job.stdout() + job.stderr() if job else ""

    def enter(
        self,
        target: Target,
        placement: Placement,
        workload: Workload,
        label: str,
        argv: Sequence[str],
    ) -> list[str]:
        """Raise `PlacementError`: clients run in a container of Docker, or on a host."""
        raise PlacementError(
            f"cannot run a client inside a container of {placement.runtime}",
            remedy="place the client with docker(...)",
        )

    def expect(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, started: Started
    ) -> Expectation:
        """Return what must be true of a container on each network."""
        facts = networks.expected(target, placement, workload)
        network = self._network(target, placement)
        if placement.network == "nat" and network:
            facts |= {"bridge": network.bridge, "address": network.address(target.place)}
        return Expectation(
            cpus=cpus,
            container=True,
            cgroup=target.parent_group,
            root="",
            rootfs=rootfs_of(target, workload),
            limits=placement.limits,
            engine_process=self.holder,
            **facts,
        )

    @staticmethod
    def _network(target: Target, placement: Placement) -> Network | None:
        return None if placement.network == "host" else networks.network_of(target, placement)

    def _find(self, target: Target, job: Job, workload: Workload, placement: Placement) -> int:
        wanted = "".join(f"{word} " for word in workload.argv)
        result = target.host.run(*script(_FIND, str(job.pid), wanted, "500"), check=False)
        if result.status != 0:
            raise PlacementError(
                f"{placement.label} did not start",
                where=f"host {target.host.name}",
                why=(job.stderr().strip() or result.stderr.strip())[-800:],
            )
        return int(result.stdout)
