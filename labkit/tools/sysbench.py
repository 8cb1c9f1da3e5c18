"""sysbench: its tests of CPU (prime numbers) and memory, for a set time."""

from __future__ import annotations

import re

from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers, one_of
from labkit.tools.parsing import number, unreadable, version

#: For each test: its metric, the line that has it, and the factor to the metric's unit.
TESTS = {
    "cpu": ("sysbench_cpu_events_per_s", r"events per second: *(\S+)", 1.0),
    "memory": ("sysbench_memory_mb_per_s", r"transferred \((\S+) MiB/sec\)", 2**20 / 1e6),
}


def probe(host: Host) -> str:
    """Return sysbench's version on the host."""
    return version(host, ("sysbench", "--version"), r"sysbench (\S+)")


def run(test: str, *, seconds: int, threads: int = 1) -> Client:
    """Return the client that runs a test of `TESTS` for whole seconds with so many threads."""
    one_of("test", test, tuple(TESTS))
    check_integers("sysbench", seconds=seconds, threads=threads)
    # By its size alone the test of memory could end before its time.
    size = ("--memory-total-size=100T",) if test == "memory" else ()
    argv = ("sysbench", test, f"--threads={threads}", f"--time={seconds}", *size, "run")
    return Client(argv, "", seconds + 2.0, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the rate of whichever test it was."""
    for name, pattern, unit in TESTS.values():
        match = re.search(pattern, stdout)
        if match and "execution time (avg/stddev)" in stdout:
            rate = number(match[1], tool="sysbench", name=name, output=stdout)
            return Measurement({}, {name: rate * unit})
    raise unreadable("sysbench", "there is no whole result", stdout)
