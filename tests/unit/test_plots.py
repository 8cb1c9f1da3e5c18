"""Figures of results."""

import itertools
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from labkit.analysis import plots
from labkit.analysis.stats import Mean

RANDOM = np.random.default_rng(7)
PLACES = ["bare cgroup", "docker host", "docker bridge"]


def comparison(rows):
    """Comparison of `rows` conditions, the last one of which was not measured."""
    ratios = np.append(np.geomspace(0.8, 2.5, rows)[1:], np.nan)
    verdicts = itertools.cycle(["differs", "cannot tell", "differs"])
    table = {"condition": [f"docker network{number}" for number in range(rows)]}
    table |= {"verdict": [*itertools.islice(verdicts, rows - 1), "not measured"]}
    table |= {"estimate": ratios, "low": ratios * 0.95, "high": ratios * 1.05, "p_adjusted": 0.01}
    table |= {"value": ratios * 4860.0, "baseline": 4860.0, "difference": (ratios - 1) * 4860.0}
    table |= {"to": "bare cgroup", "metric": "rtt_ns_median", "margin": 0.02, "n_blocks": 16}
    return pd.DataFrame(table | {"reason": "the kernel has no such network"})


CELLS = itertools.product(range(1, 11), PLACES, ["block", "spin"], [100, 1024, 10240, 102400])
TRIALS = pd.DataFrame(CELLS, columns=["block", "placement", "wait", "size_b"])
TRIALS["rtt_ns_median"] = 5000 * RANDOM.lognormal(0, 0.1, 240) * (1 + TRIALS["size_b"] / 5e4)
#: Samples with a tail of five decades.
SAMPLES = pd.DataFrame({"rtt_ns": RANDOM.lognormal(8.5, 0.8, 300_000), "trial": "b01-p01"})
SAMPLES = SAMPLES.assign(placement=PLACES * 100_000)
TABLE = comparison(6).assign(size_b=[100, 1024] * 3)
FIGURES = {
    "forest": lambda: plots.forest(comparison(6), "placement"),
    "wide": lambda: plots.forest(comparison(6), "placement").wide,
    "tail": lambda: plots.tail(SAMPLES, "rtt_ns", "placement"),
    "over_blocks": lambda: plots.curve(TRIALS, "rtt_ns_median", "block", "placement", "wait"),
    "curve": lambda: plots.curve(TRIALS, "rtt_ns_median", "size_b", "placement", "wait"),
    "levels": lambda: plots.curve(TRIALS, "rtt_ns_median", "placement", "wait"),
    "grid": lambda: plots.grid(TABLE, "condition", "size_b", "placement"),
}


def texts(figure):
    """Return the texts that a figure draws, which tick labels beyond its limits are not."""
    with mock.patch.object(Text, "draw", autospec=True, side_effect=Text.draw) as draw:
        figure.draw_without_rendering()
    found = dict.fromkeys(call.args[0] for call in draw.call_args_list)
    return [one for one in found if one.get_text().strip() and one.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_inside_readable_and_does_not_overlap(name):
    figure = FIGURES[name]()
    found, whole = texts(figure), figure.bbox
    boxes = [one.get_window_extent() for one in found]
    assert min(one.get_fontsize() for one in found) >= 8
    for box in boxes:
        assert whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
        assert whole.y0 - 1 <= box.y0 and box.y1 <= whole.y1 + 1
    for first, second in itertools.combinations(boxes, 2):
        assert first.padded(-0.5).overlaps(second.padded(-0.5)) == 0
    if name == "tail":  # It ends where ten samples lie beyond.
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert labels == ["50", "90", "99", "99.9", "99.99"]
    assert figure.alt and (name in ("wide", "grid") or figure.get_size_inches()[0] * 96 <= 390)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_forest_has_a_label_a_row_and_a_mark_where_it_was_measured(rows):
    table = comparison(rows)
    figure = plots.forest(table, "placement")
    shown = " ".join(one.get_text() for one in texts(figure)) + figure.alt
    assert all(f"{condition}:" in shown for condition in table["condition"])
    assert "no such network" in shown and (rows == 1 or "16 blocks" in figure.alt)
    marks = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]
    hollow = [line for line in marks if line.get_markerfacecolor() == "none"]
    assert len(marks) == rows - 1 and len(hollow) == (table["verdict"] == "cannot tell").sum()
    unknown = dict.fromkeys(("low", "high"), pd.Series([None] * rows, dtype=object))
    assert "cannot" in plots.forest(table.assign(**unknown, verdict="cannot tell"), "placement").alt


@pytest.mark.parametrize("name", ["forest", "grid"])
def test_equal_data_give_equal_bytes_without_a_date(name):
    first, second = FIGURES[name]().svg(), FIGURES[name]().svg()
    assert first == second and first.startswith("<svg ")
    assert "date" not in first.lower() and "currentColor" in first


def test_a_curve_has_the_intervals_of_comparisons():
    frame = TRIALS.query("wait == 'spin' and size_b == 100")
    figure = plots.curve(frame, "rtt_ns_median", "size_b", "placement")
    drawn = [bar.get_segments()[0][:, 1] for bar in figure.axes[0].collections]
    logs = np.log(frame.loc[frame["placement"] == "docker host", "rtt_ns_median"] / 1000)
    assert any(np.allclose(ends, Mean.of(logs).interval()) for ends in drawn)
