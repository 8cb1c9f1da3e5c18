"""Values in scaled units, and comparisons in words."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis.compare import compare
from labkit.answers import Answer, percent, ratio_text, scaled

SIZES = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "%": 0.01,
    "percentage points": 0.01,
    "bit/s": 1.0,
    "kbit/s": 1e3,
    "Mbit/s": 1e6,
    "Gbit/s": 1e9,
    "": 1.0,
    "share": 1.0,
    "1": 1.0,
    "B": 1.0,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "GiB": 1024.0**3,
    "1/s": 1.0,
    "1/operation": 1.0,
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "/s": 1.0,
    "/operation": 1.0,
    "Gflop/s": 1.0,
}
STORED = ("ns", "us", "s", "1", "share", "1/s", "1/operation", "Mbit/s", "B", "MB/s", "Gflop/s")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3_243_923, "ns", "3.24 ms"),
        (17_300, "ns", "17.3 us"),
        (999.6, "ns", "1.00 us"),
        (999.4, "ns", "999 ns"),
        (7, "ns", "7 ns"),
        (0.4, "ns", "0.400 ns"),
        (86_400.0, "s", "86,400 s"),
        (0.25, "s", "250 ms"),
        (1.2e9, "bit/s", "1.20 Gbit/s"),
        (9412.3, "Mbit/s", "9.41 Gbit/s"),
        (0.5, "Mbit/s", "500 kbit/s"),
        (12_345.6, "1/s", "12,300/s"),
        (3.2, "1/operation", "3.20/operation"),
        (1024, "B", "1.00 KiB"),
        (100, "B", "100 B"),
        (2.5 * 1024**3, "B", "2.50 GiB"),
        (11.2, "GB/s", "11.2 GB/s"),
        (0.1534, "share", "15.3 %"),
        (12.5, "%", "12.5 %"),
        (5, "1", "5"),
        (0.0, "ns", "0 ns"),
        (-4_900, "ns", "-4.90 us"),
        (1e-9, "1", "1e-09"),
        (math.nan, "ns", "unknown"),
        (-math.inf, "ns", "unbounded"),
    ],
)
def test_values_have_three_digits_and_a_readable_unit(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4_900, "ns", "+4.90 us"),
        (-4_900, "ns", "-4.90 us"),
        (0.0, "ns", "0 ns"),
        (0.031, "share", "+3.10 percentage points"),
    ],
)
def test_differences_have_a_sign(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit, signed=True) == text


@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**15), 10**15),
    st.sampled_from(STORED),
    st.booleans(),
)
def test_any_finite_value_can_be_read_back(value: float, unit: str, signed: bool) -> None:
    text = scaled(value, unit, signed=signed)
    number, _, shown = text.partition(" ")
    if "/" in number:
        number, _, per = number.partition("/")
        shown = f"/{per}"
    # As fractions of the stored unit, so that no step overflows.
    back = float(number.replace(",", "")) * (SIZES[shown] / SIZES[unit])
    if math.isfinite(back):
        assert back == pytest.approx(float(value), rel=0.005, abs=5e-324)
    assert len(number.strip("+-").partition("e")[0].replace(".", "").lstrip("0,")) <= 20


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_value_is_shown_in_the_largest_unit_that_it_reaches(value: float) -> None:
    number, _, unit = scaled(value, "s").partition(" ")
    assert unit == "ns" or float(number.replace(",", "")) >= 1
    assert unit == "s" or float(number.replace(",", "")) < 1000


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.4, 1.25, 1.56), "1.40x [1.25, 1.56]"),
        ((1.005, 1.002, 1.008), "1.005x [1.002, 1.008]"),
        ((0.012, 0.01, 0.0156), "0.0120x [0.0100, 0.0156]"),
        ((2.3,), "2.30x"),
        ((1.1, 0.0, math.inf), "1.10x [0, unbounded]"),
        ((1.001, 1e-21, 1e21), "1.001x [0, unbounded]"),
        ((5e6, 4e6, 6e6), "5,000,000x [4,000,000, 6,000,000]"),
        ((math.nan, 1.0, 2.0), ""),
    ],
)
def test_ratios_have_their_interval(numbers: tuple[float, ...], text: str) -> None:
    assert ratio_text(*numbers) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.02, "2 %"),
        (0.005, "0.5 %"),
        (0.14, "14 %"),
        (0.997, "99.7 %"),
        (1.7, "170 %"),
        (21.31, "2,130 %"),
    ],
)
def test_per_cent_without_needless_digits(share: float, text: str) -> None:
    assert percent(share) == text


def answer(**changed: Any) -> Answer:
    fields: dict[str, Any] = {
        "condition": "docker bridge",
        "baseline": "docker host",
        "metric": "rtt_ns",
        "statistic": "median",
        "unit": "ns",
        "better": "lower",
        "value": 17_300.0,
        "base": 12_400.0,
        "ratio": 1.4,
        "low": 1.25,
        "high": 1.56,
        "n_blocks": 5,
        "verdict": "different",
        "needed": 20,
    }
    return Answer(**(fields | changed))


RATE = {"metric": "throughput_mbit_per_s", "unit": "Mbit/s", "better": "higher", "statistic": ""}
USE = {"metric": "cpu_use", "unit": "share", "better": "neither", "statistic": ""}
CALLS = {"metric": "slow_calls", "unit": "1", "better": "lower", "statistic": ""}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "slower"),
        ({"ratio": 0.7}, "faster"),
        ({**RATE, "ratio": 0.7}, "slower"),
        ({**RATE, "ratio": 1.3}, "faster"),
        ({**USE, "ratio": 1.3}, "more"),
        ({**CALLS, "ratio": 0.7}, "less"),
        ({"verdict": "equivalent"}, "same within 2 %"),
        ({"verdict": "different within margin", "margin": 0.05}, "same within 5 %"),
        ({"verdict": "undecided"}, "cannot tell yet"),
    ],
)
def test_words_have_a_direction(changed: dict[str, Any], word: str) -> None:
    assert answer(**changed).word == word


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {},
            "docker bridge is slower than docker host: median round-trip time 17.3 us, +4.90 us, "
            "1.40x [1.25, 1.56]",
        ),
        (
            {**RATE, "value": 800.0, "base": 1200.0, "ratio": 2 / 3, "low": 0.6, "high": 0.7},
            "docker bridge is slower than docker host: throughput (as received) 800 Mbit/s, "
            "-400 Mbit/s, 0.667x [0.600, 0.700]",
        ),
        (
            {"verdict": "equivalent", "statistic": "p999", "low": 0.99, "high": 1.01},
            "docker bridge is the same as docker host within 2 %: p99.9 round-trip time 17.3 us, "
            "+4.90 us, 1.40x [0.990, 1.01]",
        ),
        (
            {"verdict": "undecided", "ratio": 1.02, "low": 0.9, "high": 1.14, "value": 12_648.0},
            "docker bridge against docker host: cannot tell yet: from 10 % faster to 14 % "
            "slower; about 20 blocks would decide; median round-trip time 12.6 us, +248 ns, "
            "1.02x [0.900, 1.14]",
        ),
        (
            {"verdict": "undecided", "ratio": 1.3, "low": 0.9, "high": 2.1, "needed": None},
            "docker bridge against docker host: cannot tell yet: from 10 % faster to 2.10x "
            "(slower); too noisy for a number of blocks that can be planned; median round-trip "
            "time 17.3 us, +4.90 us, 1.30x [0.900, 2.10]",
        ),
        (
            {"verdict": "undecided", "ratio": 1.3, "low": 1.0, "high": 2e6, "needed": None},
            "docker bridge against docker host: cannot tell yet: from no difference to any "
            "factor slower; too noisy for a number of blocks that can be planned; median "
            "round-trip time 17.3 us, +4.90 us, 1.30x [1.00, unbounded]",
        ),
        (
            {**RATE, "verdict": "undecided", "ratio": 0.8, "low": 0.003, "high": 1.997},
            "docker bridge against docker host: cannot tell yet: from 0.00300x (slower) to 2.00x "
            "(faster); about 20 blocks would decide; throughput (as received) 17.3 Gbit/s, "
            "+4.90 Gbit/s, 0.800x [0.00300, 2.00]",
        ),
        (
            {"verdict": "undecided", "ratio": 1.3, "low": 1e-7, "high": 2e6, "needed": 5},
            "docker bridge against docker host: cannot tell yet: any difference is possible; more "
            "blocks may decide; median round-trip time 17.3 us, +4.90 us, 1.30x [0, unbounded]",
        ),
    ],
)
def test_sentences(changed: dict[str, Any], sentence: str) -> None:
    assert str(answer(**changed)) == answer(**changed).sentence == sentence


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"low": math.nan, "high": math.nan}, "too few blocks; about 20 blocks would decide"),
        ({"needed": None}, "too noisy for a number of blocks that can be planned"),
        ({"needed": 4}, "more blocks may decide"),
        ({"n_blocks": 0, "note": "no trial with a=b"}, "no trial with a=b"),
    ],
)
def test_what_is_open_is_said(changed: dict[str, Any], text: str) -> None:
    found = answer(verdict="undecided", **changed)
    assert text in found.sentence
    assert found.cells()["answer"].startswith("cannot tell yet (")


def test_cells_of_a_table() -> None:
    assert answer().cells() == {
        "condition": "docker bridge",
        "value": "17.3 us",
        "difference": "+4.90 us",
        "ratio": "1.40x [1.25, 1.56]",
        "answer": "slower",
    }


def test_a_record_is_json_and_html_is_escaped() -> None:
    record = answer(low=math.nan, condition="<b>").as_record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["low"], record["word"]) == (None, "slower")
    shown = answer(condition="<i>", note="a < b")._repr_html_()
    assert "<i>" not in shown
    assert "<b>slower</b>" in shown


@pytest.mark.parametrize(
    ("effect", "word"), [(1.5, "slower"), (0.5, "faster"), (1.0001, "same within 2 %")]
)
def test_a_row_of_a_comparison_becomes_an_answer(effect: float, word: str) -> None:
    noise = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0005)
    frame = pd.DataFrame(
        [
            {"block": block, "placement": name, "rtt_ns_median": 10_000.0 * factor * part}
            for block, part in enumerate(noise)
            for name, factor in (("host", 1.0), ("bridge", effect * part))
        ]
    )
    table = compare(frame, value="rtt_ns_median", condition="placement", baseline="host")
    row = table.iloc[0].to_dict()
    found = Answer.from_comparison(row, metric="rtt_ns_median", baseline="host", margin=0.02)
    assert (found.word, found.condition, found.metric) == (word, "bridge", "rtt_ns")
    assert found.statistic == "median"
    assert found.value / found.base == pytest.approx(found.ratio) == pytest.approx(effect, 0.01)
    assert found.base == pytest.approx(10_000, rel=0.01)
