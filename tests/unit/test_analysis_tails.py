"""Quantile intervals: scipy's, refusal, dependence, trials as units, and stationarity."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from labkit.analysis.checks import stationarity
from labkit.analysis.tails import (
    dependent_quantile_interval,
    needed_for_interval,
    pooled_quantile,
    pooled_ratio,
    quantile_interval,
    trial_quantile,
)
from labkit.errors import UsageError


def lognormal(rng: np.random.Generator, trials: int = 10, size: int = 2_000) -> list[np.ndarray]:
    effects = 0.05 * rng.standard_normal((trials, 1))
    return list(np.exp(np.sort(effects + 0.4 * rng.standard_normal((trials, size)), axis=1)))


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 3_000),
    level=st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999]),
    alpha=st.sampled_from([0.05, 0.2]),
)
def test_it_is_scipys_interval_or_a_refusal(size: int, level: float, alpha: float) -> None:
    ordered = np.sort(np.random.default_rng(size).exponential(size=size))
    found = quantile_interval(ordered, level, alpha=alpha)
    reference = stats.quantile_test(ordered, q=0, p=level).confidence_interval(1 - alpha)
    assert found.needed == needed_for_interval(level, alpha)
    if size < found.needed:
        assert math.isnan(found.low) and math.isnan(found.coverage)
        assert str(found.needed) in found.note
        assert np.isnan([reference.low, reference.high]).any()
    else:
        assert (found.low, found.high) == (reference.low, reference.high)
        assert 1 - alpha <= found.coverage <= 1


def test_how_many_samples_an_interval_takes() -> None:
    assert [needed_for_interval(level) for level in (0.5, 0.99, 0.999)] == [6, 368, 3688]
    assert needed_for_interval(0.01) == needed_for_interval(0.99)
    for level in (0.9, 0.99):
        n = needed_for_interval(level)
        assert level**n <= 0.025 < level ** (n - 1)


def test_integers_and_infinities_are_samples() -> None:
    found = quantile_interval(np.sort(np.random.default_rng(0).integers(0, 99, 1_000)), 0.5)
    assert found.low <= found.value <= found.high
    lost = np.sort(np.append(np.arange(990.0), [math.inf] * 10))
    assert quantile_interval(lost, 0.99).high == math.inf


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.array([3.0, 1.0]), "not sorted"),
        (np.array([1.0, math.nan]), "missing"),
        (np.array([["a"]]), "one series of numbers"),
        (np.ones((2, 2)), "one series of numbers"),
    ],
)
def test_what_is_no_sorted_series_is_refused(samples: np.ndarray, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        quantile_interval(samples, 0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, math.nan])
def test_levels_lie_between_0_and_1(level: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        quantile_interval(np.arange(100.0), level)


def test_no_samples_are_too_few() -> None:
    assert math.isnan(quantile_interval(np.empty(0), 0.99).value)
    assert math.isnan(dependent_quantile_interval(np.empty(0), 0.99).low)


def test_dependence_widens_the_interval() -> None:
    rng = np.random.default_rng(1)
    free = rng.standard_normal(30_000)
    bound = signal.lfilter([np.sqrt(1 - 0.95**2)], [1, -0.95], rng.standard_normal(30_000))
    widths = [
        (found := dependent_quantile_interval(series, 0.99)).high - found.low
        for series in (free, bound)
    ]
    assert widths[1] > 1.5 * widths[0]
    plain = quantile_interval(np.sort(free), 0.99)
    assert widths[0] == pytest.approx(plain.high - plain.low, rel=0.2)
    short = dependent_quantile_interval(bound[:600], 0.99)
    assert math.isnan(short.low) and short.needed > 600


def test_a_constant_series_has_a_point_for_an_interval() -> None:
    assert dependent_quantile_interval(np.full(1_000, 7.0), 0.99)[:3] == (7.0, 7.0, 7.0)
    assert pooled_quantile([np.full(100, 7.0)] * 10, 0.99)[:3] == (7.0, 7.0, 7.0)
    assert pooled_ratio([np.full(100, 7.0)] * 10, [np.full(100, 7.0)] * 10, 0.99)[:3] == (1, 1, 1)


def test_trials_are_the_units_of_their_quantiles() -> None:
    trials = lognormal(np.random.default_rng(2))
    found = trial_quantile(trials, 0.99)
    logs = np.log([np.quantile(trial, 0.99) for trial in trials])
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert found.interval() == pytest.approx((math.exp(low), math.exp(high)))
    short = trial_quantile([*trials, np.arange(50.0)], 0.99)
    assert math.isnan(short.value) and "takes 100" in short.note
    with pytest.raises(UsageError, match="no logarithm"):
        trial_quantile([np.zeros(200)], 0.99)
    assert math.isnan(trial_quantile([], 0.99).value)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(60, 400), min_size=5, max_size=9),
    level=st.sampled_from([0.05, 0.5, 0.9, 0.99]),
    coarse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_pooled_quantile_is_that_of_all_samples(
    sizes: list[int], level: float, coarse: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    trials = [np.sort(rng.lognormal(sigma=0.5, size=size)) for size in sizes]
    if coarse:
        trials = [np.round(trial) + 1 for trial in trials]
    found = pooled_quantile(trials, level, resamples=200)
    everything = np.concatenate(trials)
    if found.n < found.needed:
        assert math.isnan(found.low)
        return
    assert found.value == pytest.approx(np.quantile(everything, level))
    assert everything.min() <= found.low <= found.value <= found.high <= everything.max()


def test_pooled_intervals_are_those_of_the_seed() -> None:
    trials = lognormal(np.random.default_rng(3))
    one, same, other = (pooled_quantile(trials, 0.99, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.2)


def test_pooled_intervals_know_that_trials_differ() -> None:
    rng = np.random.default_rng(4)
    alike = [np.sort(rng.lognormal(sigma=0.4, size=5_000)) for _ in range(10)]
    apart = lognormal(rng, size=5_000)
    found = [pooled_quantile(trials, 0.99) for trials in (alike, apart)]
    widths = [one.high - one.low for one in found]
    plain = quantile_interval(np.sort(np.concatenate(alike)), 0.99)
    assert widths[0] == pytest.approx(plain.high - plain.low, rel=0.6)
    assert widths[1] > 2 * widths[0]


def test_one_trial_that_makes_the_tail_is_pointed_out() -> None:
    trials = lognormal(np.random.default_rng(5))
    assert not pooled_quantile(trials, 0.99).note
    assert "may be too short" in pooled_quantile([*trials[:-1], 3 * trials[-1]], 0.99).note


def test_a_pooled_ratio_is_paired_by_block() -> None:
    rng = np.random.default_rng(6)
    shared = 0.2 * rng.standard_normal(10)
    sets = [
        [
            np.exp(np.sort(level + math.log(ratio) + 0.3 * rng.standard_normal(3_000)))
            for level in shared
        ]
        for ratio in (1.2, 1.0)
    ]
    found = pooled_ratio(*sets, 0.5)
    assert found.low < 1.2 < found.high
    assert found.high - found.low < 0.1
    backwards = pooled_ratio(sets[1], sets[0], 0.5)
    assert (1 / backwards.high, 1 / backwards.low) == pytest.approx(
        (found.low, found.high), rel=0.02
    )


def test_too_few_trials_or_samples_have_no_pooled_interval() -> None:
    rng = np.random.default_rng(7)
    few = pooled_quantile(lognormal(rng, trials=4), 0.99)
    assert math.isnan(few.low) and "4 trials" in few.note
    empty = pooled_quantile([*lognormal(rng), np.empty(0)], 0.99)
    assert math.isnan(empty.low)
    short = pooled_ratio(lognormal(rng, size=30), lognormal(rng, size=30), 0.99)
    assert math.isnan(short.low) and "takes 368" in short.note
    assert math.isnan(pooled_quantile([], 0.5).value)
    with pytest.raises(UsageError, match="no pairs"):
        pooled_ratio(lognormal(rng), lognormal(rng, trials=9), 0.5)
    with pytest.raises(UsageError, match="no ratio"):
        pooled_ratio([np.zeros(100)] * 5, [np.ones(100)] * 5, 0.5)


def test_millions_of_sorted_samples_cost_little() -> None:
    rng = np.random.default_rng(8)
    trials = [np.sort(rng.standard_exponential(200_000)) for _ in range(10)]
    start = time.perf_counter()
    pooled_ratio(trials, trials, 0.99)
    # Measured at 0.02 s for ten times as much; a sort of it alone would take longer.
    assert time.perf_counter() - start < 2


def series(values: np.ndarray, **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"rtt_ns": values, **columns})


def test_stationarity_sees_a_step_and_no_dependence() -> None:
    rng = np.random.default_rng(9)
    steady = np.exp(0.3 * rng.standard_normal(20_000))
    stepped = steady * np.r_[np.ones(10_000), np.full(10_000, 1.05)]
    table = stationarity(
        pd.concat([series(steady, trial=1), series(stepped, trial=2)]), by=["trial"]
    )
    assert table["stationary"].tolist() == [True, False]
    assert table.loc[1, "change"] == pytest.approx(0.05, abs=0.03)
    assert table["batches"].tolist() == [20, 20]


def test_stationarity_errs_rarely_on_dependent_samples() -> None:
    rng = np.random.default_rng(10)
    noise = rng.standard_normal((300, 12_000))
    rows = signal.lfilter([1], [1, -0.9], noise, axis=1)[:, 2_000:]
    p_values = [
        stationarity(series(np.exp(0.1 * row)).assign(trial=0), by=["trial"])["p_value"].iloc[0]
        for row in rows
    ]
    assert np.mean(np.array(p_values) < 0.05) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("values", [[1.0] * 5, [math.nan] * 500, [1.0, math.inf] * 500])
def test_stationarity_says_when_it_cannot_tell(values: list[float]) -> None:
    table = stationarity(series(np.array(values), trial=1), by=["trial"])
    assert table["stationary"].isna().all()
    assert table["p_value"].isna().all()


def test_a_constant_trial_is_stationary() -> None:
    table = stationarity(series(np.full(1_000, 5), trial=1), by=["trial"])
    assert table["stationary"].tolist() == [True]
    assert table["change"].tolist() == [0.0]
