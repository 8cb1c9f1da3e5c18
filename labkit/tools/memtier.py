"""memtier_benchmark on memcached: the paper's load, with latencies of SETs and GETs apart.

No distribution packages it. It is a closed loop: each connection sends again once it is answered,
and a server that stalls delays the operations that would have noticed it (coordinated omission).
Its quantiles come from a histogram, whose steps are 8 us below 2 ms, and wider above.
"""

from functools import partial
from itertools import pairwise

from labkit.tools.base import Client, Measurement, prober
from labkit.tools.memcached import PORT, SIZE
from labkit.tools.parsing import check_duration, flag, json_in, reading
from labkit.tools.repeat import once

TOOL = "memtier_benchmark"
#: The percentiles that it is asked for, in the names of its file.
_QUANTILES = {"median": "p50.00", "p90": "p90.00", "p95": "p95.00", "p99": "p99.00"}
_QUANTILES |= {"p999": "p99.90"}

probe = prober(r"memtier_benchmark (\S+(?: sha=\w+)?)", TOOL, "--version")


def load(
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
    """Return the client; options as `labkit.tools.memcached.load`.

    All keys are stored first, by a run of its own: otherwise GETs would find ever more of the keys
    by the SETs of the run, and more of them over a faster network.
    """
    server = f"{TOOL} -s {address} -p {PORT} -P memcache_{protocol} -d {SIZE}"
    server += f" --key-maximum={keys} --hide-histogram"
    store = f"{server} -t 1 -c 8 --ratio=1:0 --key-pattern=P:P -n allkeys"
    argv = f"{server} -t {threads} -c {connections} --ratio={sets}:{gets} --test-time={seconds}"
    argv += " --print-percentiles=50,90,95,99,99.9 --json-out-file=memtier.json"
    reader = partial(parse, stored=keys, seconds=seconds)
    client = Client(tuple(argv.split()), address, seconds + 6.0, reader, samples_in_stdout=True)
    # Its process mostly sleeps for another second after the last answer. Starting takes some 0.2 s
    # of CPU time, so that the share of a short run may be above 1.
    return once(client, first=store.split(), threads=threads, busy=seconds)


def parse(stdout: str, log: str, *, stored: int = 0, seconds: float | None = None) -> Measurement:
    """Read the JSON file, which does not count the requests that `stored` the keys."""
    with reading(TOOL, stdout, log, needs="memtier_benchmark 1.4"):
        if "\nALL STATS\n" not in stdout or not log.strip():
            raise ValueError("it printed no summary, or its file is empty")
        report = json_in(log)["ALL STATS"]
        if report["Runtime"].get("Interrupted") == "true":
            raise ValueError("it was interrupted")
        check_duration(report["Runtime"]["Total duration"] / 1e3, seconds)
        sets, gets, both = report["Sets"], report["Gets"], report["Totals"]
        total, rate = int(both["Count"]), both["Ops/sec"]
        if total != sets["Count"] + gets["Count"]:
            raise ValueError(f"{sets['Count']} and {gets['Count']} are not {total} operations")
        # The file has 0 as the mean of all operations.
        took = sum(one["Count"] * one["Average Latency"] for one in (sets, gets))
        both["Average Latency"] = took / total
        missed = gets["Misses/sec"] / (gets["Hits/sec"] + gets["Misses/sec"])
        metrics = {"sets": sets["Count"], "gets": gets["Count"], "hits": 1 - missed}
        metrics |= {"operations_per_s": rate, "requests_per_s": rate}
        metrics |= {"throughput_mbit_per_s": both["KB/sec"] * 1024 * 8e-6}
        for prefix, kind in {"set_": sets, "get_": gets, "": both}.items():
            printed = kind["Percentile Latencies"]
            quantiles = {name: printed[key] for name, key in _QUANTILES.items() if key in printed}
            ordered = {"min": kind["Min Latency"], **quantiles, "max": kind["Max Latency"]}
            # A step of its histogram may be off by some per cent, and by 16 us.
            wrong = any(a > b * 1.05 + 0.016 for a, b in pairwise(ordered.values()))
            if wrong or not min(ordered.values()) > 0:
                raise ValueError(f"the latencies are not in order: {ordered} ms")
            for name, ms in {"mean": kind["Average Latency"], **ordered}.items():
                metrics[f"{prefix}latency_ns_{name}"] = round(ms * 1e6)
        errors = int(both.get("Connection Errors", 0))
    flags = flag(f"{errors} connection errors", errors)
    flags += flag(f"{missed:.0%} of the GETs found nothing", missed >= 0.005)
    return Measurement({}, {n: float(x) for n, x in metrics.items()}, total + stored, flags)
