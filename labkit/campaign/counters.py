"""Mechanism evidence: kernel counters before and after a window, and what they say of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.hosts import Host, agent
from labkit.hosts.cache_line import CPUS_APART, share_no_cache
from labkit.placement import parse_cpus

Snapshot = dict[str, Any]
#: Columns by their counter, of the machine or the server: changes in a window, and, in `RATES`,
#: changes per message; `LEVELS` are counters as they are at its end.
RATES = {"context_switches": "context_switches", "server_switches": "voluntary"}
RATES |= {"idle_exits": "idle_exits", "softirq_net_rx": "NET_RX", "softirq_net_tx": "NET_TX"}
CHANGES = ("migrations", "pressure_us", "softnet_dropped", "rps_ipis", agent.BUSY_POLLING)
LEVELS = {"conntrack_entries": "conntrack_entries", "server_last_cpu": "last_cpu"}
LATENCY = "latency_request_us"
#: Kinds of CPU time, as of ``sar -u ALL``. The kernel counts ticks of 10 ms by CPU, not by process:
#: a side has that of its CPUs. Where both sides are namespaces of one kernel, the softirq that
#: receives a packet counts for the sender, unless `labkit.treatments.PacketSteering` moves packets.
KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
#: Seconds of a tick in ``/proc/PID/stat``, on every Linux.
TICK = 0.01
#: Beginnings of the names of what engines and networks run, and of what places their processes in
#: control groups: part of what is measured.
_MEASURED = ("dockerd", "containerd", "weaver", "systemd", "dbus-daemon")
#: Shares of a CPU that are flagged: of a program that ran before the trial, and of steal.
_OTHERS, _STEAL = 0.05, 0.003
#: CPU time is read a little before or after the window's own time: by a share of the window, and
#: by ns on a busy machine.
_CLOCKS, _READING_NS = 1.1, 0.5e9
#: Ticks of each of `KINDS`, by the kernel's name of a CPU; "cpu" is the sum of all.
Ticks = Mapping[str, list[int]]
#: The ticks of a window, and the CPU list of a side; "" is every CPU of that machine.
Side = tuple[Ticks, str]


@dataclass
class Kernel:
    """A host of a window, with its snapshots before and after.

    `places` are processes of placements by name, "" for the server at which a client aims;
    `readings` are the arguments of the agent's ``observe`` by name.
    """

    host: Host
    places: dict[str, int] = field(default_factory=dict)
    readings: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: Snapshot = field(default_factory=dict)
    after: Snapshot = field(default_factory=dict)

    def snapshot(self, *, before: bool) -> Snapshot:
        """Return a snapshot before or after a window that is another host's."""
        return dict(self.host.call("snapshot", places=self.places, before=before))

    def observe(self, seen: Collection[str] = ()) -> dict[str, dict[str, str]]:
        """Return observations of the readings that were not seen yet."""
        unseen = {name: one for name, one in self.readings.items() if name not in seen}
        return dict(self.host.call("observe_all", readings=unseen)) if unseen else {}


def change(before: Any, after: Any) -> Any:
    """Return by how much numbers have changed, in dicts and lists of them; others are left out."""
    if isinstance(after, dict):
        return {name: change(before[name], one) for name, one in after.items() if name in before}
    if isinstance(after, list):
        return [new - old for old, new in zip(before, after, strict=True)]
    return after - before


