"""Quantile intervals: scipy's, refusal, and trials as units."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.quantiles import (
    modes_note,
    needed_for_interval,
    pooled_quantile,
    trial_quantile,
)
from labkit.errors import UsageError


def lognormal(rng: np.random.Generator, trials: int = 10, size: int = 2_000) -> list[np.ndarray]:
    effects = 0.05 * rng.standard_normal((trials, 1))
    return list(np.exp(np.sort(effects + 0.4 * rng.standard_normal((trials, size)), axis=1)))


def test_how_many_samples_an_interval_takes() -> None:
    assert [needed_for_interval(level) for level in (0.5, 0.99, 0.999)] == [6, 368, 3688]
    assert needed_for_interval(0.01) == needed_for_interval(0.99)
    for level in (0.9, 0.99):
        n = needed_for_interval(level)
        assert level**n <= 0.025 < level ** (n - 1)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.array([3.0, 1.0]), "not sorted"),
        (np.array([1.0, math.nan]), "missing"),
        (np.array([["a"]]), "one-dimensional array of numbers"),
        (np.ones((2, 2)), "one-dimensional array of numbers"),
    ],
)
def test_what_is_no_sorted_series_is_refused(samples: np.ndarray, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pooled_quantile([samples] * 10, 0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, math.nan])
def test_levels_lie_between_0_and_1(level: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        pooled_quantile([np.arange(100.0)] * 10, level)


def test_a_constant_series_has_a_point_for_an_interval() -> None:
    assert pooled_quantile([np.full(100, 7.0)] * 10, 0.99)[:3] == (7.0, 7.0, 7.0)


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


@pytest.mark.parametrize("quantile", [trial_quantile, pooled_quantile])
def test_failed_trials_are_left_out_and_counted(quantile: Callable[..., Any]) -> None:
    trials = lognormal(np.random.default_rng(7), trials=25)
    whole, with_failed = quantile(trials, 0.5), quantile([np.empty(0), *trials, np.empty(0)], 0.5)
    assert with_failed.value == whole.value and whole.note == ""
    assert with_failed.note == ("2 of 27 trials without samples: what failed may be what was slow")
    assert math.isnan(quantile([np.empty(0)] * 6, 0.5).value)


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
    plain = stats.quantile_test(np.concatenate(alike), q=0, p=0.99).confidence_interval()
    assert widths[0] == pytest.approx(plain.high - plain.low, rel=0.6)
    assert widths[1] > 2 * widths[0]


def test_one_trial_that_makes_the_tail_is_pointed_out() -> None:
    trials = lognormal(np.random.default_rng(5), trials=25)
    assert not pooled_quantile(trials, 0.99).note
    assert "may be too short" in pooled_quantile([*trials[:-1], 3 * trials[-1]], 0.99).note


@pytest.mark.parametrize("level", [0.5, 0.99])
@pytest.mark.parametrize("blocks", [5, 6, 10, 25])
def test_intervals_that_slow_trials_make_wrong_carry_a_note(blocks: int, level: float) -> None:
    rng, runs, silent = np.random.default_rng(6), 100, 0
    truth = 2**0.2 * math.exp(0.2 * stats.norm.ppf(level))
    for _ in range(runs):
        factors = np.where(rng.random((blocks, 1)) < 0.2, 2.0, 1.0) * rng.lognormal(
            sigma=0.05, size=(blocks, 1)
        )
        found = trial_quantile(
            list(np.sort(factors * rng.lognormal(sigma=0.2, size=(blocks, 400)), axis=1)), level
        )
        low, high = found.interval()
        silent += not (low <= truth <= high or found.note)
    assert silent / runs <= 0.07


def test_groups_of_trials_are_rarely_seen_where_there_are_none() -> None:
    rng = np.random.default_rng(7)
    notes = [modes_note(rng.lognormal(sigma=0.1, size=14)) for _ in range(1000)]
    assert np.mean([bool(note) for note in notes]) < 0.02
    assert "two groups, 3 above and 10 below" in modes_note(
        np.r_[rng.normal(10, 1, 10), 20, 21, 22]
    )
    assert "33%" in modes_note(np.ones(5)) and not modes_note(np.ones(14))


def test_too_few_trials_or_samples_have_no_pooled_interval() -> None:
    rng = np.random.default_rng(7)
    few = pooled_quantile(lognormal(rng, trials=4), 0.99)
    assert math.isnan(few.low) and "4 trials" in few.note
    short = pooled_quantile(lognormal(rng, size=30), 0.99)
    assert math.isnan(short.low) and "takes 368" in short.note
    assert math.isnan(pooled_quantile([], 0.5).value)
