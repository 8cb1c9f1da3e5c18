"""Clients as they ended: CPUs, class and CPU time, which a client's shell reads before it reaps it.

A client runs only within the window, so that no observation before or after it finds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.hosts import script
from labkit.placement import cpu_set
from labkit.runtimes.verify import raise_different

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
#: A process closes its files before it is a zombie; from then on it has this flag.
_EXITING = 0x4
#: Ticks of a second in ``/proc/PID/stat``, on every Linux.
TICK_NS = 10_000_000


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
    client, shell = (line.rpartition(")")[2].split() for line in match.groups()[2:])
    if min(len(client), len(shell)) < 39 or not int(client[6]) & _EXITING or not match[1]:
        return text, None
    cpu_ns = sum(map(int, client[11:15])) * TICK_NS
    return text, End(match[1], int(match[2] or 0), cpu_ns, _class(client), _class(shell))


def _class(fields: Sequence[str]) -> dict[str, str]:
    return {"nice value": fields[16], "scheduling class": f"{fields[38]} {fields[37]}"}


def problems_of(end: End, name: str, cpus: str) -> list[str]:
    """Return what was wrong with a client that should have kept to CPUs and its shell's class."""
    found = [
        f"client {name}: {fact} was {value} at its end, not {end.inherited[fact]}"
        for fact, value in end.own.items()
        if value != end.inherited[fact]
    ]
    if not cpu_set(end.cpus) <= cpu_set(cpus):
        found.append(f"client {name}: allowed CPUs were {end.cpus} at its end, not {cpus}")
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


def raise_changed(changes: list[str], where: str) -> None:
    """Raise `ManipulationError` if there are any changes."""
    why = "something other than this trial has changed it"
    raise_different("the trial was not as set up in the window", changes, where=where, why=why)
