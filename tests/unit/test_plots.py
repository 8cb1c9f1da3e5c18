"""Figures of results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from labkit.analysis import plots
from labkit.analysis.stats import Mean

Drawn = Callable[[plots.Figure], list[Text]]
GENERATOR = np.random.default_rng(7)
PLACES = ["bare cgroup", "docker host", "docker bridge"]


def comparison(rows: int) -> pd.DataFrame:
    """Comparison of `rows` conditions, the last one of which was not measured."""
    estimate = np.geomspace(0.8, 3.0, rows)
    table = pd.DataFrame({"estimate": estimate, "low": estimate * 0.95, "high": estimate * 1.05})
    table["condition"] = [f"docker network{number}" for number in range(rows)]
    table["verdict"] = "differs"
    table.loc[1::3, "verdict"] = "cannot tell"
    table.loc[rows - 1, ["estimate", "low", "high"]] = np.nan
    table.loc[rows - 1, "verdict"] = "not measured"
    constant = {"to": "bare cgroup", "metric": "rtt_ns_median", "margin": 0.02, "baseline": 4860.0}
    constant |= {"p_adjusted": 0.01, "n_blocks": 16, "reason": "the kernel has no such network"}
    value = table["estimate"] * 4860.0
    return table.assign(**constant, value=value, difference=value - 4860.0)


def trials() -> pd.DataFrame:
    """Trials of three placements and five sizes in ten blocks."""
    cells = itertools.product(range(1, 11), PLACES, ["block", "spin"], [100, 1024, 10240, 102400])
    frame = pd.DataFrame(cells, columns=["block", "placement", "wait", "size_b"])
    noise = GENERATOR.lognormal(0, 0.1, len(frame))
    return frame.assign(rtt_ns_median=5000 * noise * (1 + frame["size_b"] / 5e4))


def samples() -> pd.DataFrame:
    """Samples with a tail of five decades."""
    frame = pd.concat(
        pd.DataFrame({"rtt_ns": GENERATOR.lognormal(8.5, 0.8, 100_000), "placement": place})
        for place in PLACES
    )
    return frame.assign(trial="b01-p01", wait="spin")


TABLE = comparison(6).assign(size_b=[100, 1024] * 3)
FIGURES = {
    "forest": lambda: plots.forest(comparison(6), "placement"),
    "tail": lambda: plots.tail(samples(), "rtt_ns", "placement"),
    "tail_col": lambda: plots.tail(samples(), "rtt_ns", "placement", "wait"),
    "over_blocks": lambda: plots.over_blocks(trials(), "rtt_ns_median", "placement", "wait"),
    "curve": lambda: plots.curve(trials(), "rtt_ns_median", "size_b", "placement", "wait"),
    "levels": lambda: plots.curve(trials(), "rtt_ns_median", "placement", "wait"),
    "grid": lambda: plots.grid(TABLE, "condition", "size_b", "placement"),
}


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Return the texts that a figure draws, which tick labels beyond its limits are not."""

    def of(figure: plots.Figure) -> list[Text]:
        found: dict[Text, None] = {}
        draw = Text.draw

        def recorded(text: Text, *arguments: Any) -> None:
            found[text] = None
            draw(text, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Text, "draw", recorded)
            figure.draw_without_rendering()
        return [one for one in found if one.get_text().strip() and one.get_visible()]

    return of


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_inside_readable_and_does_not_overlap(name: str, texts: Drawn) -> None:
    figure = FIGURES[name]()
    found = texts(figure)
    boxes = [one.get_window_extent() for one in found]
    assert min(one.get_fontsize() for one in found) >= 8
    for box in boxes:
        assert figure.bbox.x0 - 1 <= box.x0 and box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 - 1 <= box.y0 and box.y1 <= figure.bbox.y1 + 1
    for first, second in itertools.combinations(boxes, 2):
        assert first.padded(-0.5).overlaps(second.padded(-0.5)) == 0
    assert figure.alt and (name == "grid" or figure.get_size_inches()[0] * 96 <= 390)


@pytest.mark.parametrize("rows", [2, 7])
def test_a_forest_has_a_label_and_a_mark_a_row(rows: int, texts: Drawn) -> None:
    table = comparison(rows)
    figure = plots.forest(table, "placement")
    shown = " ".join(one.get_text() for one in texts(figure))
    assert all(f"{condition}:" in shown for condition in table["condition"])
    assert "no such network" in shown and "16 blocks" in figure.alt
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    hollow = [line.get_markerfacecolor() == "none" for line in marks]
    assert len(marks) == rows - 1
    assert sum(hollow) == (table["verdict"] == "cannot tell").sum()


def test_a_forest_of_nothing_measured_has_its_reasons() -> None:
    table = comparison(3).iloc[[2]]
    assert "no such network" in plots.forest(table, "placement").alt


def test_percentiles_end_where_ten_samples_lie_beyond() -> None:
    figure = FIGURES["tail"]()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["50", "90", "99", "99.9", "99.99"]


def test_equal_data_give_equal_bytes_without_a_date() -> None:
    for draw in (lambda: plots.forest(comparison(4), "placement"), FIGURES["grid"]):
        first, second = draw().svg(), draw().svg()
        assert first == second and first.startswith("<svg ")
        assert "date" not in first.lower() and "currentColor" in first


def test_a_curve_has_the_intervals_of_comparisons() -> None:
    frame = trials().query("wait == 'spin' and size_b == 100")
    figure = plots.curve(frame, "rtt_ns_median", "size_b", "placement")
    drawn = [bar.get_segments()[0][:, 1] for bar in figure.axes[0].collections]
    logs = np.log(frame.loc[frame["placement"] == "docker host", "rtt_ns_median"] / 1000)
    wanted = Mean.of(logs).interval()
    assert any(np.allclose(ends, wanted) for ends in drawn)
