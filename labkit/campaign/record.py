"""The record of a trial: its commands, the evidence of its window, broken rules, its error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.campaign import evidence
from labkit.campaign.treatments import Treatment
from labkit.errors import FenceError, LabkitError, ManipulationError
from labkit.hosts import Host, script
from labkit.hosts.target import Target
from labkit.rig import Rig
from labkit.runtimes import Server
from labkit.runtimes.observed import observe
from labkit.runtimes.verify import nat_flows
from labkit.tools.base import Client, Measurement

Snapshot = dict[str, Any]

#: Longer arguments are programs of ours, which the plan's identity holds as code.
_LONGEST = 1000


def brief(argv: Sequence[str]) -> list[str]:
    """Return a command for the record, in which a long argument is its length and digest."""
    return [
        word
        if len(word) <= _LONGEST
        else f"<{len(word)} characters, sha256 {hashlib.sha256(word.encode()).hexdigest()[:16]}>"
        for word in argv
    ]


@dataclass(frozen=True)
class Kernel:
    """A host that evidence is read from, and the processes of its placements.

    Of the server at which a client aims ``PID``, of every other placement ``NAME=PID``.
    """

    host: Host
    places: tuple[str, ...]


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of a window by kernel, the window's own first; the CPU lists of both sides."""

    by_kernel: tuple[tuple[Kernel, tuple[Snapshot, Snapshot]], ...]
    client_cpus: str
    server_cpus: str

    @property
    def here(self) -> tuple[Snapshot, Snapshot]:
        """Before and after, of the window's own host."""
        return self.by_kernel[0][1]

    @property
    def server(self) -> tuple[Snapshot, Snapshot]:
        """Before and after, under the server's kernel; the same where there is one kernel."""
        return next(
            pair for one, pair in self.by_kernel if any("=" not in place for place in one.places)
        )


def kernels(
    servers: Mapping[str, Server], main: Server, window: Host, *, shared: bool
) -> list[Kernel]:
    """Return where the evidence of every placement is read: on its host, the window's first.

    `main` is the server at which a client aims. With a shared kernel any host sees all processes.
    """
    places_of: dict[int, tuple[Host, list[str]]] = {id(window): (window, [])}
    for name, one in servers.items():
        host = window if shared else one.host
        _, places = places_of.setdefault(id(host), (host, []))
        places.append(str(one.pid) if one is main else f"{name}={one.pid}")
    return [Kernel(host, tuple(places)) for host, places in places_of.values()]


def aimed_at(clients: Sequence[Client], servers: Mapping[str, Server]) -> Server:
    """Return the placement that the first client aims at, or else the first one.

    Those that share an address differ in their port.
    """
    first = clients[0]
    aimed = [one for one in servers.values() if one.address == first.target]
    named = [one for one in aimed if one.port and str(one.port) in first.argv]
    return next(iter([*named, *aimed, *servers.values()]))


def check_target(rig: Rig, servers: Iterable[Server], client: Client, inside: Any) -> None:
    """Raise unless the load goes to an address of the rig, or of a placement of the trial."""
    if not client.target and inside is None:
        raise FenceError(
            "a client on the generator has no target", remedy="name the address that it sends to"
        )
    addresses = {one.own_address for one in servers}
    if client.target and not (inside is not None and client.target in addresses):
        rig.check_target(client.target)


def snapshot(text: str, kernel: Kernel) -> Snapshot:
    """Take a snapshot of the placements under a kernel."""
    return evidence.parse(kernel.host.run(*script(text, *kernel.places)).stdout)


def account(
    record: dict[str, Any],
    snapshots: Snapshots,
    measurements: Sequence[Measurement],
    treated: Iterable[tuple[Treatment, Any]],
) -> None:
    """Add to a trial's record what its window says; `treated`: treatments with their levels."""
    server = snapshots.server
    found = evidence.mechanisms(*server, sum(measurement.messages for measurement in measurements))
    found |= evidence.cpu_sides(
        client=(*snapshots.here, snapshots.client_cpus), server=(*server, snapshots.server_cpus)
    )
    record["evidence"] = {"before": server[0], "after": server[1]}
    for kernel, (before, after) in snapshots.by_kernel:
        if after is not server[1]:
            found |= evidence.beside(before, after)
            record["evidence"][kernel.host.name] = {"before": before, "after": after}
    broken = [flag for treatment, level in treated for flag in treatment.check(level, found)]
    record["mechanisms"] |= found
    record["flags"] += [flag for measurement in measurements for flag in measurement.flags]
    record["flags"] += [*broken, *validity(found)]


#: Steal on one CPU, as a share of a window whose load is about a third of it.
_STEAL = 0.003


def validity(mechanisms: Mapping[str, float]) -> list[str]:
    """Return the validity rules of every study that a window breaks; it is flagged, not dropped."""
    flags = []
    if mechanisms.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {mechanisms['steal_worst']:.1%} of a CPU")
    if mechanisms.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{mechanisms['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    return flags


def check_published(target: Target, server: Server, protocols: Iterable[str] = ("",)) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The engine's own proxy answers on the port as well: what it carries went past the translation.
    What the rules have taken so far stays with the verification, as ``taken``.
    There must be a flow of each transport in `protocols`; "" is any.
    """
    found = observe(target, server.pid)
    taken = server.verification.setdefault("taken", {})
    for protocol in protocols:
        before = taken.get(protocol, nat_flows(server.verification, server.port, protocol))
        after = nat_flows(found, server.port, protocol)
        if after <= before:
            raise ManipulationError(
                f"what was sent did not pass the address translation {protocol}".strip(),
                where=f"host {target.host.name}, port {server.port}",
                why=f"its rules have taken {after} flows, as many as before",
                remedy="is a proxy of the engine in the way?",
            )
    taken |= {one: nat_flows(found, server.port, one) for one in ("", "tcp", "udp")}


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as the record of a failed trial keeps it."""
    if isinstance(error, LabkitError):
        return error.as_record()
    return {
        "type": type(error).__name__,
        "what": str(error) or type(error).__name__,
        "evidence": {},
    }
