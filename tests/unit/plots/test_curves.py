"""Curves over a number: what is drawn is what the trials have."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from labkit.errors import UsageError
from labkit.plots import curve_plot
from labkit.plots.figure import svg

LEVELS = [1000, 2000, 4000]


def trials(zero: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    rows = [
        {
            "block": block,
            "quota_us": str(level),  # as a dataset has it
            "p99": 9e6 / level * float(np.exp(rng.normal(0, 0.1))),
            "nr_throttled": 0.0 if zero and level == 4000 else 100.0 + block,
            "side": side,
        }
        for block in (1, 2, 3, 4, 5)
        for level in LEVELS
        for side in ("left", "right")
    ]
    return pd.DataFrame(rows)


def draw(frame, **options):
    defaults = {
        "values": ["p99"],
        "over": "quota_us",
        "label": "quota (us)",
        "units": {"p99": "ns"},
    }
    return curve_plot(frame, **(defaults | options))


def curve(axis, name):
    """Return the line and the interval of a curve by its name in the legend."""
    (bars,) = [bars for bars in axis.containers if bars.get_label() == name]
    line, _, (segments,) = bars
    return line.get_xdata(), line.get_ydata(), np.array(segments.get_segments())[:, :, 1]


def test_the_line_is_the_geometric_mean_over_blocks_with_its_interval() -> None:
    frame = trials()
    levels, middle, bars = curve(draw(frame).axes[0], "here")
    assert list(levels) == LEVELS
    cells = frame.groupby(["quota_us", "block"])["p99"].mean().unstack()
    logs = np.log(cells.to_numpy() / 1000)
    np.testing.assert_allclose(middle, np.exp(logs.mean(axis=1)))
    half = stats.t.ppf(0.975, 4) * logs.std(axis=1, ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(np.log(bars[:, 0]), logs.mean(axis=1) - half)
    np.testing.assert_allclose(np.log(bars[:, 1]), logs.mean(axis=1) + half)


def test_every_successful_trial_is_a_point() -> None:
    frame = trials()
    frame.loc[0, "p99"] = math.nan
    (points,) = draw(frame).axes[0].collections[:1]
    known = frame["p99"].dropna() / 1000
    np.testing.assert_allclose(np.sort(points.get_offsets()[:, 1]), np.sort(known))


def test_values_have_panels_of_their_own_and_zeros_are_drawn() -> None:
    figure = draw(trials(zero=True), values=["p99", "nr_throttled"], labels={"nr_throttled": "n"})
    above, below = figure.axes
    assert above.get_yscale() == "log" and below.get_yscale() == "symlog"
    assert below.get_ylabel() == "n" and "µs" in above.get_ylabel()
    _, middle, _ = curve(below, "here")
    assert middle[-1] == 0 and middle[0] == pytest.approx(103, rel=1e-3)
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["1,000", "2,000", "4,000"]


def test_the_legend_names_curves_references_and_marks() -> None:
    other = pd.DataFrame({"quota_us": [4000, 1000], "p99": [3e6, math.nan]})
    marks = {"use": (2500.0, 3000.0, 3500.0), "no interval": (math.nan, 1500.0, math.nan)}
    figure = draw(trials(), hue="side", references={"paper": other}, marks=marks)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["left", "right", "paper", "use", "no interval"]
    (paper,) = [line for line in figure.axes[0].lines if line.get_label() == "paper"]
    assert list(paper.get_xdata()) == [4000] and list(paper.get_ydata()) == [3000]


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_pilot_is_drawn_without_intervals_and_says_so(blocks) -> None:
    figure = draw(trials()[lambda frame: frame["block"] <= blocks])
    assert "too few blocks" in figure.get_supxlabel()
    _, middle, bars = curve(figure.axes[0], "here")
    assert np.isfinite(middle).all()
    np.testing.assert_allclose(bars[:, 0], bars[:, 1])


def test_a_wide_interval_does_not_make_the_points_small() -> None:
    frame = trials()
    frame.loc[frame["block"] == 2, "p99"] *= 100
    low, high = draw(frame).axes[0].get_ylim()
    known = frame["p99"] / 1000
    assert known.min() / 2 < low < known.min() and known.max() < high < 2 * known.max()
    assert curve(draw(frame).axes[0], "here")[2].min() < low


def test_a_curve_without_a_value_is_not_drawn() -> None:
    frame = trials()
    frame.loc[frame["side"] == "left", "p99"] = math.nan
    (axis,) = draw(frame, hue="side").axes
    assert axis.get_legend_handles_labels()[1] == ["right"]
    assert len(draw(frame.assign(p99=math.nan)).axes[0].containers) == 0


def test_axes_may_be_linear_as_the_number_is() -> None:
    (axis,) = draw(trials(), logarithmic=False).axes
    assert axis.get_xscale() == axis.get_yscale() == "linear"


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (trials(), {"values": ["p50"]}, "p50"),
        (trials(), {"over": "side"}, "side"),
        (trials().assign(quota_us=0), {}, "not positive"),
        (trials().iloc[:0], {}, "no rows"),
    ],
)
def test_errors_of_impossible_requests(frame, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        draw(frame, **options)


@pytest.mark.parametrize(("copies", "image"), [(10, False), (11, True)])
def test_hundreds_of_points_are_one_image(copies: int, image: bool) -> None:
    # Thirty trials in each copy.
    frame = pd.concat([trials()] * copies)
    assert ("<image" in svg(draw(frame))) == image
