"""What must hold from the beginning of a window to its end: read in both snapshots, and compared.

A placement is verified when it starts. Both snapshots of a window read again what its label rests
on: processes, control groups, namespaces, and each network's rules, queues, links and settings. Of
a client, which runs only within the window, its shell reads how it was when it ended.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import ManipulationError
from labkit.hosts import script
from labkit.hosts.journal import DIRECTORY
from labkit.placement import cpu_set
from labkit.runtimes.observed import sections

#: Shell functions `placements` and `networks`, which take a list of words each, those of
#: `labkit.campaign.record.Kernel`. Few processes read many files each, since a snapshot takes time
#: from every trial.
SHOW = (
    r"""
NETWORK='
name=$1
shift
links=$(ip -j -d link show)
printf "@@ links %s\\n%s\\n" "$name" "$links"
# The other kinds have no settings.
case $links in *\"qdisc\":\"[!n]*) echo "@@ queues $name"; tc qdisc show ;; esac
echo "@@ rules $name"; nft list ruleset
! { read -r table </proc/net/ip_tables_names; } || iptables-legacy-save
[ $# = 0 ] || { echo "@@ settings $name"; grep -sHZ "" "$@"; }
'
placements() {
    files=/sys/devices/system/cpu/online masks= links=
    for place in $1; do
        pid=${place#*=} tree= below=${place#*=} name=${place%"${place#*=}"}
        while [ -n "$below" ]; do
            tree="$tree $below" next=
            for one in $below; do
                for file in "/proc/$one/task/"*/children; do
                    more=; read -r more <"$file" || true
                    next="$next $more"
                done
            done
            set -- $next
            below=$*
        done
        echo "@@ tree $pid ${name%=}"; echo "$tree"
        for one in $tree; do
            files="$files /proc/$one/task/*/stat"
            masks="$masks /proc/$one/task/*/status"
        done
        files="$files /proc/$pid/cgroup"
        links="$links /proc/$pid/ns/* /proc/$pid/root /proc/$pid/exe"
        while IFS=: read -r id names path; do
            base=/sys/fs/cgroup/$names
            case ",$names," in
                *,cpu,*) limits="cpu.shares cpu.cfs_quota_us cpu.cfs_period_us cpu.stat" ;;
                *,cpuset,*) limits="cpuset.cpus cpuset.mems" ;;
                *,memory,*) limits="memory.limit_in_bytes memory.memsw.limit_in_bytes" ;;
                *,blkio,*) limits=blkio.throttle.read_iops_device ;;
                *,freezer,*) limits=freezer.state ;;
                ,,) limits="cpu.max cpu.weight cpu.stat cpuset.cpus memory.max memory.high io.max"
                    limits="$limits cgroup.freeze cgroup.stat.local"
                    base=/sys/fs/cgroup/unified; [ -d "$base" ] || base=/sys/fs/cgroup ;;
                *) continue ;;
            esac
            # A limit of any group above applies as well.
            while :; do
                for file in $limits; do files="$files $base$path/$file"; done
                [ -n "${path#/}" ] || break
                path=${path%/*}
            done
        done <"/proc/$pid/cgroup" || true
    done 2>/dev/null
    echo "@@ files"; grep -sHZ '' $files || true
    echo "@@ allowed"; [ -z "$masks" ] || grep -sHZ '^Cpus_allowed_list' $masks || true
    echo "@@ paths"; [ -z "$links" ] || stat -c '%N' $links 2>/dev/null || true
}
networks() {
    settings=$(awk -F'"' '/"kind": "file"/ { for (n = 1; n < NF; n++)
        if ($n == "target" && !seen[$(n + 2)]++) print $(n + 2) }' """
    + f"{DIRECTORY}/journal"
    + r""" 2>/dev/null) || true
    for network in $1; do
        set -- sh -c "$NETWORK" network "${network%%=*}" $settings
        [ -z "${network#*=}" ] || set -- nsenter --net="${network#*=}" "$@"
        "$@" 2>/dev/null || true
    done
}
"""
)

# A client holds the writing end of a pipe until it ends. What is left of it is read then, before
# its shell reaps it: dash and busybox do not while they read a command's output, bash does.
_GUARD = r"""
[ -e /proc/self/fd/0 ] || exec "$@"
: | {
    true 2>/dev/null 7>/proc/self/fd/0 || exec "$@" </dev/null
    read -r own </proc/self/stat
    exec 7>/proc/self/fd/0
    "$@" </dev/null &
    pid=$!
    exec 7>&-
    client=$(exec awk -v client="/proc/$pid/" 'BEGIN {
        while ((getline line) > 0) { }
        getline stat <(client "stat")
        while (!cpus && (getline line <(client "status")) > 0)
            if (line ~ /^Cpus_allowed_list:/) cpus = substr(line, 20)
        while (!moves && (getline line <(client "sched")) > 0)
            if (split(line, part, /[ :]+/) && part[1] == "se.nr_migrations") moves = part[2] ""
        print cpus "/" moves " " stat
    }') || true
    printf '\n@@ ended %s\n@@ by %s\n' "$client" "$own" >&2
    status=0
    wait "$pid" || status=$?
    exit "$status"
}
"""
_ENDED = re.compile(r"\n@@ ended \s*(\S*)/(\d*) (.*)\n@@ by (.*)\n")

#: Subjects (a placement, a link, a setting) and the text of each of their facts.
Facts = dict[str, dict[str, str]]

_RULES, _PROCESS, _STATE, _CPUS = "rules", "process", "state", "allowed CPUs"
_GROUP = "control group"
_NICE, _CLASS = "nice value", "scheduling class"
#: The kernel's numbers of scheduling policies.
_POLICIES = {"0": "other", "1": "fifo", "2": "rr", "3": "batch", "5": "idle", "6": "deadline"}
#: A process closes its files before it is a zombie; from then on it has this flag.
_EXITING = 0x4
_STATES = {"T": "stopped", "t": "stopped", "Z": "ended", "X": "ended"}
#: What changes in a listed rule set or queue while it stays the same.
_VOLATILE = re.compile(r"packets \d+ bytes \d+|\[\d+:\d+\]|expires \S+|refcnt \d+|^#.*", re.M)
_LINK = re.compile(r"^'/proc/(\d+)/(\S+)' -> '(.*)'$", re.M)
_ONLINE, _GROUPS = "/sys/devices/system/cpu/online", "/sys/fs/cgroup/"
#: Ticks of a second in ``/proc/PID/stat``, on every Linux.
TICK_NS = 10_000_000
#: The end of the name of a placement's own network.
OWN = ".net"
#: Changes that a message lists.
_LISTED = 4


@dataclass(frozen=True)
class Held:
    """What a snapshot says of what must hold.

    What is `loose` may come and go, such as a thread: only its changes count. `counters` grow only
    by what must not happen; their names say it of a number.
    """

    firm: Facts
    loose: Facts
    counters: dict[str, int]

    def record(self) -> Facts:
        """Return what a trial keeps: no threads and other links, and of rules how many lines."""
        kept = self.firm | {name: x for name, x in self.loose.items() if name.startswith(_GROUP)}
        return {
            subject: {
                name: f"{len(text.splitlines())} lines" if name == _RULES else text
                for name, text in facts.items()
            }
            for subject, facts in kept.items()
        }


def parse(text: str, links: Collection[str] = (), main: str = "server") -> Held:
    """Return what the script's output says.

    `links` are the interfaces that must stay, `main` the name of the placement without one.
    """
    raw = sections(text)
    files, held = _files(raw.get("files", "")), Held({}, {}, {})
    threads = _threads(files, _files(raw.get("allowed", "")))
    held.loose.update(_read_groups(files, held.counters))
    names, own_groups = {}, set()
    for title, body in raw.items():
        kind, _, name = title.partition(" ")
        if kind == "tree":
            pid, _, name = name.partition(" ")
            names[pid] = name or main
            _read_processes(held, names[pid], pid, [threads.get(one, {}) for one in body.split()])
            own_groups |= _read_own_groups(held, names[pid], files.get(f"/proc/{pid}/cgroup", ()))
        elif kind == "links":
            # Of a host, containers that come and go have links too.
            for link, facts in _links(body, raw.get(f"queues {name}", "")):
                lasts = link in links or name.endswith(OWN)
                (held.firm if lasts else held.loose)[f"{link} of {name}"] = facts
        elif kind == _RULES:
            held.firm[f"network {name}"] = {_RULES: _VOLATILE.sub("", body)}
        elif kind == "settings":
            for path, rows in _files(body).items():
                held.firm.setdefault(path, {})[f"value on {name}"] = "; ".join(rows)
    for group in own_groups:
        held.loose.pop(group, None)
    for pid, part, value in _LINK.findall(raw.get("paths", "")):
        facts = held.firm.get(names.get(pid, ""), {})
        if not part.endswith("_for_children"):
            facts[part.replace("ns/", "namespace ")] = value
    if _ONLINE in files:
        held.firm["machine"] = {"online CPUs": files[_ONLINE][0]}
    return held


def _files(text: str) -> dict[str, list[str]]:
    """Return the lines of each file in the output of ``grep -HZ``, which ends names with NUL."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        path, nul, content = line.partition("\0")
        if nul:
            found.setdefault(path, []).append(content)
    # The group above several placements is read for each of them.
    return {path: list(dict.fromkeys(rows)) for path, rows in found.items()}


def _thread(line: str) -> dict[str, str]:
    """Return the facts in a line of ``/proc/PID/stat``; none if it is no such line."""
    fields = line.rpartition(")")[2].split()
    if len(fields) < 39 or not fields[6].isdigit():
        return {}
    return {
        _PROCESS: f"started at tick {fields[19]}",
        _STATE: "ended" if int(fields[6]) & _EXITING else _STATES.get(fields[0], "running"),
        _NICE: fields[16],
        _CLASS: f"{_POLICIES.get(fields[38], fields[38])} {fields[37]}",
    }


def _threads(
    files: Mapping[str, list[str]], allowed: Mapping[str, list[str]]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the facts of each thread by its number, by process."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for path, rows in files.items():
        parts = path.split("/")  # /proc/PID/task/TID/stat
        if len(parts) == 6 and parts[-1] == "stat" and (facts := _thread(rows[0])):
            cpus = allowed.get(f"{path}us")
            facts |= {_CPUS: cpus[0].partition(":")[2].strip()} if cpus else {}
            found.setdefault(parts[2], {})[parts[4]] = facts
    return found


def _read_processes(
    held: Held, name: str, pid: str, tree: Sequence[Mapping[str, dict[str, str]]]
) -> None:
    """Add the process of a placement; loosely, its other threads and the processes below it."""
    for thread, facts in (pair for threads in tree for pair in threads.items()):
        started = facts[_PROCESS]
        if thread == pid:
            held.firm[name] = facts | {_PROCESS: f"{pid}, {started}"}
        else:
            kept = {key: facts[key] for key in (_NICE, _CLASS, _CPUS) if key in facts}
            held.loose[f"{name}, thread {thread} {started}"] = kept


def _read_groups(files: Mapping[str, list[str]], counters: dict[str, int]) -> Facts:
    """Return the limits of control groups, and add their counters of what must not happen."""
    found: Facts = {}
    for path, rows in files.items():
        folder, _, file = path.rpartition("/")
        if not path.startswith(_GROUPS):
            continue
        if file not in ("cpu.stat", "cgroup.stat.local"):
            found.setdefault(_group(folder), {})[file] = "; ".join(rows)
            continue
        counts = {
            name: int(n) for name, _, n in (row.partition(" ") for row in rows) if n.isdigit()
        }
        quotas = [files.get(f"{folder}/{name}") for name in ("cpu.max", "cpu.cfs_quota_us")]
        if any(rows and rows[0].partition(" ")[0] in ("max", "-1") for rows in quotas):
            name = f"periods under a CPU quota, now gone, of {_group(folder)}"
            counters[name] = counts.get("nr_periods", 0)
        if "frozen_usec" in counts:
            counters[f"us for which it was frozen, {_group(folder)}"] = counts["frozen_usec"]
    return found


def _group(folder: str) -> str:
    return f"{_GROUP} {folder}"


def _read_own_groups(held: Held, name: str, rows: Sequence[str]) -> set[str]:
    """Add the control groups of a placement with their limits; return their subjects."""
    found = set()
    split = (row.split(":", 2) for row in rows if row.count(":") >= 2 and name in held.firm)
    for _, names, path in split:
        held.firm[name][f"group for {names or 'unified'}"] = path
        bases = [f"{_GROUPS}{names}"] if names else [f"{_GROUPS}unified", _GROUPS.rstrip("/")]
        for subject in (_group(f"{base}{path}") for base in bases):
            if subject in held.loose:
                held.firm[name] |= held.loose[subject]
                found.add(subject)
    return found


def _links(text: str, queues: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the links in the output of ``ip -j -d link``, with their facts."""
    try:
        links = json.loads(text or "[]")
    except ValueError:
        links = []
    # Some versions of iproute2 print an empty object for what they leave out.
    for link in (one for one in links if "ifname" in one) if isinstance(links, list) else ():
        name, info = link["ifname"], link.get("linkinfo", {})
        own = [row for row in queues.splitlines() if f" dev {name} " in f"{row} "]
        facts = {
            "MTU": str(link.get("mtu", "")),
            "queue": _VOLATILE.sub("", "; ".join([str(link.get("qdisc", "unknown")), *own])),
            "queue length": str(link.get("txqlen", "")),
            "bridge": str(link.get("master", "")),
            _STATE: "up" if "UP" in link.get("flags", ()) else "down",
            "carrier": "no" if "NO-CARRIER" in link.get("flags", ()) else "yes",
        }
        # A bridge has a carrier for as long as anything is plugged in.
        if info.get("info_kind") == "bridge":
            del facts["carrier"]
        yield name, facts


def complete(texts: Iterable[str]) -> bool:
    """Tell whether all snapshots were taken to their end."""
    return all("\n@@ end" in text for text in texts)


def without_ended(before: Held, after: Held, ending: Collection[str]) -> Held:
    """Return the first snapshot without those placements of `ending` that the second shows ended.

    An ending process takes its own network along.
    """
    ended = [name for name in ending if after.firm.get(name, {}).get(_STATE, "ended") == "ended"]
    firm = {
        subject: facts
        for subject, facts in before.firm.items()
        if subject not in ended and not any(subject.endswith(f" {one}{OWN}") for one in ended)
    }
    return Held(firm, before.loose, before.counters)


def differences(before: Held, after: Held) -> list[str]:
    """Return every difference between two snapshots, in words."""
    return [
        *_firm(before.firm, after.firm),
        *_loose(before.loose, after.loose),
        *(
            f"{count - before.counters[name]} {name}"
            for name, count in after.counters.items()
            if count > before.counters.get(name, count)
        ),
    ]


def _firm(before: Facts, after: Facts) -> Iterator[str]:
    for subject, facts in before.items():
        found = after.get(subject)
        if found is None:
            yield f"{subject} is gone ({facts.get(_PROCESS, 'it was there before')})"
        elif facts.get(_PROCESS) != found.get(_PROCESS):
            yield f"{subject}: process {facts.get(_PROCESS)} is now {found.get(_PROCESS)}"
        else:
            yield from _changes(subject, facts, found)


def _loose(before: Facts, after: Facts) -> Iterator[str]:
    for subject, facts in before.items():
        yield from _changes(subject, facts, after.get(subject, facts))


def _changes(subject: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    changed: dict[tuple[str, str], list[str]] = {}
    for name, old in before.items():
        new = after.get(name, "")
        if new != old:
            changed.setdefault((old, new), []).append(name)
    for (old, new), names in changed.items():
        if names == [_RULES]:
            yield f"{subject}: {_changed_lines(old, new)}"
        else:
            yield f"{subject}: {', '.join(names)} was {old or 'not there'}, is {new or 'gone'}"


def _changed_lines(before: str, after: str) -> str:
    """Return which rules were removed and added."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    changed = [line for line in lines if line[0] in "+-" and line[1:].strip(" {}")]
    words = {"+": "added", "-": "removed"}
    shown = [f"{words[line[0]]} {' '.join(line[1:].split())!r}" for line in changed[:_LISTED]]
    more = [f"and {len(changed) - _LISTED} lines more"] if len(changed) > _LISTED else []
    return f"rules changed: {', '.join([*shown, *more])}"


def since(verification: Mapping[str, Any], name: str, before: Held) -> list[str]:
    """Return what has changed between a placement's verification and a snapshot."""
    found = before.firm.get(name, {})
    verified = {key: value for key, value in verification.items() if key in found}
    return list(_changes(name, verified, found))


@dataclass(frozen=True)
class End:
    """How a client was when it ended; `cpu_ns` is the CPU time of it and what it has waited for."""

    cpus: str
    migrations: int
    cpu_ns: int
    #: Its nice value and scheduling class, and those of the shell that started it.
    own: Mapping[str, str]
    inherited: Mapping[str, str]


def guarded(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a client, and prints how it was when it ended."""
    return list(script(_GUARD, *argv))


def take_end(stderr: str) -> tuple[str, End | None]:
    """Return a client's error stream without what its shell has added, and what that says."""
    match = _ENDED.search(stderr)
    if match is None:
        return stderr, None
    text = stderr[: match.start()] + stderr[match.end() :]
    client, shell = (_thread(line) for line in match.groups()[2:])
    if client.get(_STATE) != "ended" or not match[1]:
        return text, None
    ticks = match[3].rpartition(")")[2].split()[11:15]
    cpu_ns = sum(map(int, ticks)) * TICK_NS
    return text, End(match[1], int(match[2] or 0), cpu_ns, client, shell)


def problems_of(end: End, name: str, cpus: str) -> list[str]:
    """Return what was wrong with a client that should have kept to CPUs and its shell's class."""
    found = [
        f"client {name}: {fact} was {end.own[fact]} at its end, not {end.inherited[fact]}"
        for fact in (_NICE, _CLASS)
        if end.own[fact] != end.inherited[fact]
    ]
    if not cpu_set(end.cpus) <= cpu_set(cpus):
        found.append(f"client {name}: {_CPUS} were {end.cpus} at its end, not {cpus}")
    elif end.migrations and len(cpu_set(cpus)) == 1:
        found.append(f"client {name}: it was on another CPU meanwhile")
    return found


def lost_time(name: str, group_ns: float | None, used_ns: float) -> list[str]:
    """Return whether a control group has used less CPU time than was used inside it.

    The allowances are for the ticks of what clients have used.
    """
    if group_ns is None or used_ns <= 1.05 * group_ns + 5 * TICK_NS:
        return []
    return [
        f"{name}: its control group used {group_ns / 1e9:.2f} s of CPU time, what ran inside "
        f"{used_ns / 1e9:.2f} s"
    ]


def raise_changed(changes: Sequence[str], where: str) -> None:
    """Raise `ManipulationError` if there are any changes."""
    if not changes:
        return
    more = f"; and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    raise ManipulationError(
        f"the trial was not as set up in the window: {'; '.join(changes[:_LISTED])}{more}",
        where=where,
        why="something other than this trial has changed it",
        remedy="the trial is discarded; leave the rig alone while it measures",
        evidence={"changes": list(changes)},
    )
