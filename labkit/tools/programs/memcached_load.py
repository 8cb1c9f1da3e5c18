"""A load on memcached: connections that send again as soon as they are answered."""

import gc
import os
import select
import socket
from array import array
from itertools import cycle
from random import Random
from struct import pack
from time import monotonic_ns, process_time_ns
from typing import Any

#: Seconds without any answer after which the load gives up.
PATIENCE = 10.0
GET, SET = 0, 1
#: A request, and how its answer begins and how long that is.
Operation = tuple[bytes, bytes, int]


def operation(protocol: str, kind: int, key: bytes, value: bytes) -> Operation:
    """Return a SET, or a GET of a key that was stored."""
    if protocol == "text" and kind == SET:
        return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value), b"STORED\r\n", 8
    if protocol == "text":
        found = b"VALUE %b 0 %d\r\n" % (key, len(value))
        return b"get %b\r\n" % key, found, len(found) + len(value) + 7
    # magic, opcode, length of the key, of extras, type, status, length of all that follows; opaque
    # and cas. A SET has flags and expiry as extras, an answer to a GET has flags.
    extras, body, answer = (8, bytes(8) + key + value, 0) if kind == SET else (0, key, 4)
    request = pack("!BBHBBHIIQ", 0x80, kind, len(key), extras, 0, 0, len(body), 0, 0) + body
    follows = answer + len(value) if kind == GET else 0
    return request, pack("!BBHBBHI", 0x81, kind, 0, answer, 0, 0, follows), 24 + follows


def check(data: bytes, begin: bytes, length: int) -> None:
    """Raise unless an answer is whole, and the expected one."""
    if not data.startswith(begin) or len(data) != length:
        raise ValueError(f"memcached answered {data[:80]!r}")


def load(
    sockets: list[socket.socket], operations: list[list[Operation]], kinds: list[int], last: int
) -> list[list[int]]:
    """Keep an operation under way on each connection; return when each began, its time and kind."""
    random, turns = Random(1), {}
    drawn = cycle([random.randrange(len(operations[GET])) for _ in range(65_537)])
    for one in sockets:
        place = random.randrange(len(kinds))
        turns[one.fileno()] = cycle(kinds[place:] + kinds[:place])
    starts, latencies, done = columns = array("q"), array("q"), array("b")
    sent: dict[int, tuple[int, int, bytes, int]] = {}

    def ask(fd: int) -> None:
        kind = next(turns[fd])
        request, begin, length = operations[kind][next(drawn)]
        sent[fd] = kind, monotonic_ns(), begin, length
        os.write(fd, request)

    poll = select.epoll()
    for fd in turns:
        poll.register(fd, select.EPOLLIN)
        ask(fd)
    while sent:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise TimeoutError(f"memcached did not answer for {PATIENCE:g} s")
        for fd, _ in ready:
            # It has aged while others were served, as in any client with an event loop.
            data, now = os.read(fd, 65_536), monotonic_ns()
            kind, asked, begin, length = sent[fd]
            check(data, begin, length)
            starts.append(asked)
            latencies.append(now - asked)
            done.append(kind)
            if monotonic_ns() < last:
                ask(fd)
            else:
                del sent[fd]
    return [list(column) for column in columns]


def main(
    protocol: str, address: str, port: int, *, connections: int, seconds: float, warmup: float,
    size: int, keys: int, sets: int, gets: int,
) -> dict[str, Any]:  # fmt: skip
    """Store all keys, and return the operations on them that begin in the measured time."""
    names, value = [b"labkit-%08d" % number for number in range(keys)], b"x" * size
    operations = [[operation(protocol, kind, name, value) for name in names] for kind in (GET, SET)]
    sockets = [socket.create_connection((address, port), PATIENCE) for _ in range(connections)]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for request, begin, length in operations[SET]:
        sockets[0].sendall(request)
        check(sockets[0].recv(65_536), begin, length)
    gc.disable()
    used, began = process_time_ns(), monotonic_ns()
    first, last = (began + round(time * 1e9) for time in (warmup, warmup + seconds))
    rows = load(sockets, operations, [SET] * sets + [GET] * gets, last)
    share = (process_time_ns() - used) / (monotonic_ns() - began)
    kept = sorted(row for row in zip(*rows, strict=True) if first <= row[0] < last)
    starts, latencies, kinds = map(list, zip(*kept, strict=True))
    get_b, set_b = (len(request) + length for (request, _, length), *_ in operations)
    found = {"others": len(rows[0]) - len(kept) + keys, "get_b": get_b, "set_b": set_b}
    samples = {"start_ns": [start - first for start in starts], "latency_ns": latencies}
    return {**found, "tool_cpu": share, "samples": {**samples, "set": kinds}}
