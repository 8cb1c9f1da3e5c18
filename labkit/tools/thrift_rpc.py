"""Apache Thrift: remote calls of a service in Python, in a closed or an open loop.

Both ends are ``programs/thrift_service.py``, which Debian's python3 runs with python3-thrift. In a
closed loop a call is made as soon as the one before has been answered, so that a server that stands
still delays the calls that would have seen it (coordinated omission); in an open loop calls are due
at set times, and their latency counts from there.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from labkit.errors import ToolMissing, ToolOutput, UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import PYTHON, Client, Measurement, above_zero, one_of, python, whole
from labkit.tools.log_capture import Column, rows
from labkit.tools.parsing import unreadable

TOOL = "the Thrift client"
PORT = 9090
CALLS = ("nothing", "receive", "send")
TRANSPORTS = ("buffered", "framed")
#: Calls that take longer are counted as slow: the smallest quota that the kernel takes.
SLOW_NS = 1_000_000
#: The client is flagged that was ready and had no CPU for a larger share of the time than this,
#: beside the ns that getting one takes every time it wakes up.
MOST_DELAY, WAKING_NS = 1e-3, 1_000
#: Calls before the sample, which fill caches and grow the connection's windows.
WARMUP = 500
#: What a call, and the server's CPU time in it, is expected to take at most (s),
#: and how fast its bytes are moved at least (bytes/s).
_CALL, _COMPUTING, _SPEED = 200e-6, 60e-6, 50e6
_COLUMNS = ("start_ns", "lateness_ns", "latency_ns")
_VERSION = """
import importlib.metadata, platform
from thrift.protocol import fastbinary
print(importlib.metadata.version("thrift"), "on Python", platform.python_version())
"""


def probe(host: Host) -> str:
    """Return the version of Thrift's library on the host; raise `ToolMissing` where it is not."""
    result = host.run(PYTHON, "-c", _VERSION, check=False)
    if result.status != 0:
        raise ToolMissing(
            "Thrift's library for Python, or its compiled protocol, is not installed",
            where=f"host {host.name}",
            why=result.stderr.strip()[-300:],
            remedy="apt-get install python3-thrift python3-six",
        )
    return result.stdout.strip()


def server(*, transport: str = "buffered", port: int = PORT, image: str = "python") -> Workload:
    """Return the service: one thread, one connection at a time, which is kept."""
    one_of("transport", transport, TRANSPORTS)
    options = (f"port={port}", f"transport={transport}")
    return Workload(python("thrift_service", "serve", *options), port, "tcp", image)


def busy(seconds: float = 0, *, image: str = "python") -> Workload:
    """Return a workload that computes all the time and serves nobody.

    Parameters
    ----------
    seconds : float
        How long, before it ends by itself; 0 until it is ended.
    image : str
        The image that holds the interpreter.
    """
    return Workload(python("thrift_service", "busy", f"seconds={seconds:g}"), 0, image=image)


def pause(seconds: float, address: str = "") -> Client:
    """Return a client that only waits while others are watched.

    Parameters
    ----------
    seconds : float
        How long.
    address : str
        The watched server's address where it waits on the generator, so that it takes no CPU time
        of those who are watched; nothing is sent. "" where it waits inside a placement.
    """
    return Client(("sleep", f"{seconds:g}"), address, seconds, lambda stdout, log: Measurement({}))


def duration(calls: int, *, size: int = 0, share: float = 1.0, rate: float = 0.0) -> float:
    """Return the seconds that so many calls are expected to take at most.

    Parameters
    ----------
    calls, size : int
        Calls, and the bytes that each moves.
    share : float
        The share of a CPU that the server may use.
    rate : float
        Calls a second in an open loop; 0 in a closed one.
    """
    each = max(_CALL, _COMPUTING / share) + size / _SPEED
    return 1.0 + (calls + WARMUP) * max(each, 1 / rate if rate else 0.0)


def closed_loop(address: str, *, calls: int, **options: Any) -> Client:
    """Return the client that calls again as soon as it has the answer; options as `open_loop`."""
    return _client("closed", address, calls, **options)


def open_loop(address: str, *, calls: int, rate: float, **options: Any) -> Client:
    """Return the client that calls at set times, whatever the answers do.

    Parameters
    ----------
    address : str
        The server's address.
    calls : int
        Calls to measure, after `WARMUP` others in a closed loop.
    rate : float
        Calls a second.
    **options
        ``call`` (of `CALLS`; ``"nothing"``), ``size`` (bytes that it sends or returns; 0),
        ``transport`` (the server's; ``"buffered"``), ``port``, ``share`` (of a CPU that the server
        may use, for the expected duration; 1), ``inside`` (True where the client itself is placed
        in a container, and can write no file there: the samples are then its output).
    """
    above_zero("Thrift", rate=rate)
    return _client("open", address, calls, rate=rate, **options)


