"""nginx, a web server with two files, and loads on it over HTTP/1.1 at a constant rate.

h2load tells the time of every request. One that is due while its connection still waits is handed
over only then, and that wait is not in its latency (coordinated omission): ``held_up`` counts the
requests that took longer than an interval. ``late_ns`` is the delay behind the rate. The paper's
wrk2 (Debian's ``wrk`` is another tool) counts latencies from when a request was due, and prints a
histogram; a run of more than ten seconds discards what it measured in these.
"""

import re
from functools import partial

import numpy as np

from labkit.hosts import script
from labkit.placement import Workload
from labkit.tools import base
from labkit.tools.base import Client, Measurement
from labkit.tools.repeat import once

PORT = 8080
#: Seconds of load before the measured time, and for answers before the tool is ended.
WARMUP, GRACE = 0.5, 0.5
#: The shortest step of the wall clock that is told from a late request (us); the most in a run.
_STEP_US, _MOST_STEPS = 5_000, 2
_DONE = re.compile(r"^requests: .*?(\d+) done, .*?(\d+) errored, (\d+) timeout$", re.MULTILINE)
_SIZES = {"1k": 1 << 10, "1m": 1 << 20}
#: Threads of wrk2 among which the connections are divided, and units and patterns of its output.
THREADS = 2
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_BYTES = {f"{unit}B": 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}
_NAMES = {50.0: "median", 75.0: "p75", 90.0: "p90", 99.0: "p99", 99.9: "p999", 99.99: "p9999"}
_SPECTRUM = r"^ *(\d+\.\d{3}) +([01]\.\d{6}) +(\d+) +(\d+\.\d\d|inf)$"
_LINE = r"^ *(\d+\.\d{3})% +(\d+\.\d\d)(us|ms|s|m|h) *$"
_ENDS = r"^#\[Mean += +(\S+),.*\n#\[Max += +(\S+), Total count += +(\d+)\]$"
_TOTAL = r"^ *(\d+) requests in (\d+\.\d+)(us|ms|s|m|h), (\d+\.\d+)([KMGTP]?B) read$"
_RATE = r"^Requests/sec: +(\d+\.\d+)$"
_ERRORS = r"Socket errors: (connect \d+, read \d+, write \d+, timeout \d+)"
_START = r"""
[ "$PWD" != / ] || cd /run
for size in 1k 1m; do head -c $size /dev/zero | tr '\0' x >$size.html; done
printf '%s\n' "$1" >nginx.conf
exec nginx -e stderr -p "$PWD" -c nginx.conf -g "$2"
"""
_CONFIG = f"""
events {{ worker_connections 4096; }}
http {{
    access_log off;
    default_type text/html;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    server {{ listen 0.0.0.0:{PORT}; root .; }}
}}
"""
_IN_FRONT = "daemon off; pid nginx.pid; user www-data; worker_processes 1;"
SERVER = Workload(tuple(script(_START, _CONFIG, _IN_FRONT)), PORT, ("tcp",), "apps")


def h2load(address: str, *, file: str, seconds: float, rate: int, connections: int) -> Client:
    """Return the client: `rate` requests per second, which ends whatever the server does."""
    # Connections are opened at the rate, as each sends its first request at once; those that come
    # late are up to 10 ms late for good. Given a duration, it would open all at once.
    at_once = min(connections, max(1, round(rate / 1000)))
    period, planned = max(1, round(1000 * at_once / rate)), WARMUP + seconds + GRACE
    argv = f"h2load --h1 --requests={round(rate * (WARMUP + seconds))} --clients={connections}"
    argv += f" --rps={rate / connections:.9g} --rate={at_once} --rate-period={period}ms"
    argv += f" --log-file=requests http://{address}:{PORT}/{file}.html"
    reader = partial(parse_h2load, rate=rate, seconds=seconds, connections=connections)
    reader = partial(reader, warmup=WARMUP, size=_SIZES[file])
    client = Client(tuple(argv.split()), address, planned + 1, reader, samples_in_stdout=True)
    return once(client, limit=planned)


