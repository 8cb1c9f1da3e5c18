"""memtier_benchmark on memcached: the paper's load, with latencies of SETs and GETs apart.

No distribution packages it. It is a closed loop: each connection sends again once it is answered,
and a server that stalls delays the operations that would have noticed it (coordinated omission).
Its quantiles come from a histogram, whose steps are 8 us below 2 ms, and wider above.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import Any

from labkit.errors import UNPACKAGED
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, one_of, wrapped
from labkit.tools.memcached import PORT, PROTOCOLS, SIZE
from labkit.tools.parsing import (
    check_duration,
    json_in,
    own_cpu,
    reading,
    saturated,
    split,
    version,
)

TOOL = "memtier_benchmark"
#: The percentiles that it is asked for, in the names of its file.
_QUANTILES = {"median": "p50.00", "p90": "p90.00", "p95": "p95.00", "p99": "p99.00"}
_QUANTILES |= {"p999": "p99.90"}
_ENDS = {"mean": "Average Latency", "min": "Min Latency", "max": "Max Latency"}
_KINDS = {"set_": "Sets", "get_": "Gets", "": "Totals"}
#: By what factor and by how many ms a step of its histogram may be off.
_STEP = (1.05, 0.016)


def probe(host: Host) -> str:
    """Return the tool's version on the host."""
    pattern = r"memtier_benchmark (\S+(?: sha=\w+)?)"
    return version(host, (TOOL, "--version"), pattern, remedy=UNPACKAGED)


def closed_loop(
    address: str,
    *,
    protocol: str,
    seconds: int,
    threads: int = 4,
    connections: int = 50,
    sets: int = 1,
    gets: int = 10,
    keys: int = 10_000,
) -> Client:
    """Return the client; options as `labkit.tools.memcached.closed_loop`.

    All keys are stored first, by a run of its own of which each of 8 connections stores a part.
    Without it, GETs would find more and more of the keys by the SETs of the run, and more of them
    over a faster network.
    """
    one_of("protocol", protocol, PROTOCOLS)
    server: tuple[str, ...] = (TOOL, "-s", address, "-p", str(PORT), "-P", f"memcache_{protocol}")
    server += ("-d", str(SIZE), f"--key-maximum={keys}", "--hide-histogram")
    store = (*server, "-t", "1", "-c", "8", "--ratio=1:0", "--key-pattern=P:P", "-n", "allkeys")
    argv = (*server, "-t", str(threads), "-c", str(connections), f"--ratio={sets}:{gets}")
    argv += (f"--test-time={seconds}", "--print-percentiles=50,90,95,99,99.9")
    command = wrapped((*argv, "--json-out-file=memtier.json"), first=store)
    reader = partial(parse, threads=threads, besides=keys, seconds=seconds)
    return Client(command, address, seconds + 6.0, reader, samples_in_stdout=True)


def parse(
    stdout: str, log: str, *, threads: int = 4, besides: int = 0, seconds: float | None = None
) -> Measurement:
    """Read the JSON file; `besides` are the requests that the file does not count.

    Metrics are as of `labkit.tools.memcached.parse`. ``tool_cpu`` is of the time in which it sent;
    starting, some 0.2 s, counts too, so that the share of a short run may be above 1. A run without
    a SET or a GET is an error: the tool ends with status 0 where nobody listens.
    """
    printed, text = split(stdout, log)
    with reading(TOOL, printed, text, needs="memtier_benchmark 1.4"):
        if not re.search(r"^ALL STATS$", printed, re.MULTILINE):
            raise ValueError("it printed no summary")
        if not text.strip():
            raise ValueError("its file is empty")
        report = json_in(text)["ALL STATS"]
        if report.get("Runtime", {}).get("Interrupted") == "true":
            raise ValueError("it was interrupted")
        sets, gets, both = (report[name] for name in _KINDS.values())
        counts = {"sets": float(sets["Count"]), "gets": float(gets["Count"])}
        metrics = counts | {
            "operations_per_s": float(both["Ops/sec"]),
            "throughput_mbit_per_s": both["KB/sec"] * 1024 * 8 / 1e6,
            "hits": gets["Hits/sec"] / (gets["Hits/sec"] + gets["Misses/sec"]),
        }
        for prefix, kind in _KINDS.items():
            for name, ms in _latencies(report[kind], kind).items():
                metrics[f"{prefix}latency_ns_{name}"] = float(round(ms * 1e6))
        # The file has 0 as the mean of all operations.
        sums = (counts[f"{kind}s"] * metrics[f"{kind}_latency_ns_mean"] for kind in ("set", "get"))
        metrics["latency_ns_mean"] = sum(sums) / sum(counts.values())
        errors, total = int(both.get("Connection Errors", 0)), int(both["Count"])
        if total != sum(counts.values()):
            raise ValueError(f"{counts} are not {total} operations")
        # Its process mostly sleeps for another second after the last answer.
        lasted = report["Runtime"]["Total duration"] / 1e3
        check_duration(lasted, seconds)
        share = own_cpu(printed, threads, lasted)
    if share is not None:
        metrics["tool_cpu"] = share
    missed = 1 - metrics["hits"]
    flags = [*saturated(share)]
    flags += [f"{errors} connection errors"] if errors else []
    flags += [f"{missed:.0%} of the GETs found nothing"] if missed >= 0.005 else []
    return Measurement({}, metrics, total + besides, tuple(flags))


def _latencies(kind: dict[str, Any], name: str) -> dict[str, float]:
    """Return the statistics of one kind of operations in ms, which must be in their order."""
    printed = kind["Percentile Latencies"]
    quantiles = {label: printed[key] for label, key in _QUANTILES.items() if key in printed}
    found = {label: kind[key] for label, key in _ENDS.items()} | quantiles
    ordered = [found["min"], *quantiles.values(), found["max"]]
    if not min(ordered) > 0 or any(a > b * _STEP[0] + _STEP[1] for a, b in pairwise(ordered)):
        raise ValueError(f"the latencies of {name} are not in order: {ordered} ms")
    return found
