"""A message in as UDP, its answer out over TCP: the exchange of the first paper's application.

The paper names it as what its application does (prices arrive as UDP, orders leave over TCP), and
measured UDP in both directions instead. No tool exchanges messages so; both ends are
``programs/udp_in_tcp_out.py``, whose own time in Python is in every round trip. Its numbers are to
be compared with each other, and not with those of a tool in C.
"""

from __future__ import annotations

import json
from functools import partial

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, python, whole
from labkit.tools.log_capture import rows
from labkit.tools.parsing import python_version, unreadable

TOOL = "udp_in_tcp_out"
PORT = 11112
#: How both ends wait for a message, in the words of `labkit.tools.sockperf`.
WAITS = ("block", "spin")
#: Messages before the sample, which grow the connection's windows.
WARMUP = 500
#: The number at the beginning of a message, and the largest payload of a UDP datagram.
_SMALLEST, _LARGEST = 8, 65_507
#: A round trip that is taken as certain not to be exceeded on average, and what comes before, in s.
_BUDGET, _BEFORE = {"block": 200e-6, "spin": 100e-6}, 0.3


def probe(host: Host) -> str:
    """Return the interpreter's version on the host; raise `ToolMissing` where it is not."""
    return python_version(host)


def server(wait: str, *, port: int = PORT, image: str = "python") -> Workload:
    """Return the server; it takes one client, and waits as that does."""
    one_of("way to wait", wait, WAITS)
    whole(TOOL, port=port)
    argv = python(TOOL, "serve", f"port={port}", f"wait={wait}")
    return Workload(argv, port, "tcp", image)


def duration(messages: int, wait: str) -> float:
    """Return the seconds that so many messages are expected to take at most."""
    return _BEFORE + (WARMUP + messages) * _BUDGET[wait]


def ask(address: str, *, messages: int, size: int, wait: str, port: int = PORT) -> Client:
    """Return the client: one message at a time, each round trip logged.

    Parameters
    ----------
    address : str
        The server's address.
    messages : int
        Messages to measure, after `WARMUP` others.
    size : int
        Payload in bytes, the same both ways: 8 at least (the message's number).
    wait : {"block", "spin"}
        How the client waits for the answer.
    port : int
        The server's, of both protocols.
    """
    one_of("way to wait", wait, WAITS)
    whole(TOOL, messages=messages, size=size, port=port)
    if not _SMALLEST <= size <= _LARGEST:
        raise UsageError(
            f"{TOOL}: invalid payload size: {size} bytes",
            remedy=f"from {_SMALLEST} to {_LARGEST} bytes",
        )
    options = {"address": address, "port": port, "wait": wait, "size": size}
    options |= {"messages": messages, "warmup": WARMUP}
    argv = python(TOOL, "ask", *(f"{name}={value}" for name, value in options.items()))
    reader = partial(parse, messages=messages)
    return Client((*argv, "log={log}"), address, duration(messages, wait), reader)


def parse(stdout: str, log: str, *, messages: int | None = None) -> Measurement:
    """Read the round trips.

    Parameters
    ----------
    stdout, log : str
        What the client printed, and its log.
    messages : int, optional
        How many were asked for.

    Returns
    -------
    Measurement
        ``rtt_ns``: from sending the datagram to the last byte of its answer. Metric ``dropped``:
        messages without an answer within a second, which have no round trip.

    Raises
    ------
    ToolOutput
        Output is missing, cut off or not in the program's own form, with what there was.
    """
    try:
        summary = {name: int(value) for name, value in json.loads(stdout).items()}
        exchanged, promised, lost = (summary[name] for name in ("messages", "rows", "lost"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unreadable(TOOL, f"there is no result ({error!r})", stdout, log=log[:2000]) from None
    head, _, body = log.partition("\n")
    if head != "rtt_ns":
        raise unreadable(TOOL, "its log does not begin as one", log)
    rtt = rows(body, ("rtt_ns",), ",", tool=TOOL)["rtt_ns"]
    if len(rtt) != promised or rtt.min() <= 0:
        why = f"its log has {len(rtt)} rows of {promised}, from {rtt.min()} ns"
        raise unreadable(TOOL, why, stdout, log=log[:2000])
    flags = [f"lossy: {lost} of {exchanged} messages without an answer"] if lost else []
    if messages is not None and len(rtt) < messages:
        flags.append(f"short: {len(rtt)} of {messages} messages")
    return Measurement({"rtt_ns": rtt}, {"dropped": float(lost)}, exchanged, tuple(flags))
