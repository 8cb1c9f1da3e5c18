"""Looks with spent error, decisions at a look, and p-values with earlier looks counted."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.oneway import anova_oneway

from labkit.analysis import sequential
from labkit.analysis.estimates import over_blocks
from labkit.analysis.sequential import DECISIONS, Looks, campaign_share, look
from labkit.errors import UsageError

LOOKS = Looks()
EVEN = (10, 20, 30, 40, 50)


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        # Bounds of five even looks at one-sided 2.5 % (Jennison & Turnbull 2000, chapter 7).
        ("obrien-fleming", [4.877, 3.357, 2.680, 2.290, 2.031]),
        ("pocock", [2.438, 2.427, 2.410, 2.397, 2.386]),
    ],
)
def test_levels_are_the_published_ones(spending, published):
    levels = Looks(EVEN, spending).levels(0.025)
    assert -stats.norm.ppf(levels) == pytest.approx(published, abs=2e-3)


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
    figures = np.random.default_rng(1).normal(0.05, 0.1, 20)
    decision = look(figures, Looks((20,)))
    test = stats.ttest_1samp(figures, 0)
    assert decision.p_replicated == pytest.approx(test.pvalue / 2)
    low, high = test.confidence_interval(0.95)
    assert (decision.low, decision.high) == pytest.approx((math.exp(low), math.exp(high)), 1e-4)


@pytest.mark.parametrize(
    ("mean", "spread", "claim", "word"),
    [
        (0.1, 0.01, {}, "replicated"),
        (-0.1, 0.01, {}, "contradicted"),
        (-0.1, 0.01, {"low": 0.0, "high": 1.0}, "replicated"),
        (0.0, 0.001, {"margin": 0.02}, "equivalent"),
        (0.0, 0.001, {"low": 1 / 1.02, "high": 1.02}, "replicated"),
        (0.1, 0.01, {"low": 1 / 1.02, "high": 1.02}, "contradicted"),
        (0.02, 0.1, {}, "go on"),
        (0.0, 0.5, {"low": 1 / 1.02, "high": 1.02}, "hopeless"),
    ],
)
def test_a_look_decides(mean, spread, claim, word):
    blocks = 60 if word == "hopeless" else 20
    figures = mean + spread * np.tile([-1.2, -0.4, 0.3, 0.4, 0.9], blocks // 5)
    decision = look(figures, LOOKS, **claim)
    assert decision.decision == word and word in DECISIONS and decision.n_blocks == blocks
    assert decision.next_look == (40 if word == "go on" else None)
    low, high = claim.get("low", 1.0), claim.get("high", math.inf)
    inside = low <= decision.low and decision.high <= high
    outside = decision.high < low or decision.low > high
    # The interval is the one that the decision rests on.
    assert inside == (word == "replicated") and outside == (word == "contradicted")


def test_the_last_look_leaves_nothing_open():
    figures = 0.1 * np.tile([-1.0, 1.0], 40)
    decision = look(figures, LOOKS)
    assert decision.decision == "hopeless" and "used up" in decision.note
    assert math.isnan(decision.chance) and decision.next_look is None


def test_errors_hold_over_the_looks():
    rng, runs = np.random.default_rng(5), 600
    words = []
    for _ in range(runs):
        figures = rng.normal(0, 0.1, 80)
        for n in LOOKS.blocks:
            decision = look(figures[:n], LOOKS)
            if decision.decision != "go on":
                break
        words.append(decision.decision)
    for word in ("replicated", "contradicted"):
        assert words.count(word) / runs <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / runs)
    assert words.count("hopeless") > 0.9 * runs


@given(st.floats(0.001, 0.2), st.integers(3, 80), st.sampled_from(["pocock", "obrien-fleming"]))
@settings(max_examples=60, deadline=None)
def test_an_adjusted_p_value_is_below_alpha_where_the_look_decides(alpha, blocks, spending):
    looks = Looks((5, 10, 20, 40, 80), spending)
    taken = [*(n for n in looks.blocks if n < blocks), blocks]
    level = looks.levels(alpha, taken)[-1]
    if level < 1e-8:  # almost nothing is spent so early
        return
    assert looks.adjust(0.98 * level, blocks) < alpha < looks.adjust(1.02 * level, blocks)
    assert looks.adjust(1.96 * level, blocks, sides=2) < 2 * alpha


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
    estimates = [over_blocks(logs, scale="log") for logs in runs]
    expected = anova_oneway(runs, use_var="unequal").pvalue
    assert sequential._differ(estimates) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_campaigns_that_differ_are_the_units():
    runs = [np.array([0.1, 0.12, 0.11, 0.1]), np.array([0.3, 0.31, 0.29, 0.3])]
    whole = over_blocks(np.concatenate(runs), scale="log")
    apart = sequential.over_campaigns(whole, [over_blocks(logs, scale="log") for logs in runs])
    assert (apart.centre, apart.df, apart.n_blocks) == (pytest.approx(0.20375), 1, 8)
    assert apart.error > whole.error and "the campaign is the unit" in apart.note
    alike = [over_blocks(runs[0] + shift, scale="log") for shift in (0.0, 0.002)]
    assert sequential.over_campaigns(whole, alike) is whole
    # One block has no spread to compare with, and campaigns without variance none to be beyond.
    assert sequential.over_campaigns(whole, [alike[0], over_blocks(runs[0][:1])]) is whole
    constant = [over_blocks(np.full(4, level), scale="log") for level in (0.1, 0.3)]
    assert sequential.over_campaigns(whole, constant) is whole


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": ()},
        {"blocks": (2, 5)},
        {"blocks": (10, 5)},
        {"spending": "even"},
        {"futility": 1.0},
    ],
)
def test_impossible_looks_are_refused(options):
    with pytest.raises(UsageError, match="invalid looks"):
        Looks(**options)


def test_impossible_questions_are_refused():
    figures = np.zeros(5) + 0.1
    for options in ({"low": 0.0}, {"low": 2.0, "high": 1.0}, {"margin": 0.0}):
        with pytest.raises(UsageError, match="invalid"):
            look(figures, LOOKS, **options)
    for bad in (figures[:1], np.array([0.1, math.nan])):
        with pytest.raises(UsageError, match="two blocks"):
            look(bad, LOOKS)
    with pytest.raises(UsageError, match="alpha"):
        LOOKS.levels(0.5)
