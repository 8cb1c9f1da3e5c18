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

import psutil

from labkit.campaign import counters
from labkit.campaign.counters import Kernel, Snapshot
from labkit.campaign.ends import End, take_end
from labkit.hosts import Host, Job, Result, script, start_job
from labkit.tools.base import Client

# A tool that runs for a set time may log far more rows than are needed. The rows that are kept are
# spread evenly over the window, as the evidence covers all of it.
_THIN = """
[ -e "$1" ] || exit 0
[ "$2" -gt 0 ] || exec cat "$1"
rows=$(grep -c '^[0-9]' "$1" || true)
awk -v want="$2" -v rows="$rows" '
    BEGIN { if (want > rows) want = rows }
    !/^[0-9]/ { print; next }
    { seen++ }
    int(seen * want / rows) > int((seen - 1) * want / rows) { print }
' "$1"
"""
#: Seconds after a window's end within which labkit knows of it, also on a busy machine.
LATE = 10.0


@dataclass(frozen=True)
class Load:
    """A client, the command that runs it on its host, and the command that prints its log.

    `cpus` is the CPU list that it must keep to.
    """

    name: str
    client: Client
    argv: Sequence[str]
    log: Sequence[str]
    cpus: str


@dataclass(frozen=True)
class Window:
    """The outcome of a window: its job (with the status of the first load that failed) and files.

    `snapshots` are those before and after by kernel, the window's own first; `texts` are
    ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load, and ``line``, from what timed a cache
    line. `ends` are the states of clients as they ended, as far as they are known.
    """

    loads: Sequence[Load]
    job: Result
    snapshots: Sequence[tuple[Kernel, tuple[Snapshot, Snapshot]]]
    texts: Mapping[str, str]
    ends: Mapping[str, End]
    seconds: float
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
) -> Window:
    """Run loads at the same time on a host, and sleep until all have ended.

    `folder` is a directory of the host that exists during the window; `cache_line` is the command
    that times a cache line until SIGTERM (`labkit.Rig`).
    """
    own, *others = kernels
    host, job = own.host, Job(own.host, folder)
    commands = {load.name: list(load.argv) for load in loads}
    request = {"places": own.places, "cache_line": list(cache_line), "loads": commands}
    before = [kernel.snapshot(before=True) for kernel in others]
    try:
        argv = [*counters.PROGRAM, "window", json.dumps(request)]
        job = start_job(host, argv, directory=folder, label=label)
        wakeups, began, slept = harness_switches(), time.monotonic(), _suspended()
        done = job.wait(timeout=2 * max(load.client.seconds for load in loads) + 20)
        seconds, wakeups = time.monotonic() - began, harness_switches() - wakeups
        late = seconds - done.seconds if done.status is not None else 0.0
        flags = tuple(_interruptions(_suspended() - slept, late))
        after = [kernel.snapshot(before=False) for kernel in others]
        ended = time.clock_gettime(time.CLOCK_BOOTTIME)
        texts = _collect(host, folder, loads)
    finally:
        job.stop()
        host.run("rm", "-rf", "--", folder)
    ends: dict[str, End] = {}
    for load in loads:
        texts[f"{load.name}.err"], end = take_end(texts[f"{load.name}.err"])
        ends |= {load.name: end} if end else {}
    # It has none where the job was ended.
    both = json.loads(texts.pop("snapshots") or "null") or {"before": {}, "after": {}}
    pairs = [(both["before"], both["after"]), *zip(before, after, strict=True)]
    snapshots = list(zip(kernels, pairs, strict=True))
    return Window(loads, done, snapshots, texts, ends, seconds, wakeups, ended, flags)


def _collect(host: Host, folder: str, loads: Sequence[Load]) -> dict[str, str]:
    names = ["snapshots", "line", *(f"{one.name}.{x}" for one in loads for x in ("out", "err"))]
    arguments = json.dumps({"folder": folder, "names": names})
    texts = dict(json.loads(host.run(*counters.PROGRAM, "collect", arguments, timeout=600).stdout))
    for load in loads:
        texts[f"{load.name}.log"] = host.run(*load.log, check=False, timeout=600).stdout
    return texts


def _suspended() -> float:
    """Return for how many seconds this machine was suspended since its boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def _interruptions(slept: float, late: float) -> Iterator[str]:
    """Yield the flags of a window that ended `late` seconds before labkit knew of it."""
    if slept > 0.5:
        yield f"this machine was suspended for {slept:.0f} s in the window"
    if late > LATE:
        yield f"labkit was stopped for {late:.0f} s in the window or just after it"


def thinned(log: str, rows: int | None) -> list[str]:
    """Return the command that prints `rows` rows of a log, or all for None."""
    return list(script(_THIN, log, str(rows or 0)))


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
