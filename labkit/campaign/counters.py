"""Mechanism evidence: kernel counters before and after a window, and what they say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.hosts import Host, agent
from labkit.hosts.cache_line import CPUS_APART, apart
from labkit.placement import parse_cpus
from labkit.runtimes import Server

Snapshot = dict[str, Any]
#: Seconds of a tick in ``/proc/PID/stat``, on every Linux.
TICK = 0.01
#: Beginnings of the names of what engines and networks run, and of what places their processes in
#: control groups: part of what is measured.
_MEASURED = ("dockerd", "containerd", "weaver", "systemd", "dbus-daemon")


@dataclass(frozen=True)
class Kernel:
    """A host that a snapshot is taken of, with the processes of placements there by name.

    The name of the server at which a client aims is "".
    """

    host: Host
    places: dict[str, int]

    def snapshot(self, *, before: bool) -> Snapshot:
        """Take a snapshot before or after a window that is another host's."""
        return dict(self.host.call("snapshot", places=self.places, before=before))


def kernels(
    servers: Mapping[str, Server], main: Server, window: Host, *, shared: bool
) -> list[Kernel]:
    """Return the hosts on which evidence of the placements is read, the window's host first.

    `main` is the server at which a client aims. With a shared kernel one host sees all processes.
    """
    found = {id(window): Kernel(window, {})}
    for name, server in servers.items():
        host = window if shared else server.host
        kernel = found.setdefault(id(host), Kernel(host, {}))
        kernel.places["" if server is main else name] = server.pid
    return list(found.values())


