"""Apache Thrift: remote calls of a service in Python, in a closed or an open loop.

Both ends are ``programs/thrift_service.py``, which Debian's python3 runs with python3-thrift. In a
closed loop a call is made when the one before has been answered, so that a server that stalls
delays the calls that would have noticed it (coordinated omission); in an open loop calls are due at
set times, from which their latency counts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from labkit.errors import ToolMissing, UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import PYTHON, Client, Measurement, one_of, python
from labkit.tools.parsing import csv_rows, json_in, reading

PORT = 9090
CALLS = ("nothing", "receive", "send")
#: Calls that take longer are counted as slow: the smallest quota that the kernel accepts.
SLOW_NS = 1_000_000
#: A client that was ready and had no CPU for a larger share of the time than this is flagged, not
#: counting the ns that getting a CPU takes at each wake-up.
MOST_DELAY, WAKING_NS = 1e-3, 1_000
#: Calls before the sample, which fill caches and grow the connection's windows.
WARMUP = 500
#: Upper bounds of a call and of the server's CPU time in it (s); lower bound of the speed at which
#: its bytes are moved (bytes/s).
_CALL, _COMPUTING, _SPEED = 200e-6, 60e-6, 50e6
_COLUMNS = ("start_ns", "lateness_ns", "latency_ns")
_VERSION = """
import importlib.metadata, platform
from thrift.protocol import fastbinary
print(importlib.metadata.version("thrift"), "on Python", platform.python_version())
"""


def probe(host: Host) -> str:
    """Return the version of Thrift's library on the host."""
    result = host.run(PYTHON, "-c", _VERSION, check=False)
    if result.status != 0:
        raise ToolMissing(
            "Thrift's library for Python, or its compiled protocol, is not installed",
            where=f"host {host.name}",
            why=result.stderr.strip()[-300:],
            remedy="apt-get install python3-thrift python3-six",
        )
    return result.stdout.strip()


def server(*, port: int = PORT) -> Workload:
    """Return the service: one thread, one connection at a time, which is kept."""
    return Workload(python("thrift_service", "serve", port=port), port, "tcp", "python")


def busy(seconds: float = 0) -> Workload:
    """Return a workload that computes for some seconds, or (0) until it is ended."""
    argv = python("thrift_service", "busy", seconds=f"{seconds:g}")
    return Workload(argv, 0, image="python")


def pause(seconds: float, address: str = "") -> Client:
    """Return a client that only waits while others are watched, and sends nothing.

    With the address of a watched server it waits on the generator, else inside a placement.
    """
    return Client(("sleep", f"{seconds:g}"), address, seconds, lambda stdout, log: Measurement({}))


def duration(
    calls: int, *, size: int = 0, share: float = 1.0, rate: float = 0.0, pause_us: float = 0.0
) -> float:
    """Return the seconds that so many calls with `size` bytes are expected to take at most.

    The server has a share of a CPU; an open loop has a rate per second, a closed one pauses.
    """
    each = max(_CALL, _COMPUTING / share) + size / _SPEED
    return 1.0 + (calls + WARMUP) * (max(each, 1 / rate if rate else 0.0) + pause_us / 1e6)


def closed_loop(address: str, *, calls: int, pause_us: float = 0.0, **options: Any) -> Client:
    """Return the client that calls again once it has the answer and has slept for `pause_us`.

    Other options are those of `open_loop`.
    """
    if not 0 <= pause_us <= 1e6:
        raise UsageError(f"invalid pause: {pause_us!r} us", remedy="from 0 to 1,000,000 us")
    return _client(address, calls, pause_us=pause_us, **options)


def open_loop(address: str, *, calls: int, rate: float, **options: Any) -> Client:
    """Return the client that calls at set times, whatever the answers do.

    Before the sample it makes `WARMUP` calls in a closed loop. Options are ``call`` (of `CALLS`),
    ``size`` (bytes that it sends or returns), ``port``, ``share`` (of a CPU that the server may
    use, for the expected duration), ``inside`` (True where the client itself is placed in a
    container, and can write no file there: the samples are then its output).
    """
    if not 0 < rate <= 1e9:
        raise UsageError(f"invalid rate: {rate!r} calls a second", remedy="above 0")
    return _client(address, calls, rate=rate, **options)


def _client(
    address: str,
    calls: int,
    *,
    call: str = "nothing",
    size: int = 0,
    port: int = PORT,
    share: float = 1.0,
    rate: float = 0.0,
    pause_us: float = 0.0,
    inside: bool = False,
) -> Client:
    one_of("call", call, CALLS)
    options = {"address": address, "port": port, "call": call, "size": size, "calls": calls}
    options |= {"warmup": WARMUP, "log": "-" if inside else "{log}"}
    options |= {"rate": rate} if rate else {"pause": f"{pause_us / 1e6:.9f}"}
    return Client(
        python("thrift_service", "open" if rate else "closed", **options),
        address,
        duration(calls, size=size, share=share, rate=rate, pause_us=pause_us),
        partial(parse, calls=calls),
        log_rows=None if inside else calls,
        samples_in_stdout=inside,
    )


def parse(stdout: str, log: str = "", *, calls: int | None = None) -> Measurement:
    """Read the client's summary and its rows, which are its log or follow the summary.

    A row is a call: ``latency_ns`` from when it was due to its answer (in a closed loop it is due
    when it is made), ``lateness_ns`` from when it was due to when it was sent, ``start_ns`` when it
    was due since the first one was. ``client_delay_ns`` is for how long the client was ready and
    had no CPU, where the kernel counts it; above `MOST_DELAY` of the time the measurement is
    flagged, since the client's own stalls are then part of it.
    """
    head, _, rest = stdout.partition("\n")
    with reading("the Thrift client", stdout[:4000], log):
        summary = json_in(head)
        expected, elapsed = int(summary["calls"]), int(summary["elapsed_ns"])
        warmup = np.array(summary["warmup_ns"], dtype=np.int64)
        samples = csv_rows(log or rest, _COLUMNS)
        start, lateness, latency = (samples[name] for name in _COLUMNS)
        if (latency <= 0).any() or (lateness < 0).any() or elapsed <= 0:
            raise ValueError("its log has an impossible time")
        requested = expected if calls is None else calls
        if not len(start) == expected == requested:
            raise ValueError(f"its log has {len(start)} rows of {requested} calls")
        if start[-1] + latency[-1] != elapsed:
            raise ValueError("its log is of another run")
        slow = {"slow_calls": latency, "slow_warmup": warmup}
        metrics = {name: float((values > SLOW_NS).sum()) for name, values in slow.items()}
        metrics |= {"elapsed_ns": float(elapsed), "messages_per_s": expected / elapsed * 1e9}
        metrics["warmup_ns"] = float(warmup.sum())
        flags = []
        if not summary.get("accelerated"):
            flags.append("Thrift's compiled protocol was not used")
        if (delay := summary.get("delay_ns")) is not None:
            metrics |= {"client_delay_ns": float(delay), "client_delay": delay / elapsed}
            if (delay - WAKING_NS * summary["slices"]) / elapsed > MOST_DELAY:
                share = f"{delay / elapsed:.2%}"
                flags.append(f"the client waited for its CPU for {share} of the time")
    return Measurement(samples, metrics, expected + len(warmup), tuple(flags))
