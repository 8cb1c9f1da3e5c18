"""gVisor: Docker's containers in a kernel in user space, by its runtime ``runsc``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import script
from labkit.hosts.site import Site
from labkit.placement import Placement, Workload, cpu_set
from labkit.runtimes.base import Runtime, Started
from labkit.runtimes.docker import Docker
from labkit.runtimes.processes import GROUP

# Sockets are in the sandbox's own network stack, so they are looked for inside.
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
# Its kernel accepts an affinity and does nothing with it: the host's threads are what is pinned,
# those of the processes beside that kernel too, which run the workload's code. What a pinned thread
# starts inherits its CPUs; what another one has started meanwhile is met by the next round.
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


class GVisor(Docker):
    """Starts Docker's containers with the runtime ``runsc``."""

    impossible: ClassVar[Mapping[str, str]] = {
        "host": "gVisor's network stack is its own; with the host's it would not be isolated",
    }
    program = "runsc"
    package = "runsc (make setup-test builds a current one)"
    oci = "runsc"
    # Nothing pins a container that comes and goes: what its command asks for has no effect inside.
    come_and_go = Runtime.come_and_go

    def start(
        self, site: Site, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Run the container detached, and pin its sandbox."""
        if placement.limits.fifo:
            raise PlacementError(
                "a workload of gVisor cannot be put into the real-time class",
                where=f"host {site.host.name}",
                why="the class would be that of its kernel, and not of the workload",
                remedy="leave out the level fifo, or use another engine",
            )
        started = super().start(site, placement, workload, cpus, label)
        site.host.run(*script(_PIN, str(started.pid), cpus, started.container))
        return started

    def pinned(self, cpus: str) -> list[str]:
        """Return the words that show a command as many CPUs: inside they count from 0."""
        return ["taskset", "-c", f"0-{len(cpu_set(cpus)) - 1}"]

    def ready(self, site: Site, started: Started, workload: Workload) -> None:
        """Return as soon as a socket inside listens on the port."""
        if not workload.port:
            return
        where = (str(started.pid), started.container)
        argv = script(_READY, *where, f"{workload.port:04X}", workload.protocol, "200")
        env = {"DOCKER_HOST": str(site.engine)}
        result = site.host.run(*argv, env=env, timeout=180, check=False)
        if result.status != 0:
            raise PlacementError(
                f"{workload.argv[0]} did not become ready",
                where=f"host {site.host.name}, container {started.container[:12]}",
                why=result.stderr.strip()[-400:],
            )
