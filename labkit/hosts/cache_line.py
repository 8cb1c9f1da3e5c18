"""How long a cache line takes from one CPU of a machine to another and back.

What CPUs exchange takes less time where they share a cache. A hypervisor may run the CPUs of a
guest on any cores, and move them at any time; the guest's kernel goes on saying what it was told.
"""

from __future__ import annotations

from pathlib import Path

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
