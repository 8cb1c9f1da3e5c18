"""Lines, overheads, growth and ratios: known answers, other implementations, odd inputs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.estimates import mean_over_blocks
from labkit.analysis.models import (
    blocks_of,
    fit_line,
    line_functionals,
    successive_ratios,
)
from labkit.analysis.noise import blocks_needed
from labkit.analysis.overhead import fit_overhead
from labkit.analysis.power import blocks_for, blocks_to_detect
from labkit.errors import UsageError

LEVELS = np.array([1.0, 2.0, 4.0, 8.0])
NAMES = {"value": "value", "over": "level"}


def over(values: np.ndarray, levels: np.ndarray = LEVELS, **columns: object) -> pd.DataFrame:
    """Return trials of shape (blocks, levels) as a frame."""
    blocks = len(values)
    return pd.DataFrame(
        {
            "value": np.asarray(values, dtype=float).ravel(),
            "level": np.tile(levels, blocks),
            "block": np.repeat(np.arange(blocks), len(levels)),
            **columns,
        }
    )


def noisy(mean: np.ndarray, blocks: int = 8, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return mean * np.exp(noise * rng.standard_normal((blocks, len(mean))))


def two(base: np.ndarray, other: np.ndarray, levels: np.ndarray = LEVELS) -> pd.DataFrame:
    return pd.concat([over(base, levels, condition="host"), over(other, levels, condition="nat")])


def cost(frame: pd.DataFrame):
    return fit_overhead(frame, condition="condition", baseline="host", other="nat", **NAMES)


def test_a_fixed_cost_is_told_from_a_proportional_one() -> None:
    base = 100 + 10 * LEVELS
    fixed, grows = (cost(two(noisy(base), noisy(base + add, seed=1))) for add in (20, 0.3 * base))
    assert fixed.intercept.p_outside(-math.inf, 0) < 0.01
    assert fixed.relative.p_outside(-0.02, 0.02) > 0.05
    assert grows.relative.p_outside(-0.02, 0.02) < 0.01
    assert grows.ratio.interval()[0] < 1.3 < grows.ratio.interval()[1]


def test_the_line_of_a_block_is_weighted_least_squares() -> None:
    values, weights = noisy(100 + 3 * LEVELS)[0], 1 / np.array([100.0, 120, 90, 300]) ** 2
    fit = sm.WLS(values, sm.add_constant(LEVELS), weights=weights).fit()
    assert line_functionals(LEVELS, weights) @ values == pytest.approx(fit.params, rel=1e-9)
    big = 1e7 * LEVELS
    fit = sm.WLS(values, sm.add_constant(big / 1e7), weights=weights).fit()
    found = line_functionals(big, weights) @ values
    assert found * [1, 1e7] == pytest.approx(fit.params, rel=1e-9)


def test_random_coefficients_are_the_t_test_of_the_blocks() -> None:
    values = noisy(100 + 5 * LEVELS)
    slopes = [stats.linregress(LEVELS, one).slope for one in values]
    found = fit_line(over(values), **NAMES).slope
    expected = stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
    assert found.interval() == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize("stored", ["category", "object", "str", "Int64"])
def test_levels_are_numbers_however_they_are_stored(stored: str) -> None:
    frame = over(noisy(100 + 5 * LEVELS))
    other = fit_line(frame.assign(level=frame["level"].astype("int64").astype(stored)), **NAMES)
    assert other.slope == fit_line(frame, **NAMES).slope


def test_a_parabola_has_its_curvature_and_a_line_none() -> None:
    curved = 100 + 5 * LEVELS + 0.5 * LEVELS**2
    deviation = np.polyval(np.polyfit(LEVELS, curved, 1), LEVELS) - curved
    rise = np.polyfit(LEVELS, curved, 1)[0] * np.ptp(LEVELS)
    found = fit_line(over(noisy(curved, noise=1e-6)), **NAMES)
    assert found.curvature.value == pytest.approx(np.abs(deviation).max() / rise, rel=1e-3)
    assert fit_line(over(noisy(100 + 5 * LEVELS)), **NAMES).curvature.p_within(-0.1, 0.1) < 0.05
    assert found.growth.value == pytest.approx(curved[-1] / curved[0], rel=1e-3)


def test_two_levels_have_a_line_without_curvature() -> None:
    found = fit_line(over(noisy(np.array([100.0, 110.0])), np.array([1.0, 2.0])), **NAMES)
    assert math.isnan(found.curvature.value)
    assert math.isnan(found.curvature.p_within(-0.1, 0.1))
    assert "no curvature" in found.curvature.note
    assert found.slope.interval()[0] < 10 < found.slope.interval()[1]


def test_negative_values_have_a_line_but_no_growth() -> None:
    found = fit_line(over(noisy(100 + 5 * LEVELS) - 500), **NAMES)
    assert math.isfinite(found.slope.value)
    assert math.isnan(found.growth.value)
    assert "no ratio" in found.growth.note


def test_steps_are_paired_ratios_of_sorted_levels() -> None:
    values = noisy(np.array([110.0, 115.0, 100.0]))
    frame = over(values, np.array([2.0, 3.0, 1.0]))
    found = successive_ratios(frame, **NAMES)
    expected = stats.ttest_rel(np.log(values[:, 0]), np.log(values[:, 2]))
    assert found[0].p_outside(1, 1) == pytest.approx(expected.pvalue)
    assert found[1].value == pytest.approx(np.exp(np.diff(np.log(values))[:, 0].mean()))


def test_words_keep_their_order() -> None:
    frame = over(noisy(np.array([100.0, 110.0, 120.0])), np.arange(3.0))
    frame["level"] = frame["level"].map({0.0: "small", 1.0: "medium", 2.0: "large"})
    up = successive_ratios(frame, **NAMES)
    assert [one.value > 1 for one in up] == [True, True]


@given(st.lists(st.one_of(st.floats(1e-6, 1e12), st.just(math.nan)), min_size=8, max_size=8))
def test_whatever_was_measured_a_line_is_given_or_is_missing(values: list[float]) -> None:
    found = fit_line(over(np.array(values).reshape(2, 4)), **NAMES)
    assert found.n_blocks == np.isfinite(np.array(values).reshape(2, 4)).all(axis=1).sum()
    for one in (found.intercept, found.slope, found.growth, found.curvature):
        low, high = one.interval()
        assert found.n_blocks < 2 or math.isnan(low) or low <= high
        if found.n_blocks < 2:
            assert math.isnan(low) and math.isnan(high)
            assert math.isnan(one.p_within(0.5, 2))


def test_constant_values_have_no_spread_and_no_false_slope() -> None:
    found = fit_line(over(np.full((5, 4), 7.25e8)), **NAMES)
    assert found.slope.interval() == (0.0, 0.0)
    assert found.slope.p_outside(0, 0) == 1.0
    assert "no variance" in found.slope.note
    small = mean_over_blocks(np.array([1e-12, 2e-12, 3e-12]), size=1e-9)
    assert small.error > 0


def test_one_block_gives_an_estimate_without_an_interval() -> None:
    base = 100 + 10 * LEVELS
    found = cost(two(base[None, :], base[None, :] + 20))
    assert found.intercept.value == pytest.approx(20)
    assert math.isnan(found.intercept.interval()[0])
    assert math.isnan(found.relative.p_within(-1, 1))
    assert "one block" in found.relative.note


def test_blocks_that_lack_a_cell_are_reported() -> None:
    frame = two(noisy(100 + LEVELS), noisy(120 + LEVELS, seed=1)).reset_index(drop=True)
    frame.loc[
        (frame["block"] == 3) & (frame["level"] == 4) & (frame["condition"] == "nat"), "value"
    ] = np.nan
    frame = frame[~((frame["block"] == 5) & (frame["condition"] == "host"))]
    found = cost(frame)
    assert set(found.missing) == {3, 5}
    assert found.n_blocks == 6
    assert "left out: 1 block" in found.note


def test_copies_of_a_cell_are_averaged() -> None:
    frame = pd.concat([over(np.full((3, 4), 4.0)), over(np.full((3, 4), 9.0))])
    table = blocks_of(frame, value="value", level="level", log=True)
    assert np.exp(table.values) == pytest.approx(np.full((3, 4), 6.0))
    assert "averaged" in table.note


BASE = over(noisy(100 + LEVELS))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (BASE.head(0), "no rows"),
        (BASE.drop(columns="block"), "no column 'block'"),
        (BASE.assign(value="fast"), "not numbers"),
        (BASE.assign(value=math.inf), "infinite"),
        (BASE.assign(level="a"), "not a number"),
        (BASE.assign(level=1.0), "1 usable levels"),
        (BASE.assign(level=[math.inf, *BASE["level"][1:]]), "usable levels"),
        (BASE.assign(block=[None, *BASE["block"][1:]]), "missing in some rows"),
    ],
)
def test_odd_inputs_are_clear_errors(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit_line(frame, **NAMES)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_ratios_refuse_what_has_no_logarithm(value: float) -> None:
    frame = BASE.assign(value=[value, *BASE["value"][1:]])
    with pytest.raises(UsageError, match="no logarithm"):
        successive_ratios(frame, **NAMES)


def test_unknown_conditions_and_levels_are_named() -> None:
    with pytest.raises(UsageError, match="'nat'"):
        cost(BASE.assign(condition="host"))
    with pytest.raises(UsageError, match=r"no level 3\.0"):
        blocks_of(BASE, value="value", level="level", levels=[1.0, 3.0])
    with pytest.raises(UsageError, match="fewer than two levels"):
        successive_ratios(BASE[BASE["level"] == 1], **NAMES)


def test_all_trials_failed_leaves_nothing() -> None:
    found = fit_line(BASE.assign(value=math.nan), **NAMES)
    assert found.n_blocks == 0
    assert math.isnan(found.slope.value)
    assert "left out: 8 blocks" in found.note


def test_next_time_is_what_power_says() -> None:
    seen = pd.DataFrame({"condition": ["a", "b"], "n_blocks": [6, 1], "sd": [0.03, math.nan]})
    table = blocks_needed(seen, margin=0.02)
    assert table.loc[0, "to_equate"] == blocks_for(0.02, 0.03, pilot=6)
    assert table.loc[0, "to_detect"] == blocks_to_detect(0.02, 0.03, pilot=6)
    assert table.loc[1, ["to_equate", "to_detect"]].isna().all()
    with pytest.raises(UsageError):
        blocks_needed(seen, margin=0)


@pytest.mark.parametrize("shape", [[1, 1, 2, 2], [1, 3, 1.5, 3.5], [1, 1.1, 1.2, 3]])
def test_what_is_no_line_deviates_from_it_whatever_its_shape(shape):
    rng = np.random.default_rng(3)
    rows = [
        {"value": level * rng.lognormal(0, 0.01), "layers": place, "block": block}
        for block in range(10)
        for place, level in enumerate(shape, 1)
    ]
    line = fit_line(pd.DataFrame(rows), value="value", over="layers")
    assert min(one.p_outside(-0.1, 0.1) for one in line.deviations) < 1e-6
    straight = pd.DataFrame(rows).assign(value=lambda frame: frame["layers"] * frame["value"] ** 0)
    line = fit_line(straight, value="value", over="layers")
    assert max(one.p_within(-0.1, 0.1) for one in line.deviations) < 1e-6
