"""A load on memcached: connections that send again as soon as they are answered.

All keys are stored first. Then it keeps one operation under way on each of its connections, which
take them from one sequence: so many SETs, so many GETs, and again, of keys drawn at random. A
latency runs from just before a request is written until its answer has been read; an answer that
waits while other connections are served gets older meanwhile, as in any client with an event loop.
Those that begin in the measured time are returned; the load lasts until the last is answered.
"""

import gc
import os
import select
import socket
from collections.abc import Iterator
from itertools import cycle
from random import Random
from struct import pack
from time import monotonic_ns, process_time_ns
from typing import Any

#: Seconds without any answer after which the load gives up.
PATIENCE = 10.0
GET, SET = 0, 1
#: A kind, a request, and how its answer begins and how long that is.
Operation = tuple[int, bytes, bytes, int]


def operation(protocol: str, kind: int, key: bytes, value: bytes) -> Operation:
    """Return a SET, or a GET of a key that was stored."""
    if protocol == "text" and kind == SET:
        return SET, b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value), b"STORED\r\n", 8
    if protocol == "text":
        found = b"VALUE %b 0 %d\r\n" % (key, len(value))
        return GET, b"get %b\r\n" % key, found, len(found) + len(value) + 7
    # magic, opcode, length of the key, of extras, type, status, length of all that follows; opaque
    # and cas. A SET has flags and expiry as extras, an answer to a GET has flags.
    extras, body, answer = (8, bytes(8) + key + value, 0) if kind == SET else (0, key, 4)
    request = pack("!BBHBBHIIQ", 0x80, kind, len(key), extras, 0, 0, len(body), 0, 0) + body
    follows = answer + len(value) if kind == GET else 0
    return kind, request, pack("!BBHBBHI", 0x81, kind, 0, answer, 0, 0, follows), 24 + follows


def check(data: bytes, begin: bytes, length: int) -> None:
    """Raise unless an answer is whole, and the expected one."""
    if not data.startswith(begin) or len(data) != length:
        raise ValueError(f"memcached answered {data[:80]!r}")


def load(
    sockets: list[socket.socket], drawn: Iterator[Operation], last: int
) -> list[tuple[int, int, int]]:
    """Keep an operation under way on each connection; return when each began, its time and kind."""
    done, sent, poll = [], dict[int, tuple[int, Operation]](), select.epoll()

    def ask(fd: int) -> None:
        one = next(drawn)
        sent[fd] = monotonic_ns(), one
        os.write(fd, one[1])

    for connection in sockets:
        poll.register(connection, select.EPOLLIN)
        ask(connection.fileno())
    while sent:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise TimeoutError(f"memcached did not answer for {PATIENCE:g} s")
        for fd, _ in ready:
            data, now = os.read(fd, 65_536), monotonic_ns()
            asked, (kind, _, begin, length) = sent.pop(fd)
            check(data, begin, length)
            done.append((asked, now - asked, kind))
            if now < last:
                ask(fd)
    return done


def main(
    protocol: str, address: str, port: int, *, connections: int, seconds: float, warmup: float,
    size: int, keys: int, sets: int, gets: int,
) -> dict[str, Any]:  # fmt: skip
    """Store all keys, measure, and return the operations, in which SETs and GETs take turns."""
    names, value = [b"labkit-%08d" % number for number in range(keys)], b"x" * size
    stored, found = (
        [operation(protocol, kind, one, value) for one in names] for kind in (SET, GET)
    )
    sockets = [socket.create_connection((address, port), PATIENCE) for _ in range(connections)]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _, request, begin, length in stored:
        sockets[0].sendall(request)
        check(sockets[0].recv(65_536), begin, length)
    random, turns = Random(1), [stored] * sets + [found] * gets
    drawn = cycle([random.choice(kind) for _ in range(10_007) for kind in turns])
    gc.disable()
    used, began = process_time_ns(), monotonic_ns()
    first, last = (began + round(time * 1e9) for time in (warmup, warmup + seconds))
    done = load(sockets, drawn, last)
    share = (process_time_ns() - used) / (monotonic_ns() - began)
    kept = sorted(row for row in done if first <= row[0] < last)
    starts, latencies, kinds = map(list, zip(*kept, strict=True))
    get_b, set_b = (len(request) + length for _, request, _, length in (found[0], stored[0]))
    about = {"others": len(done) - len(kept) + keys, "get_b": get_b, "set_b": set_b}
    samples = {"start_ns": [start - first for start in starts], "latency_ns": latencies}
    return {**about, "tool_cpu": share, "samples": {**samples, "set": kinds}}
