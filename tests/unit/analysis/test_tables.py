import math

import numpy as np
import pandas as pd
import pytest
from synthetic import run, trials

from labkit.analysis.compare import factor_effect
from labkit.analysis.tables import (
    format_comparison,
    format_numbers,
    headline,
    in_words,
    not_compared,
)


def plain(text):
    return str(text).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("verdict", "low"),
    [("different", 1.003), ("equivalent", 1.006), ("different within margin", 1.006)],
)
def test_a_headline_has_the_interval_that_its_verdict_rests_on(verdict, low):
    row = {"verdict": verdict, "estimate": 1.013, "note": ""}
    row |= {"low": 1.003, "high": 1.022, "confidence": 0.995}
    row |= {"equal_low": 1.006, "equal_high": 1.019, "equal_confidence": 0.9}
    assert headline(row, "a bridge")["low"] == low


def test_a_comparison_in_words():
    frame = trials(np.random.default_rng(1), ratio=1.2, others=("a", "b"))
    frame.loc[(frame["block"] == 3) & (frame["condition"] == "a"), "value"] = np.nan
    table = run(frame)
    shown = format_comparison(table, metric="rtt_ns_median")
    row, found = shown.loc["a"].map(plain), table.iloc[0]
    bounds = f"{found['estimate']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"
    assert row["ratio [interval]"] == bounds
    assert row["difference [interval]"].startswith(f"+{found['difference'] / 1000:.2f} us [")
    assert row["answer"] == "slower" and row["p"] == "<0.0001" and row["blocks"] == "9"
    assert row["note"].endswith("missing: 3") and row["level"] == "95 %"


def test_the_interval_shown_is_the_one_that_the_verdict_rests_on():
    frame = trials(np.random.default_rng(4), blocks=6, noise=0.01)
    table = run(frame, margin=0.025)
    row = table.iloc[0]
    assert row["verdict"] == "equivalent" and row["high"] > 1.025 > row["equal_high"]
    shown = format_comparison(table, metric="rtt_ns_median").iloc[0].map(plain)
    assert shown["level"] == "90 %" and shown["answer"] == "same within the margin"
    assert format_comparison(table, margin=0.025)["answer"].iloc[0] == "same within 2.5 %"
    ends = f"[{row['equal_low']:.3f}, {row['equal_high']:.2f}]"
    assert shown["ratio [interval]"].endswith(ends), (shown["ratio [interval]"], ends)
    # Few blocks: what they cannot show is said once, below the table.
    assert shown["note"] == "" and "fewer than 10 blocks" in not_compared(table)
    said = {n: not_compared(run(trials(np.random.default_rng(1), blocks=n))) for n in (24, 25)}
    assert "fewer than 25 blocks" in said[24] and said[25] == ""


def test_one_baseline_goes_to_the_heading_and_what_was_not_run_is_said():
    frame = trials(np.random.default_rng(2)).assign(cell="x")
    lone = trials(np.random.default_rng(3), others=()).assign(cell="y")
    both = pd.concat([frame, lone])
    table = factor_effect(both, "condition", ["base", "other"], ["cell"], value="value")
    shown = format_comparison(table)
    assert "ratio to base [interval]" in shown.columns
    assert list(shown.index) == [("x", "other"), ("y", "other")]
    assert shown.iloc[1].map(plain).to_list()[:4] == ["0", "", "", "cannot tell yet"]
    lacking = not_compared(table.iloc[1:])
    assert lacking == "Not compared: y, other / base (no trial with condition=other)."
    assert not_compared(table).startswith(lacking) and lacking not in not_compared(table.iloc[:1])
    many = not_compared(pd.concat([table.iloc[1:]] * 6))
    assert many == "Not compared: 6 pairs of which one or both were not measured."


def test_blocks_that_one_side_lacks_are_named_as_runs():
    frame = trials(np.random.default_rng(2), blocks=12).assign(cell="x")
    frame = frame[(frame["condition"] != "other") | ~frame["block"].isin([2, 5, 6, 7, 10, 11])]
    table = factor_effect(frame, "condition", ["base", "other"], ["cell"], value="value")
    assert "missing: 2, 5 to 7, 10 to 11" in format_comparison(table).iloc[0]["note"]


def test_nothing_to_show():
    table = run(trials(np.random.default_rng(4), others=()))
    assert format_comparison(table).empty and not_compared(table) == ""


def test_headings_are_words_whatever_the_shape_of_the_table():
    rows = pd.DataFrame({"size_b": ["0", "1"], "nr_throttled": [1.0, 2.0], "n_trials": [3, 4]})
    shown = format_numbers(rows.set_index("size_b").unstack().to_frame("value").unstack())
    assert list(shown.index) == ["periods in which the server was cut off", "trials"]
    assert shown.columns.names[-1] == "size, B" and shown.columns[0] == ("value", "0")
    assert in_words(rows).columns[0] == "size, B"
    empty = in_words(rows.iloc[:0].set_index(["size_b", "n_trials"]))
    assert empty.index.names == ["size, B", "trials"] and empty.empty


def test_gaps_are_empty():
    table = pd.DataFrame({"a": [1.234, math.nan], "b": [12_345, 2], "c": ["x", None]})
    assert format_numbers(table).to_numpy().tolist() == [["1.23", "12,345", "x"], ["", "2", ""]]
