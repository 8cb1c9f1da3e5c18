"""The headlines of all studies on one logarithmic axis: a small drawing for each row of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from labkit.plots.figure import ratio_ticks

#: The least range of the axis.
_LEAST = (0.8, 1.25)
#: Width of a drawing; its height is that of the row, whatever that is.
WIDTH = 400
_HEIGHT = 40
#: Labels nearer than this share of the axis would overlap.
_APART = 0.065


class Scale:
    """A logarithmic axis that holds all intervals of some answers."""

    def __init__(self, answers: Sequence[Mapping[str, Any]]) -> None:
        names = ("ratio", "low", "high", "noise_low", "noise_high")
        known = [float(one[name]) for one in answers for name in names if one.get(name)]
        inside = [value for value in known if value > 0 and math.isfinite(value)]
        low, high = min([*inside, _LEAST[0]]), max([*inside, _LEAST[1]])
        room = (high / low) ** 0.04
        self.low, self.high = low / room, high * room

    def at(self, ratio: float) -> float:
        """Return where a ratio is, as a share of the axis; one outside is at its end."""
        ratio = min(max(ratio, self.low), self.high)
        return math.log(ratio / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Return the ratios to label."""
        return ratio_ticks(self.low, self.high, _APART)


def axis(scale: Scale) -> Markup:
    """Return the labels of the axis."""
    labels = "".join(
        f'<span style="left:{100 * scale.at(tick):.1f}%">{tick:g}</span>' for tick in scale.ticks()
    )
    return Markup(f'<span class="axis" aria-hidden="true">{labels}</span>')


def row(answer: Mapping[str, Any], scale: Scale, label: str) -> Markup:
    """Return one answer as a drawing: noise band, grid, interval, and a point.

    The point is filled where the answer is shown (different or equivalent), else hollow.
    """
    parts = [
        _line("tick" if tick != 1 else "one", scale.at(tick), 0, scale.at(tick), _HEIGHT)
        for tick in scale.ticks()
    ]
    if answer.get("noise_low") and answer.get("noise_high"):
        left, right = scale.at(answer["noise_low"]), scale.at(answer["noise_high"])
        parts.insert(0, _box(left, right))
    middle = _HEIGHT / 2
    if answer.get("low") and answer.get("high"):
        ends = scale.at(answer["low"]), scale.at(answer["high"])
        parts.append(_line("interval", ends[0], middle, ends[1], middle))
    if answer.get("ratio"):
        at = scale.at(answer["ratio"])
        parts.append(_line("point", at, middle, at, middle))
        if answer.get("verdict") == "undecided":
            parts.append(_line("hollow", at, middle, at, middle))
    # Stretched to the row; lines and points keep their size (non-scaling-stroke).
    return Markup(
        f'<svg class="forest" viewBox="0 0 {WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _line(name: str, left: float, top: float, right: float, bottom: float) -> str:
    return (
        f'<line class="{name}" x1="{WIDTH * left:.1f}" y1="{top:g}" '
        f'x2="{WIDTH * right:.1f}" y2="{bottom:g}"/>'
    )


def _box(left: float, right: float) -> str:
    return (
        f'<rect class="noise" x="{WIDTH * left:.1f}" y="0" '
        f'width="{WIDTH * (right - left):.1f}" height="{_HEIGHT}"/>'
    )
