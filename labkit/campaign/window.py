"""The measured window: what is observed and counted on every host before and after the loads."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.hosts import Host, Result, agent
from labkit.placement import parse_cpus
from labkit.runtimes import Server, base
from labkit.tools.base import Client

#: Seconds after a window's end within which labkit knows of it, also on a busy machine.
LATE = 10.0
#: No observation finds a client: as it ends, its parent reads its CPUs, class and CPU time. An
#: engine's command is not the parent of what it starts inside a placement, so that a shell is. A
#: client holds the writing end of a pipe until it ends. What is left of it is read then, before its
#: shell reaps it: dash and busybox do not while they read a command's output, bash does. dash also
#: reaps after a builtin, so that none runs from the client's start on.
GUARD = r"""[ -e /proc/self/fd/0 ] || exec "$@"
: | { { "$@" </dev/null & } 7>/proc/self/fd/0
seen=$(cat; cat "/proc/$!/stat" "/proc/$!/status" "/proc/$!/sched" /proc/self/stat 2>&1) || true
printf '\n@@ ended %s\n@@ seen\n' "$seen" >&2
wait "$!"; }"""
_ENDED = re.compile(r"\n@@ ended (.*?)\n@@ seen\n", re.DOTALL)
#: Ticks of a second in ``/proc/PID/stat``, on every Linux.
TICK_NS = 10_000_000
#: The beginning of an error where something other than a trial has changed what it set up.
CHANGED = "the trial was not as set up in the window"
#: Facts of placements and hosts by name, as the agent observes them.
Facts = dict[str, dict[str, str]]
#: Columns by their counter: `RATES` are changes per message, `LEVELS` counters at the window's end.
RATES = {"context_switches": "context_switches", "server_switches": "voluntary"}
RATES |= {"idle_exits": "idle_exits", "softirq_net_rx": "NET_RX", "softirq_net_tx": "NET_TX"}
CHANGES = ("migrations", "pressure_us", "softnet_dropped", "rps_ipis", agent.BUSY_POLLING)
LEVELS = {"conntrack_entries": "conntrack_entries", "server_last_cpu": "last_cpu"}
LATENCY = "latency_request_us"
#: Kinds of CPU time, as of ``sar -u ALL``; the kernel counts ticks of 10 ms by CPU. Between
#: namespaces of one kernel, the softirq that receives a packet counts for the sender, unless
#: `labkit.treatments.PacketSteering` moves packets.
KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
#: Beginnings of the names of what engines and networks run, and of what places their processes in
#: control groups: part of what is measured.
_MEASURED = ("dockerd", "containerd", "weaver", "systemd", "dbus-daemon")
#: Shares of a CPU that are flagged: of a program that ran before the trial, and of steal.
_OTHERS, _STEAL = 0.05, 0.003
#: CPU time is read a share of the window, and ns on a busy machine, before or after its own time.
_CLOCKS, _READING_NS = 1.1, 0.5e9
#: Ticks of each of `KINDS` by the kernel's name of a CPU ("cpu" is the sum of all), and the CPU
#: list of a side; "" is every CPU of that machine.
Side = tuple[Mapping[str, list[int]], str]


@dataclass
class Kernel:
    """A host of a window, with its snapshots before and after."""

    host: Host
    #: Processes of placements by name, "" for the server at which a client aims; and arguments of
    #: the agent's ``observe``.
    places: dict[str, int] = field(default_factory=dict)
    readings: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """A client, the command that runs it on its host, the path of its log there, and its CPUs."""

    name: str
    client: Client
    argv: Sequence[str]
    log: str
    cpus: str
    #: The folder that is made for its log, and the CPUs on which it starts inside, by `GUARD`.
    folder: str = ""
    outside: str = ""


@dataclass(frozen=True)
class Window:
    """The outcome of a window; its snapshots are in the kernels."""

    #: The job, with the status of the first load that failed, and the errors of all.
    job: Result
    #: ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load.
    texts: dict[str, str]
    #: Clients as they ended, empty where that is not known.
    ends: dict[str, dict[str, Any]]
    before: Facts
    after: Facts
    #: Interruptions of the harness, and the times of a cache line in ns.
    flags: Sequence[str] = ()
    line: Sequence[float] = ()


def measure(
    loads: Sequence[Load], kernels: Sequence[Kernel], folder: str, label: str, line: Sequence[int]
) -> Window:
    """Run loads at the same time on the first kernel's host, and sleep until all have ended."""
    own, *others = kernels
    limit, before = 2 * max(load.client.seconds for load in loads) + 20, Facts()
    made = [load.folder for load in loads if load.folder]
    place: dict[str, Any] = {"folder": folder, "folders": made, "readings": own.readings}
    logs = {f"{load.name}.log": (load.log, load.client.log_rows) for load in loads}
    runs = {load.name: (load.outside or load.cpus, list(load.argv)) for load in loads}
    job: dict[str, Any] = {"places": own.places, "cpus_of_line": line, "loads": runs}
    try:
        for kernel in others:
            before |= kernel.host.call("observe_all", readings=kernel.readings, hosts_only=True)
        for kernel in others:
            kernel.before = kernel.host.call("snapshot", places=kernel.places, before=True)
        # The other hosts' counters are read before anything is collected.
        collected, patience = ({}, 60) if others else (logs, 600)
        job |= {"label": label, "seconds": limit, "timeout": limit + patience, "logs": collected}
        began = boot_time()
        ran = own.host.call("run_window", **place, **job)
        late = boot_time() - began - ran["took"]
        for kernel in others:
            kernel.after = kernel.host.call("snapshot", places=kernel.places, before=False)
        left = ran["left"] or own.host.call("collect", **place, logs=logs, timeout=600)
        after = dict(left["seen"])
        for kernel in others:
            after |= kernel.host.call("observe_all", readings=kernel.readings)
    except BaseException:
        own.host.call("stop", folder=folder, remove=True)
        raise
    # The agent has read the ends of its own children.
    own.before, own.after, texts, ends = ran["before"], ran["after"], left["texts"], ran["ends"]
    for load in loads:
        if load.outside:
            texts[f"{load.name}.err"], ends[load.name] = taken_end(texts[f"{load.name}.err"])
    stderr = "\n".join(filter(None, (texts[f"{load.name}.err"] for load in loads))).strip()
    done = Result(("job",), own.host.name, ran["status"], "", stderr, ran["late"])
    stopped = f"labkit or its connection was stopped for {late:.0f} s in the window or just after"
    flags = [stopped] * (late > LATE)
    return Window(done, texts, ends, before | ran["seen"], after, flags, ran["line"])


