"""h2load: requests over HTTP/1.1 at a constant rate, with the time of every one.

Each connection has its own schedule: a request every connections / rate seconds, one under way at a
time. The connections are opened over most of the first such interval, so that all requests are
spread over it; given a duration, the tool would open all at once, and send bursts.

A request that is due while its connection still waits is handed over only then, and that wait is
not in its latency (coordinated omission): ``held_up`` counts the requests that took longer than the
interval. ``late_ns`` is the delay behind the rate since the first request, up to 10 ms of which
come from connections that were opened late. The log is of the wall clock, which somebody may set,
while the tool paces its requests by another: a step is taken out.
"""

import re
from functools import partial

import numpy as np

from labkit.tools.base import Client, Measurement, prober
from labkit.tools.nginx import url
from labkit.tools.parsing import Column, flag, latency, reading, rows, scheduled, shortfall
from labkit.tools.repeat import once

TOOL = "h2load"
#: Seconds of load before the measured time, and for answers before the tool is ended.
WARMUP, GRACE = 0.5, 0.5
#: The shortest step of the wall clock that is told from a late request (us); the most in a run.
_STEP_US, _MOST_STEPS = 5_000, 2
_DONE = re.compile(r"^requests: .*?(\d+) done, .*?(\d+) errored, (\d+) timeout$", re.MULTILINE)
_BODY = re.compile(r"^once: traffic: .*\((\d+)\) data$", re.MULTILINE)

probe = prober(r"nghttp2/(\S+)", TOOL, "--version", package="nghttp2-client")


def load(
    address: str, *, file: str, seconds: float, rate: int = 3000, connections: int = 100
) -> Client:
    """Return the client: `rate` requests per second of a file, over all connections.

    It ends in the planned time, whatever the server does. One request before the load tells the
    size of an answer: a page about a missing file is small.
    """
    # Connections are opened at the rate, as each sends its first request at once.
    at_once = min(connections, max(1, round(rate / 1000)))
    period, planned = max(1, round(1000 * at_once / rate)), WARMUP + seconds + GRACE
    argv = f"h2load --h1 --requests={round(rate * (WARMUP + seconds))} --clients={connections}"
    argv += f" --rps={rate / connections:.9g} --rate={at_once} --rate-period={period}ms"
    argv += f" --log-file=requests {url(address, file)}"
    first = f"h2load --h1 --requests=1 --clients=1 {url(address, file)}"
    reader = partial(parse, rate=rate, seconds=seconds, connections=connections, warmup=WARMUP)
    client = Client(tuple(argv.split()), address, planned + 1, reader, samples_in_stdout=True)
    return once(client, limit=planned, first=first.split())


def parse(
    stdout: str, log: str, *, rate: float, seconds: float, connections: int, warmup: float = 0.0
) -> Measurement:
    """Read the requests that began in the measured time, and count answers that ended in it."""
    with reading(TOOL, stdout, log):
        if "starting benchmark" not in stdout:
            raise ValueError("it did not start")
        start, status, took = rows(log, ("start", "status", "took"), "\t").values()
        counts = _DONE.search(stdout)
        done, *without = map(int, counts.groups()) if counts else [len(status)]
        if done != len(status):
            raise ValueError(f"its log has {len(status)} of {done} requests")
        if (took[status > 0] <= 0).any() or not (status > 0).any():
            raise ValueError("no request was answered, or one took no time")
        if (np.diff(start + took) < -_STEP_US).any():
            raise ValueError("the times of its log go back: was the wall clock set?")
        order = np.argsort(start, kind="stable")
        start, status, took = start[order] - start.min(), status[order], took[order]
        answered = status > 0
        unlogged = sum(without) - int((~answered).sum())
        due, slow = np.arange(len(start)) * 1_000_000 // rate, took * rate > connections * 1_000_000
        # Connections that wait for answers are late for good, as after a step of the clock.
        steps = _steps(start - due, connections) * (not slow.any())
        start -= np.cumsum(steps)
        begin, end = round(warmup * 1e6), round((warmup + seconds) * 1e6)
        measured = (start >= begin) & (start < end)
        kept, ends = measured & answered, start + took
        ended = int((answered & (ends >= begin) & (ends < end)).sum())
        metrics = scheduled("requests_per_s", ended / seconds, float(rate))
        samples = {"start_ns": start - begin, "late_ns": np.maximum(start - due, 0)}
        samples = {name: one[kept] * 1000 for name, one in {**samples, "latency_ns": took}.items()}
        metrics |= latency(samples["latency_ns"])
        metrics |= latency(samples["latency_ns"] + samples["late_ns"], "due_latency_ns")
        if kept.any():
            metrics["late_ns_mean"] = float(samples["late_ns"].mean())
        if body := _BODY.search(stdout):
            metrics["body_b"] = float(body[1])
            metrics["throughput_mbit_per_s"] = float(body[1]) * metrics["achieved_per_s"] * 8e-6
    flags = shortfall(metrics["achieved_per_s"], rate)
    for name, which, words in (
        ("failed", measured & ~answered, "requests failed"),
        ("not_200", kept & (status != 200), "answers were not the file"),
        ("held_up", kept & slow, "requests held up the next one, whose wait is in no latency"),
    ):
        metrics[name] = float(which.sum())
        flags += flag(f"{which.sum()} of {measured.sum()} {words}", which.any())
    flags += flag(f"{unlogged} requests failed before they were logged", unlogged > 0)
    for step in steps[steps > 0]:
        flags += flag(f"the clock was set forward by {step / 1000:,.0f} ms")
    return Measurement(samples, metrics, len(start), flags)


def _steps(late: Column, connections: int) -> Column:
    """Return by how many us the wall clock was set forward just before each request.

    A late request is followed by some that are on time again, as the schedule goes on; after a step
    none is. A load that does not keep to its schedule at all seems to have many steps.
    """
    least = np.minimum.accumulate(late[::-1])[::-1]
    steps = np.diff(least, prepend=least[0])
    steps[(steps < _STEP_US) | (np.arange(len(late)) > len(late) - connections)] = 0
    return steps if np.count_nonzero(steps) <= _MOST_STEPS else np.zeros_like(steps)
