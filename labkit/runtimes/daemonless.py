"""Engines without a daemon: each container is held by a program, which runs as a detached job.

The workload's process is searched for among the descendants of that program. These engines publish
no ports, so labkit does that with firewall rules.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import Host, Job, script, start_job
from labkit.hosts.target import Target
from labkit.runtimes import networks
from labkit.runtimes.base import Instance, Runtime, Started
from labkit.runtimes.verify import Expectation

# The workload is the descendant with the workload's command line and another mount namespace than
# the host's, which the programs that prepare the container do not have yet.
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
        [ "$({ tr '\\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)" = "$wanted" ] || continue
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

# The rules are found again by their comment.
_PUBLISH = """
label=$1 host=$2 protocol=$3 port=$4 to=$5
set -- -m comment --comment "labkit=$label"
iptables -w -t nat -A PREROUTING -d "$host" -p "$protocol" --dport "$port" "$@" \\
    -j DNAT --to-destination "$to:$port"
"""
_WITHDRAW = """
iptables -w -t nat -S PREROUTING | grep -E -- "labkit=$1" | sed 's/^-A/-D/' |
    while read -r rule; do eval "iptables -w -t nat $rule"; echo "${rule#-D }"; done
"""


def withdraw(host: Host, label: str, end: str = "") -> list[str]:
    """Remove the rules that publish ports of labels that begin so; return the rules."""
    return host.run(*script(_WITHDRAW, label.replace(".", "[.]") + end)).stdout.splitlines()


class DaemonlessRuntime(Runtime):
    """Starts each container by a program that holds it."""

    #: The name of that program's process.
    holder: ClassVar[str] = ""
    publishes_ports = False

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._published: set[str] = set()

    @abstractmethod
    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the host's command that runs a command in a container, in the foreground."""

    def attach(self, instance: Instance, pid: int) -> None:
        """Assign the container's address, if its engine does not."""

    def end(self, target: Target, label: str) -> None:
        """End a container whose holder does not end it on TERM."""

    def clear(self, target: Target, label: str) -> None:
        """Remove what is left of a container after its holder has ended."""

    def start(self, instance: Instance) -> Started:
        """Start the holder as a detached job, and find the workload's process."""
        target, workload, label = instance.target, instance.workload, instance.label
        network = instance.network
        argv = self.hold(instance, ["taskset", "-c", instance.cpus, *workload.argv])
        directory = f"{target.directory}/{label}"
        # Stored before it starts, so that `stop` ends it if starting is interrupted.
        self._jobs[label] = Job(target.host, directory)
        job = start_job(target.host, argv, directory=directory, label=label)
        pid = self._find(instance, job)
        if network:
            self.attach(instance, pid)
        if network and instance.placement.network == "nat" and workload.port:
            self._published.add(label)
            for protocol in workload.protocols:
                values = (label, target.address, protocol, str(workload.port))
                target.host.run(*script(_PUBLISH, *values, network.address(target.place)))
        return Started(pid)

    def stop(self, target: Target, label: str) -> None:
        """End the holder, and remove the container's rules, control groups and files."""
        try:
            if label in self._published:
                withdraw(target.host, label, '"?( |$)')
                self._published.remove(label)
        finally:
            job = self._jobs.get(label)
            if job:
                self.end(target, label)
                job.stop()
                try:
                    self.clear(target, label)
                finally:
                    target.host.run("rm", "-rf", "--", job.directory)
                del self._jobs[label]

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed on both streams."""
        job = self._jobs.get(label)
        return job.stdout() + job.stderr() if job else ""

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Raise `PlacementError`: commands run inside containers of Docker or Podman only."""
        raise PlacementError(
            f"cannot run a client inside a container of {instance.placement.runtime}",
            remedy="place the client with docker(...)",
        )

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true of a container on each network."""
        target, placement, network = instance.target, instance.placement, instance.network
        facts = networks.expected(target, placement, instance.workload)
        if placement.network == "nat" and network:
            facts |= {"bridge": network.bridge, "address": network.address(target.place)}
        return Expectation(
            cpus=instance.cpus,
            container=True,
            cgroup=target.parent_group,
            root="",
            rootfs=instance.rootfs,
            limits=placement.limits,
            engine_process=self.holder,
            **facts,
        )

    def _find(self, instance: Instance, job: Job) -> int:
        command = "".join(f"{word} " for word in instance.workload.argv)
        # A holder that fails ends, which is seen at once: only a busy machine takes long.
        argv = script(_FIND, str(job.pid), command, "3000")
        result = job.host.run(*argv, check=False, timeout=180)
        if result.status != 0:
            raise PlacementError(
                f"{instance.placement.label} did not start",
                where=f"host {job.host.name}",
                why=f"{result.stderr.strip()}: {job.stdout()} {job.stderr()}".strip()[-1200:],
            )
        return int(result.stdout)
