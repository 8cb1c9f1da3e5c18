"""The factorial model: the repeated-measures analysis of statsmodels, errors, odd inputs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.anova import AnovaRM
from statsmodels.stats.multitest import multipletests

from labkit.analysis.factorial import fit_factorial
from labkit.errors import UsageError

FACTORS = ["placement", "wait", "affinity"]


def experiment(blocks: int = 6, noise: float = 0.02, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.MultiIndex.from_product(
        [range(blocks), ["host", "nat", "bridge"], ["block", "spin"], ["free", "split"]],
        names=["block", *FACTORS],
    ).to_frame(index=False)
    logs = 0.1 * (frame["placement"] == "nat") - 0.2 * (frame["wait"] == "spin")
    logs += 0.05 * ((frame["placement"] == "nat") & (frame["wait"] == "spin"))
    logs += np.repeat(0.03 * rng.standard_normal(blocks), 12)
    return frame.assign(value=np.exp(logs + noise * rng.standard_normal(len(frame))))


def model(frame: pd.DataFrame, **options: object):
    return fit_factorial(frame, value="value", factors=FACTORS, **options)


def test_terms_have_the_f_values_of_repeated_measures() -> None:
    frame = experiment()
    logs = frame.assign(log=np.log(frame["value"]))
    reference = AnovaRM(logs, "log", "block", within=FACTORS).fit().anova_table
    terms = model(frame).terms.set_index("term")
    assert list(terms.index) == list(reference.index)
    assert terms["f_value"].to_numpy() == pytest.approx(reference["F Value"].to_numpy())
    assert terms["df"].to_numpy() == pytest.approx(reference["Num DF"].to_numpy())
    one = terms["df"] == 1
    assert terms.loc[one, "p_value"].to_numpy() == pytest.approx(reference.loc[one, "Pr > F"])
    # With more degrees of freedom both are multiplied by Box's epsilon, here of three levels.
    means = logs.groupby(["block", "placement"])["log"].mean().unstack()
    covariance = means.sub(means.mean(axis=1), axis=0).cov().to_numpy()
    epsilon = np.trace(covariance) ** 2 / (2 * np.square(covariance).sum())
    row = reference.loc["placement"]
    p_value = stats.f.sf(row["F Value"], 2 * epsilon, 10 * epsilon)
    assert terms.loc["placement", "p_value"] == pytest.approx(p_value)
    expected = multipletests(terms["p_value"], method="holm")[1]
    assert terms["p_adjusted"].to_numpy() == pytest.approx(expected)
    f_value = terms.loc["wait", "f_value"]
    assert terms.loc["wait", "share"] == pytest.approx(f_value / (f_value + 5))


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_effects_that_vary_by_block_keep_the_nominal_error(spread: float) -> None:
    rng, runs, noise = np.random.default_rng(1), 300, 0.02
    frame = experiment(noise=0.0).assign(value=1.0)
    grid = pd.MultiIndex.from_product([range(6), ["host", "nat", "bridge"]])
    levels = pd.MultiIndex.from_frame(frame[["block", "placement"]])
    false = 0
    for _ in range(runs):
        own = pd.Series(spread * noise * rng.standard_normal(len(grid)), index=grid)
        logs = own.reindex(levels).to_numpy() + noise * rng.standard_normal(len(frame))
        terms = model(frame.assign(value=np.exp(logs)), order=1).terms
        false += bool(terms.loc[0, "p_value"] < 0.05)
    assert false / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_effects_are_ratios_to_the_mean_of_the_levels() -> None:
    frame = experiment()
    found = model(frame).effects
    logs = np.log(frame["value"])
    for level, part in logs.groupby(frame["placement"]):
        row = found[(found["term"] == "placement") & (found["levels"] == (level,))].iloc[0]
        assert row["estimate"] == pytest.approx(np.exp(part.mean() - logs.mean()))
        assert row["low"] < row["estimate"] < row["high"]
    means = logs.groupby([frame["placement"], frame["wait"]]).mean().unstack()
    inner = means.sub(means.mean(axis=1), axis=0).sub(means.mean(axis=0)) + means.to_numpy().mean()
    rows = found[found["term"] == "placement:wait"].set_index("levels")["estimate"]
    for levels, estimate in rows.items():
        assert estimate == pytest.approx(np.exp(inner.loc[levels]))


def test_mirrored_rows_count_once_in_holm() -> None:
    found = model(experiment(), order=1).effects
    assert len(found) == 3 + 2 + 2
    wait = found[found["term"] == "wait"]
    assert wait["p_adjusted"].nunique() == 1
    tests = [*found[found["term"] == "placement"]["p_value"], wait["p_value"].iloc[0]]
    tests.append(found[found["term"] == "affinity"]["p_value"].iloc[0])
    expected = multipletests(tests, method="holm")[1]
    assert wait["p_adjusted"].iloc[0] == pytest.approx(expected[3])


def test_order_limits_the_interactions() -> None:
    assert model(experiment(), order=2).terms["order"].tolist() == [1, 1, 1, 2, 2, 2]
    assert model(experiment()).terms["term"].tolist()[-1] == "placement:wait:affinity"


def test_blocks_that_lack_a_combination_are_left_out() -> None:
    frame = experiment()
    frame.loc[[0, 17, 40], "value"] = math.nan
    found = model(frame)
    assert (found.n_blocks, found.n_trials) == (3, 36)
    assert "3 of 72 trials" in found.note and "3 of 6 blocks" in found.note
    twice = model(pd.concat([frame, frame]))
    assert twice.n_trials == found.n_trials
    assert "averaged" in twice.note
    # Main effects need no complete grid.
    simpler = model(frame, order=1)
    assert (simpler.n_blocks, simpler.n_trials) == (6, len(frame) - 3)


@pytest.mark.parametrize("order", [0, -1])
def test_an_order_without_terms_is_refused(order) -> None:
    with pytest.raises(UsageError, match="give 1"):
        model(experiment(), order=order)


def test_an_empty_combination_is_named() -> None:
    frame = experiment()
    lacking = frame[~((frame["placement"] == "nat") & (frame["wait"] == "spin"))]
    with pytest.raises(UsageError, match=r"placement x wait were never measured: nat/spin"):
        model(lacking)
    assert len(model(lacking, order=1).terms) == 3


def test_too_few_trials_have_estimates_without_intervals() -> None:
    found = model(experiment(blocks=1))
    assert found.effects["estimate"].notna().all()
    assert found.effects[["low", "high", "p_value"]].isna().to_numpy().all()
    assert "more blocks" in found.note
    constant = model(experiment().assign(value=5.0))
    assert constant.effects["estimate"].to_numpy() == pytest.approx(1.0)
    assert constant.terms["p_value"].isna().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": 0.0}, "no logarithm"),
        ({"value": math.inf}, "infinite"),
        ({"value": math.nan}, "fewer than two levels"),
        ({"wait": "spin"}, "fewer than two levels"),
        ({"wait": None}, "missing"),
    ],
)
def test_odd_inputs_are_clear_errors(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        model(experiment().assign(**change))


def test_factors_that_cannot_be_told_apart_are_clear_errors() -> None:
    frame = experiment()
    with pytest.raises(UsageError, match="invalid factors"):
        fit_factorial(frame, value="value", factors=["block"])
    apart = frame.assign(host=frame["block"] < 3)
    with pytest.raises(UsageError, match="no block holds all combinations"):
        fit_factorial(apart, value="value", factors=["host"])
    alias = frame.assign(other=frame["wait"])
    with pytest.raises(UsageError, match="confounded with each other"):
        fit_factorial(alias, value="value", factors=["wait", "other"], order=1)
