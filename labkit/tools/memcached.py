"""memcached, and a load on it that times SETs and GETs apart, in its text or binary protocol.

The load is a closed loop like the paper's memtier_benchmark. Debian's memaslap pins its threads to
CPUs of its choice and sorts latencies into powers of two, and memslap reports only the time of a
whole run. In a closed loop the latency is as long as all connections' operations take to get
through the slower end; near a ``tool_cpu`` of 1 that end is the load.
"""

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, prober, python
from labkit.tools.parsing import document, latency, reading

TOOL, PORT = "the load on memcached", 11211
#: Bytes of a value; seconds of load before the measured time.
SIZE, WARMUP = 32, 0.5
#: About so many operations are samples, spread evenly; metrics are those of all.
KEPT = 5_000
_COMMAND = f"memcached -u nobody -l 0.0.0.0 -p {PORT} -U 0 -c 4096 -t 4 -m 256"
#: It speaks either protocol, over TCP, with 4 threads and 256 MB.
SERVER = Workload(tuple(_COMMAND.split()), PORT, "tcp", "apps")

probe = prober(r"memcached (\S+)", "memcached", "-V")


def load(
    address: str,
    *,
    protocol: str,
    seconds: float,
    threads: int = 4,
    connections: int = 50,
    sets: int = 1,
    gets: int = 10,
    keys: int = 10_000,
) -> Client:
    """Return the load: each connection sends again as soon as it is answered.

    It has as many connections as so many threads of memtier_benchmark, in one process, and speaks
    the "text" or "binary" protocol. All keys are stored first, so that every GET finds a value.
    """
    options = {"address": address, "port": PORT, "seconds": seconds, "warmup": WARMUP}
    options |= {"connections": threads * connections, "size": SIZE, "keys": keys}
    argv = python("memcached_load", "main", **options, protocol=protocol, sets=sets, gets=gets)
    expected = WARMUP + seconds + keys * 100e-6 + 3.0
    return Client(argv, address, expected, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read every operation; ``tool_cpu`` is the share of a CPU that the load took."""
    with reading(TOOL, stdout):
        found, samples = document(stdout)
        start, took, is_set = samples.values()
        sets, seconds = int(is_set.sum()), int((start + took).max()) / 1e9
        gets, rate = len(start) - sets, len(start) / seconds
        carried = sets * found["set_b"] + gets * found["get_b"]
        metrics = {"operations_per_s": rate, "requests_per_s": rate, "sets": sets, "gets": gets}
        # A GET without a value ends the load.
        metrics |= {"throughput_mbit_per_s": carried * 8e-6 / seconds, "hits": 1.0}
        metrics |= {"tool_cpu": float(found["tool_cpu"])} | latency(took)
        metrics |= latency(took[is_set == 1], "set_latency_ns")
        metrics |= latency(took[is_set == 0], "get_latency_ns")
        messages = len(start) + int(found["others"])
    every = max(1, len(start) // KEPT)
    return Measurement({name: one[::every] for name, one in samples.items()}, metrics, messages)
