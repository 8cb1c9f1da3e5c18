"""Known truths, many times over: what is found where nothing is, and what where something is."""

import math

import numpy as np
import pytest
from test_analysis_frames import run, samples, trials


@pytest.mark.parametrize("statistic", ["mean", "median", "p99"])
def test_nothing_is_found_where_nothing_is(statistic):
    runs, rng = 300, np.random.default_rng(2015)
    found = sum(
        bool(run(samples(rng, n=120), statistic=statistic, trial="trial")["differs"][0])
        for _ in range(runs)
    )
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_drift_over_the_campaign_is_paired_away_and_the_family_holds():
    runs, rng = 400, np.random.default_rng(7)
    options = {"others": ("a", "b", "c"), "drift": 0.05}
    found = sum(bool(run(trials(rng, **options))["differs"].any()) for _ in range(runs))
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_power_and_equivalence():
    runs, rng = 300, np.random.default_rng(8)

    def share(column, **options):
        return np.mean([run(trials(rng, **options))[column][0] for _ in range(runs)])

    # Noise is the spread of a pair's log ratio here divided by the square root of 2, a trial's.
    assert share("differs", ratio=1.05, noise=0.02) >= 0.95
    assert share("equivalent", ratio=1.002, noise=0.01) >= 0.95
    wrong = share("equivalent", ratio=1.02, noise=0.01)
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_intervals_cover():
    runs, rng = 500, np.random.default_rng(9)
    tables = [run(trials(rng, ratio=1.1, noise=0.03)) for _ in range(runs)]
    covered = np.mean([table["low"][0] <= 1.1 <= table["high"][0] for table in tables])
    assert 0.92 <= covered <= 0.98
