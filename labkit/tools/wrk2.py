"""wrk2: requests over HTTP/1.1 at a constant rate, as quantiles of latencies from when due.

The paper's tool, which no distribution packages. Its source makes it as ``wrk``; Debian's ``wrk``
is another tool, without a rate. Its latencies count from when a request was due by the schedule of
its connection, so that a server that stalls delays the requests that it kept waiting. It prints a
histogram and no single request. Within a thread its connections begin 5 ms apart, which matters for
the rate of a short run; and it discards what it measured in its first ten seconds, its calibration,
unless the run is shorter than that.
"""

from __future__ import annotations

import re
from functools import partial

from labkit.errors import UNPACKAGED
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, wrapped
from labkit.tools.nginx import url
from labkit.tools.parsing import (
    check_duration,
    own_cpu,
    reading,
    saturated,
    shortfall,
    split,
    version,
)

TOOL = "wrk2"
#: Threads among which the connections are divided.
THREADS = 2
#: Seconds between the beginnings of a thread's connections.
_APART = 0.005
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_BYTES = {f"{unit}B": 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}
_NAMES = {50.0: "median", 75.0: "p75", 90.0: "p90", 99.0: "p99", 99.9: "p999", 99.99: "p9999"}
_SPECTRUM = re.compile(r"^ *(\d+\.\d{3}) +([01]\.\d{6}) +(\d+) +(\d+\.\d\d|inf)$", re.MULTILINE)
_LINE = re.compile(r"^ *(\d+\.\d{3})% +(\d+\.\d\d)(us|ms|s|m|h) *$", re.MULTILINE)
_ENDS = re.compile(
    r"^#\[Mean += +(\d+\.\d+),.*\n#\[Max += +(\d+\.\d+), Total count += +(\d+)\]$", re.MULTILINE
)
_TOTAL = re.compile(
    r"^ *(\d+) requests in (\d+\.\d+)(us|ms|s|m|h), (\d+\.\d+)([KMGTP]?B) read$", re.MULTILINE
)
_RATE = re.compile(r"^Requests/sec: +(\d+\.\d+)$", re.MULTILINE)
_NOT_200 = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_ERRORS = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")


def probe(host: Host) -> str:
    """Return wrk2's version on the host."""
    pattern = r"wrk (\S+)[^\n]*\n(?s:.*)--rate"
    return version(host, (TOOL, "-v"), pattern, remedy=UNPACKAGED)


def constant_rate(
    address: str, *, file: str, rate: int, seconds: int, connections: int = 100
) -> Client:
    """Return the client: `rate` requests per second of a file, over all connections."""
    argv: tuple[str, ...] = (TOOL, "--latency", "-t", str(THREADS), "-c", str(connections))
    argv += ("-d", f"{seconds}s", "-R", str(rate), url(address, file))
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections)
    return Client(wrapped(argv), address, seconds + 2.0, reader)


def parse(
    stdout: str, log: str = "", *, rate: float, seconds: float, connections: int = 100
) -> Measurement:
    """Read the histogram and the rate; the other arguments are as they were requested.

    Quantiles are exact to 1 us where the spectrum has that very level, and to the printed two
    digits elsewhere. ``achieved_per_s`` is over the whole run, ``answer_b`` and
    ``throughput_mbit_per_s`` include the head of an answer, ``not_200`` counts answers with another
    status than 2xx and 3xx, and ``socket_errors`` timeouts too.
    """
    printed, _ = split(stdout, log)
    with reading(TOOL, printed):
        (ends,), (total,), (achieved,) = (
            pattern.findall(printed) for pattern in (_ENDS, _TOTAL, _RATE)
        )
        spectrum = _SPECTRUM.findall(printed)
        # An uncorrected histogram, where it is asked for, is a second one.
        if sum(last == "inf" for *_, last in spectrum) != 1 or spectrum[-1][2] != ends[2]:
            raise ValueError("it has not one histogram of its stated number of values")
        requests, lasted = int(total[0]), float(total[1]) * _NS[total[2]] / 1e9
        check_duration(lasted, seconds)
        if abs(requests / lasted - float(achieved)) > 0.02 * float(achieved):
            raise ValueError(f"{requests} requests in {lasted:g} s are not {achieved} per second")
        metrics = _quantiles(printed, spectrum)
        metrics |= {"latency_ns_mean": float(ends[0]) * 1e6, "latency_ns_max": float(ends[1]) * 1e6}
        metrics |= {"requested_per_s": float(rate), "achieved_per_s": float(achieved)}
        other, errors = _NOT_200.search(printed), _ERRORS.search(printed)
        metrics["not_200"] = float(other[1]) if other else 0.0
        metrics["socket_errors"] = float(sum(map(int, errors.groups()))) if errors else 0.0
        read = float(total[3]) * _BYTES[total[4]]  # printed to three digits
        metrics |= {"throughput_mbit_per_s": read * 8e-6 / lasted, "answer_b": read / requests}
        share = own_cpu(printed, THREADS)
    # The connections begin one after the other: what they could not send meanwhile is not missing.
    beginning = _APART * (connections / THREADS - 1) / 2
    flags = [*shortfall(metrics["achieved_per_s"], rate * max(0.0, 1 - beginning / seconds))]
    if share is not None:
        metrics["tool_cpu"] = share
        flags += saturated(share)
    for name, text in {"not_200": "answers were not the file", "socket_errors": "errors"}.items():
        flags += [f"{metrics[name]:.0f} of {requests} {text}"] if metrics[name] else []
    return Measurement({}, metrics, requests, tuple(flags))


def _quantiles(printed: str, spectrum: list[tuple[str, str, str, str]]) -> dict[str, float]:
    exact = {round(float(level) * 100, 4): float(ms) * 1e6 for ms, level, _, _ in spectrum}
    quantiles = {
        _NAMES[float(level)]: exact.get(float(level), float(number) * _NS[unit])
        for level, number, unit in _LINE.findall(printed)
        if float(level) in _NAMES
    }
    if len(quantiles) != len(_NAMES):
        raise ValueError(f"it has {len(quantiles)} of {len(_NAMES)} quantiles")
    return {f"latency_ns_{name}": value for name, value in quantiles.items()}
