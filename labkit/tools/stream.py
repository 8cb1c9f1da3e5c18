"""STREAM: sustainable memory bandwidth of four kernels over long arrays, in GB/s (GB = 10^9 bytes).

The program is ``containers/services/stream.c``, after McCalpin's definition, with one thread and
pinned nowhere. STREAM prints the rate of the fastest pass, and that is the metric; the fastest of
many passes hides what disturbs the others, so the mean rate stands beside it.
"""

from __future__ import annotations

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, whole
from labkit.tools.parsing import fields, numbers, unreadable, version

KERNELS = ("copy", "scale", "add", "triad")
#: Bytes of one element in the three arrays.
BYTES = 24
#: Bytes a second that a CPU surely moves, for the expected duration.
_SLOWEST = 1e9


def probe(host: Host) -> str:
    """Return what the program on the host says of itself; raise `ToolMissing` where it is not."""
    remedy = "it is built in containers/services: run it in that image"
    return version(host, ("stream", "1000", "2"), r"^stream: (.*)", remedy=remedy)


def kernels(elements: int, *, times: int) -> Client:
    """Return the client that runs the four kernels `times` times.

    Parameters
    ----------
    elements : int
        Of each of the three arrays, 8 bytes each.
    times : int
        Passes, 2 to 250; the first is left out.
    """
    whole("stream", elements=elements)
    whole("stream", least=2, times=times)
    if times > 250:
        raise UsageError(f"stream: times={times}: must be at most 250")
    seconds = 1 + elements * BYTES * (times + 2) * 4 / _SLOWEST
    return Client(("stream", str(elements), str(times)), "", seconds, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the rates.

    Returns
    -------
    Measurement
        ``copy_gb_per_s`` and its like for scale, add and triad, of the fastest pass;
        ``copy_mean_gb_per_s`` and its like, of the mean pass.

    Raises
    ------
    ToolOutput
        The output is not whole, or the arrays do not hold what they must.
    """
    names = tuple(f"{kernel}_{kind}_mb_per_s" for kernel in KERNELS for kind in ("best", "mean"))
    values = numbers(stdout, names, tool="stream")
    if fields(stdout).get("check") != "passed":
        raise unreadable("stream", "the arrays do not hold what they must", stdout)
    metrics = {f"{kernel}_gb_per_s": values[f"{kernel}_best_mb_per_s"] / 1e3 for kernel in KERNELS}
    metrics |= {
        f"{kernel}_mean_gb_per_s": values[f"{kernel}_mean_mb_per_s"] / 1e3 for kernel in KERNELS
    }
    return Measurement({}, metrics)
