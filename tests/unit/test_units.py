"""The metrics' units and directions, and that all of the evidence have one."""

from __future__ import annotations

from labkit.campaign import evidence
from labkit.units import METRICS, heading, metric_of


def test_cpu_time_of_both_sides_has_a_unit() -> None:
    ticks = {"cpu0": [0] * 8, "cpu1": [0] * 8}
    later = {"cpu0": [10] * 8, "cpu1": [10] * 8}
    snapshots = ({"cpu": ticks}, {"cpu": later})
    found = evidence.cpu_sides(client=(*snapshots, "0"), server=(*snapshots, "1"))
    assert "client_to_server_cpu" in found
    assert set(found) <= set(METRICS)


def test_metrics_are_said_once_and_in_known_words() -> None:
    assert {one.better for one in METRICS.values()} == {"lower", "higher", "neither"}
    units = {"ns", "us", "s", "1", "1/s", "1/operation", "Mbit/s", "MB/s", "GB/s", "Gflop/s"}
    assert {one.unit for one in METRICS.values()} == units
    assert all(name.rpartition("_ns")[1] or one.unit != "ns" for name, one in METRICS.items())
    assert METRICS["lossless_per_s"].better == "higher"
    assert METRICS["hop_drops"].better == "lower"


def test_a_column_has_a_metric_and_a_statistic() -> None:
    for column, name, statistic, shown in (
        ("rtt_ns_p99", "rtt_ns", "p99", "ns"),
        ("latency_ns_median", "latency_ns", "median", "ns"),
        ("copy_mean_gb_per_s", "copy_mean_gb_per_s", "", "GB/s"),
        ("cpu_use", "cpu_use", "", "share"),
        ("end_ns_p99", "end_ns", "p99", "ns"),
        ("pressure_mean", "pressure_mean", "", "1"),
    ):
        metric, found = metric_of(column)
        assert (metric.name, found, metric.shown) == (name, statistic, shown)
    assert metric_of("end_ns")[0].better == "neither"
    own = [metric_of(name)[0] for name in ("solve_ns_p99", "sysbench_cpu_events_per_s", "files")]
    assert [(one.unit, one.better) for one in own] == [
        *[("ns", "lower"), ("1/s", "higher"), ("1", "neither")]
    ]


def test_a_rate_of_another_placement_has_the_direction_of_the_rate() -> None:
    for name in ("gflops", "mbit_per_s", "copy_gb_per_s", "block_input_mb_per_s", "seeks_per_s"):
        own, other = metric_of(name)[0], metric_of(f"neighbour_{name}")[0]
        assert own.better == other.better == "higher" and own.unit == other.unit
    # A counter of its own is not the metric that its name ends with.
    assert metric_of("group_cpu_use")[0].text.startswith("CPU time of the workload's control group")


def test_headings_are_words_with_units() -> None:
    for key, words in {
        "gflops": "speed of Linpack, Gflop/s",
        "link_gbit_per_s": "link, Gbit/s",
        "neighbour_quota_us": "neighbour quota, us",
        "steer_to": "steer to",
        "n_trials": "trials",
        "softirqs": "softirqs",
        "docker host": "docker host",
        "0.5": "0.5",
        7: "7",
    }.items():
        assert heading(key) == words