def _client(
    mode: str,
    address: str,
    calls: int,
    *,
    call: str = "nothing",
    size: int = 0,
    transport: str = "buffered",
    port: int = PORT,
    share: float = 1.0,
    rate: float = 0.0,
    inside: bool = False,
) -> Client:
    one_of("call", call, CALLS)
    one_of("transport", transport, TRANSPORTS)
    whole("Thrift", calls=calls)
    whole("Thrift", least=0, size=size)
    if not 0 < share <= 1:
        raise UsageError(f"invalid share of a CPU: {share!r}", remedy="above 0, at most 1")
    arguments = {
        "address": address,
        "port": port,
        "transport": transport,
        "call": call,
        "size": size,
    }
    arguments |= {"calls": calls, "warmup": WARMUP, "log": "-" if inside else "{log}"}
    arguments |= {"rate": rate} if mode == "open" else {}
    options = [f"{name}={value}" for name, value in arguments.items()]
    return Client(
        python("thrift_service", mode, *options),
        address,
        duration(calls, size=size, share=share, rate=rate),
        partial(parse, calls=calls),
        log_rows=None if inside else calls,
        samples_in_stdout=inside,
    )


def parse(
    stdout: str, log: str, *, calls: int | None = None, slow_ns: int = SLOW_NS
) -> Measurement:
    """Read the client's summary and its rows, which are its log or follow the summary.

    Parameters
    ----------
    stdout, log : str
        What it printed, and the file that it wrote.
    calls : int, optional
        How many were asked for.
    slow_ns : int
        Calls that took longer are counted.

    Returns
    -------
    Measurement
        Samples, a row a call, in ns: ``latency_ns`` from when the call was due to its answer (in a
        closed loop it is due when it is made), ``lateness_ns`` from when it was due to when it was
        sent, ``start_ns`` when it was due since the first one was. Metrics: ``slow_calls`` and, of
        the calls before the sample, ``slow_warmup``; ``elapsed_ns`` of the sample, ``warmup_ns`` of
        the calls before it; ``messages_per_s``. Where the client's kernel counts it,
        ``client_delay_ns``, for how long in the sample the client was ready and had no CPU, and
        ``client_delay``, the same as a share of the time: above `MOST_DELAY` (beside `WAKING_NS`
        every time that it got a CPU) the measurement is flagged, since its own stalls are then in
        what it measured.

    Raises
    ------
    ToolOutput
        Output is missing, cut off or not in the program's own form, with what there was.
    """
    head, _, rest = stdout.partition("\n")
    try:
        summary = json.loads(head)
        promised, elapsed = int(summary["calls"]), int(summary["elapsed_ns"])
        warmup = np.array(summary["warmup_ns"], dtype=np.int64)
    except (ValueError, TypeError, KeyError) as error:
        raise unreadable(
            TOOL, f"there is no result ({error!r})", stdout or log, log=log[:2000]
        ) from None
    samples = _rows(log or rest)
    wanted = promised if calls is None else calls
    ends = samples["start_ns"][-1:] + samples["latency_ns"][-1:]
    if len(ends) == 0 or not len(samples["start_ns"]) == promised == wanted or ends[0] != elapsed:
        raise ToolOutput(
            f"the log of {TOOL} has {len(samples['start_ns'])} rows of {wanted} calls",
            why="it is truncated, or the log of another run",
            evidence={"stdout": head[:400], "log": log[-400:]},
        )
    slow = {"slow_calls": samples["latency_ns"], "slow_warmup": warmup}
    metrics = {name: float((values > slow_ns).sum()) for name, values in slow.items()}
    metrics |= {"elapsed_ns": float(elapsed), "messages_per_s": promised / elapsed * 1e9}
    metrics["warmup_ns"] = float(warmup.sum())
    flags = () if summary.get("accelerated") else ("Thrift's compiled protocol was not used",)
    delayed, stalled = _stalls(summary, elapsed)
    return Measurement(samples, metrics | delayed, promised + len(warmup), flags + stalled)


def _stalls(summary: dict[str, Any], elapsed: int) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return how long the client itself waited for a CPU, and the flag where that is too long."""
    delay, slices = summary.get("delay_ns"), summary.get("slices")
    if not isinstance(delay, int) or not isinstance(slices, int) or elapsed <= 0:
        return {}, ()
    metrics = {"client_delay_ns": float(delay), "client_delay": delay / elapsed}
    if (delay - WAKING_NS * slices) / elapsed <= MOST_DELAY:
        return metrics, ()
    return metrics, (f"the client waited for its CPU for {delay / elapsed:.2%} of the time",)


def _rows(text: str) -> dict[str, Column]:
    """Return the columns of a log, whose times must be possible ones."""
    head, _, body = text.partition("\n")
    if head != ",".join(_COLUMNS):
        raise unreadable(TOOL, f"its log has not the columns {', '.join(_COLUMNS)}", text)
    columns = rows(body, _COLUMNS, ",", tool=TOOL)
    if (columns["latency_ns"] <= 0).any() or (columns["lateness_ns"] < 0).any():
        raise unreadable(TOOL, "its log has an impossible time", text)
    return columns
