"""The metrics' units and directions, and that all of the evidence have one."""

from __future__ import annotations

from labkit.campaign import evidence
from labkit.units import METRICS


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
