"""Mechanism evidence: kernel counters before and after a window, and what they say of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.campaign import held
from labkit.errors import ToolOutput
from labkit.hosts import Host, script, sockets
from labkit.placement import CPUS_APART, apart, parse_cpus
from labkit.runtimes import Server
from labkit.runtimes.observed import sections

# A file that a kernel does not have leaves its section out; the mechanism is then missing (NaN),
# not zero. Counters of the whole machine are read last before the window and first after it, so
# that they do not count the work of the snapshot.
SNAPSHOT = (
    sockets.SHOW
    + held.SHOW
    + r"""
show() { [ -r "$2" ] && { echo "@@ $1"; cat "$2"; } || true; }
counters() {
    show stat /proc/stat
    show softirqs /proc/softirqs
    echo "@@ idle"; grep . /sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/usage || true
}
# A placement is given by a process: "PID" for the server, "NAME=PID" for any other.
details() {
    for place in "$@"; do
        pid=${place#*=} name=${place%"${place#*=}"}
        echo "@@ ${name}ran"; cat "/proc/$pid/task/"*/schedstat || true
        while IFS=: read -r id names path; do
            for base in "/sys/fs/cgroup/$names" /sys/fs/cgroup; do
                group=$base$path
                case "$names" in *cpu | cpu* | "") show "${name}cpu.stat" "$group/cpu.stat" ;; esac
                case "$names" in *cpuacct*) show "${name}cpuacct" "$group/cpuacct.usage" ;; esac
            done
        done <"/proc/$pid/cgroup" || true
        echo "@@ ${name}sockets"; sockets "$pid"
        show "${name}snmp" "/proc/$pid/net/snmp"
        [ -z "$name" ] || continue
        show sched "/proc/$pid/sched"
        show task "/proc/$pid/stat"
        show netstat "/proc/$pid/net/netstat"
        show softnet "/proc/$pid/net/softnet_stat"
        show conntrack "/proc/$pid/net/stat/nf_conntrack"
    done
    show pressure /proc/pressure/cpu
    echo "@@ latency"; od -An -td4 -N4 /dev/cpu_dma_latency 2>/dev/null || true
    echo "@@ programs"; cat /proc/uptime /proc/[0-9]*/stat 2>/dev/null || true
    echo "@@ clock"; date +%s%N
}
# Placements and networks are read at the same time, and printed one after the other.
around() { networks "$2" | { details $1; placements "$1"; cat; }; }
"""
)

#: The window of a trial: snapshot, loads, snapshot; nothing else is sent to the host while it runs.
#: Arguments: folder, placements, networks, the command line that times a cache line until SIGTERM,
#: or an empty one, then name and command line of each load. It has printed once before they begin.
WINDOW = (
    SNAPSHOT
    + r"""
folder=$1 places=$2 networks=$3 line=$4 jobs= timing=
shift 4
chmod 700 "$folder"
if [ -n "$line" ]; then
    sh -c "exec $line" >"$folder/line" 2>/dev/null &
    timing=$!
    while [ ! -s "$folder/line" ] && kill -0 "$timing" 2>/dev/null; do sleep 0.01; done