def account(
    kernels: Sequence[Kernel], *, messages: int, cpus: tuple[str, str], seconds: float
) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return the counters of a window, its snapshots as numbers, and the rules that it breaks.

    The first kernel is that of the window's own host; `cpus` are the CPU lists of client and
    server; the trial began `seconds` ago.
    """
    client, server = kernels[0], next(one for one in kernels if "" in one.places)
    others = {one.host.name: other_programs(one, seconds) for one in kernels}
    ticks = {one.host.name: change(one.before["cpu"], one.after["cpu"]) for one in kernels}
    found = mechanisms(server, messages)
    found |= cpu_sides((ticks[client.host.name], cpus[0]), (ticks[server.host.name], cpus[1]))
    evidence: dict[str, Any] = {"before": server.before, "after": server.after}
    for one in kernels:
        found |= of_placements(one)
        if LATENCY in one.after:  # of the machine that was allowed most
            found[LATENCY] = max(float(one.after[LATENCY]), found.get(LATENCY, 0.0))
        if one is not server:
            evidence[one.host.name] = {"before": one.before, "after": one.after}
    found["other_programs_cpu"] = max(sum(shares.values()) for shares in others.values())
    flags = [
        f"{program}, which is not part of the trial, used {share:.0%} of a CPU of {host}"
        for host, shares in others.items()
        for program, share in shares.items()
        if share > _OTHERS
    ]
    return found, evidence, flags


def mechanisms(kernel: Kernel, messages: int) -> dict[str, float]:
    """Return what happened on the host of the server, some of it per message."""
    changed = change(kernel.before, kernel.after)
    changed |= changed.get("softirqs", {})
    rates = {name: changed[key] for name, key in RATES.items() if key in changed}
    if {"NET_RX", "NET_TX"} <= set(changed):
        rates["softirqs"] = changed["NET_RX"] + changed["NET_TX"]
    found = {name: count / messages for name, count in rates.items()} if messages else {}
    found |= {name: changed[name] for name in CHANGES if name in changed}
    found |= {name: float(kernel.after[key]) for name, key in LEVELS.items() if key in kernel.after}
    found |= {f"{cpu}_packets": float(taken) for cpu, taken in changed.get("packets", {}).items()}
    found |= used(kernel.before, kernel.after, changed["clock_ns"])
    return found | cpu_shares(changed["cpu"])


def of_placements(kernel: Kernel) -> dict[str, float]:
    """Return what the named placements of a host used and lost, prefixed by their names."""
    first, last = (one.get("beside", {}) for one in (kernel.before, kernel.after))
    elapsed = kernel.after["clock_ns"] - kernel.before["clock_ns"]
    return {
        f"{name}_{column}": value
        for name, counts in last.items()
        for column, value in used(first.get(name, {}), counts, elapsed).items()
    }


def used(before: Snapshot, after: Snapshot, elapsed: int) -> dict[str, float]:
    """Return what one placement used and lost: CPU time in ns and as a share of a CPU, and drops.

    ``socket_drops`` are those of its own UDP sockets; placements may share a network namespace.
    """
    changed = change(before, after)
    counts = changed.get("throttling", {}) | {
        n: changed[n] for n in agent.NAMESPACE if n in changed
    }
    found = {name: float(count) for name, count in counts.items()}
    for key, column in {"ran_ns": "cpu", "group_ns": "group_cpu"}.items():
        if key in changed:
            found |= {f"{column}_ns": float(changed[key]), f"{column}_use": changed[key] / elapsed}
    if "sockets" in after:
        # All drops of a socket that was opened meanwhile count; the counter has 32 bits.
        earlier = before.get("sockets", {})
        lost = (count - earlier.get(one, 0) for one, count in after["sockets"].items())
        found["socket_drops"] = float(sum(count % (1 << 32) for count in lost))
    return found


def other_programs(kernel: Kernel, seconds: float) -> dict[str, float]:
    """Take the programs out of both snapshots; return the CPU use of those not of the trial.

    By name and process, as a share of one CPU. What began in the last `seconds`, the trial's, does
    not count, nor do the programs of engines and networks. The time of processes that ended inside
    the window is not seen.
    """
    earlier, later = kernel.before.pop("programs"), kernel.after.pop("programs")
    known = {(pid, start): ticks for pid, start, _, ticks in earlier}
    now = kernel.after["uptime"]
    elapsed = max(now - kernel.before["uptime"], TICK)
    return {
        f"{name} (process {pid})": (ticks - known[pid, start]) * TICK / elapsed
        for pid, start, name, ticks in later
        if (pid, start) in known and start * TICK < now - seconds and not name.startswith(_MEASURED)
    }


def cpu_shares(ticks: Ticks) -> dict[str, float]:
    """Return the share of all CPU time by kind, and the idle share of each CPU."""
    found: dict[str, float] = {}
    for name, row in ticks.items():
        share = _shares([row])
        if name == "cpu":
            found |= {"steal" if kind == "steal" else f"cpu_{kind}": x for kind, x in share.items()}
        elif share:
            found[f"{name}_idle"] = share["idle"]
            found["steal_worst"] = max(share["steal"], found.get("steal_worst", 0.0))
    return found


def cpu_sides(client: Side, server: Side) -> dict[str, float]:
    """Return the CPU use of both sides by category, as shares of the time of a side's CPUs."""
    found: dict[str, float] = {}
    sides = {"client": _cpus(*client), "server": _cpus(*server)}
    if client[0] is server[0] and sides["client"] & sides["server"]:
        return found
    for name, (ticks, _) in {"client": client, "server": server}.items():
        share = _shares([ticks[cpu] for cpu in sides[name] if cpu in ticks])
        if not share:
            continue
        share["user"] += share.pop("nice")
        share["kernel"] = share["system"] + share["irq"] + share["softirq"]
        found |= {f"{name}_cpu_{kind}": value for kind, value in share.items()}
        found[f"{name}_cpu"] = share["user"] + share["kernel"]
        if share["user"]:
            found[f"{name}_kernel_to_user"] = share["kernel"] / share["user"]
    if found.get("server_cpu") and "client_cpu" in found:
        found["client_to_server_cpu"] = found["client_cpu"] / found["server_cpu"]
    return found


def _cpus(ticks: Ticks, cpus: str) -> set[str]:
    return {f"cpu{number}" for number in parse_cpus(cpus)} or set(ticks) - {"cpu"}


def _shares(rows: Sequence[list[int]]) -> dict[str, float]:
    """Return the share of each kind in the time of some CPUs; nothing where none has passed."""
    # The kernel's counter of iowait may decrease.
    spent = [sum(max(0, ticks) for ticks in column) for column in zip(*rows, strict=True)]
    total = sum(spent)
    return {kind: ticks / total for kind, ticks in zip(KINDS, spent, strict=True)} if total else {}


def validity(counters: Mapping[str, float]) -> list[str]:
    """Return the validity rules that a window breaks, of those that hold for every study."""
    flags = []
    if counters.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {counters['steal_worst']:.1%} of a CPU")
    if share_no_cache(counters):
        flags.append(CPUS_APART)
    if counters.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{counters['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    cpus = sum(re.fullmatch(r"cpu\d+_idle", name) is not None for name in counters)
    for name, use in counters.items():
        if name.endswith("cpu_use") and use > 0 and cpus:
            elapsed = counters[f"{name.removesuffix('_use')}_ns"] / use
            if use > cpus * (_CLOCKS + _READING_NS / elapsed):
                flags.append(f"impossible: {name} is {use:.2f} of {cpus} CPUs")
    return flags
