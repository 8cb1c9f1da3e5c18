"""How long a cache line takes from one CPU of a machine to another and back.

What CPUs exchange takes less time where they share a cache. A hypervisor may run the CPUs of a
guest on any cores, and move them at any time; the guest's kernel goes on saying what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Two CPUs share no cache if a line takes this many times the least that was read, or that is told
#: apart. On an AMD EPYC of 2022, this module reads 30 to 95 ns for two that share one, up to 130
#: where they were idle, and 150 to 230 for others.
APART, LEAST_NS = 2.0, 65.0
#: Seconds between readings in a window.
PERIOD = 0.5

# A reading is the least of means of 50 round trips, as an interrupt makes a mean longer. What
# Python itself takes at each end is subtracted: the same loop, where the answer is there already,
# at both ends at the same time, since their CPUs may be threads of one core. Both ends wake at the
# same times, above what else runs on their CPUs. An end that does not find the other gives up after
# a millisecond; after half a second where nothing is being measured yet. Numbers are never used
# again, so that none is taken for an answer of another reading.
_EXCHANGE = """
import math, mmap, os, signal, sys, time
from time import perf_counter_ns as now
ours, other, period = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
chunks = 3 if period else 20
def numbers(text):
    ends = [part.split("-") for part in text.split(",")]
    return {cpu for one in ends for cpu in range(int(one[0]), int(one[-1]) + 1)}
folder = f"/sys/devices/system/cpu/cpu{ours}/cache"
caches = [name for name in os.listdir(folder) if name.startswith("index")]
if not any(other in numbers(open(f"{folder}/{one}/shared_cpu_list").read()) for one in caches):
    sys.exit("no shared cache")
line = memoryview(mmap.mmap(-1, 4096)).cast("q")
def least(word, first, answer, chunks):
    best = math.inf
    for start in range(first, first + 100 * chunks, 100):
        began = now()
        for number in range(start, start + 100, 2):
            line[word] = number
            while line[word] != number + answer:
                pass
        best = min(best, (now() - began) / 50)
    return best
def answer(first, chunks):
    for number in range(first, first + 100 * chunks, 2):
        while line[0] != number:
            pass
        line[0] = number + 1
def wait(reading):
    left = began + reading * period - time.monotonic()
    return signal.sigtimedwait({signal.SIGTERM}, max(left, 0))
def late(*_):
    global exchanging
    if exchanging:
        exchanging = False
        raise TimeoutError
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.signal(signal.SIGALRM, late)
harness, parent, began = os.getppid(), os.getpid(), time.monotonic() + 0.02
pid = os.fork()
os.sched_setaffinity(0, [ours if pid else other])
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except OSError:
    pass
own = 2 * least(64 if pid else 128, 1, 0, 400)
reading, exchanging = -1, False
while True:
    reading += 1
    if reading and period:
        # An end that was kept from its CPU leaves readings out, and meets the other at the next.
        reading = max(reading, int((time.monotonic() - began) / period))
    ended, found = wait(reading), None
    if pid and ended:
        os.kill(pid, signal.SIGTERM)
    first = 1 + 100 * chunks * reading
    signal.setitimer(signal.ITIMER_REAL, 0.001 if reading and period else 0.5)
    try:
        exchanging = True
        if pid:
            found = least(0, first, 1, chunks) - own
        else:
            answer(first, chunks)
        exchanging = False
    except TimeoutError:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not pid:
        if os.getppid() != parent:
            os._exit(0)
        continue
    if os.waitpid(pid, os.WNOHANG)[0]:
        sys.exit("one of the CPUs cannot be used")
    if found is not None:
        print(max(found, 0), flush=True)
    if ended or os.getppid() != harness or not period and found is not None:
        break
os.kill(pid, signal.SIGKILL)
"""


def apart(mechanisms: Mapping[str, float]) -> bool:
    """Tell whether two CPUs share no cache, though they are said to (`Rig.cache_line`)."""
    return mechanisms.get("cache_line_ratio", 0.0) > APART


def command(cpus: tuple[int, int], period: float = 0.0) -> list[str]:
    """Return the command that prints the time of a cache line between two CPUs and back, in ns.

    Two processes of Python write in turn to a word of shared memory, each on its CPU. It fails
    where the kernel does not say that the CPUs share a cache.

    Parameters
    ----------
    cpus : tuple of int
        The two CPUs.
    period : float
        Seconds between readings, of which the last is that at SIGTERM. Each is of 3 means, and
        keeps the CPUs for some 0.1 ms. By default there is one reading, of 20 means.
    """
    return ["python3", "-ISc", _EXCHANGE, *map(str, cpus), str(period)]


def readings(text: str) -> list[float]:
    """Return the times that the command has printed, without those that it could not take."""
    return [float(row) for row in text.split() if row.replace(".", "", 1).isdecimal()]