def account(
    pairs: Sequence[tuple[Kernel, tuple[Snapshot, Snapshot]]],
    *,
    messages: int,
    cpus: tuple[str, str],
    seconds: float,
) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return the counters of a window, its snapshots as numbers, and the rules that it breaks.

    `pairs` are snapshots before and after, those of the window's own host first; `cpus` the CPU
    lists of client and server; the trial began `seconds` before the last snapshot.
    """
    others = {
        kernel.host.name: shares
        for kernel, pair in pairs
        if (shares := other_programs(*pair, seconds)) is not None
    }
    for snapshot in (one for _, pair in pairs for one in pair):  # the list of programs is not kept
        snapshot.pop("programs", None)
    client = pairs[0][1]
    server = next(pair for kernel, pair in pairs if "" in kernel.places)
    found = mechanisms(*server, messages)
    found |= cpu_sides(client=(*client, cpus[0]), server=(*server, cpus[1]))
    evidence: dict[str, Any] = {"before": server[0], "after": server[1]}
    for kernel, (before, after) in pairs:
        if after is not server[1]:
            found |= beside(before, after)
            evidence[kernel.host.name] = {"before": before, "after": after}
    allowed = [after[_LATENCY] for _, (_, after) in pairs if _LATENCY in after]
    if allowed:  # of the machine that was allowed most
        found[_LATENCY] = float(max(allowed))
    if others:
        found["other_programs_cpu"] = max(sum(shares.values()) for shares in others.values())
    flags = [
        f"{program}, which is not part of the trial, used {share:.0%} of a CPU of {host}"
        for host, shares in others.items()
        for program, share in shares.items()
        if share > _OTHERS
    ]
    return found, evidence, flags


_LATENCY = "latency_request_us"
#: CPU use of a program that ran before the trial, as a share of one CPU.
_OTHERS = 0.05
#: Steal on one CPU, as a share of the window.
_STEAL = 0.003
#: CPU time is read a little before or after the window's own time: by a share of the window, and
#: by ns on a busy machine.
_CLOCKS, _READING_NS = 1.1, 0.5e9


def validity(counters: Mapping[str, float]) -> list[str]:
    """Return the validity rules that a window breaks, of those that hold for every study."""
    flags = []
    if counters.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {counters['steal_worst']:.1%} of a CPU")
    if apart(counters):
        flags.append(CPUS_APART)
    if counters.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{counters['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    cpus = sum(re.fullmatch(r"cpu\d+_idle", name) is not None for name in counters)
    for name, use in counters.items():
        if name.endswith("cpu_use") and use > 0 and cpus:
            elapsed = counters.get(f"{name.removesuffix('_use')}_ns", 0.0) / use
            if use > cpus * (_CLOCKS + (_READING_NS / elapsed if elapsed else 0.0)):
                flags.append(f"impossible: {name} is {use:.2f} of {cpus} CPUs")
    return flags


_SOFTNET = ("softnet_dropped", "rps_ipis")


def mechanisms(before: dict[str, Any], after: dict[str, Any], messages: int) -> dict[str, float]:
    """Return what happened between two snapshots, some of it per operation."""
    rates = {
        "context_switches": _change(before, after, "context_switches"),
        "server_switches": _change(before, after, "voluntary"),
        "idle_exits": _change(before, after, "idle_exits"),
    }
    for name in ("NET_RX", "NET_TX"):
        rates[f"softirq_{name.lower()}"] = _change(
            before.get("softirqs", {}), after.get("softirqs", {}), name
        )
    found = {
        name: value / messages for name, value in rates.items() if value is not None and messages
    }
    if {"softirq_net_rx", "softirq_net_tx"} <= set(found):
        found["softirqs"] = found["softirq_net_rx"] + found["softirq_net_tx"]
    for name in ("migrations", "pressure_us", *_SOFTNET, agent.BUSY_POLLING):
        value = _change(before, after, name)
        if value is not None:
            found[name] = value
    for cpu in after.get("packets", {}):
        taken = _change(before.get("packets", {}), after["packets"], cpu)
        found |= {f"{cpu}_packets": float(taken)} if taken is not None else {}
    elapsed = _change(before, after, "clock_ns")
    found |= _used(before, after, elapsed) | beside(before, after)
    found |= cpu_shares(before.get("cpu", {}), after.get("cpu", {}))
    for name in ("conntrack_entries", "latency_request_us"):
        if name in after:
            found[name] = float(after[name])
    if "last_cpu" in after:
        found["server_last_cpu"] = float(after["last_cpu"])
    return found


def other_programs(
    before: dict[str, Any], after: dict[str, Any], seconds: float
) -> dict[str, float] | None:
    """Return the CPU use of programs that ran before the trial, as a share of one CPU.

    By name and process; None where a snapshot does not have them. The trial began `seconds` before
    the second snapshot or earlier: what it started is younger, and does not count, nor do the
    programs of engines and networks. The time of processes that ended inside the window, such as
    the compilers that ``make`` starts, is not seen.
    """
    if "programs" not in before or "programs" not in after:
        return None
    now, earlier = after["uptime"], before["uptime"]
    if now <= earlier:
        return None
    known = {(pid, start): ticks for pid, start, _, ticks in before["programs"]}
    return {
        f"{name} (process {pid})": (ticks - known[pid, start]) * TICK / (now - earlier)
        for pid, start, name, ticks in after["programs"]
        if (pid, start) in known and start * TICK < now - seconds and not name.startswith(_MEASURED)
    }


def beside(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Return what the named placements of two snapshots used and lost, prefixed by their names."""
    elapsed = _change(before, after, "clock_ns")
    found: dict[str, float] = {}
    for placement, used in after.get("beside", {}).items():
        earlier = before.get("beside", {}).get(placement, {})
        found |= {f"{placement}_{name}": x for name, x in _used(earlier, used, elapsed).items()}
    return found


def _used(before: dict[str, Any], after: dict[str, Any], elapsed: int | None) -> dict[str, float]:
    """Return what one placement used and lost between two snapshots.

    CPU time in ns and as a share of a CPU; ``socket_drops``, the datagrams that its own UDP sockets
    dropped; and counters of its network namespace, which placements may share.
    """
    found: dict[str, float] = {}
    for name, column in (("ran_ns", "cpu"), ("group_ns", "group_cpu")):
        spent = _change(before, after, name)
        if spent is not None:
            found[f"{column}_ns"] = float(spent)
            found |= {f"{column}_use": spent / elapsed} if elapsed else {}
    for name, value in after.get("throttling", {}).items():
        found[name] = float(value - before.get("throttling", {}).get(name, 0))
    for name in agent.NAMESPACE:
        value = _change(before, after, name)
        found |= {name: float(value)} if value is not None else {}
    if "sockets" in after:
        # All drops of a socket that was opened meanwhile count; the counter has 32 bits.
        earlier = before.get("sockets", {})
        lost = (count - earlier.get(one, 0) for one, count in after["sockets"].items())
        found["socket_drops"] = float(sum(count % (1 << 32) for count in lost))
    return found


