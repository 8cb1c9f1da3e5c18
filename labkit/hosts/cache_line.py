"""How long a cache line takes from one CPU of a machine to another and back.

CPUs exchange a line in less time where they share a cache. A hypervisor may run the CPUs of a guest
on any cores, and move them at any time; the guest's kernel goes on saying what it was told.

This file is also the program that takes the time, on any host: ``python3 -ISc TEXT CPU CPU PERIOD``
prints ns once, or each PERIOD seconds until SIGTERM and then a last time. A timing is the least of
means of 50 round trips, as an interrupt makes a mean longer. What Python itself takes at each end
is subtracted: the same loop, where the answer is there already, at both ends at the same time,
since their CPUs may be threads of one core. Both ends wake at the same times, above what else runs
on their CPUs. An end gives up that does not find the other in time.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

#: Two CPUs share no cache if a line takes this many times the least that was read. On an AMD EPYC
#: of 2022, 30 to 95 ns are read for two that share one, up to 130 where they were idle, and 150 to
#: 230 for others. Other processors are not timed: on an Intel Xeon of 2023 a line takes 110 to
#: 220 ns within one cache.
APART, LEAST_NS = 2.0, 65.0
#: The flag of a window in which they shared none.
CPUS_APART = "the CPUs of generator and SUT shared no cache before or after the window"
#: Seconds between timings in a window.
PERIOD = 0.5
_TRIPS = 50
#: Words of memory that both ends share. A global, as it was for the timings that the thresholds
#: come from: as an argument, it would be read in less time.
_SHARED = memoryview(mmap.mmap(-1, 4096)).cast("q")
#: Means of a timing: alone, and where a window is being measured.
_CHUNKS, _FEW = 20, 3
#: Seconds after which an end gives up: where nothing is being measured yet, and in a window.
_PATIENCE, _SHORT = 0.5, 0.001


def _untold(ours: int, other: int) -> str:
    """Return why the time of a line does not tell whether two CPUs share a cache; "" if it does."""
    ends: list[list[str]] = []
    for path in Path(f"/sys/devices/system/cpu/cpu{ours}/cache").glob("index*/shared_cpu_list"):
        ends += [part.split("-") for part in path.read_text().split(",")]
    if not any(int(one[0]) <= other <= int(one[-1]) for one in ends):
        return "no shared cache"
    # Only AMD's cores share their last-level cache in groups (CCX). In one cache a socket, the time
    # depends on where two cores are, so that a shared cache cannot be told from none.
    vendor, processor = "vendor_id.*(AuthenticAMD|HygonGenuine)", Path("/proc/cpuinfo").read_text()
    return "" if re.search(vendor, processor) else "its cores do not share caches in groups"


def _least(word: int, first: int, answer: int, chunks: int) -> float:
    """Write numbers to a word, wait for the answer to each; return the least mean in ns."""
    best = math.inf
    for start in range(first, first + 2 * _TRIPS * chunks, 2 * _TRIPS):
        began = time.perf_counter_ns()
        for number in range(start, start + 2 * _TRIPS, 2):
            _SHARED[word] = number
            while _SHARED[word] != number + answer:
                pass
        best = min(best, (time.perf_counter_ns() - began) / _TRIPS)
    return best


def _reply(first: int, chunks: int) -> float:
    for number in range(first, first + 2 * _TRIPS * chunks, 2):
        while _SHARED[0] != number:
            pass
        _SHARED[0] = number + 1
    return 0.0


def _late(*_: object) -> None:
    raise TimeoutError


def _within(seconds: float, exchange: Callable[[], float]) -> float | None:
    """Return what an exchange gives; None where it takes longer."""
    with contextlib.suppress(TimeoutError):  # also of an alarm just after the exchange
        signal.setitimer(signal.ITIMER_REAL, seconds)
        found = exchange()
        signal.setitimer(signal.ITIMER_REAL, 0)
        return found
    return None


def _main(ours: int, other: int, period: float) -> str | None:
    """Print the times in ns; return why there are none."""
    if why := _untold(ours, other):
        return why
    chunks, timing = _FEW if period else _CHUNKS, 0
    signal.signal(signal.SIGALRM, _late)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    harness, parent, began = os.getppid(), os.getpid(), time.monotonic() + 0.02
    pid = os.fork()
    os.sched_setaffinity(0, [ours if pid else other])
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    # Each end on a cache line of its own.
    own = 2 * _least(64 if pid else 128, 1, 0, 400)
    while True:
        left = began + timing * period - time.monotonic()
        ended = signal.sigtimedwait({signal.SIGTERM}, max(left, 0))
        if pid and ended:
            os.kill(pid, signal.SIGTERM)
        # Numbers are never used again, so that none is taken for an answer of another timing.
        first = 1 + 2 * _TRIPS * chunks * timing
        exchange = partial(_least, 0, first, 1, chunks) if pid else partial(_reply, first, chunks)
        found = _within(_SHORT if timing and period else _PATIENCE, exchange)
        timing += 1
        if period:
            # An end that was kept from its CPU leaves timings out, and meets the other again.
            timing = max(timing, int((time.monotonic() - began) / period))
        if not pid:
            if os.getppid() != parent:
                os._exit(0)
            continue
        if os.waitpid(pid, os.WNOHANG)[0]:
            return "one of the CPUs cannot be used"
        if found is not None:
            print(max(found - own, 0), flush=True)
        if ended or os.getppid() != harness or (not period and found is not None):
            os.kill(pid, signal.SIGKILL)
            return None


def command(cpus: tuple[int, int], period: float = 0.0) -> list[str]:
    """Return the command that prints the time of a cache line between two CPUs and back, in ns.

    It fails where the kernel does not say that the CPUs share a cache, and on processors other than
    AMD's. With a period, a timing keeps the CPUs for some 0.1 ms.
    """
    return ["python3", "-ISc", Path(__file__).read_text(), *map(str, cpus), str(period)]


def timings(text: str) -> list[float]:
    """Return the times that the command has printed, without those that it could not take."""
    return [float(row) for row in text.split() if row.replace(".", "", 1).isdecimal()]


def share_no_cache(counters: Mapping[str, float]) -> bool:
    """Tell whether two CPUs share no cache, though they are said to (`labkit.Rig.cache_line`)."""
    return counters.get("cache_line_ratio", 0.0) > APART


def least_read(windows: Iterable[Mapping[str, Any]]) -> float:
    """Return the least time of a cache line that some windows were compared with, or infinity."""
    ratios = (one for one in windows if "cache_line_ns" in one and one.get("cache_line_ratio"))
    return min((one["cache_line_ns"] / one["cache_line_ratio"] for one in ratios), default=math.inf)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
