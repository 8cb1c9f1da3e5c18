"""Looks with spent error, decisions at a look, and campaigns that are combined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.sequential import DECISIONS, Looks, combine, look, sequential_p
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


def campaign(rng, mean=0.0, blocks=10):
    return rng.normal(mean, 0.1, blocks)


def test_campaigns_are_combined_and_the_first_decision_stands():
    rng = np.random.default_rng(2)
    weak = [campaign(rng, 0.07) for _ in range(5)]
    alone = [look(part, Looks(EVEN)).decision for part in weak]
    assert combine(weak, Looks(EVEN)).decision == "replicated" and "go on" in alone
    late = [campaign(rng, 0.3), campaign(rng, -0.5)]
    first = combine(late[:1], Looks(EVEN))
    both = combine(late, Looks(EVEN))
    assert first.decision == both.decision == "replicated"
    assert both.n_blocks == 10 and "1 of 2 campaigns" in both.note


def test_five_reruns_do_not_raise_the_error():
    rng, runs = np.random.default_rng(3), 500
    combined = last = 0
    for _ in range(runs):
        parts = [campaign(rng) for _ in range(5)]
        combined += combine(parts, Looks(EVEN)).decision == "replicated"
        last += min(stats.ttest_1samp(part, 0, alternative="greater").pvalue for part in parts) < (
            0.025
        )
    assert combined / runs <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / runs) < last / runs


def test_campaigns_that_differ_count_as_one_number_each():
    rng = np.random.default_rng(4)
    parts = [campaign(rng, mean) for mean in (0.02, 0.5, 0.3)]
    decision = combine(parts[:2], Looks((3, *EVEN)))
    assert "campaigns differ" in combine(parts[::-1], Looks(EVEN, "obrien-fleming")).note
    assert decision.n_blocks == 20 and decision.decision != "replicated"


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


def test_a_sequential_p_value_is_below_alpha_where_a_look_decided():
    levels = LOOKS.levels(0.025)
    just = [0.5, levels[1] * 0.99]
    assert sequential_p(just, (5, 10), LOOKS, sides=2) < 0.05
    assert sequential_p([0.5, levels[1] * 1.01], (5, 10), LOOKS, sides=2) > 0.05
    assert sequential_p([0.9], (5,), LOOKS) == 1.0
    assert 0 < sequential_p([0.0], (5,), LOOKS) < 1e-9


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
    with pytest.raises(UsageError, match="no campaigns"):
        combine([], LOOKS)
    with pytest.raises(UsageError, match="alpha"):
        LOOKS.levels(0.5)
