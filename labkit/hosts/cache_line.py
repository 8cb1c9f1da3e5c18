"""How long a cache line takes from one CPU of a machine to another and back.

What CPUs exchange takes less time where they share a cache. A hypervisor may run the CPUs of a
guest on any cores, and move them at any time; the guest's kernel goes on saying what it was told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

#: Two CPUs share no cache if a line takes this many times the least that was read, or that is told
#: apart. On an AMD EPYC of 2022, this module reads 70 to 95 ns for two that share one, up to 140
#: where they are busy, and 190 to 250 for others.
APART, LEAST_NS = 2.0, 65.0

# The least of the means of 100 round trips, as an interrupt makes a mean longer. What Python itself
# takes at each end is subtracted: the same loop, where the answer is there already.
_EXCHANGE = """
import mmap, os, sys
from time import perf_counter_ns as now
ours, other = map(int, sys.argv[1:])
def numbers(text):
    ends = [part.split("-") for part in text.split(",")]
    return {cpu for one in ends for cpu in range(int(one[0]), int(one[-1]) + 1)}
folder = f"/sys/devices/system/cpu/cpu{ours}/cache"
caches = [name for name in os.listdir(folder) if name.startswith("index")]
if not any(other in numbers(open(f"{folder}/{one}/shared_cpu_list").read()) for one in caches):
    sys.exit("no shared cache")
line = memoryview(mmap.mmap(-1, 4096)).cast("q")
pid = os.fork()
if not pid:
    try:
        os.sched_setaffinity(0, [other])
        line[64] = 1
        for number in range(1, 4000, 2):
            while line[0] != number:
                pass
            line[0] = number + 1
    finally:
        os._exit(0)
os.sched_setaffinity(0, [ours])
while not line[64]:
    pass
def least(answer, chunks=20):
    best = 1e18
    for first in range(1, 200 * chunks, 200):
        began = now()
        for number in range(first, first + 200, 2):
            line[0] = number
            while line[0] != number + answer:
                pass
        best = min(best, (now() - began) / 100)
    return best
there_and_back = least(1)
os.waitpid(pid, 0)
print(max(there_and_back - 2 * least(0, 400), 0))
"""


def apart(mechanisms: Mapping[str, float]) -> bool:
    """Tell whether two CPUs share no cache, though they are said to (`Rig.cache_line`)."""
    return mechanisms.get("cache_line_ratio", 0.0) > APART


def command(cpus: tuple[int, int]) -> list[str]:
    """Return the command that prints the time of a cache line between two CPUs and back, in ns.

    Two processes of Python write in turn to a word of shared memory, each on its CPU, for some
    milliseconds. It fails where the kernel does not say that the CPUs share a cache.
    """
    return ["timeout", "5", "python3", "-ISc", _EXCHANGE, *map(str, cpus)]


def printed(text: str) -> float:
    """Return the time that the command has printed, NaN where it has failed."""
    try:
        return float(text)
    except ValueError:
        return math.nan
