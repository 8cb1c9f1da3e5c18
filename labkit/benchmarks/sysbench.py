"""sysbench: its tests of CPU (prime numbers) and memory, for a set time."""

from __future__ import annotations

import re

from labkit.benchmarks.base import Client, Reading
from labkit.benchmarks.fields import number, unreadable, version
from labkit.errors import UsageError
from labkit.hosts import Host

#: For each test: its metric, the words of its line, and the unit of what stands there.
TESTS = {
    "cpu": ("sysbench_cpu_events_per_s", r"events per second: *(\S+)", 1.0),
    "memory": ("sysbench_memory_mb_per_s", r"transferred \((\S+) MiB/sec\)", 2**20 / 1e6),
}


def probe(host: Host) -> str:
    """Return sysbench's version on the host; raise `ToolMissing` where it is not."""
    return version(host, ("sysbench", "--version"), r"sysbench (\S+)")


def run(test: str, *, seconds: int, threads: int = 1) -> Client:
    """Return the client that runs a test of `TESTS` for whole seconds with so many threads."""
    if test not in TESTS or seconds < 1 or threads < 1:
        raise UsageError(
            f"test={test!r}, seconds={seconds}, threads={threads}: sysbench needs one of "
            f"{', '.join(TESTS)}, a time and threads",
            remedy='sysbench.run("cpu", seconds=10)',
        )
    # By its size alone the test of memory could end before its time.
    size = ("--memory-total-size=100T",) if test == "memory" else ()
    argv = ("sysbench", test, f"--threads={threads}", f"--time={seconds}", *size, "run")
    return Client(argv, "", seconds + 2.0, parse)


def parse(stdout: str, log: str = "") -> Reading:
    """Read the rate of whichever test it was; raise `ToolOutput` where there is none."""
    for name, pattern, unit in TESTS.values():
        found = re.search(pattern, stdout)
        if found and "execution time (avg/stddev)" in stdout:
            rate = number(found[1], tool="sysbench", name=name, whole=stdout)
            return Reading({}, {name: rate * unit})
    raise unreadable("sysbench", "there is no whole result", stdout)
