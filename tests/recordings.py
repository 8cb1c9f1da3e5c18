"""Recorded output of every tool, with the parser of each, and the command lines of every tool."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
from processes import wait_for

from labkit.placement import Workload
from labkit.tools import (
    datagrams,
    file_operations,
    iperf3,
    memcached,
    nginx,
    pgbench,
    repeat,
    services,
    sockperf,
    thrift_rpc,
    with_tools,
)
from labkit.tools.base import Client, Measurement
from labkit.tools.ping_pong import TOOLS, sfnt_pingpong

CAPTURED = Path(__file__).with_name("captured")
ADDRESS = "198.18.0.3"


def read(name):
    return (CAPTURED / name).read_text() if name else ""


class Recording(NamedTuple):
    parse: Callable[..., Measurement]
    output: str
    log: str = ""

    def texts(self):
        return read(self.output), read(self.log)

    def measurement(self):
        return self.parse(*self.texts())


H2LOAD = partial(nginx.parse_h2load, size=1024)
WHOLE = {"seconds": math.inf, "connections": 0}
ONCE = nginx.h2load(ADDRESS, file="1m", seconds=1, rate=100, connections=10)
PARSERS: dict[str, Callable[..., Measurement]] = {
    "bonnie": services.parse_bonnie,
    "datagrams": partial(datagrams.parse, rate=2000),
    "file_operations": file_operations.parse,
    "h2load": partial(H2LOAD, rate=200, connections=10, seconds=1.0, warmup=0.5),
    "h2load, fast": partial(H2LOAD, rate=10_000, seconds=0.2, connections=100, warmup=0.1),
    "h2load, once": ONCE.parse,
    "h2load, cases": partial(H2LOAD, rate=200, seconds=9.0, connections=200, warmup=1.0),
    "iperf3 tcp": iperf3.parse,
    "iperf3 udp": iperf3.parse,
    "linpack": services.parse_linpack,
    "memcached": memcached.parse,
    "memtier": partial(memcached.parse_memtier, stored=7, seconds=math.inf),
    "netperf": partial(services.parse_netperf, seconds=1),
    "pgbench": partial(pgbench.parse, rate=100, **WHOLE, warmup=0),
    "pgbench, fast": partial(pgbench.parse, rate=20_000, **WHOLE, warmup=0.5),
    "repeat": partial(repeat.parse, services.parse_linpack),
    "sfnt_pingpong": partial(sfnt_pingpong.parse, size=64),
    "sockperf": sockperf.parse,
    "stream": services.parse_stream,
    "thrift_rpc": thrift_rpc.parse,
    "wrk2": partial(nginx.parse_wrk2, rate=3000, seconds=5),
    "wrk2, short": partial(nginx.parse_wrk2, rate=3000, seconds=3),
    "wrk2, cases": partial(nginx.parse_wrk2, rate=2000, seconds=10),
    "wrk2, terabytes": partial(nginx.parse_wrk2, rate=10_000, seconds=110),
}
#: The name of a parser, and outputs that it reads, each with its log if there is one.
_FILES = """
bonnie: bonnie.txt, bonnie-short.txt
datagrams: sockperf-throughput.txt, sockperf-throughput-short.txt
file_operations: file-operations-open.json, file-operations-write.json
file_operations: file-operations-first-write-de.json
h2load: h2load.txt h2load.log
h2load, fast: h2load-rate-not-reached.txt h2load-rate-not-reached.log
h2load, once: h2load-1m-run.json, h2load-404-run.json
iperf3 tcp: iperf3-tcp.json, iperf3-udp-lossy.json, cases/iperf3-nan-in-interval/out.json
iperf3 udp: iperf3-udp.json
linpack: linpack.txt
memcached: memcached-text.json, memcached-binary.json
memtier: memtier-memcache_text.txt memtier-memcache_text.json
memtier: memtier-memcache_binary.txt memtier-memcache_binary.json
netperf: netperf.txt, netperf-de.txt
pgbench: pgbench.txt pgbench.log
pgbench, fast: pgbench-rate-not-reached.txt pgbench-rate-not-reached.log
repeat: repeat-linpack.json
sfnt_pingpong: sfnt-udp.txt sfnt-udp-64.dat, sfnt-udp--rtt.txt sfnt-udp--rtt-64.dat
sfnt_pingpong: sfnt-udp--spin.txt sfnt-udp--spin-64.dat
sockperf: sockperf-block.txt sockperf-block.log, sockperf-spin.txt sockperf-spin.log
sockperf: sockperf-tcp.txt sockperf-tcp.log
stream: stream.txt
thrift_rpc: thrift-closed.json, thrift-open-de.json
wrk2: wrk2-1k.txt, wrk2-1m-rate-not-reached.txt
wrk2, short: wrk2-404.txt
wrk2, terabytes: cases/wrk2-terabytes/out.txt
wrk2, cases: cases/wrk2-timeouts/out.txt
"""
_SPLIT = [
    (name, files.split())
    for name, _, outputs in (line.partition(": ") for line in _FILES.strip().splitlines())
    for files in outputs.split(", ")
]
#: Every recording that can be read, by its output; and the first of each parser, by its name.
ALL = {files[0]: Recording(PARSERS[name], *files) for name, files in _SPLIT}
RECORDINGS = {
    name: Recording(PARSERS[name], *files) for name, files in reversed(_SPLIT) if "," not in name
}


def shown(recording):
    """Return what is read of a recording, in a line."""
    found = recording.measurement()
    samples = {
        name: [len(one), *map(int, [one[0], one[-1], one.min(), one.max(), one.sum()])]
        for name, one in found.samples.items()
    }
    metrics = {name: float(f"{value:.12g}") for name, value in sorted(found.metrics.items())}
    return str((metrics, samples, found.messages, found.flags))


def as_run(stdout, files, seconds=1.0, cpu_s=0.0):
    """Return what labkit's program prints of a tool that was run once, on one CPU."""
    found = {"stdout": stdout, "files": files, "cpu_ns": cpu_s * 1e9}
    found |= {"start_ns": 5, "end_ns": 5 + seconds * 1e9}
    return json.dumps({"cpus": 1, "runs": [found]})


