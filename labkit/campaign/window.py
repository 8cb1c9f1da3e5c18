"""The measured window: what is observed and counted on every host before and after the loads.

The loads run on one host, while the harness sleeps. A client runs only within the
window, so that no observation before or after it finds one: as it ends, its parent reads its CPUs,
class and CPU time before it reaps it.
"""

from __future__ import annotations

import contextlib
import re
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

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
class End:
    """A client as it ended; `cpu_ns` is the CPU time of it and what it has waited for."""

    cpus: str
    migrations: int
    cpu_ns: int
    #: Its nice value and scheduling class, and those of the program that started it.
    own: Mapping[str, str]
    inherited: Mapping[str, str]

    def problems(self, load: Load) -> list[str]:
        """Return what is wrong, as a load keeps to its CPUs and scheduling class.

        Without a real-time priority that is the class of what started it.
        """
        fifo = load.client.fifo
        wanted = {**self.inherited, **({"scheduling class": f"1 {fifo}"} if fifo else {})}
        found = [
            f"{fact} was {value} at its end, not {wanted[fact]}"
            for fact, value in self.own.items()
            if value != wanted[fact]
        ]
        if not cpu_set(self.cpus) <= cpu_set(load.cpus):
            found.append(f"allowed CPUs were {self.cpus} at its end, not {load.cpus}")
        elif self.migrations and len(cpu_set(load.cpus)) == 1:
            found.append("it was on another CPU meanwhile")
        return [f"client {load.name}: {text}" for text in found]


@dataclass
class Window:
    """The outcome of a window.

    `texts` are ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load, and ``line``, from what
    timed a cache line. `ends` are clients as they ended, as far as that is known. `before` and
    `after` are the observations; `snapshots` are in the kernels.
    """

    #: The job, with the status of the first load that failed, and the errors of all.
    job: Result
    texts: dict[str, str]
    ends: dict[str, End]
    before: Facts
    after: Facts
    #: How often the harness ran meanwhile, and interruptions of its machine, in words.
    wakeups: int
    flags: list[str] = field(default_factory=list)
    #: The time of the last snapshot, as the kernel counts since the boot.
    ended: float = 0.0


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
    limit = 2 * max(load.client.seconds for load in loads) + 20
    place = {"folder": folder, "folders": [load.folder for load in loads if load.folder]}
    logs = {f"{load.name}.log": (load.log, load.client.log_rows or 0) for load in loads}
    before = dict(seen or {})
    unseen = [
        {name: reading for name, reading in kernel.readings.items() if name not in before}
        for kernel in kernels
    ]
    try:
        for kernel, readings in zip(others, unseen[1:], strict=True):
            if readings:
                before |= kernel.host.call("observe_all", readings=readings)
        for kernel in others:
            kernel.snapshot(before=True)
        slept, wakeups, began = suspended(), harness_switches(), time.monotonic()
        ran = own.host.call(
            "run_window",
            **place,
            label=label,
            seconds=limit,
            readings=unseen[0],
            places=own.places,
            cache_line=cache_line,
            loads={load.name: (load.outside or load.cpus, load.argv) for load in loads},
            timeout=limit + 60,
        )
        late, wakeups = time.monotonic() - began - ran["took"], harness_switches() - wakeups
        slept = suspended() - slept
        for kernel in others:
            kernel.snapshot(before=False)
        ended = time.clock_gettime(time.CLOCK_BOOTTIME)
        left = own.host.call("collect", **place, readings=own.readings, logs=logs, timeout=600)
        after = dict(left["seen"])
        for kernel in others:
            after |= kernel.host.call("observe_all", readings=kernel.readings)
    except BaseException:
        Job(own.host, folder).remove()
        raise
    own.before, own.after, texts, ends = ran["before"], ran["after"], left["texts"], {}
    for load in loads:
        error = f"{load.name}.err"
        if load.outside:
            texts[error], record = taken_end(texts[error])
        else:
            record = ran["ends"][load.name]
        if record and (end := end_of(record)):
            ends[load.name] = end
    stderr = "\n".join(filter(None, (texts[f"{load.name}.err"] for load in loads))).strip()
    done = Result(("job",), own.host.name, ran["status"], "", stderr, ran["seconds"], ran["late"])
    found = Window(done, texts, ends, before | ran["seen"], after, wakeups, ended=ended)
    if slept > 0.5:
        found.flags.append(f"this machine was suspended for {slept:.0f} s in the window")
    if late > LATE:
        what = f"labkit was stopped for {late:.0f} s in the window or just after it"
        found.flags.append(what)
    return found


