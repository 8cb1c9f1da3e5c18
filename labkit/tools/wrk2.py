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

from labkit.errors import UNPACKAGED, UsageError
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers, metered, own_cpu, saturated
from labkit.tools.nginx import url
from labkit.tools.parsing import shortfall, unreadable, version

TOOL = "wrk2"
#: Seconds between the beginnings of a thread's connections.
_APART = 0.005
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_NAMES = {50.0: "median", 75.0: "p75", 90.0: "p90", 99.0: "p99", 99.9: "p999", 99.99: "p9999"}
_SPECTRUM = re.compile(r"^ *(\d+\.\d{3}) +([01]\.\d{6}) +(\d+) +(\d+\.\d\d|inf)$", re.MULTILINE)
_LINE = re.compile(r"^ *(\d+\.\d{3})% +(\d+\.\d\d)(us|ms|s|m|h) *$", re.MULTILINE)
_ENDS = {
    "mean": r"#\[Mean += +(\d+\.\d+),",
    "max": r"#\[Max += +(\d+\.\d+),",
    "count": r"Total count += +(\d+)\]",
    "rate": r"^Requests/sec: +(\d+\.\d+)$",
}
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def probe(host: Host) -> str:
    """Return wrk2's version on the host."""
    pattern = r"wrk (\S+)[^\n]*\n(?s:.*)--rate"
    return version(host, (TOOL, "-v"), pattern, remedy=UNPACKAGED)


def constant_rate(
    address: str,
    *,
    file: str,
    rate: int,
    seconds: int,
    connections: int = 100,
    threads: int = 2,
) -> Client:
    """Return the client.

    Parameters
    ----------
    address : str
        The server's address.
    file : str
        A name of `labkit.tools.nginx.FILES`.
    rate : int
        Requests per second, of all connections.
    seconds : int
        How long it runs.
    connections, threads : int
        Open connections, and the threads among which they are divided.
    """
    check_integers(TOOL, rate=rate, seconds=seconds, connections=connections, threads=threads)
    if connections < threads:
        raise UsageError(f"{TOOL}: {connections} connections for {threads} threads")
    argv: tuple[str, ...] = (TOOL, "--latency", "-t", str(threads), "-c", str(connections))
    argv += ("-d", f"{seconds}s", "-R", str(rate), url(address, file))
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections, threads=threads)
    return Client(metered(argv), address, seconds + 2.0, reader)


def parse(
    stdout: str,
    log: str = "",
    *,
    rate: float,
    seconds: float,
    connections: int = 100,
    threads: int = 2,
) -> Measurement:
    """Read the histogram and the rate; the other arguments are as they were requested.

    Returns
    -------
    Measurement
        ``latency_ns_median``, ``_p75``, ``_p90``, ``_p99``, ``_p999``, ``_p9999`` (to 1 us where
        the spectrum has that very level, to the printed two digits elsewhere), ``_mean``, ``_max``;
        ``requested_per_s``; ``achieved_per_s``, over the whole run; ``throughput_mbit_per_s`` and
        ``answer_b``, bytes of an answer, both with its head; ``not_200``, answers with another
        status than 2xx and 3xx; ``socket_errors``; ``tool_cpu``, the share of its own CPUs' time
        that it took, where it was told.
    """
    ends = {name: re.search(pattern, stdout, re.MULTILINE) for name, pattern in _ENDS.items()}
    missing = [name for name, match in ends.items() if match is None]
    spectrum = _SPECTRUM.findall(stdout)
    if missing or not spectrum:
        raise unreadable(TOOL, f"there is no {', '.join(missing) or 'histogram'}", stdout)
    value = {name: float(match[1]) for name, match in ends.items() if match is not None}
    if int(spectrum[-1][2]) != value["count"] or not value["count"] > 0:
        raise unreadable(TOOL, "the histogram does not have its stated number of values", stdout)
    metrics = _quantiles(stdout, spectrum)
    metrics |= {f"latency_ns_{name}": value[name] * 1e6 for name in ("mean", "max")}
    metrics |= {"requested_per_s": float(rate), "achieved_per_s": value["rate"]}
    metrics |= {"not_200": _number(r"Non-2xx or 3xx responses: (\d+)", stdout)}
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), time", stdout)
    metrics["socket_errors"] = float(sum(map(int, errors.groups()))) if errors else 0.0
    requests = _number(r"^ *(\d+) requests in ", stdout)
    metrics |= _carried(stdout)
    # The connections begin one after the other: what they could not send meanwhile is not missing.
    beginning = _APART * (connections / threads - 1) / 2
    reachable = rate * max(0.0, 1 - beginning / seconds)
    flags = [*shortfall(metrics["achieved_per_s"], reachable)]
    if (share := own_cpu(stdout, threads)) is not None:
        metrics["tool_cpu"] = share
        flags += saturated(share)
    for name, text in {"not_200": "answers were not the file", "socket_errors": "errors"}.items():
        flags += [f"{metrics[name]:.0f} of {requests:.0f} {text}"] if metrics[name] else []
    return Measurement({}, metrics, int(requests), tuple(flags))


def _quantiles(stdout: str, spectrum: list[tuple[str, str, str, str]]) -> dict[str, float]:
    exact = {round(float(level) * 100, 4): float(ms) * 1e6 for ms, level, _, _ in spectrum}
    quantiles = {}
    for text, number, unit in _LINE.findall(stdout):
        level = float(text)
        if level in _NAMES:
            quantiles[f"latency_ns_{_NAMES[level]}"] = exact.get(level, float(number) * _NS[unit])
    if len(quantiles) != len(_NAMES):
        raise unreadable(TOOL, f"it has {len(quantiles)} of {len(_NAMES)} quantiles", stdout)
    return quantiles


def _carried(stdout: str) -> dict[str, float]:
    """Return what was read over the whole run, which the tool prints to three digits."""
    total = re.search(
        r"^ *(\d+) requests in ([\d.]+)(us|ms|s|m|h), ([\d.]+)([KMG]?B) read$", stdout, re.M
    )
    if total is None:
        raise unreadable(TOOL, "there is no total of bytes read", stdout)
    read = float(total[4]) * _BYTES[total[5]]
    seconds = float(total[2]) * _NS[total[3]] / 1e9
    return {"throughput_mbit_per_s": read * 8e-6 / seconds, "answer_b": read / int(total[1])}


def _number(pattern: str, stdout: str) -> float:
    match = re.search(pattern, stdout, re.MULTILINE)
    return float(match[1]) if match else 0.0
