"""An Apache Thrift service and its clients, for Debian's python3 with python3-thrift.

Its calls are ``void nothing()``, ``void receive(1: binary value)`` and ``binary send(1: i32
value)``. The library reads and writes structs as ``thrift --gen py:dynamic`` describes them, by its
compiled protocol where that is installed. The text of this file is the argument of ``python3 -c``,
so that the same program runs in a container, in a chroot, on a host and on the generator::

    serve port=9090
    closed address=A port=9090 call=nothing size=0 calls=10000 warmup=500 log=L pause=0
    open ... rate=2000
    busy seconds=0

A client prints a line of JSON, and writes a row per call to its log (``-``: below that line).
"""

import gc
import json
import socket
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
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


def struct(number: int = 0, kind: int = 0) -> type:
    """Return the class of a struct with one field, ``value``, or none."""
    field = (number, kind, "value", "BINARY" if kind == TType.STRING else None, None)
    spec = (*[None] * number, field) if kind else ()
    return type("Struct", (TBase,), {"thrift_spec": spec, "value": None})


#: The arguments and the result of every call.
CALLS = {
    "nothing": (struct(), struct()),
    "receive": (struct(1, TType.STRING), struct()),
    "send": (struct(1, TType.I32), struct(0, TType.STRING)),
}


def protocol(endpoint: TSocket) -> Any:
    """Return the accelerated binary protocol over a connected socket that delays nothing."""
    endpoint.handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TBinaryProtocolAcceleratedFactory().getProtocol(TBufferedTransport(endpoint))


def write(wire: Any, name: str, kind: int, number: int, message: Any) -> None:
    """Send a message, as a generated client or processor does."""
    wire.writeMessageBegin(name, kind, number)
    message.write(wire)
    wire.writeMessageEnd()
    wire.trans.flush()


def serve(given: dict[str, str]) -> None:
    """Answer one connection after the other in one thread, as Thrift's simple server does."""
    listening = TServerSocket("0.0.0.0", int(given["port"]), socket_family=socket.AF_INET)
    listening.listen()
    # Bytes to return are made once, since it is not the memory that is measured.
    made: dict[int, bytes] = {}
    gc.freeze()
    while True:
        wire = protocol(listening.accept())
        with suppress(TTransportException):
            while True:
                name, _, number = wire.readMessageBegin()
                arguments, answer = (kind() for kind in CALLS[name])
                arguments.read(wire)
                wire.readMessageEnd()
                if name == "send":
                    size = arguments.value
                    answer.value = made.get(size) or made.setdefault(size, bytes(size))
                write(wire, name, TMessageType.REPLY, number, answer)
        wire.trans.close()


def caller(wire: Any, call: str, size: int) -> Callable[[], None]:
    """Return a function without arguments that makes one call and waits for its answer."""
    given = {"receive": bytes(size), "send": size}.get(call)

    def make() -> None:
        arguments, answer = (kind() for kind in CALLS[call])
        arguments.value = given
        write(wire, call, TMessageType.CALL, 0, arguments)
        wire.readMessageBegin()
        answer.read(wire)
        wire.readMessageEnd()
        if call == "send" and len(answer.value) != size:
            raise ValueError(f"{len(answer.value)} of {size} bytes came back")

    return make


def loop(make: Callable[[], None], calls: int, pause: float, interval_ns: int = 0) -> list[Any]:
    """Return when each call was due, sent and answered, as arrays of ns.

    A closed loop calls again when the answer is there and a pause (s) is over: what is late delays
    the rest. An open loop calls at set times whatever the answers do; a call that is late is sent
    at once, and one that is due while another is under way waits here instead of in the server's
    queue.
    """
    due, sent, ended = columns = [array("q", bytes(8 * calls)) for _ in range(3)]
    first = monotonic_ns() + 10 * SPIN_NS
    for place in range(calls):
        if interval_ns:
            due[place] = first + place * interval_ns
            early = due[place] - monotonic_ns()
            if early > SPIN_NS:
                sleep((early - SPIN_NS) / 1e9)
            while monotonic_ns() < due[place]:
                pass
        sent[place] = monotonic_ns()
        make()
        ended[place] = monotonic_ns()
        if pause:
            sleep(pause)
    return columns if interval_ns else [sent, sent, ended]


def waited() -> list[int]:
    """Return for how many ns this process had no CPU though ready, and how often it got one."""
    with suppress(OSError):
        return [int(number) for number in Path("/proc/self/schedstat").read_text().split()[1:]]
    return []


def client(given: dict[str, str]) -> None:
    """Measure calls, then write the summary and a row a call, whose latency is from when due."""
    endpoint = TSocket(given["address"], int(given["port"]))
    endpoint.open()
    wire = protocol(endpoint)
    make = caller(wire, given["call"], int(given["size"]))
    # By default the kernel may add 50 us to a sleep, all of `SPIN_NS`. Where this is not
    # permitted, calls are sent late, which their lateness shows.
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
    gc.collect()
    gc.freeze()
    gc.disable()
    warmup, _, warm = loop(make, int(given["warmup"]), 0.0)
    interval_ns = round(1e9 / float(given["rate"])) if "rate" in given else 0
    before = waited()
    calls = loop(make, int(given["calls"]), float(given.get("pause", 0)), interval_ns)
    delays = [stop - start for start, stop in zip(before, waited(), strict=True)]
    wire.trans.close()
    due, _, ended = calls
    delay_ns, slices = delays or (None, 0)
    summary = {"calls": len(due), "elapsed_ns": ended[-1] - due[0], "delay_ns": delay_ns}
    summary |= {"slices": slices, "accelerated": getattr(wire, "_fast_encode", None) is not None}
    summary["warmup_ns"] = [end - begin for begin, end in zip(warmup, warm, strict=True)]
    print(json.dumps(summary))
    rows = [f"{a - due[0]},{b - a},{c - a}\n" for a, b, c in zip(*calls, strict=True)]
    text = "".join(["start_ns,lateness_ns,latency_ns\n", *rows])
    if given["log"] == "-":
        print(text, end="")
    else:
        Path(given["log"]).write_text(text)


def busy(given: dict[str, str]) -> None:
    """Compute for some seconds, or (0) until killed."""
    seconds = float(given["seconds"])
    number, last = 1, monotonic_ns() + round(seconds * 1e9)
    while not seconds or monotonic_ns() < last:
        for _ in range(1000):
            number = number * 1103515245 % 2147483648


if __name__ == "__main__":
    options = dict(option.split("=", 1) for option in sys.argv[2:])
    {"serve": serve, "busy": busy}.get(sys.argv[1], client)(options)
