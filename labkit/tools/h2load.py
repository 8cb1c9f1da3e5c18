"""h2load: requests over HTTP/1.1 at a constant rate, with the time of every one.

Each connection has its own schedule: a request every connections / rate seconds, one under way at a
time. The connections are opened one after the other over most of the first such interval, so that
all requests are spread over it; given a duration, the tool would open all at once, and send bursts.

The log has the moment at which a request was handed to its connection, and its latency from then. A
request that is due while its connection still waits is handed over only then, and that wait is not
in its latency (coordinated omission): ``held_up`` counts the requests that took longer than the
interval. Without them every latency counts from when the request was due, but for a millisecond,
the resolution of the tool's timers. The rate determines when requests were due, since the first one
is the first sent; the delay behind that is ``late_ns``, up to 10 ms of which come from connections
that were opened late. The log is of the wall clock, which somebody may set, while the tool paces
its requests by another: a step of the log is found and taken out. One request is made before the
load, to learn the size of an answer: a page that reports a missing file is small.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, wrapped
from labkit.tools.nginx import url
from labkit.tools.parsing import Column, reading, rows, shortfall, split, version

TOOL = "h2load"
#: Seconds of load before the measured time.
WARMUP = 0.5
#: Seconds for answers after the last request is due, before the tool is ended.
GRACE = 0.5
#: The shortest step of the wall clock that is told from a late request (us); the most in a run.
_STEP_US, _MOST_STEPS = 5_000, 2
_COLUMNS = ("start_us", "status", "took_us")
_DONE = re.compile(r"^requests: .*?(\d+) done, .*?(\d+) errored, (\d+) timeout$", re.MULTILINE)
_BODY = re.compile(r"^once: traffic: .*\((\d+)\) data$", re.MULTILINE)
_FLAGS = {
    "failed": "requests failed",
    "not_200": "answers were not the file",
    "held_up": "requests held up the next of their connection, whose wait is in no latency",
}


def probe(host: Host) -> str:
    """Return h2load's version on the host."""
    remedy = "apt-get install nghttp2-client"
    return version(host, (TOOL, "--version"), r"nghttp2/(\S+)", remedy=remedy)


def constant_rate(
    address: str, *, file: str, rate: int, seconds: float, connections: int = 100
) -> Client:
    """Return the client: `rate` requests per second of a file, over all connections.

    After `WARMUP` it measures for so many seconds, and ends in that time, whatever the server does.
    """
    at_once, period = _opening(rate, connections)
    page, planned = url(address, file), WARMUP + seconds + GRACE
    argv: tuple[str, ...] = (TOOL, "--h1", f"--requests={round(rate * (WARMUP + seconds))}")
    argv += (f"--clients={connections}", f"--rps={rate / connections:.9g}", f"--rate={at_once}")
    argv += (f"--rate-period={period}ms", "--log-file=requests", page)
    once = (TOOL, "--h1", "--requests=1", "--clients=1", page)
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections, warmup=WARMUP)
    command = wrapped(argv, limit=planned, first=once)
    return Client(command, address, planned + 1, reader, samples_in_stdout=True)


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
    """Read the line of every request; the measured time begins `warmup` seconds after the first.

    Samples are answered requests that were sent in it: ``start_ns`` since it began, ``late_ns``
    after the request was due, ``latency_ns``. ``achieved_per_s`` counts answers that ended in it,
    ``failed`` requests without an answer, ``not_200`` other answers than the file.
    """
    printed, text = split(stdout, log)
    with reading(TOOL, printed, text):
        columns, unlogged = _requests(printed, text)
        order = np.argsort(columns["start_us"], kind="stable")
        start, status, took = (columns[name][order] for name in _COLUMNS)
        steps = _clock_steps(start, rate, connections)
        if (took * rate > connections * 1_000_000).any():
            steps[:] = 0  # connections that wait for answers are late for good, too
        start = start - start[0] - np.cumsum(steps)
        begin, end = round(warmup * 1e6), round((warmup + seconds) * 1e6)
        answered = status > 0
        late = np.maximum(start * 1000 - np.arange(len(start)) * 1_000_000_000 // rate, 0)
        measured = (start >= begin) & (start < end)
        kept = measured & answered
        ended = answered & (start + took >= begin) & (start + took < end)
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
    samples = {"start_ns": (start[kept] - begin) * 1000, "late_ns": late[kept]}
    samples |= {"latency_ns": took[kept] * 1000}
    flags = [*shortfall(metrics["achieved_per_s"], rate)]
    flags += [
        f"{metrics[name]:.0f} of {measured.sum()} {text}"
        for name, text in _FLAGS.items()
        if metrics[name]
    ]
    flags += [f"{unlogged} requests failed before they were logged"] if unlogged else []
    flags += [f"the clock was set forward by {step / 1000:,.0f} ms" for step in steps[steps > 0]]
    return Measurement(samples, metrics, len(start), tuple(flags))


def _requests(printed: str, text: str) -> tuple[dict[str, Column], int]:
    """Return the columns of the log, a row for each answer, and how many requests are not in it."""
    if not text or "starting benchmark" not in printed:
        raise ValueError("it logged no request, or did not start")
    columns = rows(text, _COLUMNS, "\t")
    status, took = columns["status"], columns["took_us"]
    counts = _DONE.search(printed)
    done, errored, late = map(int, counts.groups()) if counts else (len(status), 0, 0)
    if done != len(status):
        raise ValueError(f"its log has {len(status)} of {done} requests")
    if (took[status > 0] <= 0).any() or not (status > 0).any():
        raise ValueError("no request was answered, or one took no time")
    if (np.diff(columns["start_us"] + took) < -_STEP_US).any():
        raise ValueError("the times of its log go back: was the wall clock set?")
    return columns, max(0, errored + late - int((status <= 0).sum()))


def _clock_steps(start: Column, rate: int, connections: int) -> Column:
    """Return by how many us the wall clock was set forward just before each request.

    A late request is followed by some that are on time again, as the schedule goes on; after a step
    none is. A load that does not keep to its schedule at all seems to have many steps.
    """
    late = start - np.arange(len(start)) * 1_000_000 // rate
    least = np.minimum.accumulate(late[::-1])[::-1]
    steps = np.diff(least, prepend=least[0])
    steps[(steps < _STEP_US) | (np.arange(len(start)) > len(start) - connections)] = 0
    return steps if np.count_nonzero(steps) <= _MOST_STEPS else np.zeros_like(steps)
