"""STREAM: sustainable memory bandwidth of four kernels over long arrays, in GB/s (GB = 10^9 bytes).

The program is ``containers/services/stream.c``, after McCalpin's definition, with one thread and
pinned nowhere. STREAM prints the rate of the fastest pass, and that is the metric; the fastest of
many passes hides what disturbs the others, so the mean rate stands beside it.
"""

from __future__ import annotations

from labkit.benchmarks.base import Client, Reading
from labkit.benchmarks.fields import fields, numbers, unreadable
from labkit.errors import ToolMissing, UsageError
from labkit.hosts import Host

KERNELS = ("copy", "scale", "add", "triad")
#: Bytes of one element in the three arrays.
BYTES = 24
#: Bytes a second that a CPU surely moves, for the expected duration.
_SLOWEST = 1e9


def probe(host: Host) -> str:
    """Return what the program on the host says of itself; raise `ToolMissing` where it is not."""
    result = host.run("stream", "1000", "2", check=False)
    if result.status != 0 or not result.stdout.startswith("stream: "):
        raise ToolMissing(
            "stream is not installed",
            where=f"host {host.name}",
            remedy="it is made in containers/services: run it in that image",
        )
    return result.stdout.splitlines()[0].removeprefix("stream: ")


def kernels(elements: int, *, times: int) -> Client:
    """Return the client that runs the four kernels `times` times.

    Parameters
    ----------
    elements : int
        Of each of the three arrays, 8 bytes each.
    times : int
        Passes, 2 to 250; the first is left out.
    """
    if elements < 1 or not 2 <= times <= 250:
        raise UsageError(
            f"elements={elements}, times={times}: stream needs arrays and 2 to 250 passes",
            remedy="stream.kernels(16_000_000, times=10)",
        )
    seconds = 1 + elements * BYTES * (times + 2) * 4 / _SLOWEST
    return Client(("stream", str(elements), str(times)), "", seconds, parse)


def parse(stdout: str, log: str = "") -> Reading:
    """Read the rates.

    Returns
    -------
    Reading
        ``copy_gb_per_s`` and its like for scale, add and triad, of the fastest pass;
        ``copy_mean_gb_per_s`` and its like, of the mean pass.

    Raises
    ------
    ToolOutput
        The output is not whole, or the arrays do not hold what they must.
    """
    names = tuple(f"{kernel}_{kind}_mb_per_s" for kernel in KERNELS for kind in ("best", "mean"))
    found = numbers(stdout, names, tool="stream")
    if fields(stdout).get("check") != "passed":
        raise unreadable("stream", "the arrays do not hold what they must", stdout)
    metrics = {f"{kernel}_gb_per_s": found[f"{kernel}_best_mb_per_s"] / 1e3 for kernel in KERNELS}
    metrics |= {
        f"{kernel}_mean_gb_per_s": found[f"{kernel}_mean_mb_per_s"] / 1e3 for kernel in KERNELS
    }
    return Reading({}, metrics)