def parse_h2load(
    stdout: str, log: str, *, rate: int, seconds: float, connections: int, warmup: float, size: int
) -> Measurement:
    """Read the requests that began in the measured time, and count answers that ended in it."""
    with base.reading("h2load", stdout, log):
        if "starting benchmark" not in stdout:
            raise ValueError("it did not start")
        start, status, took = base.rows(log, 3, "\t")
        ((done, *without),) = _DONE.findall(stdout) or [(len(status),)]
        if int(done) != len(status):
            raise ValueError(f"its log has {len(status)} of {done} requests")
        if (took[status > 0] <= 0).any() or not (status > 0).any():
            raise ValueError("no request was answered, or one took no time")
        back = np.diff(start + took).min(initial=0)
        order = np.argsort(start, kind="stable")
        start, status, took = start[order] - start.min(), status[order], took[order]
        late = start - np.arange(len(start)) * 1_000_000 // rate
        slow = took * rate > connections * 1_000_000
        # A late request is followed by some that are on time again; after a step of the wall clock
        # none is, as where connections wait for answers. A load that does not keep to its schedule
        # at all seems to have many steps.
        least = np.minimum.accumulate(late[::-1])[::-1][: max(0, len(late) - connections + 1)]
        steps = np.count_nonzero(np.diff(least) >= _STEP_US) * (not slow.any())
        if back < -_STEP_US or 0 < steps <= _MOST_STEPS:
            raise ValueError("the wall clock of its log was set while it ran")
        answered = status > 0
        unlogged = sum(map(int, without)) - int((~answered).sum())
        begin, end = round(warmup * 1e6), round((warmup + seconds) * 1e6)
        measured = (start >= begin) & (start < end)
        kept, ended = measured & answered, (start + took >= begin) & (start + took < end)
        achieved = int((answered & ended).sum()) / seconds
        metrics = base.scheduled("requests_per_s", achieved, rate)
        carried = int((ended & (status == 200)).sum()) * size
        metrics["throughput_mbit_per_s"] = carried * 8e-6 / seconds
        samples = {"start_ns": start - begin, "late_ns": np.maximum(late, 0), "latency_ns": took}
        samples = {name: one[kept] * 1000 for name, one in samples.items()}
        metrics |= base.latency(samples["latency_ns"])
        metrics |= base.latency(samples["latency_ns"] + samples["late_ns"], "due_latency_ns")
        if kept.any():
            metrics["late_ns_mean"] = float(samples["late_ns"].mean())
    flags = base.shortfall(achieved, rate)
    for name, which, words in (
        ("failed", measured & ~answered, "requests failed"),
        ("not_200", kept & (status != 200), "answers were not the file"),
        ("held_up", kept & slow, "requests held up the next one, whose wait is in no latency"),
    ):
        metrics[name] = float(which.sum())
        flags += base.flag(f"{which.sum()} of {measured.sum()} {words}", which.any())
    flags += base.flag(f"{unlogged} requests failed before they were logged", unlogged > 0)
    return Measurement(samples, metrics, len(start), flags)


def wrk2(address: str, *, file: str, seconds: int, rate: int, connections: int) -> Client:
    """Return the client: `rate` requests per second of a file, over all connections."""
    argv = f"wrk2 --latency -t {THREADS} -c {connections} -d {seconds}s -R {rate}"
    argv += f" http://{address}:{PORT}/{file}.html"
    reader = partial(parse_wrk2, rate=rate, seconds=seconds, connections=connections)
    return once(Client(tuple(argv.split()), address, seconds + 2.0, reader), threads=THREADS)


def parse_wrk2(
    stdout: str, log: str = "", *, rate: float, seconds: float, connections: int = 100
) -> Measurement:
    """Read the rate and the histogram, which is exact where it has a quantile's level."""
    found = partial(re.findall, string=stdout, flags=re.MULTILINE)
    with base.reading("wrk2", stdout):
        ((mean, longest, count),), (achieved,) = found(_ENDS), found(_RATE)
        ((total, time, unit, read, unit_b),) = found(_TOTAL)
        reached, requests, lasted = float(achieved), int(total), float(time) * _NS[unit] / 1e9
        base.check_duration(lasted, seconds)
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
        metrics |= base.scheduled("requests_per_s", reached, rate)
        metrics["throughput_mbit_per_s"] = float(read) * _BYTES[unit_b] * 8e-6 / lasted
        base.check_numbers(metrics)
    # The connections of a thread begin 5 ms apart: what they could not send then is not missing.
    beginning = 0.005 * (connections / THREADS - 1) / 2
    flags = base.shortfall(reached, rate * max(0.0, 1 - beginning / seconds))
    for name, pattern, words in (
        ("not_200", r"Non-2xx or 3xx responses: (\d+)", "answers were not the file"),
        ("socket_errors", _ERRORS, "errors"),
    ):
        number = sum(int(one) for text in found(pattern) for one in re.findall(r"\d+", text))
        metrics[name] = float(number)
        flags += base.flag(f"{number} of {requests} {words}", number)
    return Measurement({}, metrics, requests, flags)


LOADS = {"h2load": h2load, "wrk2": wrk2}
_OPTIONS = {"rate": 3000, "connections": 100}
APPLICATIONS = {"nginx 1 KB": {"file": "1k", **_OPTIONS}, "nginx 1 MB": {"file": "1m", **_OPTIONS}}
