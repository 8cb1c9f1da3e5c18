"""gVisor: Docker's containers in a kernel in user space, by its runtime ``runsc``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import script
from labkit.hosts.site import Site
from labkit.placement import Placement, Workload
from labkit.runtimes.base import Started
from labkit.runtimes.docker import Docker

# Sockets are in the sandbox's own network stack, so they are looked for inside.
_READY = """
name=$1 port=$2 table=/proc/net/$3 tries=0
while [ "$tries" -lt "$4" ]; do
    docker exec "$name" cat "$table" 2>/dev/null | awk -v port=":$port" '
        $2 ~ port "$" { found = 1 } END { exit !found }' && exit 0
    tries=$((tries + 1))
    sleep 0.05
done
echo "nothing listens on the port yet" >&2
exit 4
"""
# Its kernel accepts an affinity and does nothing with it: the host's threads are what is pinned.
_PIN = """
taskset --all-tasks --cpu-list --pid "$2" "$1"
"""


class GVisor(Docker):
    """Starts Docker's containers with the runtime ``runsc``."""

    impossible: ClassVar[Mapping[str, str]] = {
        **Docker.impossible,
        "host": "gVisor's network stack is its own; with the host's it would not be isolated",
    }
    program = "runsc"
    package = "runsc"
    oci = "runsc"

    def start(
        self, site: Site, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Run the container detached, and pin its sandbox."""
        started = super().start(site, placement, workload, cpus, label)
        self._pin(site, started, cpus)
        return started

    def ready(self, site: Site, started: Started, workload: Workload) -> None:
        """Return as soon as a socket inside listens on the port."""
        if not workload.port:
            return
        values = (started.container, f"{workload.port:04X}", workload.protocol, "200")
        argv = script(_READY, *values)
        env = {"DOCKER_HOST": str(site.engine)}
        result = site.host.run(*argv, env=env, timeout=60, check=False)
        if result.status != 0:
            raise PlacementError(
                f"{workload.argv[0]} did not become ready",
                where=f"host {site.host.name}, container {started.container[:12]}",
                why=result.stderr.strip()[-400:],
            )

    @staticmethod
    def _pin(site: Site, started: Started, cpus: str) -> None:
        site.host.run(*script(_PIN, str(started.pid), cpus))
