"""An Apache Thrift service and its clients, for Debian's python3 with python3-thrift.

Its calls are ``void nothing()``, ``void receive(1: binary data)`` and ``binary send(1: i32 size)``.
Structs are those of ``thrift --gen py:dynamic``, read and written by the library, by its compiled
protocol where that is installed. The text of this file is the argument of ``python3 -c``, so that
the same program runs in a container, in a chroot, on a host and on the generator::

    serve port=9090
    closed address=A port=9090 call=nothing size=0 calls=10000 warmup=500 log=L pause=0
    open ... rate=2000
    busy seconds=0

A client prints a line of JSON, and writes a row per call to its log (``-``: below that line).
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
from thrift.Thrift import TMessageType, TType
from thrift.transport.TSocket import TServerSocket, TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

#: An open loop sleeps until so many ns before a call is due, and then polls the clock. Long enough
#: for a sleep that ends late; a client that never sleeps would be preempted by the scheduler.
SPIN_NS = 50_000
Column = Any  # an array of 64-bit integers


def struct(name: str, number: int = 0, kind: int = 0, label: str = "", detail: str = "") -> type:
    """Return the class of a struct with one field or none."""
    labels = (label,) if label else ()

    def begin(self: Any, *values: Any) -> None:
        for label in labels:
            setattr(self, label, values[0] if values else None)

    spec = (*[None] * number, (number, kind, label, detail or None, None)) if label else ()
    return type(name, (TBase,), {"__slots__": labels, "__init__": begin, "thrift_spec": spec})


#: The arguments and the result of every call.
CALLS = {
    "nothing": (struct("nothing_args"), struct("nothing_result")),
    "receive": (struct("receive_args", 1, TType.STRING, "data", "BINARY"), struct("no_result")),
    "send": (
        struct("send_args", 1, TType.I32, "size"),
        struct("send_result", 0, TType.STRING, "success", "BINARY"),
    ),
}


def protocol(endpoint: TSocket) -> Any:
    """Return the accelerated binary protocol over a connected socket that delays nothing."""
    endpoint.handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TBinaryProtocolAcceleratedFactory().getProtocol(TBufferedTransport(endpoint))


def process(wire: Any, made: dict[int, bytes]) -> None:
    """Answer one call, as a generated processor does.

    Bytes to return are made once, since it is not the memory that is measured.
    """
    name, _, number = wire.readMessageBegin()
    arguments, result = CALLS[name]
    args = arguments()
    args.read(wire)
    wire.readMessageEnd()
    if name == "send" and args.size not in made:
        made[args.size] = bytes(args.size)
    answer = result(made[args.size]) if name == "send" else result()
    wire.writeMessageBegin(name, TMessageType.REPLY, number)
    answer.write(wire)
    wire.writeMessageEnd()
    wire.trans.flush()


def serve(port: str) -> None:
    """Answer one connection after the other in one thread, as Thrift's simple server does."""
    listening = TServerSocket("0.0.0.0", int(port), socket_family=socket.AF_INET)
    listening.listen()
    made: dict[int, bytes] = {}
    gc.freeze()
    while True:
        wire = protocol(listening.accept())
        try:
            while True:
                process(wire, made)
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
        wire.readMessageBegin()
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

    One that is due while another is under way waits here instead of in the server's queue.
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


def waited() -> tuple[int, int] | None:
    """Return for how many ns this process had no CPU though ready, and how often it got one."""
    try:
        with open("/proc/self/schedstat") as file:  # noqa: PTH123 - a server imports no pathlib
            _, delay, slices = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return delay, slices


def punctual() -> None:
    """Let sleeps end on time: by default the kernel may add 50 us, all of `SPIN_NS`."""
    # Where it is not permitted, calls are sent late, which their lateness shows.
    with suppress(OSError), open("/proc/self/timerslack_ns", "w") as file:  # noqa: PTH123
        file.write("1")


def client(mode: str, given: dict[str, str]) -> None:
    """Measure calls, then write the summary and a row a call, whose latency is from when due."""
    endpoint = TSocket(given["address"], int(given["port"]))
    endpoint.open()
    wire = protocol(endpoint)
    make = caller(wire, given["call"], int(given["size"]))
    before = columns(int(given["warmup"]))
    due, sent, ended = columns(int(given["calls"]))
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
    stopped = waited()
    wire.trans.close()
    summary = {
        "mode": mode,
        "calls": len(due),
        "elapsed_ns": ended[-1] - due[0],
        "accelerated": getattr(wire, "_fast_encode", None) is not None,
        "delay_ns": stopped[0] - began[0] if began and stopped else None,
        "slices": stopped[1] - began[1] if began and stopped else 0,
        "warmup_ns": [end - begin for begin, _, end in zip(*before, strict=True)],
    }
    print(json.dumps(summary))
    calls = zip(due, sent, ended, strict=True)
    rows = [f"{begin - due[0]},{real - begin},{end - begin}\n" for begin, real, end in calls]
    text = "".join(["start_ns,lateness_ns,latency_ns\n", *rows])
    if given["log"] == "-":
        sys.stdout.write(text)
    else:
        with open(given["log"], "w") as file:  # noqa: PTH123
            file.write(text)


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
        serve(given["port"])
    elif mode == "busy":
        busy(float(given["seconds"]))
    else:
        client(mode, given)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (TTransportException, OSError, ValueError) as error:
        sys.exit(f"thrift_service: {type(error).__name__}: {error}")
