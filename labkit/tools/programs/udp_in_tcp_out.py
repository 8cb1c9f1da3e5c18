"""A message arrives as UDP, and the answer leaves over TCP, for Debian's python3.

The text of this file is the argument of ``python3 -c``, so that the same program runs in a
container, in a chroot, on a host and on the generator::

    serve port=11112 wait=block
    ask address=A port=11112 wait=block size=64 messages=5000 warmup=500 log=FILE

The server takes one client. A message begins with its number in 8 bytes and network byte order, and
is answered by the same bytes. The client has one message under way at a time; it prints one line of
JSON, and writes the round trip of every message that was answered, a row each, when all is over.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns

#: An answer that takes longer counts as lost.
PATIENCE_NS = 1_000_000_000
HEADER = struct.Struct(">Q")
Receive = Callable[[memoryview], int]


def receiver(end: socket.socket, wait: str) -> Receive:
    """Return a function that waits for bytes, sleeping or polling; it returns 0 if none came."""
    if wait == "block":
        seconds, left = divmod(PATIENCE_NS, 10**9)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, left))

        def sleeping(into: memoryview) -> int:
            try:
                return end.recv_into(into)
            except BlockingIOError:
                return 0

        return sleeping
    end.setblocking(False)

    def spinning(into: memoryview) -> int:
        last = monotonic_ns() + PATIENCE_NS
        while monotonic_ns() < last:
            try:
                return end.recv_into(into)
            except BlockingIOError:
                continue
        return 0

    return spinning


def serve(port: str, wait: str) -> None:
    """Answer every datagram over the connection of the one client."""
    messages = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    messages.bind(("0.0.0.0", int(port)))
    listening = socket.create_server(("0.0.0.0", int(port)))
    answers, _ = listening.accept()
    answers.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receive, buffer = receiver(messages, wait), memoryview(bytearray(1 << 16))
    gc.disable()
    while True:
        size = receive(buffer)
        if size:
            answers.sendall(buffer[:size])


def answered(receive: Receive, into: memoryview, number: int) -> bool:
    """Return whether the answer to a message came; skip late answers to earlier ones."""
    while True:
        done = 0
        while done < len(into):
            count = receive(into[done:])
            if not count:
                return False
            done += count
        if HEADER.unpack_from(into)[0] == number:
            return True


def exchange(options: dict[str, str], total: int) -> list[int]:
    """Send so many messages, one after the other; return round trips in ns, -1 without answer."""
    where = (options["address"], int(options["port"]))
    answers = socket.create_connection(where)
    messages = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    messages.connect(where)
    receive = receiver(answers, options["wait"])
    size = int(options["size"])
    sent, back = bytearray(size), memoryview(bytearray(size))
    times = array("q", bytes(8 * total))
    gc.collect()
    gc.disable()
    for number in range(total):
        HEADER.pack_into(sent, 0, number)
        began = monotonic_ns()
        messages.send(sent)
        came = answered(receive, back, number)
        times[number] = monotonic_ns() - began if came else -1
    return times.tolist()


def ask(options: dict[str, str]) -> None:
    """Measure messages after a warm-up, then write the round trips."""
    warmup = int(options["warmup"])
    times = exchange(options, warmup + int(options["messages"]))
    kept = [value for value in times[warmup:] if value >= 0]
    text = "".join(["rtt_ns\n", *(f"{value}\n" for value in kept)])
    Path(options["log"]).write_text(text, encoding="ascii")
    lost = sum(value < 0 for value in times)
    print(json.dumps({"messages": len(times), "rows": len(kept), "lost": lost}))


def main(mode: str, *pairs: str) -> None:
    """Run one mode with its options, each as name=value."""
    options = dict(pair.split("=", 1) for pair in pairs)
    if mode == "serve":
        serve(options["port"], options["wait"])
    else:
        ask(options)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"udp_in_tcp_out: {type(error).__name__}: {error}")
