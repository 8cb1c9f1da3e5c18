"""An Apache Thrift service and its clients, for Debian's python3 with python3-thrift.

The service, in Thrift's own language::

    service Echo {
        void nothing()
        void receive(1: binary data)
        binary send(1: i32 size)
    }

Structs are those of ``thrift --gen py:dynamic``, and are read and written by the library, by its
compiled protocol where that is installed. The text of this file is the argument of ``python3 -c``,
so that the same program runs in a container, in a chroot, on a host and on the generator::

    serve port=9090 transport=buffered
    closed address=A port=9090 transport=T call=nothing size=0 calls=10000 warmup=500 pause=0
    open ... rate=2000
    busy seconds=0

At the end a client prints one line of JSON, and writes a row per call to its log (``-``: below that
line). Its times are those of its monotonic clock.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns, sleep
from typing import Any

from thrift.protocol.TBase import TBase
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAcceleratedFactory
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TServerSocket, TSocket
from thrift.transport.TTransport import (
    TBufferedTransportFactory,
    TFramedTransportFactory,
    TTransportException,
)

TRANSPORTS = {"buffered": TBufferedTransportFactory, "framed": TFramedTransportFactory}
#: An open loop sleeps until so many ns before a call is due, and then polls the clock. Long enough
#: for a sleep that ends late; a client that never sleeps would be preempted by the scheduler.
SPIN_NS = 50_000
Column = Any  # an array of 64-bit integers


def struct(name: str, *fields: tuple[int, int, str, str | None]) -> type:
    """Return the class of a struct: each field is (number, type, name, detail of the type)."""
    spec: list[Any] = [None] * (max((number for number, *_ in fields), default=-1) + 1)
    for number, kind, label, detail in fields:
        spec[number] = (number, kind, label, detail, None)
    labels = tuple(label for _, _, label, _ in fields)

    def begin(self: Any, *values: Any) -> None:
        for place, label in enumerate(labels):
            setattr(self, label, values[place] if place < len(values) else None)

    body = {"__slots__": labels, "__init__": begin, "thrift_spec": tuple(spec)}
    return type(name, (TBase,), body)


#: The arguments and the result of every call.
CALLS = {
    "nothing": (struct("nothing_args"), struct("nothing_result")),
    "receive": (
        struct("receive_args", (1, TType.STRING, "data", "BINARY")),
        struct("receive_result"),
    ),
    "send": (
        struct("send_args", (1, TType.I32, "size", None)),
        struct("send_result", (0, TType.STRING, "success", "BINARY")),
    ),
}


def protocol(endpoint: TSocket, transport: str) -> Any:
    """Return the accelerated binary protocol over a connected socket that delays nothing."""
    endpoint.handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wrapped = TRANSPORTS[transport]().getTransport(endpoint)
    return TBinaryProtocolAcceleratedFactory().getProtocol(wrapped)


class Handler:
    """What the service does when it is called."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}

    def nothing(self, args: Any) -> None:
        """Return at once."""

    def receive(self, args: Any) -> None:
        """Take bytes and return nothing."""

    def send(self, args: Any) -> bytes:
        """Return so many bytes; made once, since it is not the memory that is measured."""
        if args.size not in self.known:
            self.known[args.size] = bytes(args.size)
        return self.known[args.size]


def process(wire: Any, handler: Handler) -> None:
    """Answer one call, as a generated processor does."""
    name, _, number = wire.readMessageBegin()
    if name not in CALLS:
        wire.skip(TType.STRUCT)
        wire.readMessageEnd()
        answer = TApplicationException(TApplicationException.UNKNOWN_METHOD, f"no call {name}")
        kind = TMessageType.EXCEPTION
    else:
        arguments, result = CALLS[name]
        args = arguments()
        args.read(wire)
        wire.readMessageEnd()
        value = getattr(handler, name)(args)
        answer, kind = (result() if value is None else result(value)), TMessageType.REPLY
    wire.writeMessageBegin(name, kind, number)
    answer.write(wire)
    wire.writeMessageEnd()
    wire.trans.flush()


def serve(port: str, transport: str) -> None:
    """Answer one connection after the other in one thread, as Thrift's simple server does."""
    listening = TServerSocket("0.0.0.0", int(port), socket_family=socket.AF_INET)
    listening.listen()
    handler = Handler()
    gc.freeze()
    while True:
        wire = protocol(listening.accept(), transport)
        try:
            while True:
                process(wire, handler)
        except TTransportException:
            wire.trans.close()


def caller(wire: Any, call: str, size: int) -> Callable[[], None]:
    """Return a function without arguments that makes one call and waits for its answer."""
    arguments, result = CALLS[call]
    values: dict[str, tuple[Any, ...]] = {"receive": (bytes(size),), "send": (size,)}
    given = values.get(call, ())
    expected = size if call == "send" else 0

    def make() -> None:
        wire.writeMessageBegin(call, TMessageType.CALL, 0)
        arguments(*given).write(wire)
        wire.writeMessageEnd()
        wire.trans.flush()
        _, kind, _ = wire.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            failure = TApplicationException()
            failure.read(wire)
            raise failure
        answer = result()
        answer.read(wire)
        wire.readMessageEnd()
        if expected and len(answer.success) != expected:
            raise ValueError(f"{len(answer.success)} of {expected} bytes came back")

    return make


