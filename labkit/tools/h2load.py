"""h2load: requests over HTTP/1.1 at a constant rate, with the time of every one.

Each connection has a schedule of its own: a request every connections / rate seconds, one under way
at a time. The connections are opened one after the other over most of the first such interval, so
that the requests of all are spread over it, a few a millisecond; opened at once, as the tool does
when it is given a duration, all would ask in one burst.

What a latency is: the log has the moment at which a request was handed to its connection, and the
time from then to the end of its answer. A request that is due while its connection still waits for
an answer is handed over only then, and the time that it waited is not in its latency (coordinated
omission). That happens where a request takes longer than the interval, so those are counted:
``held_up``. None, and every latency counts from when the request was sent as it was due, but for
the tool's timers, which end on whole milliseconds.

The tool keeps no time at which a request was due, but the rate says it: the first request that was
sent is the first that was due, the second comes 1 / rate later, and so on. What is late by that is
``late_ns``, and latency and lateness together are what a client sees that does not wait for its
turn. What lies below some 10 ms of it is the tool's own, which opens its connections a few
milliseconds behind its plan. A request is made before the load begins, which shows what an answer
holds: a page that says that there is no such file is small.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from labkit.errors import UsageError
from labkit.hosts import Host, script
from labkit.tools.base import Client, Measurement, above_zero, whole
from labkit.tools.log_capture import logged, rows, shortfall, split
from labkit.tools.nginx import PORT, url
from labkit.tools.parsing import unreadable, version

TOOL = "h2load"
#: Seconds that answers may still take once the last request is due, before the tool is ended.
GRACE = 0.5
_COLUMNS = ("start_us", "status", "took_us")
#: Begins the lines of the one request before the load.
_ONCE = "once: "
_LOOK = f"""
timeout -k 1 2 "$1" --h1 --requests=1 --clients=1 "$2" | sed 's/^/{_ONCE}/'
shift 2
exec "$@"
"""
_BODY = re.compile(r"^once: traffic: .*\((\d+)\) data$", re.MULTILINE)


def probe(host: Host) -> str:
    """Return h2load's version on the host; raise `ToolMissing` where it is not."""
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
    inside: bool = False,
) -> Client:
    """Return the client; it ends in the planned time, whatever the server does.

    Parameters
    ----------
    address : str
        The server's address.
    file : str
        Of `labkit.tools.nginx.FILES`.
    rate : int
        Requests a second, of all connections.
    seconds : float
        How long is measured.
    connections : int
        Open connections.
    warmup : float
        Seconds before that, at the same rate, which are left out.
    port : int
        The server's port.
    inside : bool
        True where the client itself is placed in a container.
    """
    whole(TOOL, rate=rate, connections=connections, port=port)
    above_zero(TOOL, seconds=seconds, warmup=warmup)
    total = round(rate * (warmup + seconds))
    if total < connections or rate < connections / 1000:
        raise UsageError(
            f"{TOOL}: {total} requests at {rate} a second are too few for {connections} connections"
        )
    # So many connections every so many milliseconds, the shortest period that the tool knows.
    at_once = min(connections, max(1, round(rate / 1000)))
    argv: tuple[str, ...] = (TOOL, "--h1", f"--requests={total}", f"--clients={connections}")
    argv += (f"--rps={rate / connections:.9g}", f"--rate={at_once}")
    argv += (f"--rate-period={max(1, round(1000 * at_once / rate))}ms", "--log-file=requests")
    planned = warmup + seconds + GRACE
    where = url(address, file, port)
    argv = tuple(script(_LOOK, TOOL, where, *argv, where))
    return Client(
        logged(argv, inside=inside, limit=planned),
        address,
        planned + 1,
        partial(parse, rate=rate, seconds=seconds, connections=connections, warmup=warmup),
        samples_in_stdout=inside,
    )


def parse(
    stdout: str, log: str, *, rate: int, seconds: float, connections: int, warmup: float = 0.0
) -> Measurement:
    """Read the line of every request.

    Parameters
    ----------
    stdout, log : str
        What the tool printed, and its log.
    rate, seconds, connections, warmup
        As they were asked for: what is measured begins `warmup` seconds after the first request.

    Returns
    -------
    Measurement
        Samples, a row an answered request that was sent in the measured time: ``start_ns``, when it
        was sent since that began, ``late_ns``, how long after it was due by the rate that was, at
        least 0, and ``latency_ns`` from start to the end of its answer. Metrics:
        ``requested_per_s``; ``achieved_per_s``, answers that ended in the measured time;
        ``latency_ns_mean`` and ``late_ns_mean``, where there is a sample; ``failed``, requests
        without an answer; ``not_200``, other answers than the file; ``held_up``, answers that took
        longer than their connection's interval; ``body_b``, bytes of an answer's body, by the one
        request before the load.

    Raises
    ------
    ToolOutput
        There is no answer at all, a line is no request, or lines are missing.
    """
    printed, text = split(stdout, log)
    if not text or "starting benchmark" not in printed:
        raise unreadable(TOOL, "it logged no request, or did not start", printed)
    columns = rows(text, _COLUMNS, "\t", tool=TOOL)
    _check_whole(printed, len(columns["status"]))
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
        metrics |= {"latency_ns_mean": float(took[kept].mean() * 1000)}
        metrics |= {"late_ns_mean": float(late[kept].mean())}
    body = _BODY.search(printed)
    metrics |= {"body_b": float(body[1])} if body else {}
    samples = {"start_ns": (start[kept] - first) * 1000, "late_ns": late[kept]}
    samples |= {"latency_ns": took[kept] * 1000}
    return Measurement(samples, metrics, len(start), _flags(metrics, int(measured.sum())))


def _check_whole(printed: str, logged_rows: int) -> None:
    """Raise where the tool says that it made other requests than are in its log."""
    for line in printed.splitlines():
        if line.startswith("requests: "):
            counts = {name: number for number, _, name in _counts(line)}
            done = int(counts.get("done", "-1"))
            if done != logged_rows:
                raise unreadable(TOOL, f"its log has {logged_rows} of {done} requests", printed)


def _counts(line: str) -> list[tuple[str, str, str]]:
    return [part.strip().partition(" ") for part in line.partition(":")[2].split(",")]


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
