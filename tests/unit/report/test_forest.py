"""The figure of headlines: one axis for all, and a drawing for each."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from labkit.report import forest

RATIOS = st.floats(1e-3, 1e3)
WIDE = {"ratio": 1.4, "low": 0.2, "high": 5.0, "verdict": "different"}


@given(st.lists(st.tuples(RATIOS, RATIOS, RATIOS), max_size=8))
def test_everything_is_inside_the_axis_in_order(rows: list[tuple[float, float, float]]) -> None:
    answers = [dict(zip(("low", "ratio", "high"), sorted(row), strict=True)) for row in rows]
    scale = forest.Scale(answers)
    places = [scale.at(value) for one in answers for value in one.values()]
    assert all(0 < place < 1 for place in places)
    assert 1.0 in scale.ticks() and scale.at(0) == 0


@pytest.mark.parametrize(
    ("changed", "points", "intervals", "bands"),
    [
        ({}, 1, 1, 0),
        ({"verdict": "undecided"}, 2, 1, 0),
        ({"noise_low": 0.9, "noise_high": 1.1}, 1, 1, 1),
        ({"low": None, "high": None}, 1, 0, 0),
        ({"ratio": None, "low": None, "high": None}, 0, 0, 0),
    ],
)
def test_a_row_draws_what_is_known(
    changed: dict[str, object], points: int, intervals: int, bands: int
) -> None:
    answer = WIDE | changed
    drawn = BeautifulSoup(forest.row(answer, forest.Scale([WIDE]), "a < b"), "html.parser")
    assert drawn.svg is not None and drawn.svg["aria-label"] == "a < b"
    assert len(drawn.select(".point, .hollow")) == points
    assert len(drawn.select(".interval")) == intervals
    assert len(drawn.select(".noise")) == bands
