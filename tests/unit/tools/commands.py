"""The command lines of every tool, for the comparison with ``commands.json``."""

from __future__ import annotations

from recordings import ADDRESS

from labkit.placement import Workload
from labkit.tools import (
    datagrams,
    file_operations,
    ping_pong,
    repeat,
    services,
    thrift_rpc,
    with_tools,
)
from labkit.tools.base import Client

PAPERS = {"memcached": "memtier_benchmark", "nginx": "wrk2"}


def commands() -> dict[str, str]:
    """Return one client or server of each kind by its name, a line each."""
    found: dict[str, Client | Workload] = {
        "thrift server": thrift_rpc.server(),
        "thrift busy": thrift_rpc.busy(0.2),
        "thrift pause": thrift_rpc.pause(1.5, ADDRESS),
        "thrift closed": thrift_rpc.client(ADDRESS, calls=100, call="send", size=9, pause_us=5),
        "thrift open": thrift_rpc.client(ADDRESS, calls=100, loop="open", rate=2000),
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
    for name, tool in ping_pong.TOOLS.items():
        for wait in tool.WAITS:
            found[f"{name} udp {wait} server"] = tool.server(wait)
            client = tool.ping_pong(ADDRESS, messages=1000, size=64, wait=wait)
            found[f"{name} udp {wait}"] = client
    for tools in ({}, PAPERS):
        for name, application in with_tools(tools).items():
            found[f"{name} server"] = application.server
            found[f"{name} {application.tool}"] = application.client(ADDRESS, seconds=7)
    delayed = with_tools({})["postgresql 300/s"].client(ADDRESS, seconds=7, commit_delay_us=13000)
    return {name: _shown(one) for name, one in {**found, "postgresql delayed": delayed}.items()}


def _shown(one: Client | Workload) -> str:
    """Return what is compared; a program of labkit is one word."""
    described = {name: value for name, value in vars(one).items() if name != "parse"}
    described["argv"] = ["(program)" if "\nimport " in word else word for word in one.argv]
    if isinstance(one, Client):
        described["seconds"] = round(one.seconds, 6)
    return str(described)
