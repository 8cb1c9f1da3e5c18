"""The kernels that evidence is read from: one for all hosts, or one per host."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import numpy as np

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


def kernels(window: LocalHost, *, shared: bool) -> list[tuple[str, tuple[str, ...]]]:
    main = CHAIN["hop00"]
    result = record_module.kernels(CHAIN, main, window, shared=shared)
    return [(kernel.host.name, kernel.processes) for kernel in result]


def test_a_shared_kernel_is_read_on_the_window_s_host() -> None:
    assert kernels(GENERATOR, shared=True) == [
        ("generator", ("sink=10", "11", "hop01=12", "hop02=13"))
    ]


def test_each_kernel_is_read_for_its_own_processes() -> None:
    assert kernels(GENERATOR, shared=False) == [
        ("generator", ("sink=10",)),
        ("sut", ("11", "hop02=13")),
        ("peer", ("hop01=12",)),
    ]


def test_the_host_of_the_window_is_first() -> None:
    assert [name for name, _ in kernels(SUT, shared=False)] == ["sut", "generator", "peer"]


def test_a_window_s_host_without_placements_is_read_too() -> None:
    alone = {"hop00": CHAIN["hop00"]}
    result = record_module.kernels(alone, alone["hop00"], GENERATOR, shared=False)
    assert [(kernel.host.name, kernel.processes) for kernel in result] == [
        ("generator", ()),
        ("sut", ("11",)),
    ]


def test_drops_are_counted_on_every_host() -> None:
    """The same socket is counted as that of three hosts."""
    mine = os.getpid()
    chain = {
        "sink": server(GENERATOR, mine),
        "hop00": server(SUT, mine),
        "hop01": server(PEER, mine),
    }
    chain_kernels = record_module.kernels(chain, chain["hop00"], GENERATOR, shared=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        receiver.bind(("127.0.0.1", 0))
        before = [record_module.snapshot(evidence.BEFORE, kernel) for kernel in chain_kernels]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, receiver.getsockname())
        after = [record_module.snapshot(evidence.AFTER, kernel) for kernel in chain_kernels]
    snapshots = list(zip(chain_kernels, zip(before, after, strict=True), strict=True))
    record: dict[str, Any] = {"mechanisms": {}, "flags": []}
    paused = np.arange(1000) * 1_000_000 + np.where(np.arange(1000) < 400, 0, 1_500_000_000)
    measurements = [Measurement({"start_ns": paused}, messages=200)]
    record_module.account(record, snapshots, ("0", "0"), measurements, [], 0.0)
    assert [flag for flag in record["flags"] if flag.startswith("pause of 1.50 s, 0.40 s after")]
    counts = record["mechanisms"]
    # Each socket is counted once, on its host.
    assert 150 < counts["socket_drops"] < 200
    assert counts["sink_socket_drops"] == counts["hop01_socket_drops"] == counts["socket_drops"]
    assert set(record["evidence"]) == {"before", "after", "generator", "peer"}


def test_the_machine_that_was_allowed_the_longest_wake_up_counts() -> None:
    mine = os.getpid()
    ends = {"server": server(SUT, mine), "client": server(GENERATOR, mine)}
    both = record_module.kernels(ends, ends["server"], GENERATOR, shared=False)
    assert [kernel.host.name for kernel in both] == ["generator", "sut"]
    # What held the idle states of the generator has ended.
    pairs = []
    for kernel, allowed in zip(both, (2_000_000_000, 0), strict=True):
        text = record_module.snapshot(evidence.BEFORE, kernel)
        text = re.sub(r"(?s)@@ latency\n.*?(?=@@|\Z)", f"@@ latency\n {allowed}\n", text)
        assert evidence.parse(text)["latency_request_us"] == allowed
        pairs.append((kernel, (text, text)))
    record: dict[str, Any] = {"mechanisms": {}, "flags": []}
    record_module.account(record, pairs, ("0", "0"), [Measurement({}, messages=1)], [], 0.0)
    assert record["mechanisms"]["latency_request_us"] == 2_000_000_000
