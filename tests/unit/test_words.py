"""Columns and numbers in words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis import words
from labkit.units import COLUMNS, column

ROW = {
    "condition": "docker bridge",
    "to": "bare cgroup",
    "metric": "rtt_ns_median",
    "margin": 0.02,
    "verdict": "differs",
    "estimate": 1.436,
    "low": 1.41,
    "high": 1.46,
    "value": 6980.0,
    "baseline": 4860.0,
    "difference": 2120.0,
    "p_adjusted": 0.001,
    "n_blocks": 16,
    "blocks_needed": math.nan,
    "reason": "",
}


def test_columns_have_a_known_unit_direction_and_kind() -> None:
    assert {one.better for one in COLUMNS.values()} == {"lower", "higher", "neither"}
    assert {one.kind for one in COLUMNS.values()} == {"key", "metric", "share", "counter"}
    endings = {"_ns": "ns", "_us": "us", "_mbit_per_s": "Mbit/s", "_per_s": "1/s", "_b": "B"}
    for one in COLUMNS.values():
        name = f"_{one.name}"
        ending = next((unit for end, unit in endings.items() if name.endswith(end)), one.unit)
        assert one.unit == ending or one.unit in ("GB/s", "MB/s")
        assert one.text and (not one.share or one.unit == "1")


@pytest.mark.parametrize(
    ("name", "unit", "better"),
    [
        ("rtt_ns_p9999", "ns", "lower"),
        ("neighbour_gflops", "Gflop/s", "higher"),
        ("tool_client_cpu_user", "1", "neither"),
        ("loaded_latency_ns_p99", "ns", "lower"),
        ("hop03_socket_drops", "1", "lower"),
        ("cpu12_idle", "1", "neither"),
        ("latency_ns_std", "ns", "neither"),
        ("solve_ns_p99", "ns", "lower"),
        ("sysbench_cpu_events_per_s", "1/s", "higher"),
        ("quota_us", "us", "lower"),
        ("files", "1", "neither"),
    ],
)
def test_columns_are_known_by_their_parts(name: str, unit: str, better: str) -> None:
    found = column(name)
    assert (found.name, found.unit, found.better) == (name, unit, better)


@given(st.text(max_size=30))
def test_any_name_is_a_column(name: str) -> None:
    assert column(name).name == name


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (5930, "rtt_ns", "5.93 us"),
        (999.6, "rtt_ns", "1.00 us"),
        (0, "rtt_ns", "0 ns"),
        (3.2e9, "elapsed_ns", "3.20 s"),
        (26_410, "throughput_mbit_per_s", "26.4 Gbit/s"),
        (12_345.6, "messages_per_s", "12,300/s"),
        (0.1534, "loss", "15.3 %"),
        (37, "retransmits", "37"),
        (102_400, "size_b", "100 KiB"),
        (math.nan, "rtt_ns", ""),
    ],
)
def test_amounts_have_a_readable_unit(value: float, name: str, text: str) -> None:
    assert words.amount(value, name) == text


def test_differences_have_signs_and_intervals_one_unit() -> None:
    assert words.amount(2120, "rtt_ns", 950, 3290, signed=True) == "+2.12 us [+0.950, +3.29]"
    assert words.amount(-0.02, "loss", signed=True) == "-2.00 percentage points"
    assert words.percent(0.005) == "0.5 %" and words.percent(math.nan) == "unknown"
    assert words.ratio(1.45, 1.40, 1.49) == "1.45x [1.40, 1.49]"
    assert words.ratio(1.001, 0.98, 1.02) == "1.001x [0.980, 1.020]"
    assert words.ratio(1.2, 0.0, math.inf) == "1.20x [0, unbounded]"


@given(st.floats(1e-6, 1e12), st.sampled_from(["rtt_ns", "mbit_per_s", "size_b", "loss", "sent"]))
def test_amounts_keep_three_digits(value: float, name: str) -> None:
    text, _, unit = words.amount(value, name).partition(" ")
    factor, shown = words.scale(value, name)
    assert unit == shown
    assert float(text.replace(",", "")) / factor == pytest.approx(value, rel=0.0051)


def test_directions_follow_the_better_one() -> None:
    for name, over, under in [
        ("rtt_ns_p99", "slower", "faster"),
        ("requests_per_s", "faster", "slower"),
        ("context_switches", "more", "less"),
        ("server_cpu", "higher", "lower"),
    ]:
        assert (words.word(1.2, name), words.word(0.8, name)) == (over, under)


def test_levels_and_headings() -> None:
    assert words.level("placement", "docker host") == "docker host"
    assert words.level("case", "3a") == "in two containers"
    assert words.level("quota_us", 1000.0) == words.level("quota_us", "1000") == "quota 1000 us"
    assert words.level(["affinity", "steering"], ("split", "on")) == "split, steering on"
    assert words.level(["quota_us", "loop"], (0, "open")) == "no quota, open loop"
    sizes = ["size 0 B", "size 1500 B", "size 100 KiB", "size 64 MiB"]
    assert [words.level("size_b", size) for size in (0, 1500, 102400, 2**26)] == sizes
    assert words.heading("rtt_ns_median", "us") == "median round-trip time (us)"
    assert words.heading("n_blocks") == "blocks"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "docker bridge is slower than bare cgroup: "),
        ({"verdict": "differs within margin"}, "within the margin of 2 %"),
        ({"verdict": "equivalent"}, "docker bridge equals bare cgroup within 2 %"),
        ({"verdict": "cannot tell", "blocks_needed": 39.2}, "16 blocks (about 40 would tell)"),
        ({"verdict": "cannot tell"}, "cannot tell whether docker bridge differs"),
        ({"verdict": "cannot tell", "reason": "the load was"}, "16 blocks; the load was"),
    ],
)
def test_sentences_have_the_direction_and_every_number(
    change: dict[str, Any], expected: str
) -> None:
    text = words.sentence(ROW | change, "placement")
    assert expected in text
    for number in ("6.98 us", "4.86 us", "+2.12 us", "1.44x [1.41, 1.46]", "16 blocks"):
        assert number in text


def test_a_condition_that_was_not_measured_has_its_reason_instead() -> None:
    gap = dict.fromkeys(("estimate", "low", "high", "value", "baseline", "difference"), math.nan)
    row = ROW | gap | {"verdict": "not measured", "reason": "no aufs", "wait": "spin"}
    assert words.sentence(row, "placement", ["wait"]) == (
        "docker bridge (spin) was not measured: no aufs"
    )
    assert set(words.row(row)) == set(words.row(ROW))


def test_rows_mark_the_holm_correction() -> None:
    assert words.row(ROW)["verdict"] == "slower\u00a0•"
    assert words.row(ROW | {"p_adjusted": 0.2})["verdict"] == "slower"
