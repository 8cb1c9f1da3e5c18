"""How long a cache line takes from one CPU of a machine to another and back.

What CPUs exchange takes less time where they share a cache. A hypervisor may run the CPUs of a
guest on any cores, and move them at any time; the guest's kernel goes on saying what it was told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
_PROGRAM = (Path(__file__).parent / "programs" / "cache_line.py").read_text()


def command(cpus: tuple[int, int], period: float = 0.0) -> list[str]:
    """Return the command that prints the time of a cache line between two CPUs and back, in ns.

    The program is ``programs/cache_line.py``: two processes of Python write in turn to a word of
    shared memory, each on its CPU. It fails where the kernel does not say that the CPUs share a
    cache, and on processors other than AMD's. Those have one last-level cache a socket, and the
    time in it depends on where two cores are: a shared cache cannot be told from none.

    Parameters
    ----------
    cpus : tuple of int
        The two CPUs.
    period : float
        Seconds between timings, of which the last is that at SIGTERM. Each is of 3 means, and
        keeps the CPUs for some 0.1 ms. By default there is one timing, of 20 means.
    """
    return ["python3", "-ISc", _PROGRAM, *map(str, cpus), str(period)]


def timings(text: str) -> list[float]:
    """Return the times that the command has printed, without those that it could not take."""
    return [float(row) for row in text.split() if row.replace(".", "", 1).isdecimal()]


def apart(counters: Mapping[str, float]) -> bool:
    """Tell whether two CPUs share no cache, though they are said to (`labkit.Rig.cache_line`)."""
    return counters.get("cache_line_ratio", 0.0) > APART


def least_read(windows: Iterable[Mapping[str, Any]]) -> float:
    """Return the least time of a cache line that some windows were compared with, or infinity."""
    ratios = (one for one in windows if "cache_line_ns" in one and one.get("cache_line_ratio"))
    return min((one["cache_line_ns"] / one["cache_line_ratio"] for one in ratios), default=math.inf)
