"""The knee: known answers, least squares, coverage, curves without a knee, odd inputs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from labkit.analysis.knee import fit_knee, profile
from labkit.errors import UsageError

QUOTAS = np.array([1000.0, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10000])
NAMES = {"value": "value", "over": "quota"}


def curve(
    at: float, exponent: float = -1.0, noise: float = 0.05, blocks: int = 10, seed: int = 0
) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    logs = exponent * np.minimum(np.log(QUOTAS / at), 0) + 0.03 * rng.standard_normal((blocks, 1))
    frame = pd.DataFrame(
        200 * np.exp(logs + noise * rng.standard_normal((blocks, len(QUOTAS)))), columns=QUOTAS
    )
    frame = frame.rename_axis("block").reset_index().melt("block", QUOTAS, "quota")
    return frame.astype({"quota": float})


@pytest.mark.parametrize("exponent", [-1.0, 1.0, 0.5])
def test_a_knee_is_found_with_its_slope_and_plateau(exponent: float) -> None:
    found = fit_knee(curve(3300, exponent), **NAMES)
    low, high = found.at.interval()
    assert low < 3300 < high
    assert high - low < 800
    assert found.exponent == pytest.approx(exponent, abs=0.1)
    assert found.plateau == pytest.approx(200, rel=0.05)
    assert found.p_knee < 0.01
    assert found.at.p_within(2500, 4500) < 0.01
    assert found.at.p_outside(4500, 9000) < 0.01
    assert found.at.p_outside(3000, 4000) > 0.05


def test_regions_and_interval_agree() -> None:
    at = fit_knee(curve(3300), **NAMES).at
    low, high = at.interval()
    assert at.p_above(low) == pytest.approx(0.025, abs=1e-3)
    assert at.p_below(high) == pytest.approx(0.025, abs=1e-3)
    # One bound alone is tested two-sided, as an estimate with a t distribution is.
    assert at.p_within(low, math.inf) == pytest.approx(0.05, abs=2e-3)
    assert at.p_within(0, high) == pytest.approx(0.05, abs=2e-3)
    assert at.interval(0.01)[0] < low < high < at.interval(0.01)[1]


def test_a_known_slope_makes_it_sharper() -> None:
    widths = [
        [
            np.diff(fit_knee(curve(3300, seed=seed), exponent=one, **NAMES).at.interval())[0]
            for one in (None, -1.0)
        ]
        for seed in range(12)
    ]
    free, known = np.mean(widths, axis=0)
    assert known < 0.9 * free


def test_the_profile_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x, means = np.log(QUOTAS), rng.normal(size=len(QUOTAS))
    grid = np.linspace(x[0], x[-1], 13)[1:]
    left, slopes = profile(means[None, :], x, grid, None)
    for place, at in enumerate(grid):
        design = np.column_stack([np.ones(len(x)), np.minimum(x - at, 0)])
        solution, rest, *_ = np.linalg.lstsq(design, means)
        assert left[0, place] == pytest.approx(rest[0])
        assert slopes[0, place] == pytest.approx(solution[1])


def test_the_estimate_is_that_of_nonlinear_least_squares() -> None:
    frame = curve(3300, seed=5)
    means = np.log(frame["value"]).groupby(frame["quota"]).mean()
    x = np.log(means.index.to_numpy(dtype=float))

    def hinge(spots: np.ndarray, level: float, slope: float, at: float) -> np.ndarray:
        return level + slope * np.minimum(spots - at, 0)

    fitted, _ = optimize.curve_fit(hinge, x, means.to_numpy(), p0=[5, -1, np.log(3300)])
    assert fit_knee(frame, **NAMES).at.value == pytest.approx(np.exp(fitted[2]), rel=3e-3)


def test_a_straight_line_and_a_constant_have_no_knee() -> None:
    line, flat = (fit_knee(curve(at, slope), **NAMES) for at, slope in ((1e6, -1), (3300, 0)))
    assert line.p_knee > 0.05
    assert flat.p_knee > 0.05
    assert line.at.interval()[1] == math.inf
    assert flat.at.p_within(3000, 4000) > 0.05


SMOOTH = {
    "line, equal noise": (lambda x: -np.log(x), 0.05),
    "line, unequal noise": (lambda x: -np.log(x), np.linspace(0.02, 0.10, len(QUOTAS))),
    "parabola": (lambda x: 0.35 * np.log(x / QUOTAS[-1]) ** 2, 0.05),
    "a + b / x": (lambda x: np.log1p(3000 / x), 0.05),
    "a + b exp(-x / c)": (lambda x: np.log1p(8 * np.exp(-x / 1800)), 0.05),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_curves_without_a_knee_are_rarely_said_to_have_one(name: str) -> None:
    shape, noise = SMOOTH[name]
    rng, runs, found = np.random.default_rng(3), 30, 0
    for _ in range(runs):
        logs = shape(QUOTAS) + 0.03 * rng.standard_normal((10, 1))
        frame = pd.DataFrame(np.exp(logs + noise * rng.standard_normal((10, 9))), columns=QUOTAS)
        frame = frame.rename_axis("block").reset_index().melt("block", QUOTAS, "quota")
        found += fit_knee(frame, **NAMES).p_knee < 0.05
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_another_curve_is_seen_not_to_be_a_hinge() -> None:
    frame = curve(3300, noise=0.01)
    assert fit_knee(frame, **NAMES).p_lack_of_fit > 0.01
    bent = frame.assign(value=np.exp(3 * np.log(frame["quota"] / 3000) ** 2))
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(bent)))
    assert fit_knee(bent.assign(value=bent["value"] * noise), **NAMES).p_lack_of_fit < 1e-6


def test_coverage_where_noise_is_unequal() -> None:
    rng, inside = np.random.default_rng(2), 0
    noise = np.where(QUOTAS < 3300, 0.1, 0.02)
    for _ in range(300):
        logs = -np.minimum(np.log(QUOTAS / 3300), 0) + noise * rng.standard_normal((10, 9))
        frame = pd.DataFrame(np.exp(logs), columns=QUOTAS).rename_axis("block").reset_index()
        low, high = fit_knee(frame.melt("block", QUOTAS, "quota"), **NAMES).at.interval()
        inside += low <= 3300 <= high
    assert stats.binomtest(inside, 300, 0.95).pvalue > 0.001


def test_blocks_that_lack_a_level_are_reported() -> None:
    frame = curve(3300)
    frame.loc[(frame["block"] == 2) & (frame["quota"] == 2000), "value"] = math.nan
    found = fit_knee(frame, **NAMES)
    assert found.at.n_blocks == 9 and "left out" in found.note
    fewer = fit_knee(frame[frame["quota"] != 2000], **NAMES)
    assert fewer.at.n_blocks == 10 and "left out" not in fewer.note


def test_one_block_or_no_variance_has_no_interval() -> None:
    found = fit_knee(curve(3300, blocks=1), **NAMES)
    assert math.isnan(found.at.value)
    assert math.isnan(found.at.p_within(1000, 5000))
    assert "two complete blocks" in found.note
    frame = curve(3300)
    exact = fit_knee(frame.assign(value=200 * np.maximum(3300 / frame["quota"], 1)), **NAMES)
    assert exact.at.value == pytest.approx(3300, rel=3e-3)
    assert all(map(math.isnan, exact.at.interval()))
    assert math.isnan(exact.at.p_outside(1000, 2000))
    assert "no variance" in exact.note


@given(
    st.lists(
        st.one_of(st.floats(1e-3, 1e9), st.sampled_from([1.0, 2.0]), st.just(math.nan)),
        min_size=12,
        max_size=12,
    )
)
def test_whatever_was_measured_a_knee_is_given_or_is_missing(values: list[float]) -> None:
    blocks = np.repeat([1, 2, 3], 4)
    frame = pd.DataFrame({"value": values, "quota": [1, 2, 4, 8] * 3, "block": blocks})
    found = fit_knee(frame, **NAMES)
    low, high = found.at.interval()
    assert found.at.n_blocks == frame.groupby("block")["value"].count().eq(4).sum()
    assert math.isnan(low) == math.isnan(high)
    if found.at.n_blocks < 2:
        assert math.isnan(found.at.value) and math.isnan(low)
    else:
        assert 1 <= found.at.value <= 8 + 1e-9
        assert math.isnan(low) or low <= found.at.value <= high
        within = found.at.p_within(2, 4)
        assert math.isnan(within) or 0 <= within <= 1


FRAME = curve(3300)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (FRAME.head(0), "no rows"),
        (FRAME[FRAME["quota"] < 2500], "too few for a knee"),
        (FRAME.assign(quota=FRAME["quota"] - 1000), "too few for a knee"),
        (FRAME.assign(value=0.0), "no logarithm"),
        (FRAME.assign(value=math.inf), "infinite"),
        (FRAME.assign(quota="much"), "not a number"),
    ],
)
def test_odd_inputs_are_clear_errors(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit_knee(frame, **NAMES)
