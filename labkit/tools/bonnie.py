"""Bonnie++: block output, rewrite and input of a large file, and random seeks in it.

Version 2.00a prints KiB/s; here a MB is 10^6 bytes. It prints ``+++++`` for a phase that took less
than half a second, which is a missing value here. Its option for direct I/O holds only where it
creates the file, so the page cache must be too small for the file: the rule that the file has twice
the memory is kept by limiting the container's memory.
"""

from __future__ import annotations

import re

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers
from labkit.tools.parsing import number, unreadable, version

#: Column of each metric in its CSV (format 1.98), and the factor to the metric's unit.
COLUMNS = {
    "block_output_mb_per_s": (11, 1024 / 1e6),
    "block_rewrite_mb_per_s": (13, 1024 / 1e6),
    "block_input_mb_per_s": (17, 1024 / 1e6),
    "seeks_per_s": (19, 1.0),
}
_FORMAT, _WIDTH = "1.98", 22
#: Bytes per second that any disk reaches, for the expected duration.
_SLOWEST = 20e6


def probe(host: Host) -> str:
    """Return bonnie++'s version on the host."""
    return version(host, ("bonnie++",), r"Version:? +(\d\S*)")


def disk(megabytes: int, *, chunk: int = 8192) -> Client:
    """Return the client that runs the four phases once, as root.

    Parameters
    ----------
    megabytes : int
        Size of the file in MiB.
    chunk : int
        Bytes of one read or write, also of those after a seek: a power of two.
    """
    check_integers("bonnie++", megabytes=megabytes)
    check_integers("bonnie++", least=256, chunk=chunk)
    if chunk & (chunk - 1):
        raise UsageError(f"bonnie++: chunk={chunk}: must be a power of two")
    argv: tuple[str, ...] = ("bonnie++", "-q", "-d", "/scratch", "-u", "root", "-m", "labkit")
    # Blocks only (-f), no small files (-n 0); the rule for the size is the caller's (-r 0).
    argv += ("-f", "-n", "0", "-r", "0", "-s", f"{megabytes}:{chunk}")
    return Client(argv, "", 10 + 5 * megabytes * 2**20 / _SLOWEST, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the line of CSV that ``-q`` leaves on the standard output.

    Returns
    -------
    Measurement
        The metrics of `COLUMNS`; a phase that was too short has none, and a flag.
    """
    lines = [line for line in stdout.splitlines() if re.match(r"\d+\.\d+,", line)]
    if not lines:
        raise unreadable("bonnie++", "there is no line of CSV", stdout)
    cells = lines[-1].split(",")
    if cells[0] != _FORMAT or len(cells) < _WIDTH:
        why = f"{len(cells)} columns of format {cells[0]}, not {_WIDTH} or more of {_FORMAT}"
        raise unreadable("bonnie++", why, stdout)
    metrics, short = {}, []
    for name, (column, unit) in COLUMNS.items():
        if re.fullmatch(r"\++", cells[column]):
            short.append(name.rpartition("_per_s")[0].removesuffix("_mb"))
            continue
        metrics[name] = unit * number(cells[column], tool="bonnie++", name=name, output=stdout)
    flags = tuple(f"bonnie++ found {name} too short to time" for name in short)
    return Measurement({}, metrics, flags=flags)
