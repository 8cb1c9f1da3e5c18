"""Whose host is asked for the evidence of what stands: one kernel, and any number of them."""

from __future__ import annotations

import os
import socket
from typing import Any

from labkit.campaign import evidence
from labkit.campaign import record as record_module
from labkit.hosts import LocalHost
from labkit.runtimes import Server
from labkit.tools.base import Measurement

GENERATOR, SUT, PEER = LocalHost("generator"), LocalHost("sut"), LocalHost("peer")


def server(host: LocalHost, pid: int, port: int = 20000) -> Server:
    return Server("198.18.0.3", port, pid, host, {}, "1", lambda argv: list(argv))


CHAIN = {
    "sink": server(GENERATOR, 10),
    "hop00": server(SUT, 11),
    "hop01": server(PEER, 12, 20001),
    "hop02": server(SUT, 13, 20002),
}


def asked(window: LocalHost, *, shared: bool) -> list[tuple[str, tuple[str, ...]]]:
    main = CHAIN["hop00"]
    found = record_module.kernels(CHAIN, main, window, shared=shared)
    return [(one.host.name, one.places) for one in found]


def test_under_one_kernel_the_window_s_host_tells_of_all() -> None:
    assert asked(GENERATOR, shared=True) == [
        ("generator", ("sink=10", "11", "hop01=12", "hop02=13"))
    ]


def test_each_kernel_tells_of_its_own() -> None:
    assert asked(GENERATOR, shared=False) == [
        ("generator", ("sink=10",)),
        ("sut", ("11", "hop02=13")),
        ("peer", ("hop01=12",)),
    ]


def test_a_window_within_a_placement_is_its_host_s() -> None:
    assert [name for name, _ in asked(SUT, shared=False)] == ["sut", "generator", "peer"]


def test_a_window_where_nothing_stands_is_asked_all_the_same() -> None:
    alone = {"hop00": CHAIN["hop00"]}
    found = record_module.kernels(alone, alone["hop00"], GENERATOR, shared=False)
    assert [(one.host.name, one.places) for one in found] == [("generator", ()), ("sut", ("11",))]


def taken(one: record_module.Kernel, text: str) -> dict[str, Any]:
    return record_module.snapshot(text, one)


def test_drops_are_counted_on_every_host() -> None:
    """Three hosts with a socket each, of which one drops what it gets."""
    mine = os.getpid()
    chain = {
        "sink": server(GENERATOR, mine),
        "hop00": server(SUT, mine),
        "hop01": server(PEER, mine),
    }
    kernels = record_module.kernels(chain, chain["hop00"], GENERATOR, shared=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        taker.bind(("127.0.0.1", 0))
        before = [taken(one, evidence.BEFORE) for one in kernels]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, taker.getsockname())
        after = [taken(one, evidence.AFTER) for one in kernels]
    pairs = tuple(zip(before, after, strict=True))
    ends = record_module.Snapshots(tuple(zip(kernels, pairs, strict=True)), "0", "0")
    assert ends.here is pairs[0] and ends.server is pairs[1]
    record: dict[str, Any] = {"mechanisms": {}, "flags": []}
    record_module.account(record, ends, [Measurement({}, messages=200)], {})
    found = record["mechanisms"]
    # Each is counted where it runs; none of them is missing, and none is counted twice.
    assert 150 < found["socket_drops"] < 200
    assert found["sink_socket_drops"] == found["hop01_socket_drops"] == found["socket_drops"]
    assert set(record["evidence"]) == {"before", "after", "generator", "peer"}
