"""memtier_benchmark on memcached: the paper's load, with latencies of SETs and GETs apart.

No distribution packages it. It is a closed loop: each connection sends again once it is answered,
and a server that stalls delays the operations that would have noticed it (coordinated omission).
Its quantiles come from a histogram, whose steps are 8 us below 2 ms, and wider above.
"""

from functools import partial
from itertools import pairwise
from typing import Any

from labkit.tools.base import Client, Measurement, prober, wrapped
from labkit.tools.memcached import PORT, SIZE
from labkit.tools.parsing import check_duration, flag, json_in, own_cpu, reading, split

TOOL = "memtier_benchmark"
#: The percentiles that it is asked for, in the names of its file.
_QUANTILES = {"median": "p50.00", "p90": "p90.00", "p95": "p95.00", "p99": "p99.00"}
_QUANTILES |= {"p999": "p99.90"}
_KINDS = {"set_": "Sets", "get_": "Gets", "": "Totals"}

probe = prober(r"memtier_benchmark (\S+(?: sha=\w+)?)", TOOL, "--version")


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
    server = f"{TOOL} -s {address} -p {PORT} -P memcache_{protocol} -d {SIZE}"
    server += f" --key-maximum={keys} --hide-histogram"
    store = f"{server} -t 1 -c 8 --ratio=1:0 --key-pattern=P:P -n allkeys"
    argv = f"{server} -t {threads} -c {connections} --ratio={sets}:{gets} --test-time={seconds}"
    argv += " --print-percentiles=50,90,95,99,99.9 --json-out-file=memtier.json"
    command = wrapped(argv.split(), first=store.split())
    reader = partial(parse, threads=threads, stored=keys, seconds=seconds)
    return Client(command, address, seconds + 6.0, reader, samples_in_stdout=True)


def parse(
    stdout: str, log: str, *, threads: int = 4, stored: int = 0, seconds: float | None = None
) -> Measurement:
    """Read the JSON file, which does not count the requests that `stored` the keys.

    Metrics are as of `labkit.tools.memcached.parse`. ``tool_cpu`` is of the time in which it sent;
    starting, some 0.2 s, counts too, so that the share of a short run may be above 1.
    """
    printed, text = split(stdout, log)
    with reading(TOOL, printed, text, needs="memtier_benchmark 1.4"):
        if "\nALL STATS\n" not in printed or not text.strip():
            raise ValueError("it printed no summary, or its file is empty")
        report = json_in(text)["ALL STATS"]
        if report["Runtime"].get("Interrupted") == "true":
            raise ValueError("it was interrupted")
        sets, gets, both = (report[name] for name in _KINDS.values())
        total = int(both["Count"])
        if total != sets["Count"] + gets["Count"]:
            raise ValueError(f"{sets['Count']} and {gets['Count']} are not {total} operations")
        missed = gets["Misses/sec"] / (gets["Hits/sec"] + gets["Misses/sec"])
        metrics = {
            "sets": float(sets["Count"]),
            "gets": float(gets["Count"]),
            "operations_per_s": float(both["Ops/sec"]),
            "requests_per_s": float(both["Ops/sec"]),
            "throughput_mbit_per_s": both["KB/sec"] * 1024 * 8 / 1e6,
            "hits": 1 - missed,
        }
        for prefix, kind in _KINDS.items():
            for name, ms in _latencies(report[kind]).items():
                metrics[f"{prefix}latency_ns_{name}"] = float(round(ms * 1e6))
        # The file has 0 as the mean of all operations.
        sums = (metrics[f"{one}s"] * metrics[f"{one}_latency_ns_mean"] for one in ("set", "get"))
        metrics["latency_ns_mean"] = sum(sums) / total
        # Its process mostly sleeps for another second after the last answer.
        lasted = report["Runtime"]["Total duration"] / 1e3
        check_duration(lasted, seconds)
        metrics |= own_cpu(printed, threads, lasted)
        errors = int(both.get("Connection Errors", 0))
    flags = flag(f"{errors} connection errors", errors)
    flags += flag(f"{missed:.0%} of the GETs found nothing", missed >= 0.005)
    return Measurement({}, metrics, total + stored, flags)


def _latencies(kind: dict[str, Any]) -> dict[str, float]:
    printed = kind["Percentile Latencies"]
    quantiles = {name: printed[key] for name, key in _QUANTILES.items() if key in printed}
    ordered = {"min": kind["Min Latency"], **quantiles, "max": kind["Max Latency"]}
    # A step of its histogram may be off by some per cent, and by 16 us.
    wrong = any(a > b * 1.05 + 0.016 for a, b in pairwise(ordered.values()))
    if wrong or not min(ordered.values()) > 0:
        raise ValueError(f"the latencies are not in order: {ordered} ms")
    return {"mean": kind["Average Latency"], **ordered}