def closed_loop(
    make: Callable[[], None], due: Column, sent: Column, ended: Column, pause: float = 0.0
) -> None:
    """Call again when the answer is there and a pause (s) is over: what is late delays the rest."""
    for place in range(len(sent)):
        due[place] = sent[place] = monotonic_ns()
        make()
        ended[place] = monotonic_ns()
        if pause:
            sleep(pause)


def open_loop(
    make: Callable[[], None], due: Column, sent: Column, ended: Column, interval_ns: int
) -> None:
    """Call at set times whatever the answers do; a call that is late is sent at once.

    One connection to a server with one thread: a call that is due while another is under way
    waits its turn here instead of in the server's queue, and its latency counts from when it was
    due.
    """
    first = monotonic_ns() + 10 * SPIN_NS
    for place in range(len(sent)):
        due[place] = first + place * interval_ns
        ahead = due[place] - monotonic_ns()
        if ahead > SPIN_NS:
            sleep((ahead - SPIN_NS) / 1e9)
        now = monotonic_ns()
        while now < due[place]:
            now = monotonic_ns()
        sent[place] = now
        make()
        ended[place] = monotonic_ns()


def columns(calls: int) -> list[Column]:
    """Return three columns of 64-bit integers with allocated memory."""
    return [array("q", bytes(8 * calls)) for _ in range(3)]


def write(log: str, due: Column, sent: Column, ended: Column) -> None:
    """Write a row a call in ns: when it was due since the first was, how late it was sent, latency.

    The latency counts from when the call was due.
    """
    from pathlib import Path

    calls = zip(due, sent, ended, strict=True)
    rows = [f"{begin - due[0]},{real - begin},{end - begin}\n" for begin, real, end in calls]
    text = "".join(["start_ns,lateness_ns,latency_ns\n", *rows])
    if log == "-":
        sys.stdout.write(text)
    else:
        Path(log).write_text(text, encoding="ascii")


def punctual() -> None:
    """Let sleeps end on time: by default the kernel may add 50 us, all of `SPIN_NS`."""
    from pathlib import Path

    with suppress(OSError):  # not permitted: calls are sent late, which their lateness shows
        Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")


def waited() -> tuple[int, int]:
    """Return how long this process was ready and had no CPU (ns), and how often it got one.

    Both are -1 where the kernel does not count them.
    """
    from pathlib import Path  # not for the server: under a quota its start is slow enough

    try:
        _, delay, slices = map(int, Path("/proc/self/schedstat").read_text().split())
    except (OSError, ValueError):
        return -1, -1
    return delay, slices


def client(mode: str, given: dict[str, str]) -> None:
    """Measure calls, then write the results."""
    endpoint = TSocket(given["address"], int(given["port"]))
    endpoint.open()
    wire = protocol(endpoint, given["transport"])
    make = caller(wire, given["call"], int(given["size"]))
    before = columns(int(given["warmup"]))
    due, sent, ended = columns(int(given["calls"]))
    waited()  # imports its modules before the calls
    punctual()
    gc.collect()
    gc.freeze()
    gc.disable()
    closed_loop(make, *before)
    began = waited()
    if mode == "open":
        open_loop(make, due, sent, ended, round(1e9 / float(given["rate"])))
    else:
        closed_loop(make, due, sent, ended, float(given["pause"]))
    delay, slices = (now - then for now, then in zip(waited(), began, strict=True))
    wire.trans.close()
    summary = {
        "mode": mode,
        "calls": len(due),
        "elapsed_ns": ended[-1] - due[0],
        "accelerated": getattr(wire, "_fast_encode", None) is not None,
        "delay_ns": delay if began[0] >= 0 else None,
        "slices": slices,
        "warmup_ns": [end - begin for begin, _, end in zip(*before, strict=True)],
    }
    print(json.dumps(summary))
    write(given["log"], due, sent, ended)


def busy(seconds: float) -> None:
    """Compute for some seconds, or (0) until killed."""
    number, last = 1, monotonic_ns() + round(seconds * 1e9)
    while not seconds or monotonic_ns() < last:
        for _ in range(1000):
            number = number * 1103515245 % 2147483648


def main(mode: str, *options: str) -> None:
    """Run one mode with its options, each as name=value."""
    given = dict(option.split("=", 1) for option in options)
    if mode == "serve":
        serve(given["port"], given["transport"])
    elif mode == "busy":
        busy(float(given["seconds"]))
    else:
        client(mode, given)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (TTransportException, TApplicationException, OSError, ValueError) as error:
        sys.exit(f"thrift_service: {type(error).__name__}: {error}")
