"""memtier_benchmark on memcached: the paper's load, with latencies of SETs and GETs apart.

No distribution packages it. It is a closed loop: each connection sends again once it is answered,
and a server that stalls delays the operations that would have noticed it (coordinated omission).
Its quantiles come from a histogram, whose steps are 8 us below 2 ms, and wider above.
"""

from __future__ import annotations

import json
from functools import partial

from labkit.errors import UNPACKAGED
from labkit.hosts import Host, script
from labkit.tools.base import (
    Client,
    Measurement,
    check_integers,
    logged,
    metered,
    one_of,
    own_cpu,
    saturated,
)
from labkit.tools.memcached import PORT, PROTOCOLS
from labkit.tools.parsing import reading, split, version

TOOL = "memtier_benchmark"
#: The percentiles that it is asked for, in the names of its file.
_QUANTILES = {"median": "p50.00", "p90": "p90.00", "p95": "p95.00", "p99": "p99.00"}
_QUANTILES |= {"p999": "p99.90"}
_ENDS = {"mean": "Average Latency", "min": "Min Latency", "max": "Max Latency"}
_KINDS = {"set_": "Sets", "get_": "Gets", "": "Totals"}

# Each of 8 connections stores a part of the keys. Where it fails, the load says why.
_STORE_FIRST = f"""
{TOOL} -s "$1" -p "$2" -P "memcache_$3" -d "$4" --key-maximum="$5" -t 1 -c 8 \\
    --ratio=1:0 --key-pattern=P:P -n allkeys --hide-histogram >/dev/null 2>&1 || true
shift 5
exec "$@"
"""


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
    size: int = 32,
    keys: int = 10_000,
    port: int = PORT,
) -> Client:
    """Return the client; options as `labkit.tools.memcached.closed_loop`.

    All keys are stored first, by a run of its own that is not metered. Without it, GETs would find
    more and more of the keys by the SETs of the run, and more of them over a faster network.
    """
    one_of("protocol", protocol, PROTOCOLS)
    counts = {"seconds": seconds, "threads": threads, "connections": connections, "sets": sets}
    check_integers(TOOL, **counts, gets=gets, size=size, keys=keys, port=port)
    argv: tuple[str, ...] = (TOOL, "-s", address, "-p", str(port), "-P", f"memcache_{protocol}")
    argv += ("-t", str(threads), "-c", str(connections), f"--ratio={sets}:{gets}")
    argv += (f"--test-time={seconds}", "-d", str(size), f"--key-maximum={keys}")
    argv += ("--print-percentiles=50,90,95,99,99.9", "--hide-histogram")
    argv = (*argv, "--json-out-file=memtier.json")
    stored = (address, str(port), protocol, str(size), str(keys))
    whole = logged(script(_STORE_FIRST, *stored, *metered(argv)))
    reader = partial(parse, threads=threads, besides=keys)
    return Client(whole, address, seconds + 6.0, reader, samples_in_stdout=True)


def parse(stdout: str, log: str, *, threads: int = 4, besides: int = 0) -> Measurement:
    """Read the JSON file; `besides` are the requests that the file does not count.

    Returns
    -------
    Measurement
        ``operations_per_s``, ``throughput_mbit_per_s`` (requests and answers, as the tool counts),
        ``sets``, ``gets``; ``set_latency_ns_mean``, ``_min``, ``_median``,
        ``_p90``, ``_p95``, ``_p99``, ``_p999``, ``_max``, the same as ``get_latency_ns`` and, of
        both, ``latency_ns``; ``hits``, the share of GETs that found a value; ``tool_cpu``, the
        CPU time of the load as a share of what its CPUs had while it sent, where it was told:
        starting, some 0.2 s, counts too, so that the share of a short run may be above 1. A run
        without a SET or a GET is an error: the tool ends with status 0 where nobody listens.
    """
    output, text = split(stdout, log)
    with reading(TOOL, output, text):
        if "ALL STATS" not in output:
            raise ValueError("it printed no summary")
        if not text.strip():
            raise ValueError("its file is empty")
        report = json.loads(text)["ALL STATS"]
        sets, gets, both = (report[name] for name in _KINDS.values())
        counts = {"sets": float(sets["Count"]), "gets": float(gets["Count"])}
        metrics = counts | {
            "operations_per_s": float(both["Ops/sec"]),
            "throughput_mbit_per_s": both["KB/sec"] * 1024 * 8 / 1e6,
            "hits": gets["Hits/sec"] / (gets["Hits/sec"] + gets["Misses/sec"]),
        }
        for prefix, kind in _KINDS.items():
            printed = report[kind]["Percentile Latencies"]
            latency = {name: report[kind][key] for name, key in _ENDS.items()}
            latency |= {name: printed[key] for name, key in _QUANTILES.items() if key in printed}
            for name, ms in latency.items():
                metrics[f"{prefix}latency_ns_{name}"] = float(round(ms * 1e6))
        # The file has 0 as the mean of all operations.
        sums = (counts[f"{kind}s"] * metrics[f"{kind}_latency_ns_mean"] for kind in ("set", "get"))
        metrics["latency_ns_mean"] = sum(sums) / sum(counts.values())
        errors, total = int(both.get("Connection Errors", 0)), int(both["Count"])
        sending = report["Runtime"]["Total duration"] / 1e3
    # Its process mostly sleeps for another second after the last answer.
    if (share := own_cpu(output, threads, sending)) is not None:
        metrics["tool_cpu"] = share
    missed = 1 - metrics["hits"]
    flags = [*saturated(metrics.get("tool_cpu"))]
    flags += [f"{errors} connection errors"] if errors else []
    flags += [f"{missed:.0%} of the GETs found nothing"] if missed >= 0.005 else []
    return Measurement({}, metrics, total + besides, tuple(flags))
