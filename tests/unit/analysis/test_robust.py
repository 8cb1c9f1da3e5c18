"""Serial correlation, outlying blocks, skewness and trimmed means."""

import math

import numpy as np
import pytest
from scipy import signal, stats

from labkit.analysis.estimates import mean_over_blocks, ratio_of_means
from labkit.analysis.robust import (
    CHECKED_BLOCKS,
    HALF_CHECKED,
    SERIAL_LEVEL,
    SURE_BLOCKS,
    UNCHECKED,
    block_mean,
    block_ratio,
    checked,
    serial_correlation,
    shape_note,
    trimmed_mean,
    unpaired_note,
    unsure,
    without_unchecked,
)


def wandering(rng, blocks, lag1):
    start = lag1 * rng.normal(size=1)
    noise = rng.normal(size=blocks)
    return signal.lfilter([math.sqrt(1 - lag1**2)], [1, -lag1], noise, zi=start)[0]


@pytest.mark.parametrize("blocks", [10, 25])
def test_the_check_has_its_level_and_finds_what_is_there(blocks):
    rng, runs = np.random.default_rng(1), 800
    rates = {
        lag1: np.mean(
            [
                serial_correlation(wandering(rng, blocks, lag1)).p_value < SERIAL_LEVEL
                for _ in range(runs)
            ]
        )
        for lag1 in (0.0, 0.8)
    }
    assert abs(rates[0.0] - SERIAL_LEVEL) < 3 * math.sqrt(0.1 * 0.9 / runs)
    assert rates[0.8] > 0.6


def test_errors_allow_for_it_and_are_never_narrower():
    rng = np.random.default_rng(2)
    false, plain, runs = 0, 0, 400
    for _ in range(runs):
        figures = wandering(rng, 25, 0.5)
        allowed = block_mean(figures)
        false += min(allowed.p_outside(0, 0), 1) < 0.05
        plain += stats.ttest_1samp(figures, 0).pvalue < 0.05
        assert allowed.error >= figures.std(ddof=1) / 5 * (1 - 1e-12)
    assert false / runs < 0.14 < 0.18 < plain / runs


@pytest.mark.parametrize("figures", [np.arange(CHECKED_BLOCKS - 1.0), np.ones(20), np.ones(0)])
def test_nothing_is_said_of_too_few_blocks_or_of_constants(figures):
    assert math.isnan(serial_correlation(figures).p_value) and shape_note(figures) == ""
    assert without_unchecked(block_mean(figures).note) == mean_over_blocks(figures).note


def test_means_and_ratios_say_what_was_found_and_what_could_not_be_checked():
    few, outlying = np.arange(9.0), np.append(np.tile([1.0, 1.1], 6), 9.0)
    rising, ones = np.arange(20.0), np.ones(20)
    assert block_mean(few).note == block_ratio(few, np.ones(9)).note == UNCHECKED
    for figures, said in (
        (outlying, "block 13 of 13 is an outlier"),
        (rising, "serially correlated"),
    ):
        mean, ratio = block_mean(figures), block_ratio(figures, np.ones(len(figures)))
        assert said in mean.note and said in ratio.note
        assert ratio.interval() == pytest.approx(mean.interval())
    plain = ratio_of_means(rising, ones)
    assert block_ratio(rising, ones).interval()[1] > plain.interval()[1]
    assert checked(np.resize([1.0, 2.0], 20)).widening == 1.0


def test_what_a_campaign_cannot_show_is_said_as_long_as_misses_without_a_note_are_many():
    rng, runs = np.random.default_rng(6), 400
    for lag1, blocks in ((0.5, 10), (0.8, 10), (0.5, SURE_BLOCKS), (0.8, SURE_BLOCKS)):
        silent = 0
        for _ in range(runs):
            figures = wandering(rng, blocks, lag1)
            found = block_mean(figures)
            silent += found.p_outside(0, 0) < 0.05 and not found.note
            assert unsure(blocks) in found.note and unsure(blocks) in unpaired_note(figures)
        assert silent / runs <= (0.07 if blocks == SURE_BLOCKS else 0.0)
    said = [unsure(blocks) for blocks in (9, 10, SURE_BLOCKS - 1, SURE_BLOCKS)]
    assert said == [UNCHECKED, HALF_CHECKED, HALF_CHECKED, ""]
    assert without_unchecked(UNCHECKED, "a note", HALF_CHECKED) == "a note"


def test_shapes_are_noted():
    rng = np.random.default_rng(3)
    assert shape_note(stats.norm.ppf((np.arange(20) + 0.5) / 20)) == ""
    exponential = stats.expon.ppf((np.arange(40) + 0.5) / 40)
    assert shape_note(exponential.clip(max=3.0)) == (
        "skewed log ratios: the error rate is higher than stated"
    )
    assert "block 4 of 12 is an outlier" in shape_note(np.insert(rng.normal(size=11), 3, 15.0))


def test_a_trimmed_mean_is_yuens():
    figures = np.random.default_rng(4).normal(1, 1, 12)
    mean, error, df = trimmed_mean(figures, 0.2)
    expected = stats.ttest_ind(figures, np.zeros(12), trim=0.2, equal_var=False)
    assert mean == pytest.approx(stats.trim_mean(figures, 0.2)) and df == 7
    assert mean / error == pytest.approx(expected.statistic)
    assert trimmed_mean(figures, 0.0)[1] == pytest.approx(stats.sem(figures))
    assert math.isnan(trimmed_mean(figures[:1], 0.2)[1])
    assert math.isnan(trimmed_mean(figures[:0], 0.2)[0])
