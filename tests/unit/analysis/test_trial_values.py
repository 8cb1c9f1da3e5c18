"""Sorting once a trial gives what pandas and numpy give, and happens once a trial."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import load, plots
from labkit.analysis import trials as trials_module
from labkit.analysis.compare import shift
from labkit.analysis.summary import combined, summarise
from labkit.analysis.trials import (
    SortedSamples,
    join_factors,
    pool,
    reduce_trials,
    sort_all,
    sort_trials,
    statistics_of,
)
from labkit.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
STATISTICS = ("min", "max", "mean", "std", "median", "p95", "q0.1")
KEYS = ["trial", "block", "condition"]

whole = st.integers(-(2**62), 2**62)
small = st.integers(-50, 50)
real = st.floats(-1e9, 1e9)
trials_of = st.one_of(
    *(
        st.lists(st.lists(kind, min_size=1, max_size=40), min_size=1, max_size=8)
        for kind in (small, st.integers(0, 2**33), real)
    )
)


def spread(samples):
    """Return all samples, sorted."""
    return np.repeat(*samples.counted())


def packed(trials):
    """A row a trial: alternating conditions, two a block."""
    frame = pd.DataFrame({"trial": [f"t{number}" for number in range(len(trials))]})
    frame["block"] = np.arange(len(trials)) // 2
    frame["condition"] = pd.Categorical(np.arange(len(trials)) % 2, [1, 0])
    frame["v"] = trials_module.object_column([np.array(values) for values in trials])
    return frame


def long(frame):
    """The same, a row a sample."""
    made = frame.explode("v", ignore_index=True)
    return made.assign(v=np.concatenate(list(frame["v"])))


def by_pandas(samples, by):
    groups = samples.groupby(by, observed=True, sort=False)["v"]
    table = groups.agg(["min", "max", "mean", "std", "median", "count"])
    for name, level in (("p95", 0.95), ("q0.1", 0.1)):
        table[name] = groups.quantile(level)
        needed = trials_module.samples_needed(level)
        table.loc[table["count"] < needed, name] = math.nan
    return table


def agree(table, wanted, by):
    table = table.set_index(by)
    assert len(table) == len(wanted)
    for name in STATISTICS:
        ours, theirs = table[name].reindex(wanted.index), wanted[name]
        scale = np.maximum(1.0, wanted[["min", "max"]].abs().max(axis=1))
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=1e-9, atol=1e-9)


@given(trials_of)
def test_the_fast_tables_are_those_of_pandas(trials):
    frame = packed(trials)
    samples = long(frame)
    for given_ in (frame, samples, sort_trials(samples, value="v", by=KEYS)):
        table = summarise(given_, by=["trial"], value="v", statistics=STATISTICS)
        agree(table, by_pandas(samples, ["trial"]), ["trial"])
        table = combined(given_, by=["condition"], value="v", statistics=STATISTICS)
        agree(table, by_pandas(samples, ["condition"]), ["condition"])
        assert table["n"].sum() == len(samples) and table["n_trials"].sum() == len(frame)


@given(trials_of)
def test_a_trial_alone_is_numpys_to_the_last_bit(trials):
    for values, made in zip(trials, sort_all([np.array(t) for t in trials], trials), strict=True):
        array = np.sort(np.array(values).astype(spread(made).dtype))
        assert (spread(made) == array).all() and spread(made).dtype in (np.int64, np.float64)
        assert made.mean == float(array.mean()) and len(made) == len(array)
        if len(array) > 1:
            assert made.std == float(array.std(ddof=1))
        assert (made.min, made.max) == (array[0], array[-1])


infinite = st.sampled_from([math.inf, -math.inf, 0.0, -0.0, 5e-324, -1.7e308])
parts_of = st.one_of(
    *(
        st.lists(st.lists(kind, min_size=1, max_size=30), min_size=1, max_size=6)
        for kind in (small, whole, st.one_of(infinite, st.floats(allow_nan=False)))
    )
)


def campaign(blocks=4, n=2_000):
    """A row a trial as `Dataset.series` gives it; the first condition runs twice a block."""
    rng, rows = np.random.default_rng(2), []
    for block in range(blocks):
        for place, wait, replicate in [("a", "x", 1), ("a", "x", 2), ("a", "y", 1), ("b", "x", 1)]:
            values = 30_000 * rng.lognormal(rng.normal(0, 0.01), 0.1, n)
            rows.append(
                (f"t{len(rows)}", block, place, wait, replicate, n, values.astype(np.int64))
            )
    names = ["trial", "block", "placement", "wait", "replicate", "n", "rtt_ns"]
    return pd.DataFrame(rows, columns=names)


def test_an_analysis_sorts_each_trial_once(monkeypatch):
    series, sorted_, others = campaign(), [], []

    def counted(arrays, names):
        sorted_.extend(map(len, arrays))
        return sort_all(arrays, names)

    monkeypatch.setattr(trials_module, "sort_all", counted)

    def noted(plain):
        def other(values, *args, **options):
            others.append(np.size(values))
            return plain(values, *args, **options)

        return other

    # numpy.sort merges the sorted samples of trials that are pooled.
    for name in ("argsort", "partition", "quantile", "percentile", "median"):
        monkeypatch.setattr(np, name, noted(getattr(np, name)))
    series["condition"] = join_factors(series, ["placement", "wait"])
    samples = sort_trials(series)
    summarise(samples, by=["trial", "block", "placement", "wait", "condition", "replicate"])
    combined(samples, by=["condition"])
    shift(samples, condition="condition", baseline="a + x")
    part = samples[samples["wait"] == "x"]
    plots.ecdf(part, hue="placement", tail=True)
    plots.ecdf(samples, hue="wait", col="placement")
    assert sorted_ == [2_000] * 16
    assert max(others, default=0) < 2_000


def test_a_curve_keeps_the_far_tail_and_few_points():
    values = np.random.default_rng(3).lognormal(10, 0.3, 10**6).astype(np.int64)
    frame = pd.DataFrame({"trial": ["t"], "block": [1], "c": ["x"]})
    frame["rtt_ns"] = trials_module.object_column([values])
    thin, thick = plots.ecdf(frame, hue="c", tail=True).axes[0].lines
    assert len(thick.get_xdata()) <= 600
    share = thick.get_ydata()
    assert ((share < 1e-3) & (share > 1e-6)).sum() > 50
    assert thick.get_xdata()[-1] == values.max() / 1000 and share[-1] == pytest.approx(1e-6)
    assert (thin.get_xdata() == thick.get_xdata()).all()


def test_statistics_of_a_trial_are_those_of_the_table():
    samples = np.random.default_rng(4).integers(10_000, 90_000, 500)
    names = ["median", "p99", "q0.999", "mean", "std"]
    table = reduce_trials(packed([samples]), value="v", by=["trial"], statistics=names)
    alone = statistics_of(samples, names)
    assert list(alone) == names and math.isnan(alone["q0.999"])
    pd.testing.assert_frame_equal(table[names], pd.DataFrame([alone]))
    assert alone["median"] == np.quantile(samples, 0.5)
    assert math.isnan(statistics_of(np.empty(0), ["median"])["median"])


def test_sorting_leaves_what_it_was_given():
    frame = packed([[3, 1], [2, 5]])
    made = sort_trials(frame, value="v")
    assert list(frame["v"][0]) == [3, 1] and list(spread(made["v"][0])) == [1, 3]
    assert list(made.columns) == list(frame.columns) and made["condition"].dtype == "category"
    with pytest.raises(ValueError, match="read-only"):
        made["v"][0].counted()[0][0] = 7
    again = sort_trials(made, value="v")
    assert again["v"][0] is made["v"][0]
    cells = sort_trials(made, value="v", by=["condition"])["v"]
    assert [list(spread(cell)) for cell in cells] == [[2, 5], [1, 3]]


def test_what_cannot_be_sorted_is_a_clear_error():
    frame = packed([[3.0, 1.0], [2.0, math.nan]])
    with pytest.raises(UsageError, match=r"samples are missing in .*'t1'"):
        sort_trials(frame, value="v")
    with pytest.raises(UsageError, match="needs `by`"):
        sort_trials(long(frame), value="v")
    with pytest.raises(UsageError, match="holds"):
        sort_trials(frame.assign(v=trials_module.object_column([np.array([1]), "text"])), value="v")
    with pytest.raises(UsageError, match="no column 'w'"):
        sort_trials(frame, value="w")
    with pytest.raises(UsageError, match="not numbers"):
        sort_trials(frame.assign(v="text"), value="v", by=["trial"])
    with pytest.raises(UsageError, match="no rows"):
        sort_trials(frame.iloc[:0], value="v")


def test_a_failed_trial_has_no_samples_and_is_not_pooled_in_silence():
    frame = packed([[3.0, 1.0], [2.0, 4.0], [math.nan, math.nan]])
    made = sort_trials(frame, value="v")
    assert len(made["v"][2]) == 0 and repr(made["v"][2]) == "<0 sorted samples>"
    row = reduce_trials(made, value="v", by=["trial"], statistics=["mean", "std", "max"]).iloc[2]
    assert row["n"] == 0 and row[["mean", "std", "max"]].isna().all()
    assert math.isnan(made["v"][2].mean) and math.isnan(made["v"][2].std)
    with pytest.raises(UsageError, match=r"samples are missing in .*condition"):
        combined(made, by=["condition"], value="v")
    assert plots.ecdf(made.rename(columns={"v": "rtt_ns"}), hue="condition")


def test_samples_are_pooled_wide():
    ordered_ = sort_all([np.array([70_000, 50_000])], ["t"])[0]
    both = pool([ordered_, *sort_all([np.array([2**40])], ["u"])])
    assert list(spread(both)) == [50_000, 70_000, 2**40]
    assert both.quantiles([1.0])[0] == 2**40
    assert isinstance(both, SortedSamples)
    assert sort_all([np.array([2**64 - 1], dtype=np.uint64)], ["v"])[0].max == 2.0**64


counts = st.lists(st.lists(small | st.sampled_from([2**40]), min_size=1, max_size=60), min_size=1)


@given(counts, st.booleans())
def test_counted_samples_are_the_same_samples(trials, as_floats):
    kind = np.float64 if as_floats else np.int64
    arrays = [np.array(values, dtype=kind) for values in trials]
    plain = sort_all(arrays, range(len(arrays)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials_module, "_MANY", 1)
        patch.setattr(trials_module, "_FEWER", 1)
        counted = sort_all(arrays, range(len(arrays)))
    pairs = [*zip(plain, counted, strict=True), (pool(plain), pool(counted))]
    pairs.append((pairs[-1][0], pool([*plain[:1], *counted[1:]])))
    for one, other in pairs:
        assert len(one) == len(other) and spread(other).tolist() == spread(one).tolist()
        assert len(other.counted()[0]) <= len(one) and (one.min, one.max) == (other.min, other.max)
        levels, points = np.linspace(0, 1, 23), np.linspace(one.min - 1, one.max + 1, 19)
        assert other.quantiles(levels).tolist() == one.quantiles(levels).tolist()
        assert other.below(points).tolist() == one.below(points).tolist()
        assert other.mean == pytest.approx(one.mean, rel=1e-12, abs=1e-12)
        assert other.std == pytest.approx(one.std, rel=1e-9, abs=1e-9, nan_ok=True)


def test_long_trials_with_few_values_are_counted():
    rng = np.random.default_rng(1)
    long = rng.integers(9_000, 20_000, 200_000)
    (few,) = sort_all([long], ["t"])
    assert len(few.counted()[0]) <= 11_000 and len(few) == 200_000
    assert spread(few).tolist() == sorted(long)
    (many,) = sort_all([rng.integers(0, 2**60, 200_000)], ["t"])
    assert len(many.counted()[0]) == 200_000


def test_the_benchmark_runs(tmp_path):
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    made = scale.cold(scale.generate(tmp_path, 1_000))
    assert made["samples"] == 70_000
    assert {"read and sort", "inside trials", "figures"} <= set(made["parts"])
    path = load(tmp_path).path
    for one, other in zip(scale.plain_tables(path), scale.our_tables(path), strict=True):
        assert sorted(other["p99"]) == pytest.approx(sorted(one["p99"]))
