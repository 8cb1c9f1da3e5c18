"""Statistics against scipy and statsmodels, under changes that must not matter, and simulated."""

import math
import runpy
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from labkit.analysis.stats import BlockTable, Mean, compare, holm
from labkit.errors import UsageError
from labkit.paths import SHIPPED

DOCKER, BARE = {"place": "docker"}, {"place": "bare"}


def trials(blocks=8, effect=1.3, spread=0.05, seed=1, **columns):
    """Trials of two conditions with a known ratio."""
    random = np.random.default_rng(seed)
    level = np.repeat(random.normal(0, 0.3, blocks), 2)
    ns = 1000 * np.exp(level + random.normal(0, spread, 2 * blocks)) * ([1, effect] * blocks)
    columns = {"place": ["bare", "docker"] * blocks, "status": "ok", "session": 1, **columns}
    return pd.DataFrame({"block": np.arange(2 * blocks) // 2 + 1, "ns": ns, **columns})


def compared(frame, **options):
    options = {"value": "ns", "condition": "place", "baseline": "bare", **options}
    return compare(frame, **options).iloc[0]


def of(frame, *cells):
    """Numbers of some cells, of Docker and of none if there are none."""
    table = BlockTable(frame, [*frame.columns.intersection(["place", "size"])])
    return table.cells("ns", *(cells or (DOCKER, BARE)))


@pytest.mark.parametrize("effect", [0.7, 1.0, 1.02, 1.3])
def test_compare_agrees_with_scipy_and_statsmodels(effect):
    frame = trials(effect=effect)
    docker, bare = (np.log(frame.loc[frame["place"] == one, "ns"]) for one in ("docker", "bare"))
    paired, bound = scipy_stats.ttest_rel(docker, bare), math.log(1.05)
    row = compared(frame, margin=0.05)
    assert row["p_value"] == pytest.approx(paired.pvalue)
    assert np.log([row["low"], row["high"]]) == pytest.approx([*paired.confidence_interval()])
    tost = ttost_paired(docker.to_numpy(), bare.to_numpy(), -bound, bound)
    assert row["p_equivalence"] == pytest.approx(tost[0])
    assert row["value"] / row["baseline"] == pytest.approx(row["estimate"])
    assert row["difference"] == pytest.approx(row["value"] - row["baseline"])


@given(st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels_over_what_is_known(p_values):
    p, adjusted = np.array(p_values), holm(p_values)
    known = ~np.isnan(p)
    assert np.isnan(adjusted[~known]).all()
    with mock.patch("gc.collect"):  # statsmodels would collect all garbage at each call
        oracle = multipletests(p[known], method="holm")[1] if known.any() else []
    assert adjusted[known] == pytest.approx(oracle)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6))
def test_order_of_rows_unit_and_block_effects_do_not_matter_and_swapping_inverts(seed, scale):
    frame = trials(seed=seed)
    names = ["estimate", "low", "high", "p_value", "n_blocks"]
    expected = compared(frame)
    changed = frame.sample(frac=1, random_state=seed)
    changed["ns"] *= scale * changed["block"].map(lambda block: 1 + block % 3)
    row, swapped = compared(changed), compared(frame, baseline="docker")
    assert [*row[names]] == pytest.approx([*expected[names]])
    assert row["verdict"] == swapped["verdict"] == expected["verdict"]
    inverse = 1 / swapped[["estimate", "high", "low"]].astype(float)
    assert [*inverse] == pytest.approx([*expected[names[:3]]])


@pytest.mark.parametrize(
    ("options", "margin", "verdict"),
    [
        ({"effect": 1.0, "spread": 0.005}, 0.02, "equivalent"),
        ({"effect": 1.3}, 0.02, "differs"),
        ({"effect": 1.01, "spread": 0.001}, 0.05, "differs within margin"),
        ({"effect": 1.0, "spread": 0.2}, 0.02, "cannot tell"),
        ({"effect": 3.0, "blocks": 4}, 0.02, "cannot tell"),
        ({"effect": 3.0, "blocks": 5}, 0.02, "differs"),
    ],
)
def test_verdicts_follow_margin_and_number_of_blocks(options, margin, verdict):
    row = compared(trials(**options), margin=margin)
    assert row["verdict"] == verdict
    assert verdict != "cannot tell" or row["n_blocks"] == 4 or row["blocks_needed"] > 8


def test_equivalence_is_not_claimed_where_one_side_failed_more():
    frame = trials(effect=1.0, spread=0.005)
    early = frame["block"] <= 2
    one = frame.assign(status=np.where(early & (frame["place"] == "docker"), "failed", "ok"))
    both = frame.assign(status=np.where(early, "failed", "ok"))
    equal = [bool(compared(each)["equivalent"]) for each in (frame, one, both)]
    assert equal == [True, False, True]


def test_a_missing_level_of_another_factor_or_another_session_drops_the_block():
    frame = trials()
    frame.loc[(frame["block"] == 3) & (frame["place"] == "docker"), "session"] = 2
    assert compared(frame)["n_blocks"] == 7
    frame = pd.concat([trials(seed=1, size=1), trials(seed=2, size=2)], ignore_index=True)
    separate = [of(frame, DOCKER | {"size": size}, BARE | {"size": size}) for size in (1, 2)]
    expected = np.mean([one.estimate().centre for one in separate])
    assert of(frame).estimate().centre == pytest.approx(expected)
    assert of(frame[(frame["block"] > 1) | (frame["size"] == 1)]).estimate().n == 7


def test_serial_correlation_widens_and_leaves_at_least_four_degrees_of_freedom():
    random = np.random.default_rng(3)
    walk, independent = np.cumsum(random.normal(size=12)), random.normal(size=40)
    assert Mean.of(walk).error > scipy_stats.sem(walk) and Mean.of(walk).df >= 4
    for plain in (independent, np.tile([1.0, 2.0], 10)):  # an alternation is no trend
        assert Mean.of(plain).error == pytest.approx(scipy_stats.sem(plain))


def test_zeros_are_compared_without_logarithms():
    frame = trials()
    frame.loc[(frame["place"] == "docker") & (frame["block"] == 1), "ns"] = 0.0
    means = frame.groupby("place")["ns"].mean()
    assert of(frame).estimate().value == pytest.approx(means["docker"] / means["bare"])


MARGINS = [{"margin": one} for one in (5, 0, -0.1, math.inf, math.nan)]


@pytest.mark.parametrize(
    "options", [{"baseline": "dokcer"}, {"value": "nss"}, {"alpha": 0.5}, *MARGINS]
)
def test_unknown_names_and_a_margin_in_per_cent_are_refused(options):
    with pytest.raises(UsageError):
        compared(trials(), **options)


def test_columns_of_other_kinds_have_a_verdict_or_are_refused():
    rare = compared(
        trials().assign(ns=[2, 5000, 0, 4000, 1, 6000, 0, 5000, 3, 5000, 1, 5000, 1, 1, 1, 1])
    )
    assert rare["n_blocks"] == 8 and rare["verdict"] == "differs"
    assert compared(trials(2).assign(ns=[1, 1, 1, 1e70]))["high"] == math.inf
    assert math.isnan(Mean.of([]).value) and math.isnan(Mean.of([1]).interval()[1])
    everywhere = trials().replace({"place": {"docker": "all"}})
    assert compared(everywhere)["value"] == pytest.approx(compared(trials())["value"])
    with pytest.raises(UsageError, match="ns has a text"):
        compared(trials().assign(ns=["1,5", "2"] * 8))


# Rates of wrong words, from a few thousand simulated experiments with a fixed seed.

EXPERIMENTS = 2000
SIMULATE = SimpleNamespace(**runpy.run_path(str(SHIPPED / "benchmarks/simulate.py")))


@pytest.mark.parametrize(
    ("kind", "truth", "parts", "wrong", "rate"),
    [
        ("compare", "no effect (A/A)", "1", ("differs", "differs within margin"), 0.05),
        ("direction", "the smallest effect in one part too many", "3", ("holds",), 0.025),
        ("direction", "the smallest effect", "3", ("does not hold here",), 0.025),
        ("order", "one step level", "3", ("holds",), 0.025),
        ("size p", "half of p", "1", ("does not hold here",), 0.025),
        ("no difference", "the margin", "1", ("holds",), 0.05),
    ],
)
def test_a_word_is_seldom_wrong_at_its_edge(kind, truth, parts, wrong, rate):
    truths = {(one.kind, one.name): one for one in SIMULATE.TRUTHS}
    found = SIMULATE.simulate(SIMULATE.Scenario(truths[kind, truth], parts, "8"), [], EXPERIMENTS)
    # A true rate exceeds this once in 10,000 simulations.
    most = scipy_stats.binom.ppf(0.9999, EXPERIMENTS, rate) / EXPERIMENTS
    assert sum(found[word] for word in wrong) <= most
    if kind == "compare":
        assert 1 - found["covered"] <= most


def test_the_page_shows_the_table():
    table = pd.read_csv(SHIPPED / "benchmarks/simulate.csv")
    assert (SHIPPED / "docs/method-rates.md").read_text() == SIMULATE.page(table)
