"""wrk2: requests over HTTP/1.1 at a constant rate, as quantiles of latencies from when due.

The paper's tool, which no distribution packages (Debian's ``wrk`` is another, without a rate). Its
latencies count from when a request was due by the schedule of its connection, so that a server that
stalls delays the requests that it kept waiting. It prints a histogram and no single request. Within
a thread its connections begin 5 ms apart, which matters for the rate of a short run. A longer run
than ten seconds discards what it measured in these, its calibration.
"""

import re
from functools import partial

from labkit.tools.base import Client, Measurement, prober
from labkit.tools.nginx import url
from labkit.tools.parsing import check_duration, flag, reading, scheduled, shortfall
from labkit.tools.repeat import once

#: Threads among which the connections are divided.
TOOL, THREADS = "wrk2", 2
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_BYTES = {f"{unit}B": 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}
_NAMES = {50.0: "median", 75.0: "p75", 90.0: "p90", 99.0: "p99", 99.9: "p999", 99.99: "p9999"}
_SPECTRUM = r"^ *(\d+\.\d{3}) +([01]\.\d{6}) +(\d+) +(\d+\.\d\d|inf)$"
_LINE = r"^ *(\d+\.\d{3})% +(\d+\.\d\d)(us|ms|s|m|h) *$"
_ENDS = r"^#\[Mean += +(\S+),.*\n#\[Max += +(\S+), Total count += +(\d+)\]$"
_TOTAL = r"^ *(\d+) requests in (\d+\.\d+)(us|ms|s|m|h), (\d+\.\d+)([KMGTP]?B) read$"
_RATE = r"^Requests/sec: +(\d+\.\d+)$"
_OTHER = r"Non-2xx or 3xx responses: (\d+)"
_ERRORS = r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)"

probe = prober(r"wrk (\S+)[^\n]*\n(?s:.*)--rate", TOOL, "-v")


def load(
    address: str, *, file: str, seconds: int, rate: int = 3000, connections: int = 100
) -> Client:
    """Return the client: `rate` requests per second of a file, over all connections."""
    argv = f"wrk2 --latency -t {THREADS} -c {connections} -d {seconds}s -R {rate}".split()
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections)
    client = Client((*argv, url(address, file)), address, seconds + 2.0, reader)
    return once(client, threads=THREADS)


def parse(
    stdout: str, log: str = "", *, rate: float, seconds: float, connections: int = 100
) -> Measurement:
    """Read the rate and the histogram, which is exact where it has a quantile's level."""

    def found(pattern: str) -> list[tuple[str, ...]]:
        return [match.groups() for match in re.finditer(pattern, stdout, re.MULTILINE)]

    with reading(TOOL, stdout):
        ((mean, longest, count),), ((achieved,),) = found(_ENDS), found(_RATE)
        ((total, time, unit, read, unit_b),) = found(_TOTAL)
        reached, requests, lasted = float(achieved), int(total), float(time) * _NS[unit] / 1e9
        check_duration(lasted, seconds)
        if abs(requests / lasted - reached) > 0.02 * reached:
            raise ValueError(f"{requests} requests in {lasted:g} s are not {achieved} per second")
        spectrum = found(_SPECTRUM)
        # An uncorrected histogram, where it is asked for, is a second one.
        if sum(last == "inf" for *_, last in spectrum) != 1 or spectrum[-1][2] != count:
            raise ValueError("it has not one histogram of its stated number of values")
        levels = {float(level): float(ms) * _NS[unit] for level, ms, unit in found(_LINE)}
        levels |= {round(float(level) * 100, 4): float(ms) * 1e6 for ms, level, *_ in spectrum}
        metrics = {f"latency_ns_{name}": levels[level] for level, name in _NAMES.items()}
        metrics |= {"latency_ns_mean": float(mean) * 1e6, "latency_ns_max": float(longest) * 1e6}
        metrics |= scheduled("requests_per_s", reached, float(rate))
        answered = float(read) * _BYTES[unit_b]  # printed to three digits
        metrics |= {
            "throughput_mbit_per_s": answered * 8e-6 / lasted,
            "answer_b": answered / requests,
        }
    # The connections begin one after the other: what they could not send meanwhile is not missing.
    beginning = 0.005 * (connections / THREADS - 1) / 2
    flags = shortfall(reached, rate * max(0.0, 1 - beginning / seconds))
    other, errors = (
        sum(int(one) for groups in found(kind) for one in groups) for kind in (_OTHER, _ERRORS)
    )
    flags += flag(f"{other} of {requests} answers were not the file", other)
    flags += flag(f"{errors} of {requests} errors", errors)
    metrics |= {"not_200": float(other), "socket_errors": float(errors)}
    return Measurement({}, metrics, requests, flags)
