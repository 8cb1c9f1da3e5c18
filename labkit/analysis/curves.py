"""Curves over a number, such as a quota or a size: several quantities below each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from labkit.analysis.blockwise import numbered, over_blocks
from labkit.analysis.compare import PILOT_BLOCKS
from labkit.analysis.figure import (
    canvas,
    counts,
    legend,
    plain_log_ticks,
    say,
    scale_and_label,
    styles,
)
from labkit.analysis.origin import follows
from labkit.analysis.reduce import order_of, require_columns
from labkit.errors import UsageError

__all__ = ["curve_plot"]


@follows
def curve_plot(
    trials: pd.DataFrame,
    *,
    values: Sequence[str],
    over: str,
    label: str,
    hue: str | None = None,
    block: str = "block",
    units: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    references: Mapping[str, pd.DataFrame] | None = None,
    marks: Mapping[str, tuple[float, float, float]] | None = None,
    logarithmic: bool = True,
) -> Figure:
    """Draw quantities of trials over a number, a panel each, one below the other.

    Parameters
    ----------
    trials : DataFrame
        One row a trial.
    values : sequence of str
        Columns, a panel each; NaN (a failed trial) is left out.
    over : str
        Column of the number, whose levels are ticks.
    label : str
        What the number is, with its unit.
    hue : str, optional
        Column whose levels are curves of their own.
    block : str
        Column of the block; trials of one block at one level are averaged.
    units, labels : mapping, optional
        Of a value whose name does not say them: its unit as stored, and its axis label.
    references : mapping of str to DataFrame, optional
        Curves of others, such as published ones, by name: the column `over`, and those of `values`
        that there are.
    marks : mapping of str to (low, middle, high), optional
        Places on the number's axis by name, with intervals.
    logarithmic : bool
        Logarithmic axes; where a value is 0 its axis is linear below 1.

    Returns
    -------
    Figure
        A point a trial; a line through the means over blocks, from 5 blocks on with intervals (95
        %, t over blocks; means and intervals are on logs where all values are positive).

    Raises
    ------
    UsageError
        For missing columns, no rows, or a number that is none or not positive.
    """
    require_columns(trials, [*values, over, block, *([hue] if hue else [])])
    frame = numbered(trials, over)
    if frame.empty or (frame[over] <= 0).any():
        raise UsageError(f"{over!r} has no rows, or levels that are not positive")
    names = order_of(frame[hue]) if hue else [""]
    style = styles(names)
    figure, axes = canvas(len(values), 1, width=6.8, height=1.9 * len(values) + 0.7, sharex=True)
    for axis, value in zip(axes.flat, values, strict=True):
        factor, text = scale_and_label(value, (units or {}).get(value))
        for name in names:
            part = frame[frame[hue] == name] if hue else frame
            _curve(axis, part, (value, over, block), factor, str(name) or "here", style[name])
        _others(axis, value, over, factor, references or {})
        drawn = [frame, *(references or {}).values()]
        heights = pd.concat([table[value] * factor for table in drawn if value in table])
        _mark(axis, marks or {})
        if logarithmic:
            _stretch(axis, heights.dropna().to_numpy(dtype=np.float64))
        axis.set_ylabel((labels or {}).get(value, text), fontsize=8)
    _ticks(axes.flat[-1], sorted(set(frame[over])), label, logarithmic=logarithmic)
    shown = [str(name) or "here" for name in names]
    legend(figure, axes, hue or "", [*shown, *(references or {}), *(marks or {})])
    blocks = frame[block].nunique()
    said = "intervals over blocks" if blocks >= PILOT_BLOCKS else "too few blocks for intervals"
    say(figure, f"{counts(blocks, len(frame))}; {said}")
    return figure


def _curve(
    axis: Axes,
    part: pd.DataFrame,
    columns: tuple[str, str, str],
    factor: float,
    name: str,
    look: dict[str, Any],
) -> None:
    value, over, block = columns
    known = part[part[value].notna()]
    points: dict[str, Any] = {"s": 9, "alpha": 0.45, "linewidths": 0, "color": look["color"]}
    axis.scatter(known[over], known[value] * factor, marker=look["marker"], **points)
    cells = known.groupby([over, block], observed=True)[value].mean().unstack(block).sort_index()
    rows = [_mean(row.dropna().to_numpy(dtype=np.float64)) for _, row in cells.iterrows()]
    middle, low, high = (np.array(column) * factor for column in zip(*rows, strict=True))
    reach = np.nan_to_num(np.array([middle - low, high - middle]))
    line: dict[str, Any] = {"ls": look["linestyle"], "lw": 1.2, "capsize": 2, "label": name}
    line |= {"marker": look["marker"], "ms": 4, "color": look["color"]}
    axis.errorbar(cells.index, middle, yerr=reach, **line)


def _mean(figures: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean over blocks with its interval: geometric where all are positive."""
    if (figures > 0).all():
        found = over_blocks(np.log(figures), scale="log")
    else:
        found = over_blocks(figures)
    ends = found.interval() if len(figures) >= PILOT_BLOCKS else (math.nan, math.nan)
    return (found.value, *ends)


def _others(
    axis: Axes, value: str, over: str, factor: float, references: Mapping[str, pd.DataFrame]
) -> None:
    """Draw what others have, in grey and without intervals."""
    for number, (name, table) in enumerate(references.items()):
        if value in table:
            rows = table.dropna(subset=[value]).sort_values(over)
            look: dict[str, Any] = {"color": "0.45", "ls": (0, (1, 1.5)), "lw": 1.0, "mfc": "white"}
            axis.plot(rows[over], rows[value] * factor, "DXP"[number % 3], ms=5, label=name, **look)


def _mark(axis: Axes, marks: Mapping[str, tuple[float, float, float]]) -> None:
    """Draw places on the number's axis; of one that is not known its name is all."""
    for name, (low, middle, high) in marks.items():
        axis.axvline(middle, color="0.2", lw=0.9, ls="--", label=name)
        if np.isfinite(low) and np.isfinite(high):
            axis.axvspan(low, high, color="0.2", alpha=0.12, lw=0)
    axis.tick_params(labelsize=8)


def _stretch(axis: Axes, heights: NDArray[np.float64]) -> None:
    """Make a logarithmic axis that ends where the values do, and not where intervals do."""
    zero, positive = (heights == 0).any(), heights[heights > 0]
    if zero:
        axis.set_yscale("symlog", linthresh=1)
    else:
        axis.set_yscale("log")
    if len(positive):
        axis.set_ylim(-0.3 if zero else positive.min() / 1.6, positive.max() * 1.6)
    plain_log_ticks(axis, "y")


def _ticks(axis: Axes, levels: Sequence[float], label: str, *, logarithmic: bool) -> None:
    if logarithmic:
        axis.set_xscale("log")
    axis.set_xticks(levels, [f"{level:,.0f}" for level in levels], rotation=45, ha="right")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(label)
