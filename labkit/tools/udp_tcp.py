"""A message in as UDP, its answer out over TCP: the exchange of the first paper's application.

The paper describes this as what its application does (prices arrive as UDP, orders leave over TCP),
and measured UDP in both directions instead. No tool exchanges messages so; both ends are
``programs/udp_in_tcp_out.py``, whose own time in Python is in every round trip. Its numbers are to
be compared with each other, and not with those of a tool in C.
"""

from __future__ import annotations

import json
from functools import partial

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers, one_of, python
from labkit.tools.parsing import csv_rows, python_version, reading, too_few, unreadable

TOOL = "udp_in_tcp_out"
PORT = 11112
#: How both ends wait for a message, in the words of `labkit.tools.sockperf`.
WAITS = ("block", "spin")
#: Messages before the sample, which grow the connection's windows.
WARMUP = 500
#: The number at the beginning of a message, and the largest payload of a UDP datagram.
_SMALLEST, _LARGEST = 8, 65_507
#: An upper bound of the mean round trip, and the start of the client, in seconds.
_BUDGET, _START = {"block": 200e-6, "spin": 100e-6}, 0.3


def probe(host: Host) -> str:
    """Return the interpreter's version on the host."""
    return python_version(host)


def server(wait: str, *, port: int = PORT) -> Workload:
    """Return the server; it takes one client, and waits as that does."""
    one_of("way to wait", wait, WAITS)
    check_integers(TOOL, port=port)
    return Workload(python(TOOL, "serve", port=port, wait=wait), port, "tcp", "python")


def duration(messages: int, wait: str) -> float:
    """Return the seconds that so many messages are expected to take at most."""
    return _START + (WARMUP + messages) * _BUDGET[wait]


def ask(address: str, *, messages: int, size: int, wait: str, port: int = PORT) -> Client:
    """Return the client: one message at a time, each round trip logged.

    Parameters
    ----------
    address, port : str, int
        The server's; it has the port for both protocols.
    messages : int
        Messages to measure, after `WARMUP` others.
    size : int
        Payload in bytes, the same both ways: at least 8 (the message's number).
    wait : {"block", "spin"}
        How the client waits for the answer.
    """
    one_of("way to wait", wait, WAITS)
    check_integers(TOOL, messages=messages, size=size, port=port)
    if not _SMALLEST <= size <= _LARGEST:
        raise UsageError(
            f"{TOOL}: invalid payload size: {size} bytes",
            remedy=f"from {_SMALLEST} to {_LARGEST} bytes",
        )
    options = {"address": address, "port": port, "wait": wait, "size": size}
    options |= {"messages": messages, "warmup": WARMUP, "log": "{log}"}
    reader = partial(parse, messages=messages)
    return Client(python(TOOL, "ask", **options), address, duration(messages, wait), reader)


def parse(stdout: str, log: str, *, messages: int | None = None) -> Measurement:
    """Read the round trips.

    Returns
    -------
    Measurement
        ``rtt_ns``: from sending the datagram to the last byte of its answer. Metric ``dropped``:
        messages without an answer within a second, which have no round trip.
    """
    with reading(TOOL, stdout, log):
        summary = {name: int(value) for name, value in json.loads(stdout).items()}
        exchanged, expected, lost = (summary[name] for name in ("messages", "rows", "lost"))
    rtt = csv_rows(log, ("rtt_ns",), tool=TOOL)["rtt_ns"]
    if len(rtt) != expected or rtt.min() <= 0:
        why = f"its log has {len(rtt)} rows of {expected}, from {rtt.min()} ns"
        raise unreadable(TOOL, why, stdout, log)
    flags = [f"lossy: {lost} of {exchanged} messages without an answer"] if lost else []
    flags += too_few(len(rtt), messages)
    return Measurement({"rtt_ns": rtt}, {"dropped": float(lost)}, exchanged, tuple(flags))
