"""Columns and numbers in words."""

import math

from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis import words
from labkit.units import COLUMNS, column

ROW = {"condition": "docker bridge", "to": "bare cgroup", "metric": "rtt_ns_median", "margin": 0.02}
ROW |= {"verdict": "differs", "estimate": 1.436, "low": 1.41, "high": 1.46, "p_adjusted": 0.001}
ROW |= {"value": 6980.0, "baseline": 4860.0, "difference": 2120.0}
ROW |= {"n_blocks": 16, "blocks_needed": math.nan, "reason": ""}


def test_columns_have_a_known_unit_direction_and_kind():
    assert {one.better for one in COLUMNS.values()} == {"lower", "higher", "neither"}
    assert {one.kind for one in COLUMNS.values()} == {"key", "metric", "share", "counter"}
    endings = {"_ns": "ns", "_us": "us", "_mbit_per_s": "Mbit/s", "_per_s": "1/s", "_b": "B"}
    for one in COLUMNS.values():
        units = [unit for end, unit in endings.items() if f"_{one.name}".endswith(end)]
        assert one.unit in [*(units[:1] or [one.unit]), "GB/s", "MB/s"]
        assert one.text and (one.kind != "share" or one.unit == "1")


@given(st.text(max_size=30))
def test_any_name_is_a_column_and_known_by_its_parts(name):
    assert column(name).name == name
    better = {"rtt_ns_p9999": "lower", "hop03_socket_drops": "lower", "latency_ns_std": "neither"}
    better |= {"sysbench_cpu_events_per_s": "higher", "files": "neither"}
    assert {name: column(name).better for name in better} == better


def test_amounts_ratios_directions_levels_and_headings():
    assert words.amount(999.6, "rtt_ns") == "1.00 us"
    assert words.amount(0.1534, "loss") == "15.3 %"
    assert words.amount(102_400, "size_b") == "100 KiB"
    assert words.amount(math.nan, "rtt_ns") == ""
    assert words.amount(2120, "rtt_ns", 950, 3290, signed=True) == "+2.12 us [+0.950, +3.29]"
    assert words.amount(-0.02, "loss", signed=True) == "-2.00 percentage points"
    assert words.ratio(1.001, 0.98, 1.02) == "1.001x [0.980, 1.020]"
    assert words.ratio(1.2, 0.0, math.inf) == "1.20x [0, unbounded]"
    assert words.word(1.2, "rtt_ns_p99") == "slower"
    assert words.word(0.8, "requests_per_s") == "slower"
    assert words.word(1.2, "context_switches") == "more"
    assert words.word(0.8, "server_cpu") == "lower"
    assert words.level(["affinity", "steering"], ("split", "on")) == "split, steering on"
    assert words.level(["quota_us", "loop"], (0, "open")) == "no quota, open loop"
    assert words.level("size_b", 2**26) == "size 64 MiB"
    assert words.heading("rtt_ns_median", "us") == "median round-trip time (us)"
    assert words.row(ROW)["verdict"] == "slower\u00a0•"


def test_sentences_have_the_direction_and_every_number():
    numbers = ["6.98 us", "4.86 us", "+2.12 us", "1.44x, 95 % interval [1.41, 1.46], 16 blocks"]
    for change, expected in [
        ({}, "docker bridge is slower than bare cgroup: "),
        ({"verdict": "differs within margin"}, "within the margin of 2 %"),
        ({"verdict": "equivalent"}, "docker bridge equals bare cgroup within 2 %"),
        ({"verdict": "cannot tell", "blocks_needed": 39.2}, "16 blocks (about 40 would tell)"),
    ]:
        text = words.sentence(ROW | change, "placement")
        assert all(part in text for part in (expected, *numbers))
    missing = {"verdict": "not measured", "reason": "no aufs", "wait": "spin"}
    text = words.sentence(ROW | missing, "placement", ["wait"])
    assert text == "docker bridge (spin) was not measured: no aufs"
