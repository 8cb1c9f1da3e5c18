"""What a window leaves in a trial's record: evidence, mechanisms, and the rules that it broke."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.benchmarks.base import Client, Reading
from labkit.campaign import cpu_time, evidence
from labkit.campaign.outcome import validity
from labkit.errors import ManipulationError
from labkit.hosts import script
from labkit.hosts.site import Site
from labkit.runtimes import Server
from labkit.runtimes.network_checks import hits
from labkit.runtimes.readback import read_back

Snapshot = dict[str, Any]


@dataclass(frozen=True)
class Ends:
    """The snapshots of a window, and the CPUs of its two sides.

    Parameters
    ----------
    here : (before, after)
        Of the window's own host.
    server : (before, after)
        Under the server's kernel; the same where there is one kernel.
    client_cpus, server_cpus : str
        CPU lists.
    """

    here: tuple[Snapshot, Snapshot]
    server: tuple[Snapshot, Snapshot]
    client_cpus: str
    server_cpus: str


def aimed_at(clients: Sequence[Client], servers: Mapping[str, Server]) -> Server:
    """Return the placement that the first client aims at, or else the first one.

    Those that share an address differ in their port.
    """
    first = clients[0]
    aimed = [one for one in servers.values() if one.address == first.target]
    named = [one for one in aimed if one.port and str(one.port) in first.argv]
    return next(iter([*named, *aimed, *servers.values()]))


def snapshot(text: str, server: Server) -> Snapshot:
    """Read the evidence of a server on its own host."""
    return evidence.parse(server.host.run(*script(text, str(server.pid))).stdout)


def account(
    record: dict[str, Any],
    ends: Ends,
    readings: Iterable[Reading],
    values: Mapping[str, Any],
) -> None:
    """Add to a trial's record what its window says.

    Raises
    ------
    ManipulationError
        The idle policy that the plan states did not hold to the end.
    """
    read = list(readings)
    found = evidence.mechanisms(*ends.server, sum(reading.messages for reading in read))
    found |= cpu_time.sides(
        client=(*ends.here, ends.client_cpus), server=(*ends.server, ends.server_cpus)
    )
    record["evidence"] = {"before": ends.server[0], "after": ends.server[1]}
    if ends.server[0] is not ends.here[0]:
        record["evidence"]["generator"] = {"before": ends.here[0], "after": ends.here[1]}
    _check_idle(found, values)
    record["mechanisms"] |= found
    flags = [flag for reading in read for flag in reading.flags]
    record["flags"] += [*flags, *validity(found, values)]


def check_published(site: Site, server: Server) -> None:
    """Raise `ManipulationError` where no flow has taken the rules of a published port.

    The engine's own proxy answers on the port as well: what it carries went past the translation.
    """
    before = hits(server.readback, server.port)
    after = hits(read_back(site, server.pid), server.port)
    if after <= before:
        raise ManipulationError(
            "what was sent did not pass the address translation",
            where=f"host {site.host.name}, port {server.port}",
            why=f"its rules have taken {after} flows, as many as before",
            remedy="is a proxy of the engine in the way?",
        )


def _check_idle(found: Mapping[str, float], values: Mapping[str, Any]) -> None:
    request = found.get("latency_request_us")
    if values.get("idle") == "held" and request is not None and request > 0:
        raise ManipulationError(
            "the idle policy was not held",
            why=f"the machine was allowed {request:.0f} us to wake up",
            remedy="did another program end the hold? labkit clean, then run again",
        )
