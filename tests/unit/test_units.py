"""The metrics' units and directions, and that what adapters and evidence give is among them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from labkit.campaign import evidence
from labkit.tools import datagrams, h2load, iperf3, memcached, memtier, pgbench, wrk2
from labkit.units import METRICS

CAPTURED = Path(__file__).parents[1] / "captured"
#: Adapters of the network studies, each with a recording of its output and of its log.
ADAPTERS = {
    "iperf3, TCP": (iperf3.parse, "iperf3-tcp.json", ""),
    "iperf3, UDP": (partial(iperf3.parse, mbit_per_s=100), "iperf3-udp.json", ""),
    "memcached": (memcached.parse, "memcached-text.txt", "memcached-text.log"),
    "memtier": (memtier.parse, "memtier-memcache_text.txt", "memtier-memcache_text.json"),
    "h2load": (
        partial(h2load.parse, rate=200, seconds=1.0, connections=10, warmup=0.5),
        "h2load.txt",
        "h2load.log",
    ),
    "wrk2": (partial(wrk2.parse, rate=3000, seconds=5), "wrk2-1k.txt", ""),
    "pgbench": (partial(pgbench.parse, rate=100), "pgbench.txt", "pgbench.log"),
    "datagrams": (partial(datagrams.parse, rate=2000), "sockperf-throughput.txt", ""),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_an_adapter_gives_has_a_unit(name: str) -> None:
    parse, printed, log = ADAPTERS[name]
    text, rows = ((CAPTURED / one).read_text() if one else "" for one in (printed, log))
    found = parse(text, rows)
    times = {"start_ns", "end_ns", "set"}  # columns that say when and which, and measure nothing
    assert {*found.metrics, *found.samples} - times <= set(METRICS)


def test_cpu_time_of_both_sides_has_a_unit() -> None:
    ticks = {"cpu0": [0] * 8, "cpu1": [0] * 8}
    later = {"cpu0": [10] * 8, "cpu1": [10] * 8}
    snapshots = ({"cpu": ticks}, {"cpu": later})
    found = evidence.cpu_sides(client=(*snapshots, "0"), server=(*snapshots, "1"))
    assert "client_to_server_cpu" in found
    assert set(found) <= set(METRICS)


def test_metrics_are_said_once_and_in_known_words() -> None:
    assert {one.better for one in METRICS.values()} == {"lower", "higher", "neither"}
    units = {"ns", "us", "s", "1", "1/s", "1/message", "Mbit/s"}
    assert {one.unit for one in METRICS.values()} == units
    assert all(name.rpartition("_ns")[1] or one.unit != "ns" for name, one in METRICS.items())
    assert METRICS["lossless_per_s"].better == "higher"
    assert METRICS["hop_drops"].better == "lower"