def _change(before: dict[str, Any], after: dict[str, Any], name: str) -> int | None:
    if before.get(name) is None or after.get(name) is None:
        return None
    return int(after[name]) - int(before[name])


# CPU time, in the categories of ``sar -u ALL``.
#
# The kernel counts ticks of 10 ms (``/proc/stat``) by CPU, not by process: a side's time is that of
# its CPUs. Where both sides are namespaces of one kernel, the softirq that receives a packet runs
# on the CPU that sent it, and counts for the sender, unless the campaign moves packets to a CPU of
# the receiver (`labkit.treatments.ReceivingCpu`).

KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
#: Ticks of each of `KINDS`, by the kernel's name of a CPU; "cpu" is the sum of all.
Ticks = Mapping[str, list[int]]
#: A snapshot before and one after, and the CPU list of a side; "" is every CPU of that machine.
Side = tuple[Mapping[str, Any], Mapping[str, Any], str]


def cpu_shares(before: Ticks, after: Ticks) -> dict[str, float]:
    """Return the share of all CPU time by kind, and the idle share of each CPU."""
    found: dict[str, float] = {}
    for name, counted in after.items():
        spent = [new - old for new, old in zip(counted, before.get(name, counted), strict=True)]
        total = sum(spent)
        if not total:
            continue
        each = dict(zip(KINDS, (ticks / total for ticks in spent), strict=True))
        if name == "cpu":
            found |= {f"cpu_{kind}": share for kind, share in each.items() if kind != "steal"}
            found["steal"] = each["steal"]
        else:
            found[f"{name}_idle"] = each["idle"]
            found["steal_worst"] = max(each["steal"], found.get("steal_worst", 0.0))
    return found


def cpu_sides(*, client: Side, server: Side) -> dict[str, float]:
    """Return the CPU use of both sides by category, as shares of the time of a side's CPUs."""
    if client[1] is server[1] and _cpus(client) & _cpus(server):
        return {}
    found = _side("client", client) | _side("server", server)
    if found.get("server_cpu") and "client_cpu" in found:
        found["client_to_server_cpu"] = found["client_cpu"] / found["server_cpu"]
    return found


def _cpus(side: Side) -> set[str]:
    """Return the kernel's names of a side's CPUs."""
    _, after, cpus = side
    if cpus:
        return {f"cpu{number}" for number in parse_cpus(cpus)}
    return set(after.get("cpu", {})) - {"cpu"}


def _side(name: str, side: Side) -> dict[str, float]:
    before, after = (snapshot.get("cpu", {}) for snapshot in side[:2])
    cpus = _cpus(side)
    if not cpus <= set(before) & set(after):
        return {}
    # The kernel's counter of iowait may decrease.
    pairs = [zip(before[cpu], after[cpu], strict=True) for cpu in cpus]
    rows = [[max(0, new - old) for old, new in pair] for pair in pairs]
    spent = [sum(column) for column in zip(*rows, strict=True)]
    total = sum(spent)
    if not total:
        return {}
    share = dict(zip(KINDS, (ticks / total for ticks in spent), strict=True))
    share["user"] += share.pop("nice")
    share["kernel"] = share["system"] + share["irq"] + share["softirq"]
    found = {f"{name}_cpu_{kind}": value for kind, value in share.items()}
    found[f"{name}_cpu"] = share["user"] + share["kernel"]
    if share["user"]:
        found[f"{name}_kernel_to_user"] = share["kernel"] / share["user"]
    return found
