"""h2load: requests over HTTP/1.1 at a constant rate, with the time of every one.

Each connection has its own schedule: a request every connections / rate seconds, one under way at a
time. The connections are opened one after the other over most of the first such interval, so that
the requests of all are spread over it, a few per millisecond; opened at once, as the tool does when
it is given a duration, all would send in one burst.

The log has the moment at which a request was handed to its connection, and the time from then to
the end of its answer, which is the latency. A request that is due while its connection still waits
for an answer is handed over only then, and that wait is not in its latency (coordinated omission).
It happens where a request takes longer than the interval; those are counted as ``held_up``. Without
them every latency counts from when the request was due, except for the resolution of the tool's
timers, a millisecond.

The tool does not log when a request was due, but the rate determines it: the first request sent is
the first due, the second comes 1 / rate later, and so on. The delay behind that is ``late_ns``;
latency and lateness together are what a client sees that does not wait for its turn. Up to some 10
ms of it come from the tool, which opens its connections a few milliseconds behind its plan. One
request is made before the load begins to learn the size of an answer: a page that reports a missing
file is small.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from labkit.errors import UsageError
from labkit.hosts import Host, script
from labkit.tools.base import Client, Measurement, check_integers, check_positive, logged
from labkit.tools.nginx import PORT, url
from labkit.tools.parsing import rows, shortfall, split, unreadable, version

TOOL = "h2load"
#: Seconds for answers after the last request is due, before the tool is ended.
GRACE = 0.5
_COLUMNS = ("start_us", "status", "took_us")
#: Marks the output of the one request before the load.
_ONCE = "once: "
_FIRST_REQUEST = f"""
timeout -k 1 2 "$1" --h1 --requests=1 --clients=1 "$2" | sed 's/^/{_ONCE}/'
shift 2
exec "$@"
"""
_BODY = re.compile(r"^once: traffic: .*\((\d+)\) data$", re.MULTILINE)


def probe(host: Host) -> str:
    """Return h2load's version on the host."""
    return version(host, (TOOL, "--version"), r"nghttp2/(\S+)", install="nghttp2-client")


def constant_rate(
    address: str,
    *,
    file: str,
    rate: int,
    seconds: float,
    connections: int = 100,
    warmup: float = 1.0,
    port: int = PORT,
) -> Client:
    """Return the client; it ends in the planned time, whatever the server does.

    Parameters
    ----------
    address, port : str, int
        The server's.
    file : str
        A name of `labkit.tools.nginx.FILES`.
    rate : int
        Requests per second, of all connections.
    seconds : float
        How long is measured.
    connections : int
        Open connections.
    warmup : float
        Seconds before that, at the same rate, which are left out.
    """
    check_integers(TOOL, rate=rate, connections=connections, port=port)
    check_positive(TOOL, seconds=seconds, warmup=warmup)
    total = round(rate * (warmup + seconds))
    if total < connections or rate < connections / 1000:
        raise UsageError(
            f"{TOOL}: {total} requests at {rate}/s are too few for {connections} connections"
        )
    at_once, period = _opening(rate, connections)
    argv: tuple[str, ...] = (TOOL, "--h1", f"--requests={total}", f"--clients={connections}")
    argv += (f"--rps={rate / connections:.9g}", f"--rate={at_once}")
    argv += (f"--rate-period={period}ms", "--log-file=requests")
    planned = warmup + seconds + GRACE
    page = url(address, file, port)
    argv = logged(script(_FIRST_REQUEST, TOOL, page, *argv, page), limit=planned)
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections, warmup=warmup)
    return Client(argv, address, planned + 1, reader, samples_in_stdout=True)


def _opening(rate: int, connections: int) -> tuple[int, int]:
    """Return how many connections to open at once, and every how many milliseconds.

    Exactly at the rate where that takes no more than 20 ms, since each connection sends its first
    request as it opens, and then in its turn.
    """
    for period in range(1, 21):
        at_once, rest = divmod(rate * period, 1000)
        if not rest and at_once <= connections:
            return at_once, period
    at_once = min(connections, max(1, round(rate / 1000)))
    return at_once, max(1, round(1000 * at_once / rate))


def parse(
    stdout: str, log: str, *, rate: int, seconds: float, connections: int, warmup: float = 0.0
) -> Measurement:
    """Read the line of every request; what is measured begins `warmup` seconds after the first.

    Returns
    -------
    Measurement
        Samples, a row per answered request that was sent in the measured time: ``start_ns``, when
        it was sent since that began, ``late_ns``, how long after it was due, at least 0, and
        ``latency_ns`` from start to the end of its answer. Metrics: ``requested_per_s``;
        ``achieved_per_s``, answers that ended in the measured time; ``latency_ns_mean`` and
        ``late_ns_mean``, where there is a sample; ``failed``, requests without an answer;
        ``not_200``, other answers than the file; ``held_up``, answers that took longer than their
        connection's interval; ``body_b``, bytes of an answer's body, by the one request before the
        load.
    """
    printed, text = split(stdout, log)
    if not text or "starting benchmark" not in printed:
        raise unreadable(TOOL, "it logged no request, or did not start", printed)
    columns = rows(text, _COLUMNS, "\t", tool=TOOL)
    _check_complete(printed, len(columns["status"]))
    order = np.argsort(columns["start_us"], kind="stable")
    start, status, took = (columns[name][order] for name in _COLUMNS)
    first = start[0] + round(warmup * 1e6)
    last = first + round(seconds * 1e6)
    if (took[status > 0] <= 0).any():
        raise unreadable(TOOL, "a request took no time", text)
    answered = status > 0
    due = start[0] * 1000 + np.arange(len(start)) * 1_000_000_000 // rate
    late = np.maximum(start * 1000 - due, 0)
    measured = (start >= first) & (start < last)
    kept = measured & answered
    if not answered.any():
        raise unreadable(TOOL, "no request was answered", printed)
    ended = answered & (start + took >= first) & (start + took < last)
    metrics = {
        "requested_per_s": float(rate),
        "achieved_per_s": float(ended.sum() / seconds),
        "failed": float((measured & ~answered).sum()),
        "not_200": float((kept & (status != 200)).sum()),
        "held_up": float((took[kept] * rate > connections * 1_000_000).sum()),
    }
    if kept.any():
        metrics["latency_ns_mean"] = float(took[kept].mean() * 1000)
        metrics["late_ns_mean"] = float(late[kept].mean())
    if body := _BODY.search(printed):
        metrics["body_b"] = float(body[1])
    samples = {"start_ns": (start[kept] - first) * 1000, "late_ns": late[kept]}
    samples |= {"latency_ns": took[kept] * 1000}
    return Measurement(samples, metrics, len(start), _flags(metrics, int(measured.sum())))


def _check_complete(printed: str, logged_rows: int) -> None:
    """Raise where the tool reports another number of requests than its log has."""
    done = re.search(r"^requests: .*?(\d+) done", printed, re.MULTILINE)
    if done and int(done[1]) != logged_rows:
        raise unreadable(TOOL, f"its log has {logged_rows} of {done[1]} requests", printed)


def _flags(metrics: dict[str, float], measured: int) -> tuple[str, ...]:
    flags = shortfall(metrics["achieved_per_s"], metrics["requested_per_s"])
    texts = {
        "failed": "requests failed",
        "not_200": "answers were not the file",
        "held_up": "requests held up the next of their connection, whose wait is in no latency",
    }
    counts = [
        f"{metrics[name]:.0f} of {measured} {text}" for name, text in texts.items() if metrics[name]
    ]
    return (*flags, *counts)