def ran(argv, python=sys.executable, **changes):
    """Run the command of one of labkit's own programs, some of whose options are others."""
    options = json.dumps(json.loads(argv[4]) | changes)
    command = [python, *argv[1:4], options, *argv[5:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@contextmanager
def serving(argv, port):
    """Run a server on loopback; one of labkit's own is told the port."""
    changed = [part.replace('"port": 9090', f'"port": {port}') for part in argv]
    process = psutil.Popen(changed)
    try:
        wait_for(process.net_connections)
        yield
    finally:
        process.kill()
        process.wait()


PAPERS = {"memcached": "memtier_benchmark", "nginx": "wrk2"}


def commands():
    """Return one client or server of each kind by its name, a line each."""
    found: dict[str, Client | Workload] = {
        "thrift server": thrift_rpc.server(),
        "thrift busy": thrift_rpc.busy(0.2),
        "thrift pause": thrift_rpc.pause(1.5, ADDRESS),
        "thrift closed": thrift_rpc.client(ADDRESS, calls=100, call="send", size=9, pause_us=5),
        "thrift open": thrift_rpc.client(ADDRESS, calls=100, rate=2000),
        "write": file_operations.write(size_b=4096, count=100, flush="fsync"),
        "open": file_operations.open_close(count=7, path="/data/x"),
        "first write": file_operations.first_write(folder="/data/7", size_b=5000, files=3),
        "traverse cold": file_operations.traverse("/data/tree", files=9),
        "traverse warm": file_operations.traverse("/data/tree", files=9, count=3),
        "linpack": services.linpack(2000, alignment=64, threads=2),
        "stream": services.stream(1000, times=10),
        "bonnie": services.bonnie(1280, chunk=131072),
        "netserver": services.netserver(port=12866),
        "netperf": services.netperf(ADDRESS, seconds=2, port=12866),
        "repeated": repeat.repeated(services.linpack(9), seconds=3, grace=2.5, at_most=4),
        "datagrams": datagrams.send(ADDRESS, rate=332446, size=1454, seconds=3, port=7001),
        "sink": datagrams.sink(7002),
        "watch": datagrams.watch(ADDRESS, 4242, 3, 1.0),
        "hop": datagrams.forwarder(7001, "198.18.0.5", 7002),
    }
    for name, tool in TOOLS.items():
        for wait in tool.WAITS:
            found[f"{name} udp {wait} server"] = tool.server(wait)
            client = tool.ping_pong(ADDRESS, messages=1000, size=64, wait=wait)
            found[f"{name} udp {wait}"] = client
    for tools in ({}, PAPERS):
        for name, application in with_tools(tools).items():
            found[f"{name} server"] = application.server
            found[f"{name} {application.tool}"] = application.client(ADDRESS, seconds=7)
    delayed = with_tools({})["postgresql 300/s"].client(ADDRESS, seconds=7, commit_delay_us=13000)
    described = {}
    for name, one in {**found, "postgresql delayed": delayed}.items():
        fields = {key: value for key, value in vars(one).items() if key != "parse"}
        # A program of labkit is one word.
        fields["argv"] = ["(program)" if "\nimport " in word else word for word in one.argv]
        if isinstance(one, Client):
            fields["seconds"] = round(one.seconds, 6)
        described[name] = str(fields)
    return described
