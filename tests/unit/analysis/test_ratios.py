"""Ratios of two means and of two ratios, beside scipy's tests."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.estimates import Inverted, Quotient, ratio_of_independent_means, ratio_of_means
from labkit.analysis.models import interaction, unpaired_ratio
from labkit.errors import UsageError


def noisy(mean: np.ndarray, blocks: int = 8, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return mean * np.exp(noise * rng.standard_normal((blocks, len(mean))))


def test_interaction_is_the_t_test_of_the_differences() -> None:
    values = noisy(np.array([100.0, 80.0, 100.0, 90.0]))
    frame = pd.DataFrame(values, columns=list("abcd")).rename_axis("block").reset_index()
    frame = frame.melt("block", var_name="level")
    cells = {"condition": "a", "baseline": "b", "condition2": "c", "baseline2": "d"}
    found = interaction(frame, value="value", by="level", **cells)
    logs = np.log(values)
    expected = stats.ttest_1samp(logs[:, 0] - logs[:, 1] - logs[:, 2] + logs[:, 3], 0)
    assert found.p_outside(1, 1) == pytest.approx(expected.pvalue)
    shared = interaction(frame, value="value", by="level", **{**cells, "baseline2": "b"})
    assert shared.value == pytest.approx(np.exp((logs[:, 0] - logs[:, 2]).mean()))


def neighbours(alone: np.ndarray, beside: np.ndarray) -> pd.DataFrame:
    parts = {"alone": alone, "beside": beside}
    return pd.concat(
        pd.DataFrame({"value": part, "condition": name, "block": np.arange(len(part))})
        for name, part in parts.items()
    )


def beside_to_alone(frame: pd.DataFrame) -> Quotient:
    ends = {"baseline": "alone", "other": "beside"}
    return unpaired_ratio(frame, value="value", condition="condition", **ends)


def test_fiellers_interval_is_where_welchs_test_does_not_refuse() -> None:
    rng = np.random.default_rng(3)
    alone, beside = rng.normal(10, 1, 9), rng.normal(8, 2, 7)
    found = ratio_of_independent_means(beside, alone)
    low, high = found.interval()
    difference = alone * found.value
    df = stats.ttest_ind(beside, difference, equal_var=False).df
    for bound in (low, high):
        error = math.sqrt(beside.var(ddof=1) / 7 + bound**2 * alone.var(ddof=1) / 9)
        assert abs(beside.mean() - bound * alone.mean()) / error == pytest.approx(
            stats.t.ppf(0.975, df)
        )
    same = beside_to_alone(neighbours(alone, beside))
    assert same.interval() == pytest.approx((low, high)) and same.value == found.value
    assert found.p_outside(-math.inf, low) == pytest.approx(0.05)
    assert found.p_outside(high, math.inf) == pytest.approx(0.05)


def test_a_ratio_to_what_may_be_zero_is_open() -> None:
    rng = np.random.default_rng(4)
    found = ratio_of_means(rng.normal(5, 1, 8), rng.normal(0, 1, 8))
    assert found.interval() == (-math.inf, math.inf)
    assert found.p_outside(-0.1, 0.1) > 0.05
    assert found.p_within(-100, 100) > 0.05


@given(
    above=st.lists(st.floats(0.5, 2), min_size=4, max_size=12),
    sign=st.sampled_from([-1.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_quotients_tests_and_interval_agree(above: list[float], sign: float, seed: int) -> None:
    top = np.array(above) + np.random.default_rng(seed).normal(0, 0.1, len(above))
    found = ratio_of_means(sign * top, sign * np.random.default_rng(seed).normal(5, 0.3, len(top)))
    low, high = found.interval()
    assert low <= found.value <= high
    for bound, side in ((low, found.p_above), (high, found.p_below)):
        assert side(bound) == pytest.approx(0.025, abs=1e-6)


def test_a_quotient_without_numbers_says_nothing() -> None:
    found = Quotient(math.nan, math.nan, (math.nan,) * 3, math.nan)
    assert math.isnan(found.p_within(0, 1)) and math.isnan(found.p_outside(0, 1))
    assert all(map(math.isnan, found.interval()))
    assert ratio_of_independent_means(np.empty(0), np.ones(3)).note == "no value"
    assert ratio_of_independent_means(np.ones(1), np.ones(3)).value == 1


def test_conditions_that_are_not_there_are_named() -> None:
    frame = neighbours(np.ones(3), np.ones(0))
    with pytest.raises(UsageError, match="'beside'"):
        beside_to_alone(frame)


def test_without_an_error_no_bound_is_tested():
    for found in (
        Quotient(1.0, 1.0, (math.nan,) * 3, math.nan, 1),
        Inverted(3.0, np.array([1.0, 2.0]), np.full(2, np.nan), 5),
    ):
        assert math.isnan(found.p_within(1, math.inf)) and math.isnan(found.p_outside(1, 2))
