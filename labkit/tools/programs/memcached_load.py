"""A load on memcached: connections that send again as soon as they are answered.

Runs as ``python3 -c TEXT PROTOCOL name=value...`` with the options of `main`, and needs only the
standard library. All keys are stored first. Then each worker, a process, keeps one operation under
way on each of its connections: so many SETs, so many GETs, and again, of keys drawn at random. A
latency runs from just before a request is written until all of its answer has been read; an answer
that waits while the worker serves its other connections gets older meanwhile, as in any client with
an event loop. Operations that begin in the measured time count, and the load lasts until the last
is answered. It prints a line of JSON, made of all operations, and below it rows of some that are
spread evenly over them.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from array import array
from itertools import cycle
from math import ceil
from multiprocessing import get_context
from random import Random
from struct import Struct
from time import monotonic_ns, process_time_ns
from types import SimpleNamespace
from typing import Any

#: Seconds without any answer after which a worker gives up.
PATIENCE = 10.0
#: Keys that are drawn beforehand, and cycled through by each worker from another place on.
DRAWN = 65_537
QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# magic, opcode, length of the key, of extras, type, status, length of all that follows, opaque, cas
HEADER = Struct("!BBHBBHIIQ")
GET, SET = 0, 1
#: Options that need not be integers.
TIMES = ("seconds", "warmup")


def text_request(kind: int, key: bytes, value: bytes) -> bytes:
    """Return a SET or GET of the text protocol."""
    if kind == GET:
        return b"get %b\r\n" % key
    return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value)


def text_answer(data: bytes, size: int) -> int:
    """Return 1 for what was stored or found, 0 for what is not there, -1 for part of an answer."""
    if data in (b"STORED\r\n", b"END\r\n"):
        return int(data == b"STORED\r\n")
    if data.startswith(b"VALUE "):
        wanted = data.find(b"\r\n") + 2 + size + 7
        if len(data) < wanted or b"\r\n" not in data:
            return -1
        if len(data) == wanted and data.endswith(b"\r\nEND\r\n"):
            return 1
    if any(whole.startswith(data) for whole in (b"STORED\r\n", b"END\r\n", b"VALUE ")):
        return -1
    raise ValueError(f"memcached answered {data[:80]!r}")


def binary_request(kind: int, key: bytes, value: bytes) -> bytes:
    """Return a SET or GET of the binary protocol; a SET has 8 bytes of flags and expiry."""
    body = key if kind == GET else bytes(8) + key + value
    extras = len(body) - len(key) - len(value) if kind == SET else 0
    return HEADER.pack(0x80, kind, len(key), extras, 0, 0, len(body), 0, 0) + body


def binary_answer(data: bytes, size: int) -> int:
    """Return the same as `text_answer`."""
    if len(data) < HEADER.size:
        return -1
    magic, opcode, _, _, _, status, total, _, _ = HEADER.unpack_from(data)
    if magic == 0x81 and len(data) < HEADER.size + total:
        return -1
    if magic == 0x81 and len(data) == HEADER.size + total:
        if status == 0 and total == (4 + size if opcode == GET else 0):
            return 1
        if status == 1 and opcode == GET:
            return 0
    raise ValueError(f"memcached answered {data[:80]!r}")


PROTOCOLS = {"text": (text_request, text_answer), "binary": (binary_request, binary_answer)}


def key(number: int) -> bytes:
    """Return a key by its number."""
    return b"labkit-%08d" % number


#: What the processes of the pool inherit: the options, and the sockets of each worker.
STATE = SimpleNamespace()


def run(number: int, begin: int, end: int) -> dict[str, Any]:
    """Keep one operation under way on each connection until the end and until all is answered.

    Return what was measured from `begin` on.
    """
    load, value = STATE.load, b"x" * STATE.load.size
    request, answer = PROTOCOLS[load.protocol]
    first = number * DRAWN // load.workers
    names, turns = cycle(STATE.names[first:] + STATE.names[:first]), {}
    for one in STATE.sockets[number]:
        place = Random(one.fileno()).randrange(load.sets + load.gets)
        kinds = [SET] * load.sets + [GET] * load.gets
        turns[one.fileno()] = cycle(kinds[place:] + kinds[:place])
    starts, latencies, measured = array("q"), array("q"), array("b")
    sent: dict[int, tuple[int, int]] = {}
    partial: dict[int, bytes] = {}
    missed = besides = 0

    def ask(fd: int) -> None:
        kind = next(turns[fd])
        text = request(kind, next(names), value)
        sent[fd] = kind, monotonic_ns()
        if os.write(fd, text) != len(text):
            raise OSError("a request did not fit into its connection")

    began, poll, under_way = monotonic_ns(), select.epoll(), len(turns)
    for fd in turns:
        poll.register(fd, select.EPOLLIN)
        ask(fd)
    while under_way:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise TimeoutError(f"memcached did not answer for {PATIENCE:g} s")
        for fd, _ in ready:
            received, now = os.read(fd, 65_536), monotonic_ns()
            if not received:
                raise ConnectionError("memcached closed a connection")
            data = partial.pop(fd, b"") + received
            status = answer(data, load.size)
            if status < 0:
                partial[fd] = data
                continue
            kind, asked = sent[fd]
            if begin <= asked < end:
                starts.append(asked - begin)
                latencies.append(now - asked)
                measured.append(kind)
                missed += status == 0
            else:
                besides += 1
            if monotonic_ns() < end:
                ask(fd)
            else:
                under_way -= 1
    return {
        "columns": (starts, latencies, measured),
        "missed": missed,
        "besides": besides,
        "cpu_ns": process_time_ns(),
        "wall_ns": monotonic_ns() - began,
    }


def fill(load: SimpleNamespace, connection: socket.socket) -> None:
    """Store every key, so that every GET finds a value."""
    request, answer = PROTOCOLS[load.protocol]
    for number in range(load.keys):
        connection.sendall(request(SET, key(number), b"x" * load.size))
        data = b""
        while answer(data, load.size) < 0:
            received = connection.recv(65_536)
            if not received:
                raise ConnectionError("memcached closed a connection")
            data += received


def summary(values: list[int]) -> dict[str, int]:
    """Return the number of latencies, and their statistics in ns."""
    if not values:
        return {"count": 0}
    values.sort()
    count = len(values)
    statistics = {"count": count, "mean": round(sum(values) / count), "min": values[0]}
    statistics |= {name: values[ceil(count * q) - 1] for name, q in QUANTILES.items()}
    return statistics | {"max": values[-1]}


def report(load: SimpleNamespace, workers: list[dict[str, Any]]) -> None:
    """Print the summary and the rows."""
    latencies: dict[int, list[int]] = {GET: [], SET: []}
    rows, last = ["start_ns,latency_ns,set\n"], 0
    step = max(1, sum(len(one["columns"][0]) for one in workers) // load.rows)
    for one in workers:
        for begun, took, kind in zip(*one["columns"], strict=True):
            latencies[kind].append(took)
            last = max(last, begun + took)
        thinned = zip(*(column[::step] for column in one["columns"]), strict=True)
        rows += [f"{begun},{took},{kind}\n" for begun, took, kind in thinned]
    summed = {
        "protocol": load.protocol,
        "set": summary(latencies[SET]),
        "get": summary(latencies[GET]),
        "all": summary(latencies[SET] + latencies[GET]),
        "missed": sum(one["missed"] for one in workers),
        "besides": load.keys + sum(one["besides"] for one in workers),
        "elapsed_ns": last,
        "cpu_ns": sum(one["cpu_ns"] for one in workers),
        "wall_ns": max(one["wall_ns"] for one in workers),
        "cpus": min(len(os.sched_getaffinity(0)), load.workers),
        "rows": len(rows) - 1,
    }
    print(json.dumps(summed))
    sys.stdout.write("".join(rows))


def main(protocol: str, *options: str) -> None:
    """Fill, measure and report.

    Options are address, port, seconds and warmup; workers and connections of each; size and number
    of keys; sets and gets in turns; and rows.
    """
    given = dict(option.split("=", 1) for option in options)
    address = given.pop("address")
    numbers = {k: float(value) if k in TIMES else int(value) for k, value in given.items()}
    load = SimpleNamespace(protocol=protocol, address=address, **numbers)
    at = address, load.port
    sockets = [
        socket.create_connection(at, PATIENCE) for _ in range(load.workers * load.connections)
    ]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fill(load, sockets[0])
    STATE.load, STATE.sockets = load, [sockets[n :: load.workers] for n in range(load.workers)]
    random = Random(1)
    STATE.names = [key(random.randrange(load.keys)) for _ in range(DRAWN)]
    gc.collect()
    gc.freeze()
    gc.disable()
    begin = monotonic_ns() + round(load.warmup * 1e9)
    times = begin, begin + round(load.seconds * 1e9)
    with get_context("fork").Pool(load.workers) as pool:
        results = pool.starmap(run, [(n, *times) for n in range(load.workers)], chunksize=1)
    report(load, results)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError, EOFError) as error:
        sys.exit(f"memcached_load: {type(error).__name__}: {error}")
