"""memtier_benchmark on memcached: the paper's load, with histograms of SETs and GETs apart.

No distribution packages it: it runs where its binary is on PATH. It is a closed loop: each
connection asks again once it is answered, and a server that stands still delays the operations that
would have seen it (coordinated omission). Its histogram's steps are 8 us below 2 ms, and wider
above; of it the quantiles are made, each the upper end of its step.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, one_of, whole
from labkit.tools.log_capture import logged, split
from labkit.tools.memcached import PORT, PROTOCOLS
from labkit.tools.parsing import unreadable, version

TOOL = "memtier_benchmark"
QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
#: Of the format V2 of HdrHistogram: the cookie of the compressed form, and of what is in it.
_COMPRESSED, _PLAIN = 0x1C849314, 0x1C849313
_HEADER = struct.Struct(">IIiiqqd")
_KINDS = {"set_": "Sets", "get_": "Gets", "": "Totals"}
Counts = NDArray[np.int64]


def probe(host: Host) -> str:
    """Return the tool's version on the host; raise `ToolMissing` where it is not."""
    build = "build it from its source and put it on PATH; for an image, see containers/apps/local"
    return version(host, (TOOL, "--version"), r"memtier_benchmark (\S+)", remedy=build)


def closed_loop(
    address: str,
    *,
    protocol: str,
    seconds: int,
    threads: int = 4,
    connections: int = 50,
    sets: int = 1,
    gets: int = 10,
    size: int = 32,
    keys: int = 10_000,
    port: int = PORT,
    inside: bool = False,
) -> Client:
    """Return the client; options as `labkit.tools.memcached.closed_loop`.

    No key is stored first: GETs find more and more of what they ask for, by the SETs of the run.
    """
    one_of("protocol", protocol, PROTOCOLS)
    counts = {"seconds": seconds, "threads": threads, "connections": connections, "sets": sets}
    whole(TOOL, **counts, gets=gets, size=size, keys=keys, port=port)
    argv: tuple[str, ...] = (TOOL, "-s", address, "-p", str(port), "-P", f"memcache_{protocol}")
    argv += ("-t", str(threads), "-c", str(connections), f"--ratio={sets}:{gets}")
    argv += (f"--test-time={seconds}", "-d", str(size), f"--key-maximum={keys}")
    argv += ("--hide-histogram", "--json-out-file=memtier.json")
    return Client(logged(argv, inside=inside), address, seconds + 4.0, parse)


