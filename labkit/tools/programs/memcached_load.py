"""A load on memcached: connections that send again as soon as they are answered.

Runs as ``python3 -c TEXT PROTOCOL name=value...`` with the options of `main`, and needs only the
standard library. All keys are stored first. Then it keeps one operation under way on each of its
connections: so many SETs, so many GETs, and again, of keys drawn at random. A latency runs from
just before a request is written until its answer has been read; an answer that waits while other
connections are served gets older meanwhile, as in any client with an event loop. Operations that
begin in the measured time count, and the load lasts until the last is answered. It prints a line of
JSON, made of all operations, and below it rows of some that are spread evenly over them.
"""

import gc
import json
import os
import select
import socket
import sys
from array import array
from itertools import cycle
from math import ceil
from random import Random
from struct import pack
from time import monotonic_ns, process_time_ns

#: Seconds without any answer after which the load gives up.
PATIENCE = 10.0
QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
GET, SET = 0, 1
#: How an answer to a GET begins that finds nothing, and its length.
MISSES = {"text": (b"END\r\n", 5), "binary": (pack("!BBHBBHI", 0x81, GET, 0, 0, 0, 1, 9), 33)}
#: A request, and how its answer begins and how long it is where it stored or found a value.
Operation = tuple[bytes, tuple[bytes, int]]


def operation(protocol: str, kind: int, key: bytes, value: bytes) -> Operation:
    """Return a SET or GET."""
    if protocol == "text" and kind == SET:
        return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value), (b"STORED\r\n", 8)
    if protocol == "text":
        found = b"VALUE %b 0 %d\r\n" % (key, len(value))
        return b"get %b\r\n" % key, (found, len(found) + len(value) + 7)
    # magic, opcode, length of the key, of extras, type, status, length of all that follows; opaque
    # and cas. A SET has flags and expiry as extras, what a GET found has flags.
    extras, body, answer = (8, bytes(8) + key + value, 0) if kind == SET else (0, key, 4)
    request = pack("!BBHBBHIIQ", 0x80, kind, len(key), extras, 0, 0, len(body), 0, 0) + body
    follows = answer + len(value) if kind == GET else 0
    return request, (pack("!BBHBBHI", 0x81, kind, 0, answer, 0, 0, follows), 24 + follows)


def is_miss(data: bytes, hit: tuple[bytes, int], miss: tuple[bytes, int]) -> bool:
    """Tell whether an answer is the second of two; it must be one of them."""
    for begin, length in (hit, miss):
        if data.startswith(begin) and len(data) == length:
            return begin == miss[0]
    raise ValueError(f"memcached answered {data[:80]!r}")


def statistics(prefix: str, latencies: list[int]) -> dict[str, float]:
    """Return the statistics of latencies in ns; a quantile is one of them."""
    latencies.sort()
    found = {"mean": sum(latencies) / len(latencies), "min": latencies[0], "max": latencies[-1]}
    found |= {name: latencies[ceil(len(latencies) * q) - 1] for name, q in QUANTILES.items()}
    return {f"{prefix}latency_ns_{name}": value for name, value in found.items()}


def run(
    sockets: list[socket.socket],
    operations: list[list[Operation]],
    miss: tuple[bytes, int],
    kinds: list[int],
    times: tuple[int, int],
) -> tuple[list[tuple[int, int, int]], int, int]:
    """Keep one operation under way on each connection until the end and until all is answered.

    Return the beginning, latency and kind of each that began between two times, how many of them
    found nothing, and how many others there were.
    """
    random, turns = Random(1), {}
    drawn = cycle([random.randrange(len(operations[GET])) for _ in range(65_537)])
    for one in sockets:
        place = random.randrange(len(kinds))
        turns[one.fileno()] = cycle(kinds[place:] + kinds[:place])
    starts, latencies, measured = array("q"), array("q"), array("b")
    sent: dict[int, tuple[int, int, tuple[bytes, int]]] = {}
    missed = others = 0

    def ask(fd: int) -> None:
        kind = next(turns[fd])
        request, hit = operations[kind][next(drawn)]
        sent[fd] = kind, monotonic_ns(), hit
        os.write(fd, request)

    under_way, poll, (begin, end) = len(sockets), select.epoll(), times
    for fd in turns:
        poll.register(fd, select.EPOLLIN)
        ask(fd)
    while under_way:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise TimeoutError(f"memcached did not answer for {PATIENCE:g} s")
        for fd, _ in ready:
            data, now = os.read(fd, 65_536), monotonic_ns()
            kind, asked, hit = sent[fd]
            nothing = is_miss(data, hit, miss)
            if begin <= asked < end:
                starts.append(asked - begin)
                latencies.append(now - asked)
                measured.append(kind)
                missed += nothing
            else:
                others += 1
            if monotonic_ns() < end:
                ask(fd)
            else:
                under_way -= 1
    return sorted(zip(starts, latencies, measured, strict=True)), missed, others


def main(protocol: str, *options: str) -> None:
    """Fill, measure and report.

    Options are address, port and number of connections; seconds and warmup; size and number of
    keys; sets and gets in turns; and rows.
    """
    given = dict(option.split("=", 1) for option in options)
    address = given.pop("address")
    warmup, seconds = (round(float(given.pop(name)) * 1e9) for name in ("warmup", "seconds"))
    load = {name: int(value) for name, value in given.items()}
    value, keys = b"x" * load["size"], [b"labkit-%08d" % number for number in range(load["keys"])]
    operations = [[operation(protocol, kind, key, value) for key in keys] for kind in (GET, SET)]
    at = address, load["port"]
    sockets = [socket.create_connection(at, PATIENCE) for _ in range(load["connections"])]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for request, hit in operations[SET]:
        sockets[0].sendall(request)
        is_miss(sockets[0].recv(65_536), hit, hit)
    gc.collect()
    gc.freeze()
    gc.disable()
    kinds = [SET] * load["sets"] + [GET] * load["gets"]
    used, began = process_time_ns(), monotonic_ns()
    times = began + warmup, began + warmup + seconds
    rows, missed, others = run(sockets, operations, MISSES[protocol], kinds, times)
    share = (process_time_ns() - used) / (monotonic_ns() - began)
    gets, sets = ([took for _, took, kind in rows if kind == which] for which in (GET, SET))
    elapsed = max(begun + took for begun, took, _ in rows)
    of_get, of_set = (len(request) + hit[1] for (request, hit), *_ in operations)
    metrics = {
        "operations_per_s": len(rows) / elapsed * 1e9,
        "throughput_mbit_per_s": (len(sets) * of_set + len(gets) * of_get) * 8e3 / elapsed,
        "sets": len(sets),
        "gets": len(gets),
        "hits": 1 - missed / len(gets),
        "tool_cpu": share,
        **statistics("set_", sets),
        **statistics("get_", gets),
        **statistics("", sets + gets),
    }
    kept, messages = rows[:: max(1, len(rows) // load["rows"])], len(keys) + others + len(rows)
    print(json.dumps({"metrics": metrics, "messages": messages, "rows": len(kept)}))
    print("\n".join(f"{begun},{took},{kind}" for begun, took, kind in kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
