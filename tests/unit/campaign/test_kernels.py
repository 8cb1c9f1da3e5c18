"""The kernels that evidence is read from: one for all hosts, or one per host."""

from __future__ import annotations

import os
import re
import socket

from labkit.campaign import counters
from labkit.hosts import LocalHost
from labkit.runtimes import Server

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
    result = counters.kernels(CHAIN, main, window, shared=shared)
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
    result = counters.kernels(alone, alone["hop00"], GENERATOR, shared=False)
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
    chain_kernels = counters.kernels(chain, chain["hop00"], GENERATOR, shared=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        receiver.bind(("127.0.0.1", 0))
        before = [kernel.snapshot(counters.BEFORE) for kernel in chain_kernels]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, receiver.getsockname())
        after = [kernel.snapshot(counters.AFTER) for kernel in chain_kernels]
    snapshots = list(zip(chain_kernels, zip(before, after, strict=True), strict=True))
    counts, evidence, _ = counters.account(snapshots, messages=200, cpus=("0", "0"), seconds=0.0)
    # Each socket is counted once, on its host.
    assert 150 < counts["socket_drops"] < 200
    assert counts["sink_socket_drops"] == counts["hop01_socket_drops"] == counts["socket_drops"]
    assert set(evidence) == {"before", "after", "generator", "peer"}


def test_the_machine_that_was_allowed_the_longest_wake_up_counts() -> None:
    mine = os.getpid()
    ends = {"server": server(SUT, mine), "client": server(GENERATOR, mine)}
    both = counters.kernels(ends, ends["server"], GENERATOR, shared=False)
    assert [kernel.host.name for kernel in both] == ["generator", "sut"]
    # What held the idle states of the generator has ended.
    pairs = []
    for kernel, allowed in zip(both, (2_000_000_000, 0), strict=True):
        text = kernel.snapshot(counters.BEFORE)
        text = re.sub(r"(?s)@@ latency\n.*?(?=@@|\Z)", f"@@ latency\n {allowed}\n", text)
        assert counters.parse(text)["latency_request_us"] == allowed
        pairs.append((kernel, (text, text)))
    counts, _, _ = counters.account(pairs, messages=1, cpus=("0", "0"), seconds=0.0)
    assert counts["latency_request_us"] == 2_000_000_000
