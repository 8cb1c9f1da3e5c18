"""An Apache Thrift service and its clients, for Debian's python3 with python3-thrift."""

import gc
import socket
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import cache
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


def _struct(*spec: Any) -> type:
    return type("Struct", (TBase,), {"thrift_spec": spec, "value": None})


_BYTES, _NUMBER = (TType.STRING, "value", "BINARY", None), (TType.I32, "value", None, None)
#: Arguments and result of each call, as ``thrift --gen py:dynamic`` describes them: ``void
#: nothing()``, ``void receive(1: binary value)``, ``binary send(1: i32 value)``.
CALLS = {
    "nothing": (_struct(), _struct()),
    "receive": (_struct(None, (1, *_BYTES)), _struct()),
    "send": (_struct(None, (1, *_NUMBER)), _struct((0, *_BYTES))),
}


def _protocol(endpoint: TSocket) -> Any:
    endpoint.handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TBinaryProtocolAcceleratedFactory().getProtocol(TBufferedTransport(endpoint))


def _write(wire: Any, name: str, kind: int, number: int, message: Any) -> None:
    wire.writeMessageBegin(name, kind, number)
    message.write(wire)
    wire.writeMessageEnd()
    wire.trans.flush()


def serve(port: int) -> None:
    """Answer one connection after the other in one thread, as Thrift's simple server does."""
    listening = TServerSocket("0.0.0.0", port, socket_family=socket.AF_INET)
    listening.listen()
    # Bytes to return are made once, since it is not the memory that is measured.
    made = cache(bytes)
    gc.freeze()
    while True:
        wire = _protocol(listening.accept())
        with suppress(TTransportException):
            while True:
                name, _, number = wire.readMessageBegin()
                arguments, answer = (kind() for kind in CALLS[name])
                arguments.read(wire)
                wire.readMessageEnd()
                if name == "send":
                    answer.value = made(arguments.value)
                _write(wire, name, TMessageType.REPLY, number, answer)
        wire.trans.close()


def _loop(call: Callable[[], None], calls: int, pause_us: float = 0, rate: float = 0) -> list[Any]:
    """Return when each call was due, sent and answered, in a closed loop or at a rate, in ns."""
    due, sent, ended = columns = [array("q", bytes(8 * calls)) for _ in range(3)]
    first, interval_ns = monotonic_ns() + 10 * SPIN_NS, round(1e9 / rate) if rate else 0
    for place in range(calls):
        if interval_ns:
            due[place] = first + place * interval_ns
            early = due[place] - monotonic_ns()
            if early > SPIN_NS:
                sleep((early - SPIN_NS) / 1e9)
            while monotonic_ns() < due[place]:
                pass
        # A call that was due while another was under way has waited here, not at the server.
        sent[place] = monotonic_ns()
        call()
        ended[place] = monotonic_ns()
        if pause_us:
            sleep(pause_us / 1e6)
    return columns if interval_ns else [sent, sent, ended]


def _waited() -> list[int]:
    """Return for how many ns this process had no CPU though ready, and how often it got one."""
    return [int(number) for number in Path("/proc/self/schedstat").read_text().split()[1:]]


def _change(before: Any, after: Any) -> list[int]:
    return [end - start for start, end in zip(before, after, strict=True)]


def client(
    address: str, port: int, call: str, size: int, calls: int, warmup: int, **pace: float
) -> dict[str, Any]:
    """Return calls in a closed loop, or at a rate, and how this process fared."""
    endpoint = TSocket(address, port)
    endpoint.open()
    wire, given = _protocol(endpoint), {"receive": bytes(size), "send": size}.get(call)

    def answered() -> None:
        arguments, answer = (kind() for kind in CALLS[call])
        arguments.value = given
        _write(wire, call, TMessageType.CALL, 0, arguments)
        wire.readMessageBegin()
        answer.read(wire)
        wire.readMessageEnd()
        if call == "send" and len(answer.value) != size:
            raise ValueError(f"{len(answer.value)} of {size} bytes came back")

    # By default the kernel may add 50 us to a sleep, all of `SPIN_NS`. Where this is not
    # permitted, calls are sent late, which their lateness shows.
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")
    gc.disable()
    _, begun, warm = _loop(answered, warmup)
    before = _waited()
    due, sent, ended = _loop(answered, calls, **pace)
    delay_ns, slices = _change(before, _waited())
    wire.trans.close()
    found = {"delay_ns": delay_ns, "slices": slices, "warmup_ns": _change(begun, warm)}
    samples = {"start_ns": [one - due[0] for one in due], "lateness_ns": _change(due, sent)}
    return {**found, "samples": {**samples, "latency_ns": _change(due, ended)}}


def busy(seconds: float) -> None:
    """Compute for some seconds, or (0) until killed."""
    number, last = 1, monotonic_ns() + round(seconds * 1e9)
    while not seconds or monotonic_ns() < last:
        for _ in range(1000):
            number = number * 1103515245 % 2147483648
