"""Figures of a paper beside what was measured."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from labkit.errors import UsageError
from labkit.plots import beside_bars, beside_curves, extremes_plot
from labkit.plots.figure import svg

NAN = math.nan


def row(place: str, hue: str, paper: float, here: float, **more: object) -> dict[str, object]:
    values = {"paper": paper, "paper_sd": 0.1 * paper, "paper_unit": "ms", "unit": "ns"}
    values |= {"here": here, "sd": 0.1 * here, "n_blocks": None if math.isnan(here) else 5}
    ratios = dict.fromkeys(("paper_ratio", "paper_ratio_low", "paper_ratio_high"), NAN)
    ratios |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"), NAN)
    about = {"place": place, "rps": hue, "quantity": "latency", "condition": f"{place} {hue}"}
    return {**about, **values, **ratios, "values": np.full(5, here), **more}


ROWS = pd.DataFrame([row("overlay", "off", 20.0, 3e6), row("overlay", "on", 10.0, NAN)])


def test_both_sides_have_their_own_unit_and_the_values_as_printed() -> None:
    figure = beside_bars(ROWS, label="place", hue="rps", ylabel="latency")
    paper, here = figure.axes
    assert [axis.get_ylabel() for axis in figure.axes] == ["latency (ms)", "latency (ms)"]
    assert [bar.get_height() for bar in paper.patches] == [20.0, 10.0]
    assert [bar.get_height() for bar in here.patches] == pytest.approx([3.0])


def test_shares_are_drawn_in_percent() -> None:
    rows = pd.DataFrame([row("host", "off", NAN, 0.97, unit="share")])
    (axis,) = beside_bars(rows, label="place", ylabel="share of a CPU").axes
    assert axis.get_ylabel() == "share of a CPU (%)"
    assert [bar.get_height() for bar in axis.patches] == pytest.approx([97.0])


def test_what_was_not_measured_says_so_in_its_place() -> None:
    here = beside_bars(ROWS, label="place", hue="rps", ylabel="latency").axes[1]
    assert [text.get_text() for text in here.texts] == ["on: not measured here"]


def test_ratios_share_an_axis_that_holds_all_intervals() -> None:
    ratios = {"paper_ratio": 1.2, "ratio": 2.0, "ratio_low": 0.5, "ratio_high": 9.0}
    rows = pd.DataFrame([row("overlay", "off", NAN, NAN, **ratios)])
    figure = beside_bars(rows, label="place", ylabel="to bare", ratio=True)
    assert {axis.get_ylim() for axis in figure.axes} == {figure.axes[0].get_ylim()}
    assert figure.axes[1].get_ylim()[1] > 9.0


def test_a_range_is_a_span_and_not_a_bar_from_zero() -> None:
    ratios = {"paper_ratio_low": 0.4, "paper_ratio_high": 0.5, "ratio": 0.8}
    rows = pd.DataFrame([row("host", "off", NAN, NAN, **ratios)])
    (span,) = beside_bars(rows, label="place", ylabel="to bare", ratio=True).axes[0].patches
    assert (span.get_y(), span.get_height()) == pytest.approx((0.4, 0.1))


def test_without_printed_values_there_is_one_panel() -> None:
    rows = ROWS.assign(paper=NAN, paper_sd=NAN)
    assert len(beside_bars(rows, label="place", hue="rps", ylabel="latency").axes) == 1


def test_boxes_stand_for_the_blocks_measured_here() -> None:
    figure = beside_bars(ROWS.head(1), label="place", ylabel="latency", boxes=True)
    assert len(figure.axes[0].patches) == 1 and not figure.axes[1].patches
    assert len(figure.axes[1].lines) > 3


def test_hatched_bars_have_a_legend_that_is_drawn() -> None:
    text = svg(beside_bars(ROWS.assign(here=3e6), label="place", hue="rps", ylabel="latency"))
    # Pixels of a legend were put into the middle of the figure.
    assert text.count("<pattern") >= 1


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="no row"):
        beside_bars(ROWS.head(0), label="place", ylabel="latency")


def test_curves_without_points_say_so_and_need_no_logarithm() -> None:
    there = pd.DataFrame({"x": [1.0, 10.0], "y": [1.0, 2.0], "of": "a"})
    names = {"x": "x", "y": "y", "hue": "of", "xlabel": "x", "ylabel": ("theirs", "ours")}
    figure = beside_curves(there, there.assign(y=NAN), **names, log="xy")
    assert figure.axes[0].get_xscale() == "log" and figure.axes[1].get_xscale() == "linear"
    assert [text.get_text() for text in figure.axes[1].texts] == ["not measured here"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["theirs", "ours"]
    assert len(beside_curves(None, there, **{**names, "ylabel": "y"}).axes) == 1


def test_extremes_reach_from_the_smallest_to_the_largest() -> None:
    rows = pd.DataFrame(
        [
            {"network": "host", "runtime": "docker", "min": 1.0, "mean": 2.0, "max": 9.0},
            {"network": "host", "runtime": "rkt", "min": NAN, "mean": NAN, "max": NAN},
        ]
    )
    axis = extremes_plot(rows, label="network", hue="runtime", ylabel="latency (ms)").axes[0]
    (bar,) = axis.patches
    assert (bar.get_y(), bar.get_height()) == (1.0, 8.0)
    assert [text.get_text() for text in axis.texts] == ["rkt: not measured here"]
    assert axis.get_ylim()[0] < 1.0 and axis.get_ylim()[1] > 9.0