def guarded(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a client, and prints how it was when it ended."""
    return list(script(_GUARD, *argv))


def taken_end(stderr: str) -> tuple[str, dict[str, Any] | None]:
    """Return a client's error stream without what `guarded` has added, and what that says."""
    match = _ENDED.search(stderr)
    if match is None:
        return stderr, None
    rows = match[1].splitlines()
    pairs = (row.partition(":") for row in rows)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    record = {
        "cpus": values.get("Cpus_allowed_list"),
        "migrations": values.get("se.nr_migrations"),
        "client": rows[0].rpartition(")")[2].split(),
        "parent": rows[-1].rpartition(")")[2].split(),
    }
    return stderr[: match.start()] + stderr[match.end() :], record


def end_of(record: Mapping[str, Any]) -> End | None:
    """Return what the agent's ``end_of`` has read of a client; None if it was gone."""
    client, parent = record["client"], record["parent"]
    if min(len(client), len(parent)) < 39 or not int(client[6]) & _EXITING or not record["cpus"]:
        return None
    cpu_ns = sum(map(int, client[11:15])) * TICK_NS
    own, inherited = (
        {"nice value": fields[16], "scheduling class": f"{fields[38]} {fields[37]}"}
        for fields in (client, parent)
    )
    # The agent leaves it out where the kernel does not count it.
    return End(record["cpus"], int(record.get("migrations") or 0), cpu_ns, own, inherited)


def check_unchanged(found: Window, loads: Sequence[Load], servers: Mapping[str, Server]) -> None:
    """Raise `ManipulationError` unless all that was set up held to the end of a window."""
    for name, last in found.after.items():
        first = found.before[name]
        if name in servers:
            if servers[name].ends_with_client and last["state"] == "ended":
                last = first
            # What was set up since it was verified changes the host.
            first = first | {
                fact: text
                for fact, text in servers[name].verification.items()
                if not fact.endswith("of the host") and not fact.startswith("setting ")
            }
        verify.check_unchanged(name, first, last)
    ends = ((load, found.ends[load.name]) for load in loads if load.name in found.ends)
    raise_changed([text for load, end in ends for text in end.problems(load)])


def check_group(name: str, group_ns: float, used_ns: float) -> None:
    """Raise `ManipulationError` if a control group counted less CPU time than was used inside it.

    The allowances are for the ticks of what clients have used.
    """
    text = f"{name}: its control group used {group_ns / 1e9:.2f} s of CPU time, what ran inside "
    raise_changed([f"{text}{used_ns / 1e9:.2f} s"] * (used_ns > 1.05 * group_ns + 5 * TICK_NS))


def raise_changed(changes: list[str]) -> None:
    """Raise `ManipulationError` if there are any changes."""
    why = "something other than this trial has changed it"
    verify.raise_different("the trial was not as set up in the window", changes, why=why)


def suspended() -> float:
    """Return for how many seconds this machine was suspended since its boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def drivers() -> list[int]:
    """Return the parents that wait for this process: papermill, ``labkit run``."""
    pids = []
    for process in psutil.Process().parents():
        if not process.name().startswith(("python", "papermill", "labkit")):
            break
        pids.append(process.pid)
    return pids


def harness_switches() -> int:
    """Return how often this process and its drivers were put on a CPU so far."""
    total = resource.getrusage(resource.RUSAGE_SELF)
    count = total.ru_nvcsw + total.ru_nivcsw
    for pid in drivers():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                status = (task / "status").read_text()
                count += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
    return count
