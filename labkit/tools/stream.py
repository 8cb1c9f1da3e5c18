"""STREAM: sustainable memory bandwidth of four kernels over long arrays, in GB/s (GB = 10^9 bytes).

The program is ``containers/services/stream.c``, after McCalpin's definition, with one thread and
not pinned. STREAM prints the rate of the fastest pass, and that is the metric; since the fastest of
many passes hides what disturbs the others, the mean rate is a metric too.
"""

from __future__ import annotations

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers
from labkit.tools.parsing import fields, numbers, unreadable, version

KERNELS = ("copy", "scale", "add", "triad")
#: Bytes of one element in the three arrays.
BYTES = 24
#: Bytes per second that any CPU moves, for the expected duration.
_SLOWEST = 1e9


def probe(host: Host) -> str:
    """Return what the program on the host reports as its version."""
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
    check_integers("stream", elements=elements)
    check_integers("stream", least=2, times=times)
    if times > 250:
        raise UsageError(f"stream: times={times}: must be at most 250")
    seconds = 1 + elements * BYTES * (times + 2) * 4 / _SLOWEST
    return Client(("stream", str(elements), str(times)), "", seconds, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read of each kernel ``copy_gb_per_s`` (fastest pass) and ``copy_mean_gb_per_s`` (mean)."""
    names = tuple(f"{kernel}_{kind}_mb_per_s" for kernel in KERNELS for kind in ("best", "mean"))
    values = numbers(stdout, names, tool="stream")
    if fields(stdout).get("check") != "passed":
        raise unreadable("stream", "the arrays do not hold the expected values", stdout)
    metrics = {f"{kernel}_gb_per_s": values[f"{kernel}_best_mb_per_s"] / 1e3 for kernel in KERNELS}
    metrics |= {
        f"{kernel}_mean_gb_per_s": values[f"{kernel}_mean_mb_per_s"] / 1e3 for kernel in KERNELS
    }
    return Measurement({}, metrics)
