"""The record of a trial: its commands, the evidence of its window, broken rules, its error."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.campaign import evidence, held
from labkit.campaign.treatments import Treatment
from labkit.errors import FenceError, LabkitError
from labkit.hosts import Host, script
from labkit.placement import CPUS_APART, apart
from labkit.rig import Rig
from labkit.runtimes import Server
from labkit.runtimes.verify import COUNTED, check_translated
from labkit.tools.base import Client, Measurement
from labkit.tools.parsing import paused

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
    """A host that evidence is read from, and what is read there.

    Of `processes`, ``PID`` is the server at which a client aims, ``NAME=PID`` any other placement.
    `networks` are ``NAME=PATH`` of network namespaces, without a path for the host's own.
    """

    host: Host
    processes: tuple[str, ...]
    networks: tuple[str, ...] = ()


def kernels(
    servers: Mapping[str, Server],
    main: Server,
    window: Host,
    *,
    shared: bool,
    networks: Mapping[str, str] | None = None,
) -> list[Kernel]:
    """Return the hosts on which evidence of the placements is read, the window's host first.

    `main` is the server at which a client aims. With a shared kernel one host sees all processes,
    and all `networks` (`Rig.networks_of`).
    """
    by_host: dict[int, tuple[Host, list[str], list[str]]] = {}
    for name, server in [("", None), *servers.items()]:
        host = window if shared or server is None else server.host
        paths = networks or {host.name: ""}
        words = [f"{network}={path}" for network, path in paths.items()]
        _, processes, spaces = by_host.setdefault(id(host), (host, [], words))
        if server is not None:
            processes.append(str(server.pid) if server is main else f"{name}={server.pid}")
            if _own_network(server):
                spaces.append(f"{name}{held.OWN}=/proc/{server.pid}/ns/net")
    return [Kernel(host, tuple(a), tuple(b)) for host, a, b in by_host.values()]


def _own_network(server: Server) -> bool:
    return server.verification.get("network") == "its own"


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


def snapshot(text: str, kernel: Kernel) -> str:
    """Take a snapshot on a host."""
    words = " ".join(kernel.processes), " ".join(kernel.networks)
    return kernel.host.run(*script(text, *words)).stdout


def check_held(
    pairs: Iterable[tuple[Kernel, tuple[str, str]]],
    servers: Mapping[str, Server],
    main: str,
    links: Collection[str],
) -> dict[str, Any]:
    """Return what was the same before and after a window, by host; `links` are the lab's.

    Raises
    ------
    ManipulationError
        Something differs between the snapshots, or since a placement was verified.
    """
    found = {}
    for kernel, texts in pairs:
        before, after = (held.parse(text, links, main) for text in texts)
        changes = [
            change
            for name, server in servers.items()
            for change in held.since(server.verification, name, before)
        ]
        ending = [name for name, server in servers.items() if server.ends_with_client]
        changes += held.differences(held.without_ended(before, after, ending), after)
        held.raise_changed(changes, f"host {kernel.host.name}")
        found[kernel.host.name] = after.record()
    return found


def account(
    record: dict[str, Any],
    pairs: Sequence[tuple[Kernel, tuple[str, str]]],
    cpus: tuple[str, str],
    measurements: Sequence[Measurement],
    treatments: Iterable[tuple[Treatment, Any]],
    seconds: float,
) -> None:
    """Add mechanisms, evidence and flags of a window to a trial's record.

    `pairs` are the snapshots before and after the window, its own host's first; `cpus` the CPU
    lists of client and server; `treatments` come with their levels; the trial began `seconds`
    before the last snapshot.
    """
    snapshots: list[tuple[Kernel, tuple[Snapshot, Snapshot]]] = [
        (kernel, (evidence.parse(before), evidence.parse(after)))
        for kernel, (before, after) in pairs
    ]
    others = {
        kernel.host.name: shares
        for kernel, pair in snapshots
        if (shares := evidence.other_programs(*pair, seconds)) is not None
    }
    for _, pair in snapshots:  # the list of programs is not kept
        for snapshot in pair:
            snapshot.pop("programs", None)
    client = snapshots[0][1]
    server = next(
        pair for kernel, pair in snapshots if any("=" not in one for one in kernel.processes)
    )
    mechanisms = record["mechanisms"] | evidence.mechanisms(
        *server, sum(one.messages for one in measurements)
    )
    mechanisms |= evidence.cpu_sides(client=(*client, cpus[0]), server=(*server, cpus[1]))
    for measurement in measurements:
        mechanisms |= measurement.mechanisms
    record["evidence"] = {"before": server[0], "after": server[1]}
    for kernel, (before, after) in snapshots:
        if after is not server[1]:
            mechanisms |= evidence.beside(before, after)
            record["evidence"][kernel.host.name] = {"before": before, "after": after}
    allowed = [after[_LATENCY] for _, (_, after) in snapshots if _LATENCY in after]
    if allowed:  # of the machine that was allowed most
        mechanisms[_LATENCY] = float(max(allowed))
    if others:
        mechanisms["other_programs_cpu"] = max(sum(shares.values()) for shares in others.values())
    flags = [flag for treatment, level in treatments for flag in treatment.check(level, mechanisms)]
    flags += [
        f"{program}, which is not part of the trial, used {share:.0%} of a CPU of {host}"
        for host, shares in others.items()
        for program, share in shares.items()
        if share > _OTHERS
    ]
    record["mechanisms"] |= mechanisms
    for measurement in measurements:
        times = (measurement.samples.get(name) for name in ("start_ns", "end_ns"))
        pauses = [flag for column in times if column is not None for flag in paused(column)]
        record["flags"] += [*measurement.flags, *pauses]
    record["flags"] += [*flags, *validity(mechanisms)]


_LATENCY = "latency_request_us"
#: CPU use of a program that ran before the trial, as a share of one CPU.
_OTHERS = 0.05
#: Steal on one CPU, as a share of the window.
_STEAL = 0.003
#: CPU time is read a little before or after the window's own time: by a share of the window, and
#: by ns on a busy machine.
_CLOCKS, _READING_NS = 1.1, 0.5e9


def validity(mechanisms: Mapping[str, float]) -> list[str]:
    """Return the validity rules that a window breaks, of those that hold for every study."""
    flags = []
    if mechanisms.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {mechanisms['steal_worst']:.1%} of a CPU")
    if apart(mechanisms):
        flags.append(CPUS_APART)
    if mechanisms.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{mechanisms['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    cpus = sum(re.fullmatch(r"cpu\d+_idle", name) is not None for name in mechanisms)
    flags += [
        f"impossible: {name} is {use:.2f} of {cpus} CPUs"
        for name, use in mechanisms.items()
        if name.endswith("cpu_use") and cpus and use > _most(cpus, name, use, mechanisms)
    ]
    return flags


def _most(cpus: int, name: str, use: float, mechanisms: Mapping[str, float]) -> float:
    """Return the most CPUs that can have been used in a window, as read."""
    spent = mechanisms.get(f"{name.removesuffix('_use')}_ns", 0.0)
    elapsed = spent / use if use > 0 else 0.0
    return cpus * (_CLOCKS + (_READING_NS / elapsed if elapsed else 0.0))


def check_published(server: Server, protocols: Iterable[str] = ("",)) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The verification keeps the counts, for the next window.
    """
    observed = server.observe()
    check_translated(server.verification, observed, protocols)
    counts = {name: count for name, count in observed.items() if name.startswith(COUNTED)}
    server.verification.update(counts)


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON data."""
    if isinstance(error, LabkitError):
        return error.as_record()
    return {
        "type": type(error).__name__,
        "what": str(error) or type(error).__name__,
        "evidence": {},
    }
