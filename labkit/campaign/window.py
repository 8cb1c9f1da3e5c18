"""The measured window: what is observed and counted on every host before and after the loads.

The loads run on one host, while the harness sleeps. No observation before or after a window finds a
client: as it ends, its parent reads its CPUs, class and CPU time before it reaps it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.campaign.counters import Kernel
from labkit.hosts import Job, Result, script
from labkit.placement import cpu_set
from labkit.runtimes import Server, verify
from labkit.tools.base import Client

#: Seconds after a window's end within which labkit knows of it, also on a busy machine.
LATE = 10.0
#: An engine's command is not the parent of what it starts inside a placement, so that a shell is. A
#: client holds the writing end of a pipe until it ends. What is left of it is read then, before its
#: shell reaps it: dash and busybox do not while they read a command's output, bash does. dash also
#: reaps after a builtin, so that none runs from the client's start on.
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
#: Facts of placements and hosts by name, as the agent observes them.
Facts = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Load:
    """A client, the command that runs it on its host, the path of its log there, and its CPU list.

    Inside a placement, the command is `guarded` and starts on the CPUs `outside`; `folder`, where
    there is one, is made for its log.
    """

    name: str
    client: Client
    argv: Sequence[str]
    log: str
    cpus: str
    folder: str = ""
    outside: str = ""


@dataclass(frozen=True)
class Window:
    """The outcome of a window; its snapshots are in the kernels."""

    #: The job, with the status of the first load that failed, and the errors of all.
    job: Result
    #: ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load, and ``line``, of a cache line.
    texts: dict[str, str]
    #: Clients as they ended, empty where that is not known.
    ends: dict[str, dict[str, Any]]
    #: The observations.
    before: Facts
    after: Facts
    #: Interruptions of the harness, in words.
    flags: Sequence[str] = ()


def measure(
    loads: Sequence[Load],
    kernels: Sequence[Kernel],
    *,
    folder: str,
    label: str,
    cache_line: Sequence[str] = (),
    seen: Facts | None = None,
) -> Window:
    """Run loads at the same time on the first kernel's host, and sleep until all have ended.

    `folder` is a directory of the host that exists during the window; `cache_line` is the command
    that times a cache line until SIGTERM (`labkit.Rig`); what was `seen` already is not observed
    again before it.
    """
    own, *others = kernels
    limit, before = 2 * max(load.client.seconds for load in loads) + 20, dict(seen or {})
    made = [load.folder for load in loads if load.folder]
    place: dict[str, Any] = {"folder": folder, "folders": made}
    logs = {f"{load.name}.log": (load.log, load.client.log_rows or 0) for load in loads}
    runs = {load.name: (load.outside or load.cpus, list(load.argv)) for load in loads}
    job: dict[str, Any] = {"places": own.places, "cache_line": list(cache_line), "loads": runs}
    try:
        for kernel in others:
            before |= kernel.observe(before)
        for kernel in others:
            kernel.before = kernel.snapshot(before=True)
        unseen = {name: one for name, one in own.readings.items() if name not in before}
        options: dict[str, Any] = {"label": label, "seconds": limit, "timeout": limit + 60}
        began = boot_time()
        ran = own.host.call("run_window", **place, **options, **job, readings=unseen)
        late = boot_time() - began - ran["took"]
        for kernel in others:
            kernel.after = kernel.snapshot(before=False)
        left = own.host.call("collect", **place, readings=own.readings, logs=logs, timeout=600)
        after = dict(left["seen"])
        for kernel in others:
            after |= kernel.observe()
    except BaseException:
        Job(own.host, folder).remove()
        raise
    # The agent has read the ends of its own children.
    own.before, own.after, texts, ends = ran["before"], ran["after"], left["texts"], ran["ends"]
    for load in loads:
        if load.outside:
            texts[f"{load.name}.err"], ends[load.name] = taken_end(texts[f"{load.name}.err"])
    stderr = "\n".join(filter(None, (texts[f"{load.name}.err"] for load in loads))).strip()
    done = Result(("job",), own.host.name, ran["status"], "", stderr, ran["seconds"], ran["late"])
    stopped = f"labkit or its machine was stopped for {late:.0f} s in the window or just after it"
    return Window(done, texts, ends, before | ran["seen"], after, [stopped] * (late > LATE))


def guarded(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a client, and prints how it was when it ended."""
    return list(script(_GUARD, *argv))


def taken_end(stderr: str) -> tuple[str, dict[str, Any]]:
    """Return a client's error stream without what `guarded` has added, and what that says.

    That is as the agent's ``end_of``; nothing where the client was gone.
    """
    found = _ENDED.search(stderr)
    if found is None:
        return stderr, {}
    rows = found[1].splitlines()
    values = dict(re.findall(r"^(\S+)\s*:\s*(\S+)", found[1], re.MULTILINE))
    client, parent = (row.rpartition(")")[2].split() for row in (rows[0], rows[-1]))
    end = {"client": client, "parent": parent, "cpus": values.get("Cpus_allowed_list", "")}
    end["migrations"] = values.get("se.nr_migrations", "0")
    seen = len(client) >= 39 and int(client[6]) & _EXITING and end["cpus"]
    return stderr[: found.start()] + stderr[found.end() :], end if seen else {}


def cpu_ns(end: Mapping[str, Any]) -> int:
    """Return the CPU time of a client and of what it has waited for."""
    return sum(map(int, end["client"][11:15])) * TICK_NS


def problems_of(load: Load, end: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a client as it ended, by the CPUs and scheduling class of its load.

    Without a real-time priority, the class is that of what started it.
    """
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
    if not cpu_set(end["cpus"]) <= cpu_set(load.cpus):
        found.append(f"allowed CPUs were {end['cpus']} at its end, not {load.cpus}")
    # The agent leaves it out where the kernel does not count it.
    elif int(end.get("migrations", 0)) and len(cpu_set(load.cpus)) == 1:
        found.append("it was on another CPU meanwhile")
    return [f"client {load.name}: {text}" for text in found]


def check_unchanged(found: Window, loads: Sequence[Load], servers: Mapping[str, Server]) -> None:
    """Raise `ManipulationError` unless all that was set up held to the end of a window."""
    for name, last in found.after.items():
        first = found.before[name]
        if server := servers.get(name):
            if server.ends_with_client and last["state"] == "ended":
                last = first
            # What was set up since it was verified changes the host.
            first = first | {
                fact: text
                for fact, text in server.verification.items()
                if not fact.endswith("of the host") and not fact.startswith("setting ")
            }
        verify.check_unchanged(name, first, last)
    ends = ((load, found.ends.get(load.name)) for load in loads)
    raise_changed([text for load, end in ends if end for text in problems_of(load, end)])


def raise_changed(changes: list[str]) -> None:
    """Raise `ManipulationError` if there are any changes."""
    why = "something other than this trial has changed it"
    verify.raise_different("the trial was not as set up in the window", changes, why=why)


def boot_time() -> float:
    """Return the seconds since the boot, as the hosts count: also while this machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
