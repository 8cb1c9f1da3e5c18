"""Apache Thrift: remote calls of a service in Python, in a closed or an open loop."""

import numpy as np

from labkit.placement import Workload
from labkit.tools import base
from labkit.tools.base import PYTHON, Client, Measurement, flag, python

PORT = 9090
#: Calls that take longer are counted as slow: the smallest quota that the kernel accepts.
SLOW_NS = 1_000_000
#: Calls before the sample, which fill caches and grow the connection's windows.
WARMUP = 500
_VERSION = """
import importlib.metadata, platform
from thrift.protocol import fastbinary
print(importlib.metadata.version("thrift"), "on Python", platform.python_version())
"""

probe = base.prober(r"(\S+ on Python \S+)", PYTHON, "-c", _VERSION, package="python3-thrift")


def server() -> Workload:
    """Return the service: one thread, one connection at a time, which is kept."""
    return Workload(python("thrift_service", "serve", port=PORT), PORT, ("tcp",), "python")


def busy(seconds: float = 0) -> Workload:
    """Return a workload that computes for some seconds, or (0) until it is ended."""
    return Workload(python("thrift_service", "busy", seconds=seconds), 0, image="python")


def pause(seconds: float, address: str) -> Client:
    """Return a client that only waits while the server at an address is watched."""
    return Client(("sleep", f"{seconds:g}"), address, seconds, lambda stdout, log: Measurement({}))


def duration(
    calls: int, *, size: int = 0, share: float = 1.0, rate: float = 0.0, pause_us: float = 0.0
) -> float:
    """Return the seconds that so many calls with `size` bytes may take on a `share` of a CPU."""
    # At most 200 us a call, 60 us of it on the server's CPU; at least 50 MB a second.
    each = max(200e-6, 60e-6 / share) + size / 50e6
    return 1.0 + (calls + WARMUP) * (max(each, 1 / rate if rate else 0.0) + pause_us / 1e6)


def client(
    address: str,
    *,
    calls: int,
    rate: float = 0.0,
    pause_us: float = 0.0,
    call: str = "nothing",
    size: int = 0,
    share: float = 1.0,
) -> Client:
    """Return the client, which makes `WARMUP` calls in a closed loop before the sample.

    At a `rate` per second (an open loop) latencies count from when a call was due. Without one (a
    closed loop) a call follows the answer before it after `pause_us`, so that a server that stalls
    delays calls. The server does "nothing", or is to "receive" or "send" bytes.
    """
    pace = {"rate": rate} if rate else {"pause_us": pause_us}
    options = {"address": address, "port": PORT, "call": call, "size": size, "calls": calls}
    argv = python("thrift_service", "client", **options, warmup=WARMUP, **pace)
    seconds = duration(calls, size=size, share=share, **pace)
    return Client(argv, address, seconds, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read when each call was due, and how long from then until it was sent and answered."""
    with base.reading("the Thrift client", stdout):
        found, samples = base.document(stdout)
        start, _, latency = samples.values()
        elapsed, warmup = int(start[-1] + latency[-1]), np.array(found["warmup_ns"], np.int64)
        delay = found["delay_ns"]
        metrics = {
            "slow_calls": float((latency > SLOW_NS).sum()),
            "slow_warmup": float((warmup > SLOW_NS).sum()),
            "elapsed_ns": float(elapsed),
            "messages_per_s": len(start) / elapsed * 1e9,
            "warmup_ns": float(warmup.sum()),
            "client_delay_ns": float(delay),
            "client_delay": delay / elapsed,
        }
        text = f"the client waited for its CPU for {delay / elapsed:.2%} of the time"
        # Getting a CPU takes 1 us at each wake-up.
        flags = flag(text, delay - 1_000 * found["slices"] > 1e-3 * elapsed)
    return Measurement(samples, metrics, len(start) + len(warmup), flags)
