"""One life cycle for every placement: start, ready, verified, stopped; engines fill in two steps.

What was started is never trusted by its label: `labkit.runtimes.readback` reads back where the
process really runs, and `labkit.runtimes.checks` compares it with the placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.errors import ManipulationError, PlacementError
from labkit.hosts import Host, script
from labkit.hosts.site import Site
from labkit.placement import Placement, Workload
from labkit.runtimes.checks import Expectation, problems
from labkit.runtimes.readback import read_back


@dataclass(frozen=True)
class Started:
    """What an engine gave back: the process on the host, and where it is reached."""

    pid: int
    address: str
    container: str = ""


@dataclass(frozen=True)
class Server:
    """A verified server.

    Parameters
    ----------
    address, port : str, int
        Where a client reaches it.
    pid : int
        Its process, as the host sees it.
    readback : dict
        What the manipulation check read.
    """

    address: str
    port: int
    pid: int
    host: Host
    readback: dict[str, Any]


class Runtime(Protocol):
    """One engine: how to start and end a workload, and what must then be true of it."""

    def start(
        self, site: Site, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Start the workload on the host and return its process."""
        ...

    def stop(self, site: Site, label: str) -> None:
        """End it, and whatever is left of it; nothing to do is fine."""
        ...

    def logs(self, site: Site, label: str) -> str:
        """Return what it printed."""
        ...

    def expect(
        self, site: Site, placement: Placement, workload: Workload, cpus: str, started: Started
    ) -> Expectation:
        """Return what the manipulation check must find."""
        ...


# Ready means that this very process holds a socket on the port: another server that still listens
# there, or a process that died at once, is not taken for it.
_READY = """
pid=$1 port=$2 table=/proc/$1/net/$3 tries=0
while [ "$tries" -lt "$4" ]; do
    [ -d "/proc/$pid" ] || { echo "the process has ended" >&2; exit 3; }
    rows=$(cat "$table" "${table}6" 2>/dev/null)
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


def wait_ready(host: Host, started: Started, workload: Workload, seconds: float = 10.0) -> None:
    """Return as soon as the process listens on its port; raise `PlacementError` otherwise."""
    port = f"{workload.port:04X}"
    argv = script(_READY, str(started.pid), port, workload.protocol, str(int(seconds * 100)))
    result = host.run(*argv, timeout=seconds * 3 + 10, check=False)
    if result.status != 0:
        raise PlacementError(
            f"{workload.argv[0]} did not become ready",
            where=f"host {host.name}, process {started.pid}",
            why=result.stderr.strip()[-400:],
        )


@contextmanager
def placed(
    runtime: Runtime,
    site: Site,
    placement: Placement,
    workload: Workload,
    *,
    cpus: str,
    label: str,
    logs: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Run a workload where its placement says, for the duration of a ``with`` block.

    Parameters
    ----------
    runtime : Runtime
        The engine.
    site : Site
        Where it is placed.
    placement : Placement
        What it is to be.
    workload : Workload
        The server.
    cpus : str
        CPU list of its affinity.
    label : str
        Marks everything that is made; unique to the trial.
    logs : dict, optional
        Receives what the server printed, under ``server.log``, also when it failed.

    Raises
    ------
    PlacementError
        It did not start or did not become ready.
    ManipulationError
        It runs, but is not what the label says.
    """
    try:
        started = runtime.start(site, placement, workload, cpus, label)
        wait_ready(site.host, started, workload)
        expectation = runtime.expect(site, placement, workload, cpus, started)
        found = read_back(site, started.pid, started.container)
        wrong = problems(expectation, found)
        if wrong:
            raise ManipulationError(
                f"this is not {placement.label}: {'; '.join(wrong)}",
                where=f"host {site.host.name}, process {started.pid}",
                remedy="the trial is not used; compare the placement with the host's set-up",
                evidence={"problems": wrong, "readback": found},
            )
        yield Server(started.address, workload.port, started.pid, site.host, found)
    finally:
        try:
            if logs is not None:
                logs["server.log"] = runtime.logs(site, label)
        finally:
            runtime.stop(site, label)
