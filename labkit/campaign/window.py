"""The measured window: snapshots of every host, and between them the loads, in a detached job."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit.campaign.counters import Kernel, Snapshot
from labkit.campaign.ends import End, end_of, take_end
from labkit.hosts import Job, Result
from labkit.tools.base import Client

#: Seconds after a window's end within which labkit knows of it, also on a busy machine.
LATE = 10.0


#: Facts of placements and hosts, and the arguments of the agent's ``observe`` for them, by name.
Observations = Mapping[str, dict[str, str]]
Readings = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Load:
    """A client, the command that runs it on its host, the path of its log there, and its CPU list.

    Inside a placement, the command is guarded (`labkit.campaign.ends`) and starts on the CPUs
    `outside`; `folder`, where there is one, is made for its log.
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
    """The outcome of a window: its job (with the status of the first load that failed) and files.

    `snapshots` are those before and after by kernel, the window's own first; `texts` are
    ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load, and ``line``, from what timed a cache
    line. `ends` are the states of clients as they ended, as far as they are known. `seen` are the
    observations before and after.
    """

    loads: Sequence[Load]
    job: Result
    snapshots: Sequence[tuple[Kernel, tuple[Snapshot, Snapshot]]]
    texts: Mapping[str, str]
    ends: Mapping[str, End]
    seen: tuple[Observations, Observations]
    #: How often the harness ran meanwhile.
    wakeups: int
    #: The time of the last snapshot, as the kernel counts since the boot.
    ended: float
    #: What befell labkit's own machine meanwhile, in words.
    flags: tuple[str, ...] = ()


def measure(
    loads: Sequence[Load],
    kernels: Sequence[Kernel],
    *,
    folder: str,
    label: str,
    cache_line: Sequence[str] = (),
    readings: tuple[Readings, Readings] = ({}, {}),
) -> Window:
    """Run loads at the same time on a host, and sleep until all have ended.

    `folder` is a directory of the host that exists during the window; `cache_line` is the command
    that times a cache line until SIGTERM (`labkit.Rig`); `readings` are observed on the host
    before and after.
    """
    own, *others = kernels
    limit = 2 * max(load.client.seconds for load in loads) + 20
    folders = [load.folder for load in loads if load.folder]
    logs = {f"{load.name}.log": (load.log, load.client.log_rows or 0) for load in loads}
    window = {
        "places": own.places,
        "cache_line": list(cache_line),
        "loads": {load.name: (load.outside or load.cpus, list(load.argv)) for load in loads},
    }
    place = {"folder": folder, "folders": folders}
    before = [kernel.snapshot(before=True) for kernel in others]
    try:
        wakeups, began, slept = harness_switches(), time.monotonic(), _suspended()
        job = own.host.call(
            "run_window",
            **place,
            label=label,
            seconds=limit,
            readings=readings[0],
            window=window,
            timeout=limit + 60,
        )
        late, wakeups = time.monotonic() - began - job["took"], harness_switches() - wakeups
        flags = tuple(_interruptions(_suspended() - slept, late))
        after = [kernel.snapshot(before=False) for kernel in others]
        ended = time.clock_gettime(time.CLOCK_BOOTTIME)
        found = own.host.call("collect", **place, readings=readings[1], logs=logs, timeout=600)
    except BaseException:
        Job(own.host, folder).remove()
        raise
    texts, ends = found["texts"], dict[str, End | None]()
    # It has printed nothing where it was ended.
    answer = json.loads(job["stdout"] or "{}")
    pair = answer.get("result", {"before": {}, "after": {}, "status": job["status"] or 1})
    for load in loads:
        if load.outside:
            texts[f"{load.name}.err"], ends[load.name] = take_end(texts[f"{load.name}.err"])
        elif "ends" in pair:
            ends[load.name] = end_of(pair["ends"][load.name])
    done = Result(
        ("job",),
        own.host.name,
        pair["status"],
        "",
        answer.get("error", job["stderr"]),
        job["seconds"],
        job["state"] == "running",
    )
    pairs = [(pair["before"], pair["after"]), *zip(before, after, strict=True)]
    return Window(
        loads,
        done,
        list(zip(kernels, pairs, strict=True)),
        texts,
        {name: end for name, end in ends.items() if end},
        (job["seen"], found["seen"]),
        wakeups,
        ended,
        flags,
    )


def _suspended() -> float:
    """Return for how many seconds this machine was suspended since its boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def _interruptions(slept: float, late: float) -> Iterator[str]:
    """Yield the flags of a window that ended `late` seconds before labkit knew of it."""
    if slept > 0.5:
        yield f"this machine was suspended for {slept:.0f} s in the window"
    if late > LATE:
        yield f"labkit was stopped for {late:.0f} s in the window or just after it"


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
