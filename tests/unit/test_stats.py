"""Statistics against scipy and statsmodels, and under changes that must not matter."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from labkit.analysis.stats import BlockTable, Mean, NotMeasured, compare, holm, ratio
from labkit.errors import UsageError


def trials(blocks=8, effect=1.3, spread=0.05, seed=1, **columns):
    """Trials of two conditions with a known ratio."""
    random = np.random.default_rng(seed)
    level = np.repeat(random.normal(0, 0.3, blocks), 2)
    noise = random.normal(0, spread, 2 * blocks)
    frame = pd.DataFrame(
        {
            "block": np.repeat(np.arange(1, blocks + 1), 2),
            "place": ["bare", "docker"] * blocks,
            "status": "ok",
            "session": 1,
        }
    )
    frame["ns"] = 1000 * np.exp(level + noise) * np.where(frame["place"] == "docker", effect, 1)
    return frame.assign(**columns)


def compared(frame, **options):
    options = {"value": "ns", "condition": "place", "baseline": "bare", **options}
    return compare(frame, **options).iloc[0]


@pytest.mark.parametrize("effect", [0.7, 1.0, 1.02, 1.3])
def test_compare_agrees_with_scipy_and_statsmodels(effect):
    frame = trials(effect=effect)
    docker, bare = (np.log(frame.loc[frame["place"] == one, "ns"]) for one in ("docker", "bare"))
    paired = scipy_stats.ttest_rel(docker, bare)
    row = compared(frame, margin=0.05)
    assert row["p_value"] == pytest.approx(paired.pvalue)
    interval = paired.confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx(
        (math.exp(interval[0]), math.exp(interval[1]))
    )
    bound = math.log(1.05)
    assert row["p_equivalence"] == pytest.approx(
        ttost_paired(docker.to_numpy(), bare.to_numpy(), -bound, bound)[0]
    )
    assert row["value"] / row["baseline"] == pytest.approx(row["estimate"])
    assert row["difference"] == pytest.approx(row["value"] - row["baseline"])


@given(st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=12))
def test_holm_is_that_of_statsmodels_over_what_is_known(p_values):
    p = np.array(p_values)
    known = ~np.isnan(p)
    adjusted = holm(p)
    assert np.isnan(adjusted[~known]).all()
    if known.any():
        assert adjusted[known] == pytest.approx(multipletests(p[known], method="holm")[1])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6))
def test_order_of_rows_unit_and_block_effects_do_not_matter(seed, scale):
    frame = trials(seed=seed)
    expected = compared(frame)
    changed = frame.sample(frac=1, random_state=seed)
    changed["ns"] *= scale * changed["block"].map(lambda block: 1 + block % 3)
    row = compared(changed)
    for name in ("estimate", "low", "high", "p_value", "verdict", "n_blocks"):
        assert row[name] == (
            pytest.approx(expected[name]) if isinstance(row[name], float) else expected[name]
        )


def test_swapping_baseline_gives_reciprocals():
    frame = trials()
    row, swapped = compared(frame), compared(frame, baseline="docker")
    assert swapped["estimate"] == pytest.approx(1 / row["estimate"])
    assert (swapped["low"], swapped["high"]) == pytest.approx((1 / row["high"], 1 / row["low"]))


def test_equal_conditions_are_equivalent_and_unequal_ones_differ():
    assert compared(trials(effect=1.0, spread=0.005))["verdict"] == "equivalent"
    assert compared(trials(effect=1.3))["verdict"] == "differs"
    assert compared(trials(effect=1.01, spread=0.001), margin=0.05)["verdict"] == (
        "differs within margin"
    )
    noisy = compared(trials(effect=1.0, spread=0.2))
    assert noisy["verdict"] == "cannot tell"
    assert noisy["blocks_needed"] > noisy["n_blocks"]


def test_four_blocks_decide_nothing():
    assert compared(trials(blocks=4, effect=3.0))["verdict"] == "cannot tell"
    assert compared(trials(blocks=5, effect=3.0))["verdict"] == "differs"


def test_equivalence_is_not_claimed_where_one_side_failed_more():
    frame = trials(effect=1.0, spread=0.005)
    assert compared(frame)["equivalent"]
    failed = (frame["place"] == "docker") & (frame["block"] <= 2)
    frame.loc[failed, "status"] = "failed"
    assert not compared(frame)["equivalent"]
    both = frame.assign(status=np.where(frame["block"] <= 2, "failed", "ok"))
    assert compared(both)["equivalent"]


def test_a_block_in_two_sessions_pairs_nothing():
    frame = trials()
    frame.loc[(frame["block"] == 3) & (frame["place"] == "docker"), "session"] = 2
    assert compared(frame)["n_blocks"] == 7


def test_repeats_are_averaged_and_a_missing_level_of_another_factor_drops_the_block():
    frame = pd.concat([trials(seed=1, size=1), trials(seed=2, size=2)], ignore_index=True)
    table = BlockTable(frame, "ns", ["place", "size"])
    numbers = table.cells({"place": "docker"}, {"place": "bare"})
    separate = [
        table.cells({"place": "docker", "size": size}, {"place": "bare", "size": size})
        for size in (1, 2)
    ]
    expected = np.mean([ratio(one).centre for one in separate])
    assert ratio(numbers).centre == pytest.approx(expected)
    missing = frame[~((frame["block"] == 1) & (frame["size"] == 2))]
    table = BlockTable(missing, "ns", ["place", "size"])
    assert ratio(table.cells({"place": "docker"}, {"place": "bare"})).n == 7


def test_serial_correlation_widens_and_leaves_at_least_four_degrees_of_freedom():
    random = np.random.default_rng(3)
    walk = np.cumsum(random.normal(size=12))
    plain = float(scipy_stats.sem(walk))
    mean = Mean.of(walk)
    assert mean.error > plain
    assert mean.df >= 4
    independent = random.normal(size=40)
    assert Mean.of(independent).error == pytest.approx(float(scipy_stats.sem(independent)))


def test_zeros_are_compared_without_logarithms():
    frame = trials()
    frame.loc[frame["place"] == "bare", "ns"] = 10.0
    frame.loc[(frame["place"] == "docker") & (frame["block"] == 1), "ns"] = 0.0
    table = BlockTable(frame, "ns", ["place"])
    estimate = ratio(table.cells({"place": "docker"}, {"place": "bare"}))
    means = frame.groupby("place")["ns"].mean()
    assert estimate.value == pytest.approx(means["docker"] / means["bare"])


def test_unknown_names_are_refused_with_a_suggestion():
    frame = trials()
    with pytest.raises(UsageError, match="docker"):
        compared(frame, baseline="dokcer")
    with pytest.raises(UsageError):
        compared(frame, value="nss")
    with pytest.raises(UsageError):
        compared(frame, margin=0.0)
    with pytest.raises(NotMeasured):
        BlockTable(frame, "ns", ["place"]).cells({"place": "podman"})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), effect=st.sampled_from([1.0, 1.05, 1.5]))
def test_intervals_and_p_values_agree(seed, effect):
    frame = trials(seed=seed, effect=effect)
    numbers = BlockTable(frame, "ns", ["place"]).cells({"place": "docker"}, {"place": "bare"})
    estimate = ratio(numbers)
    low, high = estimate.interval(0.95)
    assert (low > 1) == (2 * estimate.p_above(1.0) < 0.05)
    assert (high < 1) == (2 * estimate.p_below(1.0) < 0.05)
    inner = estimate.interval(0.90)
    assert (estimate.p_inside(0.9, 1.1) < 0.05) == (inner[0] > 0.9 and inner[1] < 1.1)
