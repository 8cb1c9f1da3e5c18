"""Looks with spent error, and p-values with earlier looks counted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.oneway import anova_oneway

from labkit.analysis import sequential
from labkit.analysis.estimates import mean_over_blocks
from labkit.analysis.sequential import Looks, campaign_share
from labkit.errors import UsageError

LOOKS = Looks()


def test_levels_are_the_published_ones():
    # Bounds of five even looks at one-sided 2.5 % (Jennison & Turnbull 2000, chapter 7).
    bounds = -stats.norm.ppf(Looks((10, 20, 30, 40, 50)).levels(0.025))
    assert bounds == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=2e-3)


@given(st.lists(st.integers(3, 100), min_size=1, max_size=6, unique=True))
@settings(max_examples=25, deadline=None)
def test_levels_hold_the_error_whenever_the_looks_are_taken(taken):
    levels = LOOKS.levels(0.05, sorted(taken))
    assert all(0 <= level <= 0.05 for level in levels)
    # What was decided at earlier looks does not depend on later ones.
    assert LOOKS.levels(0.05, sorted(taken)[:1])[0] == pytest.approx(levels[0])
    # Nothing is left after the last planned number of blocks.
    beyond = [n for n in sorted(taken) if n >= 80]
    assert all(level == 0 for level in levels[len(levels) - len(beyond) + 1 :])


def test_one_look_is_a_fixed_design():
    assert Looks((20,)).levels(0.025) == pytest.approx([0.025])


def test_errors_hold_over_the_looks():
    rng, runs, wrong = np.random.default_rng(5), 600, 0
    for _ in range(runs):
        blocks = rng.normal(0, 0.1, 80)
        tests = [stats.ttest_1samp(blocks[:n], 0).pvalue for n in LOOKS.blocks]
        adjusted = [LOOKS.adjust(p, n) for p, n in zip(tests, LOOKS.blocks, strict=True)]
        wrong += min(adjusted) < 0.05
    assert 0.02 < wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@given(st.floats(0.001, 0.2), st.integers(3, 80))
@settings(max_examples=30, deadline=None)
def test_an_adjusted_p_value_is_below_alpha_where_the_look_decides(alpha, blocks):
    level = LOOKS.levels(alpha, LOOKS.taken(blocks))[-1]
    below, above = (LOOKS.adjust(2 * share * level, blocks) for share in (0.98, 1.02))
    assert below < 2 * alpha < above


def test_an_adjusted_p_value_at_the_edges():
    assert Looks((20,)).adjust(0.03, 20) == pytest.approx(0.03, rel=1e-3)
    assert 0 <= LOOKS.adjust(0.0, 5) < 1e-9 and LOOKS.adjust(0.9, 5) == 1.0
    assert math.isnan(LOOKS.adjust(math.nan, 5))
    # Nothing is left after the last planned block.
    assert Looks((5, 10)).adjust(1e-6, 12) == 1.0


@given(st.floats(0.01, 0.2), st.sets(st.sampled_from(LOOKS.blocks), min_size=1))
@settings(max_examples=30, deadline=None)
def test_one_level_for_all_looks_is_no_more_than_that_of_any(alpha, ends):
    level = LOOKS.level(alpha, *ends)
    for end in ends:
        taken = LOOKS.taken(end)
        assert level <= 2 * LOOKS.levels(alpha / 2, taken)[-1]
        assert level <= LOOKS.levels(alpha, taken)[-1]
    assert Looks((20,)).level(alpha, 20) == alpha


def test_repeated_campaigns_spend_alpha_once():
    shares = [campaign_share(number) for number in range(1, 40)]
    assert sum(shares) == pytest.approx(1.0) and shares[0] == 0.8
    with pytest.raises(UsageError, match="number of campaigns"):
        campaign_share(0)


@given(st.integers(0, 10_000), st.lists(st.integers(3, 12), min_size=2, max_size=6))
def test_campaigns_are_compared_by_welch(seed, sizes):
    rng = np.random.default_rng(seed)
    runs = [rng.normal(rng.normal(), 1 + rng.random(), size) for size in sizes]
    estimates = [mean_over_blocks(logs, scale="log") for logs in runs]
    expected = anova_oneway(runs, use_var="unequal").pvalue
    assert sequential._differ(estimates) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_campaigns_that_differ_are_the_units():
    runs = [np.array([0.1, 0.12, 0.11, 0.1]), np.array([0.3, 0.31, 0.29, 0.3])]
    whole = mean_over_blocks(np.concatenate(runs), scale="log")
    apart = sequential.over_campaigns(whole, [mean_over_blocks(logs, scale="log") for logs in runs])
    assert (apart.centre, apart.df, apart.n_blocks) == (pytest.approx(0.20375), 1, 8)
    assert apart.error > whole.error and "the campaign is the unit" in apart.note
    alike = [mean_over_blocks(runs[0] + shift, scale="log") for shift in (0.0, 0.002)]
    assert sequential.over_campaigns(whole, alike) is whole
    # One block has no spread to compare with, and campaigns without variance none to be beyond.
    assert sequential.over_campaigns(whole, [alike[0], mean_over_blocks(runs[0][:1])]) is whole
    constant = [mean_over_blocks(np.full(4, level), scale="log") for level in (0.1, 0.3)]
    assert sequential.over_campaigns(whole, constant) is whole


@pytest.mark.parametrize("blocks", [(), (2, 5), (10, 5)])
def test_impossible_looks_are_refused(blocks):
    with pytest.raises(UsageError, match="invalid looks"):
        Looks(blocks)


def test_an_impossible_alpha_is_refused():
    with pytest.raises(UsageError, match="alpha"):
        LOOKS.levels(0.5)