def parse(stdout: str, log: str) -> Measurement:
    """Read the JSON file.

    Parameters
    ----------
    stdout, log : str
        What the tool printed, and its JSON file.

    Returns
    -------
    Measurement
        ``operations_per_s``, ``throughput_mbit_per_s`` (requests and answers, as the tool counts),
        ``sets``, ``gets``; ``set_latency_ns_mean``, ``_min``, ``_median``,
        ``_p90``, ``_p95``, ``_p99``, ``_p999``, ``_max``, the same as ``get_latency_ns`` and, of
        both, ``latency_ns``; ``hits``, the share of GETs that found a value.

    Raises
    ------
    ToolOutput
        The file is not whole, a histogram is not that of its operations, or there was no SET or no
        GET (the tool ends well where nobody listens).
    """
    printed, text = split(stdout, log)
    try:
        if "ALL STATS" not in printed:
            raise ValueError("it printed no summary")
        report = json.loads(text)["ALL STATS"]
        sets, gets, both = (report[name] for name in _KINDS.values())
        metrics = {
            "operations_per_s": float(both["Ops/sec"]),
            "throughput_mbit_per_s": both["KB/sec"] * 1024 * 8 / 1e6,
            "sets": float(sets["Count"]),
            "gets": float(gets["Count"]),
            "hits": gets["Hits/sec"] / (gets["Hits/sec"] + gets["Misses/sec"]),
        }
        for prefix, name in _KINDS.items():
            named = {f"{prefix}latency_ns_{key}": x for key, x in _latency(report[name]).items()}
            metrics |= named
        metrics["latency_ns_mean"] = _mean_of_both(metrics)
    except (ValueError, KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        why = f"{error!r}; its file: {text.strip()[-200:] or '(nothing)'}"
        raise unreadable(TOOL, why, printed, log=text[:2000]) from None
    errors = int(both.get("Connection Errors", 0))
    missed = 1 - metrics["hits"]
    flags = [f"{errors} connection errors"] if errors else []
    flags += [f"{missed:.0%} of the GETs found nothing"] if missed >= 0.005 else []
    return Measurement({}, metrics, int(both["Count"]), tuple(flags))


def _mean_of_both(metrics: Mapping[str, float]) -> float:
    """Return the mean of all operations, for which the file has 0."""
    weighted = [metrics[f"{kind}s"] * metrics[f"{kind}_latency_ns_mean"] for kind in ("set", "get")]
    return sum(weighted) / (metrics["sets"] + metrics["gets"])


def _latency(report: Mapping[str, Any]) -> dict[str, float]:
    """Return what the file says of one kind of operations, in ns."""
    encoded = report["Percentile Latencies"]["Histogram log format"]["Compressed Histogram"]
    values, counts = histogram(encoded)
    if int(counts.sum()) != report["Count"]:
        raise ValueError(f"a histogram of {counts.sum()} for {report['Count']} operations")
    keys = {"mean": "Average Latency", "min": "Min Latency", "max": "Max Latency"}
    latency = {name: round(report[key] * 1e6) for name, key in keys.items()}
    latency |= {name: quantile(values, counts, q) * 1000 for name, q in QUANTILES.items()}
    return {name: float(value) for name, value in latency.items()}


def quantile(values: Counts, counts: Counts, level: float) -> int:
    """Return the smallest value up to which that share of the counted lies, rounded as the tool."""
    reached = np.cumsum(counts)
    wanted = max(1, int(level * int(reached[-1]) + 0.5))
    return int(values[np.searchsorted(reached, wanted)])


def histogram(encoded: str) -> tuple[Counts, Counts]:
    """Decode a compressed HdrHistogram, version 2, after the format's own description.

    Parameters
    ----------
    encoded : str
        Base64, as a histogram log holds it.

    Returns
    -------
    values, counts : ndarray of int64, shape (n,)
        The upper end of each step that holds any, in the histogram's unit, and how many.

    Raises
    ------
    ValueError
        It is not whole, or of another format.
    """
    try:
        outer = base64.b64decode(encoded, validate=True)
        cookie, length = struct.unpack_from(">II", outer)
        plain = zlib.decompress(outer[8 : 8 + length])
        inner, payload, offset, digits, lowest, _, _ = _HEADER.unpack_from(plain)
    except (binascii.Error, struct.error, zlib.error) as error:
        raise ValueError(f"no compressed histogram: {error}") from None
    if (cookie, inner, offset) != (_COMPRESSED, _PLAIN, 0) or not 1 <= digits <= 5:
        raise ValueError(f"a histogram of another format: {cookie:x}, {inner:x}")
    packed = plain[_HEADER.size : _HEADER.size + payload]
    if len(packed) != payload:
        raise ValueError("a histogram that is cut off")
    steps = _steps(packed)
    half = math.ceil(math.log2(2 * 10**digits)) - 1
    unit = int(math.log2(max(1, lowest)))
    values = [_upper(place, half, unit) for place, _ in steps]
    return np.array(values, dtype=np.int64), np.array([n for _, n in steps], dtype=np.int64)


def _steps(packed: bytes) -> list[tuple[int, int]]:
    """Return (place, count) of what is counted: zigzag numbers of 7 bits a byte.

    A negative number is a run of places that hold nothing.
    """
    steps, place, number, shift = [], 0, 0, 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80 and shift < 63:
            continue
        count = (number >> 1) ^ -(number & 1)
        if count > 0:
            steps.append((place, count))
        place += max(1, -count)
        number = shift = 0
    if shift:
        raise ValueError("a histogram that ends within a number")
    return steps


def _upper(place: int, half: int, unit: int) -> int:
    """Return the upper end of the step at a place; each doubling has 2**half steps."""
    bucket = (place >> half) - 1
    within = (place & ((1 << half) - 1)) + (1 << half)
    if bucket < 0:
        bucket, within = 0, within - (1 << half)
    return ((within + 1) << (bucket + unit)) - 1