def taken_end(stderr: str) -> tuple[str, dict[str, Any]]:
    """Return an error stream without what `GUARD` has added, and that as ``end_of`` says it."""
    found = _ENDED.search(stderr)
    if found is None:
        return stderr, {}
    rows = found[1].splitlines()
    values = dict(re.findall(r"^(\S+)\s*:\s*(\S+)", found[1], re.MULTILINE))
    client, parent = (row.rpartition(")")[2].split() for row in (rows[0], rows[-1]))
    end = {"client": client, "parent": parent, "cpus": values.get("Cpus_allowed_list", "")}
    end["migrations"] = values.get("se.nr_migrations", "0")
    # The client may have been gone by then.
    seen = len(client) >= 39 and int(client[6]) & agent.EXITING and end["cpus"]
    return stderr[: found.start()] + stderr[found.end() :], end if seen else {}


def problems_of(load: Load, end: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a client at its end, by the CPUs and class of its load."""
    # Without a real-time priority, the class is that of what started it.
    own, wanted = (
        {"nice value": fields[16], "scheduling class": f"{fields[38]} {fields[37]}"}
        for fields in (end["client"], end["parent"])
    )
    if load.client.fifo:
        wanted["scheduling class"] = f"1 {load.client.fifo}"
    found = [
        f"{fact} was {value} at its end, not {wanted[fact]}"
        for fact, value in own.items()
        if value != wanted[fact]
    ]
    if not {*parse_cpus(end["cpus"])} <= {*parse_cpus(load.cpus)}:
        found.append(f"allowed CPUs were {end['cpus']} at its end, not {load.cpus}")
    # The agent leaves it out where the kernel does not count it.
    elif int(end.get("migrations", 0)) and len(parse_cpus(load.cpus)) == 1:
        found.append("it was on another CPU meanwhile")
    return [f"client {load.name}: {text}" for text in found]


def check_unchanged(found: Window, loads: Sequence[Load], servers: Mapping[str, Server]) -> None:
    """Raise `ManipulationError` unless all that was set up held to the end of a window."""
    for name, last in found.after.items():
        first = found.before[name]
        if server := servers.get(name):
            if server.ends_with_client and last["state"] == "ended":
                continue
            # What was set up since it was verified changes the host.
            first = first | {
                fact: text
                for fact, text in server.verification.items()
                if not fact.endswith("of the host") and not fact.startswith("setting ")
            }
        lasting = {fact: text for fact, text in first.items() if not fact.startswith(base.COUNTED)}
        problems = base.differences(lasting, last)
        base.raise_different(f"{name} did not stay as it was in the window", problems)
    ends = ((load, found.ends.get(load.name)) for load in loads)
    changes = [text for load, end in ends if end for text in problems_of(load, end)]
    base.raise_different(CHANGED, changes)


def boot_time() -> float:
    """Return the seconds since the boot, as the hosts count: also while this machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Counters, and the rules that they break.


def change(before: Any, after: Any) -> Any:
    """Return by how much counters have grown, in dicts and lists; a dict omits what fell."""
    if isinstance(after, list):
        return [new - old for old, new in zip(before, after, strict=True)]
    if not isinstance(after, dict):
        return after - before
    found = {name: change(before[name], one) for name, one in after.items() if name in before}
    return {name: one for name, one in found.items() if not isinstance(one, int) or one >= 0}


def ticks_of(kernel: Kernel) -> dict[str, list[int]]:
    """Return the ticks of each CPU, without those whose counters fell, and of all if none did."""
    # By seconds, where a CPU was offline or a virtual machine moved; iowait, an estimate, may fall.
    found = change(kernel.before["cpu"], kernel.after["cpu"])
    fell = {name for name, ticks in found.items() if min(ticks[:4] + ticks[5:]) < -300}
    unknown = {*fell, "cpu"} if fell else fell
    return {name: ticks for name, ticks in found.items() if name not in unknown}


def account(
    kernels: Sequence[Kernel], *, messages: int, cpus: tuple[str, str], seconds: float
) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return the counters of a window, its snapshots as numbers, and the rules that it breaks."""
    # The first is the clients' host; `cpus` are those of both sides; the trial began `seconds` ago.
    client, server = kernels[0], next(one for one in kernels if "" in one.places)
    others = {one.host.name: other_programs(one, seconds) for one in kernels}
    ticks = {one.host.name: ticks_of(one) for one in kernels}
    found = mechanisms(server, messages)
    found |= cpu_sides((ticks[client.host.name], cpus[0]), (ticks[server.host.name], cpus[1]))
    evidence: dict[str, Any] = {"before": server.before, "after": server.after}
    for one in kernels:
        found |= used(one)
        if LATENCY in one.after:  # of the machine that was allowed most
            found[LATENCY] = max(float(one.after[LATENCY]), found.get(LATENCY, 0.0))
        if one is not server:
            evidence[one.host.name] = {"before": one.before, "after": one.after}
    found["other_programs_cpu"] = max(sum(shares.values()) for shares in others.values())
    flags = [
        f"the counters of {cpu} on {one.host.name} fell or ended: its use is unknown"
        for one in kernels
        for cpu in sorted(one.before["cpu"].keys() - ticks[one.host.name].keys() - {"cpu"})
    ]
    flags += [
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
    earlier, packets = (one.get("packets", {}) for one in (kernel.before, kernel.after))
    for cpu in earlier.keys() & packets:  # by counters of 32 bits
        found[f"{cpu}_packets"] = float((packets[cpu] - earlier[cpu]) % (1 << 32))
    for name, row in ticks_of(kernel).items():
        share = _shares([row])
        if name == "cpu":
            found |= {"steal" if kind == "steal" else f"cpu_{kind}": x for kind, x in share.items()}
        elif share:
            found[f"{name}_idle"] = share["idle"]
            found["steal_worst"] = max(share["steal"], found.get("steal_worst", 0.0))
    return found


def used(kernel: Kernel) -> dict[str, float]:
    """Return what placements of a host used and lost, by columns that begin with their names."""
    before = {"": kernel.before, **kernel.before.get("beside", {})}
    after = {"": kernel.after, **kernel.after.get("beside", {})}
    elapsed, found = (kernel.after["uptime"] - kernel.before["uptime"]) * 1e9, dict[str, float]()
    for name, last in after.items():
        prefix, changed = f"{name}_" if name else "", change(before[name], last)
        counts = {one: changed[one] for one in agent.NAMESPACE if one in changed}
        for column, count in {**changed.get("throttling", {}), **counts}.items():
            found[f"{prefix}{column}"] = float(count)
        spent = {"group_cpu": changed["group_ns"]} if "group_ns" in changed else {}
        threads, earlier = (one.get("threads", {}) for one in (last, before[name]))
        if threads and earlier.keys() <= threads.keys():  # what a thread took is gone with it
            spent["cpu"] = sum(threads.values()) - sum(earlier.values())
        for column, taken in spent.items():
            found[f"{prefix}{column}_ns"] = float(taken)
            found[f"{prefix}{column}_use"] = taken / elapsed
        if "sockets" in last:
            # All drops of a socket that was opened meanwhile count; the counter has 32 bits.
            earlier = before[name].get("sockets", {})
            lost = (count - earlier.get(one, 0) for one, count in last["sockets"].items())
            found[f"{prefix}socket_drops"] = float(sum(count % (1 << 32) for count in lost))
    return found


def other_programs(kernel: Kernel, seconds: float) -> dict[str, float]:
    """Take the programs out of snapshots; return the use of a CPU by those before the trial."""
    earlier, later = kernel.before.pop("programs"), kernel.after.pop("programs")
    known = {(pid, start): ticks for pid, start, _, ticks in earlier}
    now, tick = kernel.after["uptime"], TICK_NS / 1e9
    elapsed = max(now - kernel.before["uptime"], tick)
    return {
        f"{name} (process {pid})": (ticks - known[pid, start]) * tick / elapsed
        for pid, start, name, ticks in later
        if (pid, start) in known and start * tick < now - seconds and not name.startswith(_MEASURED)
    }


def cpu_sides(client: Side, server: Side) -> dict[str, float]:
    """Return the CPU use of both sides by category, as shares of the time of a side's CPUs."""
    found: dict[str, float] = {}
    sides: list[set[str]] = []
    for ticks, cpus in (client, server):
        sides.append({f"cpu{number}" for number in parse_cpus(cpus)} or set(ticks) - {"cpu"})
    if client[0] is server[0] and sides[0] & sides[1]:
        return found
    for name, (ticks, _), own in zip(("client", "server"), (client, server), sides, strict=True):
        share = _shares([ticks[cpu] for cpu in own if cpu in ticks])
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


def _shares(rows: Sequence[list[int]]) -> dict[str, float]:
    """Return the share of each kind in the time of some CPUs; nothing where none has passed."""
    # A counter that fell a little counts as having stood still.
    spent = [sum(max(0, ticks) for ticks in column) for column in zip(*rows, strict=True)]
    total = sum(spent)
    return {kind: ticks / total for kind, ticks in zip(KINDS, spent, strict=True)} if total else {}


def validity(counters: Mapping[str, float]) -> list[str]:
    """Return the validity rules that a window breaks, of those that hold for every study."""
    flags = []
    if counters.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {counters['steal_worst']:.1%} of a CPU")
    if counters.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{counters['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    cpus = sum(re.fullmatch(r"cpu\d+_idle", name) is not None for name in counters)
    for name, use in counters.items():
        if name.endswith("cpu_use") and use > 0 and cpus:
            elapsed = counters[f"{name.removesuffix('_use')}_ns"] / use
            if use > cpus * (_CLOCKS + _READING_NS / elapsed):
                flags.append(f"impossible: {name} is {use:.2f} of {cpus} CPUs")
    return flags
