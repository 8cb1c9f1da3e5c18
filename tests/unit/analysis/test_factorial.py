"""The factorial model, beside statsmodels with a formula."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
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
    return fit_factorial(frame, value="value", factors=FACTORS, block="block", **options)


def test_it_is_the_model_of_a_formula() -> None:
    frame = experiment()
    formula = "np.log(value) ~ C(placement, Sum)*C(wait, Sum)*C(affinity, Sum) + C(block, Sum)"
    reference = smf.ols(formula, frame).fit(cov_type="HC2", use_t=True)
    wald = reference.wald_test_terms(scalar=True).table
    wald.index = [
        name.replace("C(", "").replace(", Sum)", "") if isinstance(name, str) else name
        for name in wald.index
    ]
    found = model(frame).terms.set_index("term")
    for term in found.index:
        assert found.loc[term, "p_value"] == pytest.approx(wald.loc[term, "pvalue"], rel=1e-6)
    plain = sm.stats.anova_lm(smf.ols(formula, frame).fit(), typ=3)
    rest = plain.loc["Residual", "sum_sq"]
    squares = plain.loc["C(wait, Sum)", "sum_sq"]
    assert found.loc["wait", "share"] == pytest.approx(squares / (squares + rest))
    expected = multipletests(found["p_value"], method="holm")[1]
    assert found["p_adjusted"].to_numpy() == pytest.approx(expected)


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


def test_missing_trials_are_no_problem_while_no_cell_is_empty() -> None:
    frame = experiment()
    frame.loc[[0, 17, 40], "value"] = math.nan
    found = model(frame)
    assert found.n_trials == len(frame) - 3
    assert "3 of 72 trials" in found.note
    twice = model(pd.concat([frame, frame]))
    assert twice.n_trials == found.n_trials
    assert "averaged" in twice.note


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


def test_the_block_is_no_factor_and_confounding_is_seen() -> None:
    frame = experiment()
    with pytest.raises(UsageError, match="invalid factors"):
        fit_factorial(frame, value="value", factors=["block"], block="block")
    apart = frame.assign(host=frame["block"] < 3)
    with pytest.raises(UsageError, match="confounded with the blocks"):
        fit_factorial(apart, value="value", factors=["host"], block="block")
