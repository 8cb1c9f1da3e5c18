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

#: Longer arguments are labkit's own scripts.
_LONGEST = 1000


def brief(argv: Sequence[str]) -> list[str]:
    """Return a command for the record, with length and digest instead of a long argument."""
    return [
        word
        if len(word) <= _LONGEST
        else f"<{len(word)} characters, sha256 {hashlib.sha256(word.encode()).hexdigest()[:16]}>"
        for word in argv
    ]


@dataclass(frozen=True)
class Kernel:
    """A host that evidence is read from, and its placements' processes.

    ``PID`` is the server at which a client aims, ``NAME=PID`` any other placement.
    """

    host: Host
    processes: tuple[str, ...]


def kernels(
    servers: Mapping[str, Server], main: Server, window: Host, *, shared: bool
) -> list[Kernel]:
    """Return the hosts on which evidence of the placements is read, the window's host first.

    `main` is the server at which a client aims. With a shared kernel one host sees all processes.
    """
    by_host: dict[int, tuple[Host, list[str]]] = {id(window): (window, [])}
    for name, server in servers.items():
        host = window if shared else server.host
        _, processes = by_host.setdefault(id(host), (host, []))
        processes.append(str(server.pid) if server is main else f"{name}={server.pid}")
    return [Kernel(host, tuple(processes)) for host, processes in by_host.values()]


def aimed_at(clients: Sequence[Client], servers: Mapping[str, Server]) -> Server:
    """Return the placement that the first client aims at, by address and port, or the first."""
    client = clients[0]
    same_address = [server for server in servers.values() if server.address == client.target]
    same_port = [one for one in same_address if one.port and str(one.port) in client.argv]
    return [*same_port, *same_address, *servers.values()][0]


def check_target(rig: Rig, servers: Iterable[Server], client: Client, inside: Any) -> None:
    """Raise unless the load goes to an address of the rig, or of a placement of the trial."""
    if not client.target and inside is None:
        raise FenceError(
            "a client on the generator has no target", remedy="name the address that it sends to"
        )
    addresses = {server.own_address for server in servers}
    if client.target and not (inside is not None and client.target in addresses):
        rig.check_target(client.target)


def snapshot(text: str, kernel: Kernel) -> Snapshot:
    """Take a snapshot on a host."""
    return evidence.parse(kernel.host.run(*script(text, *kernel.processes)).stdout)


def account(
    record: dict[str, Any],
    snapshots: Sequence[tuple[Kernel, tuple[Snapshot, Snapshot]]],
    cpus: tuple[str, str],
    measurements: Sequence[Measurement],
    treatments: Iterable[tuple[Treatment, Any]],
) -> None:
    """Add mechanisms, evidence and flags of a window to a trial's record.

    `snapshots` are before and after the window, its own host's first; `cpus` the CPU lists of
    client and server; `treatments` come with their levels.
    """
    client = snapshots[0][1]
    server = next(
        pair for kernel, pair in snapshots if any("=" not in one for one in kernel.processes)
    )
    mechanisms = evidence.mechanisms(*server, sum(one.messages for one in measurements))
    mechanisms |= evidence.cpu_sides(client=(*client, cpus[0]), server=(*server, cpus[1]))
    record["evidence"] = {"before": server[0], "after": server[1]}
    for kernel, (before, after) in snapshots:
        if after is not server[1]:
            mechanisms |= evidence.beside(before, after)
            record["evidence"][kernel.host.name] = {"before": before, "after": after}
    flags = [flag for treatment, level in treatments for flag in treatment.check(level, mechanisms)]
    record["mechanisms"] |= mechanisms
    record["flags"] += [flag for measurement in measurements for flag in measurement.flags]
    record["flags"] += [*flags, *validity(mechanisms)]


#: Steal on one CPU, as a share of the window.
_STEAL = 0.003


def validity(mechanisms: Mapping[str, float]) -> list[str]:
    """Return the validity rules that a window breaks, of those that hold for every study."""
    flags = []
    if mechanisms.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {mechanisms['steal_worst']:.1%} of a CPU")
    if mechanisms.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{mechanisms['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    return flags


_TRANSPORTS = ("", "tcp", "udp")


def check_published(target: Target, server: Server, protocols: Iterable[str] = ("",)) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The engine's proxy answers on the port too, and its traffic is not translated. There must be a
    flow of each transport in `protocols`; "" is any. The verification keeps the counters.
    """
    observed = observe(target, server.pid)
    taken = server.verification.setdefault("taken", {})
    for protocol in protocols:
        before = taken.get(protocol, nat_flows(server.verification, server.port, protocol))
        after = nat_flows(observed, server.port, protocol)
        if after <= before:
            raise ManipulationError(
                f"the load did not pass the address translation {protocol}".strip(),
                where=f"host {target.host.name}, port {server.port}",
                why=f"its rules have counted {after} flows, as many as before the window",
                remedy="is a proxy of the engine in the way?",
            )
    taken |= {protocol: nat_flows(observed, server.port, protocol) for protocol in _TRANSPORTS}


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON data."""
    if isinstance(error, LabkitError):
        return error.as_record()
    return {
        "type": type(error).__name__,
        "what": str(error) or type(error).__name__,
        "evidence": {},
    }
