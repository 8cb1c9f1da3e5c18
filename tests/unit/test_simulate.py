"""Rates of wrong words, from a few thousand simulated experiments with a fixed seed."""

import runpy
from types import SimpleNamespace

import pandas as pd
import pytest
from scipy import stats

from labkit.paths import SHIPPED

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
    most = stats.binom.ppf(0.9999, EXPERIMENTS, rate) / EXPERIMENTS
    assert sum(found[word] for word in wrong) <= most
    if kind == "compare":
        assert 1 - found["covered"] <= most


def test_the_page_shows_the_table():
    table = pd.read_csv(SHIPPED / "benchmarks/simulate.csv")
    assert (SHIPPED / "docs/method-rates.md").read_text() == SIMULATE.page(table)
