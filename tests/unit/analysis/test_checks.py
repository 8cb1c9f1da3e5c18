"""Changes inside a trial: warm-ups are found, steady trials rarely flagged, doubt is said."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats

from labkit.analysis import checks
from labkit.analysis.checks import CHANGE_ALPHA

Rng = np.random.Generator


def check(*trials: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame.from_records([checks.inside(trial) for trial in trials])


def autoregressive(rng: Rng, n: int, phi: float) -> np.ndarray:
    noise = rng.standard_normal(n + 500)
    return signal.lfilter([math.sqrt(1 - phi**2)], [1, -phi], noise)[500:]


@given(st.lists(st.integers(-128, 127), min_size=1), st.sampled_from(["int8", "int64", "float"]))
def test_ranks_are_those_of_scipy(values: list[int], kind: str) -> None:
    series = np.array(values, dtype=kind)
    assert checks._ranks(series).tolist() == stats.rankdata(series).tolist()


def test_the_effective_size_is_scaled_up_from_the_first_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series = autoregressive(np.random.default_rng(6), 10_000, 0.5)
    found = {}
    for most in (10_000, 5_000):
        monkeypatch.setattr(checks, "MOST_OF_TRIAL", most)
        row = checks.inside(series)
        assert row["n"] == 10_000
        # An AR(1) of 0.5 is worth a third of its samples.
        assert row["effective"] == pytest.approx(10_000 / 3, rel=0.2)
        found[most] = row["effective"]
    assert found[10_000] != found[5_000]


@pytest.mark.parametrize("phi", [0.0, 0.5])
@pytest.mark.parametrize("n", [5_000, 50_000])
@pytest.mark.parametrize(
    ("share", "change"), [(0.4, math.expm1(0.10)), (0.4, 0.20), (0.2, 0.50), (0.1, 0.20)]
)
def test_a_warm_up_is_found(share: float, change: float, n: int, phi: float) -> None:
    rng, length = np.random.default_rng(1), int(share * n)
    factor = np.r_[np.full(length, 1 + change), np.ones(n - length)]
    table = check(*(factor * np.exp(0.2 * autoregressive(rng, n, phi)) for _ in range(5)))
    assert (table["state"] == "changing").all()
    # A little of the rest may be left out by chance; then the stretch is not at an end.
    assert table["start"].median() == 0
    assert table["stop"].median() == pytest.approx(share, abs=0.06)
    assert table["change"].median() == pytest.approx(change, abs=0.05)


def test_a_change_that_is_undone_is_found() -> None:
    rng = np.random.default_rng(2)
    factor = np.where(np.arange(5_000) // 500 == 4, 1.2, 1.0)
    row = check(factor * np.exp(0.2 * rng.standard_normal(5_000))).iloc[0]
    assert row["state"] == "changing"
    assert (row["start"], row["stop"]) == pytest.approx((0.4, 0.5), abs=0.03)


STEADY: dict[str, Callable[[Rng], np.ndarray]] = {
    "independent": lambda rng: rng.lognormal(sigma=0.2, size=2_000),
    "AR(1) .5": lambda rng: np.exp(0.2 * autoregressive(rng, 2_000, 0.5)),
    "heavy tail": lambda rng: np.abs(rng.standard_cauchy(2_000)),
    "two modes": lambda rng: (1 + (rng.random(2_000) < 0.3)) * rng.lognormal(sigma=0.1, size=2_000),
}


@pytest.mark.parametrize("name", STEADY)
def test_steady_trials_are_flagged_as_rarely_as_stated(name: str) -> None:
    rng, trials = np.random.default_rng(3), 400
    states = check(*(STEADY[name](rng) for _ in range(trials)))["state"]
    slack = 3 * math.sqrt(CHANGE_ALPHA * (1 - CHANGE_ALPHA) / trials)
    assert (states != "steady").mean() <= CHANGE_ALPHA + slack


@pytest.mark.parametrize(
    "values",
    [
        np.ones(5),
        np.full(500, math.nan),
        np.tile([1.0, math.inf], 500),
        np.random.default_rng(4).standard_normal(1_000).cumsum(),
    ],
)
def test_what_cannot_be_told_has_a_state_of_its_own(values: np.ndarray) -> None:
    table = check(values)
    assert table["state"].tolist() == ["cannot tell"]
    assert table["p_value"].isna().all()


def test_a_constant_trial_is_steady() -> None:
    row = check(np.full(1_000, 5)).iloc[0]
    assert (row["state"], row["change"], row["p_value"]) == ("steady", 0.0, 1.0)
