"""Recorded output of every tool, with the parser of each."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    "file_operations": Recording(file_operations.parse, "file-operations-open.json"),
    "h2load": Recording(HTTP, "h2load.txt", "h2load.log"),
    "iperf3 tcp": Recording(iperf3.parse, "iperf3-tcp.json"),
    "iperf3 udp": Recording(partial(iperf3.parse, mbit_per_s=100), "iperf3-udp.json"),
    "linpack": Recording(services.parse_linpack, "linpack.txt"),
    "memcached": Recording(memcached.parse, "memcached-text.json"),
    "memtier": Recording(memtier.parse, "memtier-memcache_text.txt", "memtier-memcache_text.json"),
    "netperf": Recording(partial(services.parse_netperf, seconds=1), "netperf.txt"),
    "pgbench": Recording(partial(pgbench.parse, rate=100), "pgbench.txt", "pgbench.log"),
    "sfnt_pingpong": Recording(
        partial(sfnt_pingpong.parse, size=64), "sfnt-udp.txt", "sfnt-udp-64.dat"
    ),
    "sockperf": Recording(sockperf.parse, "sockperf-block.txt", "sockperf-block.log"),
    "stream": Recording(services.parse_stream, "stream.txt"),
    "thrift_rpc": Recording(thrift_rpc.parse, "thrift-closed.json"),
    "wrk2": Recording(partial(wrk2.parse, rate=3000, seconds=5), "wrk2-1k.txt"),
}


class Prints(LocalHost):
    """A host on which every program prints the same, or (127) is not found."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__()
        self.text, self.status = text, status

    def run(self, *argv: str, **options: object) -> Result:
        return Result(argv, self.name, self.status, self.text, "", 0.0)


def as_run(stdout: str, files: str, seconds: float = 1.0, cpu_s: float = 0.0) -> str:
    """Return what labkit's program prints of a tool that was run once, on one CPU."""
    ran = {"stdout": stdout, "files": files, "cpu_ns": cpu_s * 1e9}
    ran |= {"start_ns": 5, "end_ns": 5 + seconds * 1e9}
    return json.dumps({"cpus": 1, "first": "", "runs": [ran]})


def ran(
    argv: Sequence[str], python: str = sys.executable, **changes: object
) -> subprocess.CompletedProcess[str]:
    """Run the command of one of labkit's own programs, some of whose options are others."""
    options = json.dumps(json.loads(argv[4]) | changes)
    command = [python, *argv[1:4], options, *argv[5:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@contextmanager
def serving(argv: Sequence[str], port: int) -> Iterator[None]:
    """Run a server on loopback; one of labkit's own is told the port."""
    changed = [part.replace('"port": 9090', f'"port": {port}') for part in argv]
    with subprocess.Popen(changed) as process:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield
        process.kill()
