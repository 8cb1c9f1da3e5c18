"""Clients as they ended: CPUs, class and CPU time, which their parent reads before it reaps them.

A client runs only within the window, so that no observation before or after it finds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.hosts import script
from labkit.placement import cpu_set
from labkit.runtimes.verify import raise_different

# An engine's command is not the parent of what it starts inside a placement, so that a shell is. A
# client holds the writing end of a pipe until it ends. What is left of it is read then, before its
# shell reaps it: dash and busybox do not while they read a command's output, bash does. dash also
# reaps after a builtin, so that none runs from the client's start on.
_GUARD = r"""[ -e /proc/self/fd/0 ] || exec "$@"
: | { { "$@" </dev/null & } 7>/proc/self/fd/0
seen=$(cat; cat "/proc/$!/stat" "/proc/$!/status" "/proc/$!/sched" /proc/self/stat 2>&1) || true
printf '\n@@ ended %s\n@@ seen\n' "$seen" >&2
wait "$!"; }"""
_ENDED = re.compile(r"\n@@ ended (.*?)\n@@ seen\n", re.DOTALL)
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
    #: Its nice value and scheduling class, and those of the program that started it.
    own: Mapping[str, str]
    inherited: Mapping[str, str]


def guarded(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a client, and prints how it was when it ended."""
    return list(script(_GUARD, *argv))


def take_end(stderr: str) -> tuple[str, End | None]:
    """Return a client's error stream without what `guarded` has added, and what that says."""
    match = _ENDED.search(stderr)
    if match is None:
        return stderr, None
    rows = match[1].splitlines()
    values = {
        name.strip(): value.strip() for name, _, value in (row.partition(":") for row in rows)
    }
    record = {
        "cpus": values.get("Cpus_allowed_list"),
        "migrations": values.get("se.nr_migrations"),
        "client": rows[0].rpartition(")")[2].split(),
        "parent": rows[-1].rpartition(")")[2].split(),
    }
    return stderr[: match.start()] + stderr[match.end() :], end_of(record)


def end_of(record: Mapping[str, Any]) -> End | None:
    """Return what the agent's ``end_of`` has read of a client; None if it was gone."""
    client, parent = record["client"], record["parent"]
    if min(len(client), len(parent)) < 39 or not int(client[6]) & _EXITING or not record["cpus"]:
        return None
    cpu_ns = sum(map(int, client[11:15])) * TICK_NS
    migrations = int(record["migrations"] or 0)
    return End(record["cpus"], migrations, cpu_ns, _class(client), _class(parent))


def _class(fields: Sequence[str]) -> dict[str, str]:
    return {"nice value": fields[16], "scheduling class": f"{fields[38]} {fields[37]}"}


def problems_of(end: End, name: str, cpus: str, fifo: int = 0) -> list[str]:
    """Return what was wrong with a client that should have kept to CPUs and a scheduling class.

    `fifo` is its real-time priority; without one it has the class of what started it.
    """
    wanted = {**end.inherited, **({"scheduling class": f"1 {fifo}"} if fifo else {})}
    found = [
        f"client {name}: {fact} was {value} at its end, not {wanted[fact]}"
        for fact, value in end.own.items()
        if value != wanted[fact]
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