fi
{ around "$places" "$networks"; counters; echo "@@ end"; } >"$folder/before"
while [ $# -gt 0 ]; do
    sh -c "exec $2" >"$folder/$1.out" 2>"$folder/$1.err" &
    jobs="$jobs $!"
    shift 2
done
status=0
for job in $jobs; do
    wait "$job" || { own=$?; [ "$status" -ne 0 ] || status=$own; }
done
[ -z "$timing" ] || kill "$timing" 2>/dev/null || true
{ counters; around "$places" "$networks"; echo "@@ end"; } >"$folder/after"
[ -z "$timing" ] || wait "$timing" || true
exit $status
"""
)

#: The snapshots alone, for the other hosts of a rig with several kernels.
#: Arguments: placements, networks.
BEFORE = SNAPSHOT + 'around "$1" "$2"; counters; echo "@@ end"\n'
AFTER = SNAPSHOT + 'counters; around "$1" "$2"; echo "@@ end"\n'

#: Beginnings of the names of what engines and networks run, and of what places their processes in
#: control groups: part of what is measured.
_MEASURED = ("dockerd", "containerd", "weaver", "systemd", "dbus-daemon")
_SCHED = {"voluntary": "nr_voluntary_switches", "migrations": "se.nr_migrations"}


@dataclass(frozen=True)
class Kernel:
    """A host that a snapshot is taken of, and what is read there.

    Of `processes`, ``PID`` is the server at which a client aims, ``NAME=PID`` any other placement.
    `networks` are ``NAME=PATH`` of network namespaces, without a path for the host's own.
    """

    host: Host
    processes: tuple[str, ...]
    networks: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, str]:
        """The arguments of a snapshot."""
        return " ".join(self.processes), " ".join(self.networks)

    def snapshot(self, text: str) -> str:
        """Take a snapshot by a script."""
        return self.host.run(*script(text, *self.words)).stdout


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
        words = [f"{network}={path}" for network, path in (networks or {host.name: ""}).items()]
        _, processes, spaces = by_host.setdefault(id(host), (host, [], words))
        if server is not None:
            processes.append(str(server.pid) if server is main else f"{name}={server.pid}")
            if _has_own_network(server):
                spaces.append(f"{name}{held.OWN}=/proc/{server.pid}/ns/net")
    return [Kernel(host, tuple(a), tuple(b)) for host, a, b in by_host.values()]


def _has_own_network(server: Server) -> bool:
    """Tell whether a placement has another network namespace than its host."""
    own, host = (server.verification.get(x, {}) for x in ("namespaces", "host_namespaces"))
    return bool(own.get("net") != host.get("net"))


def account(
    snapshots: Iterable[tuple[Kernel, tuple[str, str]]],
    *,
    messages: int,
    cpus: tuple[str, str],
    seconds: float,
) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return the counters of a window, its snapshots as numbers, and the rules that it breaks.

    `snapshots` are texts before and after, those of the window's own host first; `cpus` the CPU
    lists of client and server; the trial began `seconds` before the last snapshot.
    """
    pairs = [(kernel, (parse(a), parse(b))) for kernel, (a, b) in snapshots]
    others = {
        kernel.host.name: shares
        for kernel, pair in pairs
        if (shares := other_programs(*pair, seconds)) is not None
    }
    for snapshot in (one for _, pair in pairs for one in pair):  # the list of programs is not kept
        snapshot.pop("programs", None)
    client = pairs[0][1]
    server = next(pair for kernel, pair in pairs if any("=" not in one for one in kernel.processes))
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


def parse(text: str) -> dict[str, Any]:
    """Return a snapshot as numbers, without those that the kernel does not have."""
    raw = sections(text)
    if "end" not in raw:
        raise ToolOutput(
            "a snapshot of the mechanism evidence is incomplete",
            why=text[-200:].strip() or "it is empty",
            evidence={"snapshot": text[-4000:]},
        )
    try:
        return _numbers(raw)
    except (ValueError, IndexError) as error:
        raise ToolOutput(
            "a snapshot of the mechanism evidence cannot be read",
            why=str(error)[:200],
            evidence={"snapshot": text[-4000:]},
        ) from error


def _numbers(raw: dict[str, str]) -> dict[str, Any]:
    values = _machine(raw)
    for name, label in _SCHED.items():
        if "sched" in raw:
            values[name] = _number(raw["sched"], rf"^{re.escape(label)}\s*:\s*(\d+)")
    if raw.get("task"):
        values["last_cpu"] = int(raw["task"].rpartition(")")[2].split()[36])
    values |= _counters(raw.get("netstat", ""), _COUNTERS["netstat"])
    values |= _processor(raw, "")
    others = {name.partition("=")[0] for name in raw if "=" in name}
    if others:
        values["beside"] = {name: _processor(raw, f"{name}=") for name in sorted(others)}
    if "pressure" in raw:
        values["pressure_us"] = _number(raw["pressure"], r"^some .*total=(\d+)")
    if raw.get("conntrack"):
        # The row of any CPU has the kernel's number of entries, in hexadecimal.
        values["conntrack_entries"] = int(raw["conntrack"].splitlines()[1].split()[0], 16)
    if raw.get("softnet"):
        rows = (line.split() for line in raw["softnet"].splitlines())
        values |= _softnet([[int(field, 16) for field in row] for row in rows])
    if raw.get("latency", "").strip().lstrip("-").isdigit():
        values["latency_request_us"] = int(raw["latency"])
    if raw.get("clock", "").isdigit():
        values["clock_ns"] = int(raw["clock"])
    if raw.get("programs"):
        uptime, _, table = raw["programs"].partition("\n")
        values["programs"] = {"uptime": float(uptime.split()[0]), "found": _programs(table)}
    return values


#: A row of ``/proc/PID/stat``: identity, name, which may hold anything, and what follows the state.
_PROGRAM = re.compile(r"^(\d+) \((.*)\) [A-Za-z]((?: -?\d+){19,})$", re.MULTILINE)
#: The flag of a kernel thread in these rows.
_KERNEL_THREAD = 0x00200000


def _programs(rows: str) -> list[tuple[int, int, str, int]]:
    """Return identity, tick of starting, name and ticks of CPU time; no threads of the kernel."""
    found = []
    for pid, name, rest in _PROGRAM.findall(rows):
        _, *fields = map(int, rest.split())
        if not fields[4] & _KERNEL_THREAD:
            found.append((int(pid), fields[17], name, fields[9] + fields[10]))
    return found


def _softnet(rows: list[list[int]]) -> dict[str, Any]:
    """Return drops, packets and RPS interrupts of the CPUs' queues of received packets."""
    found: dict[str, Any] = {"softnet_dropped": sum(row[1] for row in rows)}
    # Older kernels do not name the CPU of a row.
    cpus = [row[12] if len(row) > 12 else number for number, row in enumerate(rows)]
    found["packets"] = {f"cpu{cpu}": row[0] for cpu, row in zip(cpus, rows, strict=True)}
    if all(len(row) > 9 for row in rows):
        found["rps_ipis"] = sum(row[9] for row in rows)
    return found


def _processor(raw: dict[str, str], prefix: str) -> dict[str, Any]:
    """Return CPU time, throttling and drops of one placement so far."""
    found: dict[str, Any] = _counters(raw.get(f"{prefix}snmp", ""), _COUNTERS["snmp"])
    drops = sockets.drops(raw.get(f"{prefix}sockets", ""))
    # Without a UDP socket, drops are missing and not zero.
    found |= {"sockets": drops} if drops else {}
    if raw.get(f"{prefix}ran"):
        rows = raw[f"{prefix}ran"].splitlines()
        found["ran_ns"] = sum(int(row.split()[0]) for row in rows)
    if raw.get(f"{prefix}cpuacct", "").isdigit():
        found["group_ns"] = int(raw[f"{prefix}cpuacct"])
    text = raw.get(f"{prefix}cpu.stat")
    if text is not None:
        pairs = (line.split() for line in text.splitlines())
        found["throttling"] = {name: int(value) for name, value in pairs if "thrott" in name}
        found["throttling"]["nr_periods"] = _number(text, r"^nr_periods (\d+)") or 0
        # Version 2 of control groups counts in microseconds, under another name.
        micro = found["throttling"].pop("throttled_usec", None)
        found["throttling"] |= {"throttled_time": micro * 1000} if micro is not None else {}
        used = _number(text, r"^usage_usec (\d+)")
        found |= {"group_ns": used * 1000} if used is not None else {}
    return found


def _machine(raw: dict[str, str]) -> dict[str, Any]:
    """Return the counters of the whole machine."""
    found: dict[str, Any] = {}
    if "stat" in raw:
        found["cpu"] = cpu_ticks(raw["stat"])
        found["context_switches"] = _number(raw["stat"], r"^ctxt (\d+)")
    if "softirqs" in raw:
        found["softirqs"] = {
            name: _total(raw["softirqs"], name) for name in ("NET_RX", "NET_TX", "TIMER", "SCHED")
        }
    if raw.get("idle"):
        lines = raw["idle"].splitlines()
        found["idle_exits"] = sum(int(line.rpartition(":")[2]) for line in lines)
    return found


_SOFTNET = ("softnet_dropped", "rps_ipis")
_COUNTERS = {
    "netstat": ("TcpExt.BusyPollRxPackets",),
    "snmp": ("Udp.InErrors", "Udp.RcvbufErrors", "Tcp.RetransSegs", "Tcp.PassiveOpens"),
}


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
    for name in ("migrations", "pressure_us", *_SOFTNET, *_COUNTERS["netstat"]):
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
    now, earlier = after["programs"]["uptime"], before["programs"]["uptime"]
    if now <= earlier:
        return None
    tick = held.TICK_NS / 1e9
    known = {(pid, start): ticks for pid, start, _, ticks in before["programs"]["found"]}
    return {
        f"{name} (process {pid})": (ticks - known[pid, start]) * tick / (now - earlier)
        for pid, start, name, ticks in after["programs"]["found"]
        if (pid, start) in known and start * tick < now - seconds and not name.startswith(_MEASURED)
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
    for name in _COUNTERS["snmp"]:
        value = _change(before, after, name)
        found |= {name: float(value)} if value is not None else {}
    if "sockets" in after:
        lost = sockets.dropped_between(before.get("sockets", {}), after["sockets"])
        found["socket_drops"] = float(lost)
    return found


def _change(before: dict[str, Any], after: dict[str, Any], name: str) -> int | None:
    if before.get(name) is None or after.get(name) is None:
        return None
    return int(after[name]) - int(before[name])


def _number(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None


def _total(text: str, name: str) -> int | None:
    for line in text.splitlines():
        head, _, counts = line.strip().partition(":")
        if head == name:
            return sum(int(count) for count in counts.split())
    return None


def _counters(text: str, names_kept: tuple[str, ...]) -> dict[str, int]:
    """Read the kernel's tables of two lines each: names, then values."""
    lines = text.splitlines()
    found: dict[str, int] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        table = names.partition(":")[0]
        pairs = zip(names.split()[1:], values.split()[1:], strict=False)
        found |= {f"{table}.{name}": int(value) for name, value in pairs}
    return {name: found[name] for name in names_kept if name in found}


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


def cpu_ticks(text: str) -> dict[str, list[int]]:
    """Return the ticks of each CPU, of the text of ``/proc/stat``."""
    rows = (line.split() for line in text.splitlines() if line.startswith("cpu"))
    return {row[0]: [int(value) for value in row[1:9]] for row in rows}


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
