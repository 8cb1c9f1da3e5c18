"""Recorded output of every tool, with the parser of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from labkit.hosts import LocalHost
from labkit.hosts.host import Result
from labkit.tools import (
    datagrams,
    file_operations,
    h2load,
    iperf3,
    memcached,
    memtier,
    pgbench,
    services,
    sfnt_pingpong,
    sockperf,
    thrift_rpc,
    wrk2,
)
from labkit.tools.base import Measurement

CAPTURED = Path(__file__).parents[2] / "captured"
ADDRESS = "198.18.0.3"


def read(name: str) -> str:
    return (CAPTURED / name).read_text() if name else ""


class Recording(NamedTuple):
    parse: Callable[[str, str], Measurement]
    output: str
    log: str = ""

    def texts(self) -> tuple[str, str]:
        return read(self.output), read(self.log)

    def measurement(self) -> Measurement:
        return self.parse(*self.texts())


HTTP = partial(h2load.parse, rate=200, seconds=1.0, connections=10, warmup=0.5)
RECORDINGS = {
    "bonnie": Recording(services.parse_bonnie, "bonnie.txt"),
    "datagrams": Recording(partial(datagrams.parse, rate=2000), "sockperf-throughput.txt"),
    "file_operations": Recording(file_operations.parse, "file-operations-open.txt"),
    "h2load": Recording(HTTP, "h2load.txt", "h2load.log"),
    "iperf3 tcp": Recording(iperf3.parse, "iperf3-tcp.json"),
    "iperf3 udp": Recording(partial(iperf3.parse, mbit_per_s=100), "iperf3-udp.json"),
    "linpack": Recording(services.parse_linpack, "linpack.txt"),
    "memcached": Recording(memcached.parse, "memcached-text.txt"),
    "memtier": Recording(memtier.parse, "memtier-memcache_text.txt", "memtier-memcache_text.json"),
    "netperf": Recording(partial(services.parse_netperf, seconds=1), "netperf.txt"),
    "pgbench": Recording(partial(pgbench.parse, rate=100), "pgbench.txt", "pgbench.log"),
    "sfnt_pingpong": Recording(
        partial(sfnt_pingpong.parse, size=64), "sfnt-udp.txt", "sfnt-udp-64.dat"
    ),
    "sockperf": Recording(sockperf.parse, "sockperf-block.txt", "sockperf-block.log"),
    "stream": Recording(services.parse_stream, "stream.txt"),
    "thrift_rpc": Recording(thrift_rpc.parse, "thrift-closed.txt", "thrift-closed.log"),
    "wrk2": Recording(partial(wrk2.parse, rate=3000, seconds=5), "wrk2-1k.txt"),
}


class Prints(LocalHost):
    """A host on which every program prints the same, or (127) is not found."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__()
        self.text, self.status = text, status

    def run(self, *argv: str, **options: object) -> Result:
        return Result(argv, self.name, self.status, self.text, "", 0.0)
