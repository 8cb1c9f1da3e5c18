"""Rates of wrong words, from a few thousand simulated experiments with a fixed seed."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
EXPERIMENTS = 2000


@pytest.fixture(scope="module")
def simulate():
    spec = importlib.util.spec_from_file_location("simulate", BENCHMARKS / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rates(simulate):
    truths = {(truth.kind, truth.name): truth for truth in simulate.TRUTHS}

    def of(kind, truth, parts="1", blocks="8"):
        scenario = simulate.Scenario(truths[kind, truth], parts, blocks)
        return simulate.simulate(scenario, [], EXPERIMENTS)

    return of


def most(rate):
    """Return the share of experiments that a true rate exceeds once in 10,000 simulations."""
    return stats.binom.ppf(0.9999, EXPERIMENTS, rate) / EXPERIMENTS


def test_equal_conditions_differ_in_one_of_twenty(rates):
    found = rates("compare", "no effect (A/A)", blocks="12")
    assert found["differs"] + found["differs within margin"] <= most(0.05)
    assert 1 - found["covered"] <= most(0.05)


@pytest.mark.parametrize(
    ("kind", "truth", "parts", "wrong", "rate"),
    [
        ("direction", "the smallest effect", "1", "holds", 0.025),
        ("direction", "the smallest effect in one part too many", "3", "holds", 0.025),
        ("direction", "the smallest effect", "3", "does not hold here", 0.025),
        ("order", "one step level", "3", "holds", 0.025),
        ("size p", "half of p", "1", "does not hold here", 0.025),
        ("no difference", "the margin", "1", "holds", 0.05),
    ],
)
def test_a_word_is_seldom_wrong_at_its_edge(rates, kind, truth, parts, wrong, rate):
    assert rates(kind, truth, parts)[wrong] <= most(rate)


def test_the_page_shows_the_table(simulate):
    table = pd.read_csv(BENCHMARKS / "simulate.csv")
    page = BENCHMARKS.parent / "docs" / "method-rates.md"
    assert page.read_text() == simulate.page(table)
