"""memcached, and closed loops on it that time SETs and GETs apart, in its text or binary protocol.

labkit's own times every operation; Debian's memaslap sorts latencies into powers of two, and the
paper's memtier_benchmark into steps of 8 us below 2 ms.
"""

from functools import partial

from labkit.placement import Workload
from labkit.tools import base
from labkit.tools.base import Client, Measurement
from labkit.tools.repeat import once

PORT = 11211
#: Bytes of a value; seconds of labkit's own load before the measured time.
SIZE, WARMUP = 32, 0.5
#: About so many operations are samples, spread evenly; metrics are those of all.
KEPT = 5_000
_COMMAND = f"memcached -u nobody -l 0.0.0.0 -p {PORT} -U 0 -c 4096 -t 4 -m 256"
SERVER = Workload(tuple(_COMMAND.split()), PORT, ("tcp",), "apps")
#: The percentiles of memtier_benchmark, in the names of its file.
_QUANTILES = {"median": "p50.00", "p99": "p99.00", "p999": "p99.90"}


def load(
    address: str, *, protocol: str, seconds: float, threads: int, connections: int, **mix: int
) -> Client:
    """Return labkit's own load, of a protocol ("text" or "binary"), in one process.

    So many `sets` and `gets` take turns on each connection of `threads`; the `keys` are stored
    first, as else GETs would find more of them over a faster network.
    """
    given = {"address": address, "port": PORT, "seconds": seconds, "warmup": WARMUP}
    given |= {"connections": threads * connections, "size": SIZE, "protocol": protocol, **mix}
    expected = WARMUP + seconds + mix["keys"] * 100e-6 + 3.0
    argv = base.python("memcached_load", "main", **given)
    return Client(argv, address, expected, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read every operation; ``tool_cpu`` is the share of a CPU that the load took."""
    with base.reading("the load on memcached", stdout):
        found, samples = base.document(stdout)
        start, took, is_set = samples.values()
        sets, seconds = int(is_set.sum()), int((start + took).max()) / 1e9
        gets, rate = len(start) - sets, len(start) / seconds
        carried = sets * found["set_b"] + gets * found["get_b"]
        # A GET without a value ends the load.
        metrics = {"requests_per_s": rate, "sets": sets, "gets": gets, "hits": 1.0}
        metrics["throughput_mbit_per_s"] = carried * 8e-6 / seconds
        metrics["tool_cpu"] = float(found["tool_cpu"])
        metrics |= base.latency(took) | base.latency(took[is_set == 1], "set_latency_ns")
        metrics |= base.latency(took[is_set == 0], "get_latency_ns")
        messages = len(start) + int(found["others"])
    every = max(1, len(start) // KEPT)
    return Measurement({name: one[::every] for name, one in samples.items()}, metrics, messages)


def memtier(
    address: str, *, protocol: str, seconds: int, threads: int, connections: int, sets: int,
    gets: int, keys: int,
) -> Client:  # fmt: skip
    """Return memtier_benchmark, with the options of `load`; a run of its own stores the keys."""
    server = f"memtier_benchmark -s {address} -p {PORT} -P memcache_{protocol} -d {SIZE}"
    server += f" --key-maximum={keys} --hide-histogram"
    store = f"{server} -t 1 -c 8 --ratio=1:0 --key-pattern=P:P -n allkeys"
    argv = f"{server} -t {threads} -c {connections} --ratio={sets}:{gets}"
    argv += f" --test-time={seconds} --json-out-file=memtier.json"
    reader = partial(parse_memtier, stored=keys, seconds=seconds)
    client = Client(tuple(argv.split()), address, seconds + 6.0, reader, samples_in_stdout=True)
    # Its process mostly sleeps for another second after the last answer. Starting takes some 0.2 s
    # of CPU time, so that the share of a short run may be above 1.
    return once(client, first=store.split(), threads=threads, busy=seconds)


def parse_memtier(stdout: str, log: str, *, stored: int, seconds: float) -> Measurement:
    """Read the JSON file, which does not count the requests that `stored` the keys."""
    with base.reading("memtier_benchmark", stdout, log, needs="memtier_benchmark 1.4"):
        if "\nALL STATS\n" not in stdout or not log.strip():
            raise ValueError("it printed no summary, or its file is empty")
        report = base.json_in(log)["ALL STATS"]
        if report["Runtime"].get("Interrupted") in ("true", True):
            raise ValueError("it was interrupted")
        lasted = report["Runtime"]["Total duration"] / 1e3
        base.check_duration(lasted, seconds)
        sets, gets, both = report["Sets"], report["Gets"], report["Totals"]
        total, rate = int(both["Count"]), both["Ops/sec"]
        if total != sets["Count"] + gets["Count"]:
            raise ValueError(f"{sets['Count']} and {gets['Count']} are not {total} operations")
        if abs(total / lasted - rate) > 0.02 * rate:
            raise ValueError(f"{total} operations in {lasted:g} s are not {rate} per second")
        # The file has 0 as the mean of all operations.
        took = sum(one["Count"] * one["Average Latency"] for one in (sets, gets))
        both["Average Latency"] = took / total
        missed = gets["Misses/sec"] / (gets["Hits/sec"] + gets["Misses/sec"])
        metrics = {"sets": sets["Count"], "gets": gets["Count"], "hits": 1 - missed}
        metrics |= {"requests_per_s": rate, "throughput_mbit_per_s": both["KB/sec"] * 1024 * 8e-6}
        for prefix, kind in {"set_": sets, "get_": gets, "": both}.items():
            quantiles = {one: kind["Percentile Latencies"][key] for one, key in _QUANTILES.items()}
            extremes = {"min": kind["Min Latency"], "max": kind["Max Latency"]}
            for name, ms in {"mean": kind["Average Latency"], **quantiles, **extremes}.items():
                metrics[f"{prefix}latency_ns_{name}"] = round(ms * 1e6)
        base.check_numbers(metrics)
        errors = sum(int(one.get("Connection Errors", 0)) for one in (sets, gets, both))
    flags = base.flag(f"{errors} connection errors", errors)
    flags += base.flag(f"{missed:.0%} of the GETs found nothing", missed >= 0.005)
    return Measurement({}, {n: float(x) for n, x in metrics.items()}, total + stored, flags)


LOADS = {"labkit": load, "memtier_benchmark": memtier}
_OPTIONS = {"threads": 4, "connections": 50, "sets": 1, "gets": 10, "keys": 10_000}
APPLICATIONS = {f"memcached {one}": {"protocol": one, **_OPTIONS} for one in ("text", "binary")}
