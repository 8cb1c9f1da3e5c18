"""What a window leaves in a trial's record: evidence, mechanisms, and the rules that it broke."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.benchmarks.base import Client, Reading
from labkit.campaign import cpu_time, evidence, steered
from labkit.campaign.outcome import validity
from labkit.errors import FenceError, ManipulationError
from labkit.hosts import Host, script
from labkit.hosts.site import Site
from labkit.rig import Rig
from labkit.runtimes import Server
from labkit.runtimes.network_checks import hits
from labkit.runtimes.readback import read_back

Snapshot = dict[str, Any]


@dataclass(frozen=True)
class Kernel:
    """A host that is asked for evidence, and what of it: under one kernel, one host tells of all.

    Parameters
    ----------
    host : Host
        Who is asked.
    places : tuple of str
        ``PID`` of the server at which a client aims, ``NAME=PID`` of what stands beside it.
    """

    host: Host
    places: tuple[str, ...]


@dataclass(frozen=True)
class Ends:
    """The snapshots of a window, and the CPUs of its two sides.

    Parameters
    ----------
    seen : tuple of (Kernel, (before, after))
        What each host said; the window's own comes first.
    client_cpus, server_cpus : str
        CPU lists.
    """

    seen: tuple[tuple[Kernel, tuple[Snapshot, Snapshot]], ...]
    client_cpus: str
    server_cpus: str

    @property
    def here(self) -> tuple[Snapshot, Snapshot]:
        """Of the window's own host."""
        return self.seen[0][1]

    @property
    def server(self) -> tuple[Snapshot, Snapshot]:
        """Under the server's kernel; the same where there is one kernel."""
        return next(
            pair for one, pair in self.seen if any("=" not in place for place in one.places)
        )


def kernels(
    servers: Mapping[str, Server], main: Server, window: Host, *, shared: bool
) -> list[Kernel]:
    """Return whom to ask for the evidence of every placement: its own host, the window's first.

    Parameters
    ----------
    servers : mapping of str to Server
        What stands, by name.
    main : Server
        The one at which a client aims.
    window : Host
        Where the clients run.
    shared : bool
        Whether all hosts are of one kernel, so that any sees the processes of all.
    """
    found: dict[int, tuple[Host, list[str]]] = {id(window): (window, [])}
    for name, one in servers.items():
        host = window if shared else one.host
        _, places = found.setdefault(id(host), (host, []))
        places.append(str(one.pid) if one is main else f"{name}={one.pid}")
    return [Kernel(host, tuple(places)) for host, places in found.values()]


def aimed_at(clients: Sequence[Client], servers: Mapping[str, Server]) -> Server:
    """Return the placement that the first client aims at, or else the first one.

    Those that share an address differ in their port.
    """
    first = clients[0]
    aimed = [one for one in servers.values() if one.address == first.target]
    named = [one for one in aimed if one.port and str(one.port) in first.argv]
    return next(iter([*named, *aimed, *servers.values()]))


def check_target(rig: Rig, standing: Iterable[Server], client: Client, inside: Any) -> None:
    """Raise unless the load goes to an address of the rig, or of a placement that stands."""
    if not client.target and inside is None:
        raise FenceError("no load is sent to nowhere", remedy="name a target on the generator")
    addresses = {one.own_address for one in standing}
    if client.target and not (inside is not None and client.target in addresses):
        rig.check_target(client.target)


def snapshot(text: str, kernel: Kernel) -> Snapshot:
    """Read the evidence of what stands under a kernel."""
    return evidence.parse(kernel.host.run(*script(text, *kernel.places)).stdout)


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
        The idle policy that the plan states did not hold to the end, or no packet was steered.
    """
    read = list(readings)
    found = evidence.mechanisms(*ends.server, sum(reading.messages for reading in read))
    found |= cpu_time.sides(
        client=(*ends.here, ends.client_cpus), server=(*ends.server, ends.server_cpus)
    )
    record["evidence"] = {"before": ends.server[0], "after": ends.server[1]}
    for kernel, (before, after) in ends.seen:
        if after is not ends.server[1]:
            found |= evidence.beside(before, after)
            record["evidence"][kernel.host.name] = {"before": before, "after": after}
    _check_idle(found, values)
    steered.check(str(values.get("rps", "off")), found)
    record["mechanisms"] |= found
    flags = [flag for reading in read for flag in reading.flags]
    record["flags"] += [*flags, *validity(found, values)]


def check_published(site: Site, server: Server, protocols: Iterable[str] = ("",)) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The engine's own proxy answers on the port as well: what it carries went past the translation.
    What the rules have taken so far stays with the readback, as ``taken``.

    Parameters
    ----------
    site : Site
        Where the server is.
    server : Server
        The one at which the window's clients aimed.
    protocols : iterable of str
        Transports, of each of which there must be a flow; "" for any.
    """
    found = read_back(site, server.pid)
    taken = server.readback.setdefault("taken", {})
    for protocol in protocols:
        before = taken.get(protocol, hits(server.readback, server.port, protocol))
        after = hits(found, server.port, protocol)
        if after <= before:
            raise ManipulationError(
                f"what was sent did not pass the address translation {protocol}".strip(),
                where=f"host {site.host.name}, port {server.port}",
                why=f"its rules have taken {after} flows, as many as before",
                remedy="is a proxy of the engine in the way?",
            )
    taken |= {one: hits(found, server.port, one) for one in ("", "tcp", "udp")}


def _check_idle(found: Mapping[str, float], values: Mapping[str, Any]) -> None:
    request = found.get("latency_request_us")
    if values.get("idle") == "held" and request is not None and request > 0:
        raise ManipulationError(
            "the idle policy was not held",
            why=f"the machine was allowed {request:.0f} us to wake up",
            remedy="did another program end the hold? labkit clean, then run again",
        )
