"""memcached, and a load on it that times SETs and GETs apart, in its text or binary protocol.

The load is ``programs/memcached_load.py``, a closed loop over many connections like the paper's
memtier_benchmark. Debian's packages cannot replace it: memaslap pins its threads to CPUs of its
choice and sorts latencies into powers of two; memslap reports only the time of a whole run. In a
closed loop the latency is as long as all connections' operations take to get through the slower
end; near a ``tool_cpu`` of 1 that end is the load.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, python
from labkit.tools.parsing import csv_rows, json_in, reading, saturated, version

TOOL, PORT = "the load on memcached", 11211
PROTOCOLS = ("text", "binary")
#: Bytes of a key and of a value.
KEY, SIZE = 15, 32
#: Seconds of load before the measured time.
WARMUP = 0.5
#: Operations of which samples are kept; metrics are those of all.
KEPT = 5_000
_COLUMNS = ("start_ns", "latency_ns", "set")
#: Upper bounds of storing a key, and of starting and reporting, in seconds.
_STORING, _OVERHEAD = 100e-6, 3.0


def probe(host: Host) -> str:
    """Return memcached's version on the host."""
    return version(host, ("memcached", "-V"), r"memcached (\S+)")


def server() -> Workload:
    """Return the server, which speaks either protocol, over TCP, with 4 threads and 256 MB."""
    argv: tuple[str, ...] = ("memcached", "-u", "nobody", "-l", "0.0.0.0", "-p", str(PORT))
    argv += ("-U", "0", "-c", "4096", "-t", "4", "-m", "256")
    return Workload(argv, PORT, "tcp", "apps")


def closed_loop(
    address: str,
    *,
    protocol: str,
    seconds: float,
    threads: int = 4,
    connections: int = 50,
    sets: int = 1,
    gets: int = 10,
    keys: int = 10_000,
    port: int = PORT,
) -> Client:
    """Return the load: each connection sends again as soon as it is answered.

    Each of so many threads, which are processes, has so many connections, and sends so many SETs,
    then so many GETs. All keys are stored first, so that every GET finds a value.
    (memtier_benchmark draws from ten million by default and stores none first: there nearly every
    GET misses.)
    """
    one_of("protocol", protocol, PROTOCOLS)
    options = {"address": address, "port": port, "seconds": seconds, "warmup": WARMUP}
    options |= {"workers": threads, "connections": connections, "size": SIZE, "keys": keys}
    options |= {"sets": sets, "gets": gets, "rows": KEPT}
    expected = WARMUP + seconds + keys * _STORING + _OVERHEAD
    argv = python("memcached_load", protocol, **options)
    return Client(argv, address, expected, parse, samples_in_stdout=True)


def carried(protocol: str) -> tuple[int, int]:
    """Return the bytes of a SET and of a GET that finds its value, each with its answer.

    As memtier_benchmark counts them: without the headers of TCP.
    """
    if protocol == "binary":
        return 24 + 8 + KEY + SIZE + 24, 24 + KEY + 24 + 4 + SIZE
    digits = len(str(SIZE))
    of_set = len("set  0 0 \r\n\r\nSTORED\r\n") + KEY + digits + SIZE
    of_get = len("get \r\nVALUE  0 \r\n\r\nEND\r\n") + 2 * KEY + digits + SIZE
    return of_set, of_get


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the load's summary and the rows below it, or in its log.

    Samples are of some operations, metrics of all: ``hits`` is the share of GETs that found a
    value, ``throughput_mbit_per_s`` of what `carried` counts where all did, and ``tool_cpu`` the
    share of its CPUs that the load took.
    """
    head, _, rest = stdout.partition("\n")
    with reading(TOOL, stdout[:4000], log):
        summary = json_in(head)
        columns = csv_rows(log or rest, _COLUMNS)
        if len(columns["set"]) != summary["rows"]:
            raise ValueError(f"it has {len(columns['set'])} of {summary['rows']} rows")
        if (columns["latency_ns"] <= 0).any() or not np.isin(columns["set"], (0, 1)).all():
            raise ValueError("a row is not an operation")
        metrics = _metrics(summary)
        messages = int(summary["besides"] + metrics["sets"] + metrics["gets"])
    flags = [*saturated(metrics["tool_cpu"])]
    if summary["missed"]:
        flags.append(f"{summary['missed']} of {metrics['gets']:.0f} GETs found nothing")
    order = np.argsort(columns["start_ns"], kind="stable")
    samples = {name: values[order] for name, values in columns.items()}
    return Measurement(samples, metrics, messages, tuple(flags))


def _metrics(summary: dict[str, Any]) -> dict[str, float]:
    sets, gets = int(summary["set"]["count"]), int(summary["get"]["count"])
    if sets + gets != int(summary["all"]["count"]) or not sets or not gets:
        raise ValueError(f"{sets} SETs and {gets} GETs")
    elapsed = int(summary["elapsed_ns"])
    of_set, of_get = carried(summary["protocol"])
    metrics = {"operations_per_s": (sets + gets) / elapsed * 1e9}
    metrics |= {"throughput_mbit_per_s": (sets * of_set + gets * of_get) * 8e3 / elapsed}
    metrics |= {"sets": float(sets), "gets": float(gets)}
    for kind, prefix in (("set", "set_"), ("get", "get_"), ("all", "")):
        values = {name: float(x) for name, x in summary[kind].items() if name != "count"}
        metrics |= {f"{prefix}latency_ns_{name}": value for name, value in values.items()}
    metrics["hits"] = 1 - int(summary["missed"]) / gets
    available = int(summary["wall_ns"]) * int(summary["cpus"])
    return metrics | {"tool_cpu": int(summary["cpu_ns"]) / available}
