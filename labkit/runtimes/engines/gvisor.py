"""gVisor: Docker containers on a kernel in user space, by the OCI runtime ``runsc``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import Host, script
from labkit.hosts.target import Target
from labkit.placement import Workload, cpu_set
from labkit.runtimes.base import Instance, Runtime, Started
from labkit.runtimes.engines.docker import Docker
from labkit.runtimes.observed import GROUP
from labkit.runtimes.verify import Expectation

# The sandbox has its own network stack, whose sockets are visible only inside.
_READY = """
pid=$1 name=$2 port=$3 table=/proc/net/$4 tries=0
while [ "$tries" -lt "$5" ]; do
    [ -d "/proc/$pid" ] || { echo "the process has ended" >&2; exit 3; }
    docker exec "$name" cat "$table" "${table}6" 2>/dev/null | awk -v port=":$port" '
        $2 ~ port "$" { found = 1 } END { exit !found }' && exit 0
    tries=$((tries + 1))
    sleep 0.05
done
echo "nothing listens on the port yet" >&2
exit 4
"""
# gVisor's kernel ignores an affinity, so the host's threads of all processes of the container are
# pinned. New threads inherit the CPUs of a pinned thread; those that an unpinned one has started
# meanwhile are pinned in the next round.
_PIN = (
    GROUP
    + """
tries=0
while [ "$tries" -lt 20 ] && [ -d "/proc/$1" ] && [ "$(allowed "$1" "$3")" != "$2" ]; do
    for one in $(members "$1" "$3"); do
        taskset --all-tasks --cpu-list --pid "$2" "$one" >/dev/null 2>&1 || true
    done
    tries=$((tries + 1))
done
"""
)
# An old runsc refuses to run in the machine's first network namespace, which it recognises by a
# file that on newer kernels every namespace has.
_ANOTHER_NAMESPACE = ("unshare", "--net", "test", "-e", "/proc/sys/net/core/rmem_default")
#: Releases before this year are assumed to do so; it was seen in that of 2022-12-19.
_FIXED_SINCE = 2025
_RUNTIMES = ("docker", "info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}")


class GVisor(Docker):
    """Starts Docker containers with the OCI runtime ``runsc``."""

    impossible: ClassVar[Mapping[str, str]] = {
        "host": "gVisor's network stack is its own; with the host's it would not be isolated",
    }
    program = "runsc"
    package = ""
    source = "make setup-test builds a current one"
    oci = "runsc"
    own_stack = True
    # Not supported: an affinity set inside would have no effect.
    churn = Runtime.churn

    @classmethod
    def unusable(cls, host: Host, docker_socket: str | None) -> str:
        """Return why the host's runsc cannot be used; "" if it can."""
        version = host.run("runsc", "--version", check=False).stdout
        date = re.search(r"(20\d\d)\d{4}", version)
        everywhere = host.run(*_ANOTHER_NAMESPACE, check=False).status == 0
        if everywhere and date and int(date[1]) < _FIXED_SINCE:
            return (
                f"runsc of {date[0]} takes every network namespace of this kernel for the "
                f"machine's; {cls.source}"
            )
        if docker_socket:
            env = {"DOCKER_HOST": docker_socket}
            if cls.oci not in host.run(*_RUNTIMES, env=env, check=False).stdout.split():
                return "the Docker Engine was not told of the runtime runsc"
        return ""

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return Docker's expectation; the observed process is gVisor's, not the workload's."""
        return replace(super().expect(instance, started), group=True)

    def start(self, instance: Instance) -> Started:
        """Run the container detached, and pin its sandbox."""
        host = instance.target.host
        if instance.placement.limits.fifo:
            raise PlacementError(
                "gVisor does not support the real-time scheduling class",
                where=f"host {host.name}",
                why="it would apply to gVisor's kernel, not to the workload",
                remedy="leave out the level fifo, or use another engine",
            )
        started = super().start(instance)
        host.run(*script(_PIN, str(started.pid), instance.cpus, started.container))
        return started

    def pinned(self, cpus: str) -> list[str]:
        """Return the prefix for the same number of CPUs, which count from 0 inside."""
        return ["taskset", "-c", f"0-{len(cpu_set(cpus)) - 1}"]

    def ready(self, target: Target, started: Started, workload: Workload) -> None:
        """Return as soon as a socket inside listens on the port."""
        if not workload.port:
            return
        process = (str(started.pid), started.container)
        argv = script(_READY, *process, f"{workload.port:04X}", workload.protocol, "200")
        env = {"DOCKER_HOST": str(target.engine)}
        result = target.host.run(*argv, env=env, timeout=180, check=False)
        if result.status != 0:
            raise PlacementError(
                f"{workload.argv[0]} did not become ready",
                where=f"host {target.host.name}, container {started.container[:12]}",
                why=result.stderr.strip()[-400:],
            )
