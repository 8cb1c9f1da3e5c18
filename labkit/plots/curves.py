"""Curves over a number, such as a quota or a size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from labkit.analysis.compare import PILOT_BLOCKS
from labkit.analysis.estimates import over_blocks
from labkit.analysis.models import numeric_levels
from labkit.analysis.trials import order_of, require_columns
from labkit.errors import UsageError
from labkit.plots.figure import (
    canvas,
    count_text,
    footnote,
    legend,
    plain_log_ticks,
    scale_and_label,
    styles,
)


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
    frame = numeric_levels(trials, over)
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
    note = "intervals over blocks" if blocks >= PILOT_BLOCKS else "too few blocks for intervals"
    footnote(figure, f"{count_text(blocks, len(frame))}; {note}")
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
    rows = [
        _mean_over_blocks(row.dropna().to_numpy(dtype=np.float64)) for _, row in cells.iterrows()
    ]
    middle, low, high = (np.array(column) * factor for column in zip(*rows, strict=True))
    reach = np.nan_to_num(np.array([middle - low, high - middle]))
    line: dict[str, Any] = {"ls": look["linestyle"], "lw": 1.2, "capsize": 2, "label": name}
    line |= {"marker": look["marker"], "ms": 4, "color": look["color"]}
    axis.errorbar(cells.index, middle, yerr=reach, **line)


def _mean_over_blocks(figures: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean over blocks with its interval: geometric where all are positive."""
    if (figures > 0).all():
        mean = over_blocks(np.log(figures), scale="log")
    else:
        mean = over_blocks(figures)
    ends = mean.interval() if len(figures) >= PILOT_BLOCKS else (math.nan, math.nan)
    return (mean.value, *ends)


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


def overhead_plot(
    effects: pd.DataFrame,
    lines: pd.DataFrame,
    *,
    over: str,
    label: str,
    hue: str = "contrast",
    col: str | None = None,
    scale: float = 1e-3,
    unit: str = "µs",
    margin: float | None = None,
) -> Figure:
    """Draw what is added over the size, with the fitted lines, and below it the ratios.

    Parameters
    ----------
    effects : DataFrame
        What `labkit.analysis.compare.factor_effect` returns, with `over` among its cells.
    lines : DataFrame
        What `costs` returns, for the same contrasts; may have no rows.
    over, label : str
        Column of the size, and what it is, with its unit.
    hue, col : str
        Columns for styles and for panels side by side.
    scale, unit : float, str
        From the stored unit of the differences to the one shown.
    margin : float, optional
        Drawn as a band about a ratio of 1.
    """
    columns = [over, hue, *([col] if col else []), "estimate", "difference", "n_blocks"]
    require_columns(effects, columns)
    frame = numeric_levels(effects[effects["n_blocks"] > 0], over)
    panels = order_of(frame[col]) if col else [None]
    style = styles(order_of(frame[hue]))
    width = max(6.0, 4.2 * len(panels))
    figure, axes = canvas(2, len(panels), width=width, height=5.2, sharex=True, sharey="row")
    for number, panel in enumerate(panels):
        above, below = axes[:, number]
        for place, (name, look) in enumerate(style.items()):
            part = _of(_of(frame, col, panel), hue, name).sort_values(over)
            # Intervals of one size stand beside each other.
            part["_at"] = part[over] + (place - (len(style) - 1) / 2) * 0.012 * frame[over].max()
            names = ("difference", "difference_low", "difference_high")
            _points(above, part, names, look, str(name), scale)
            _points(below, part, ("estimate", "low", "high"), look, str(name), 1.0)
            _line(above, _of(_of(lines, col, panel), hue, name), part[over], look, scale)
        above.set_title("" if panel is None else f"{col}: {panel}", fontsize=9)
        _frame(above, below, label, margin)
    axes[0, 0].set_ylabel(f"added ({unit})")
    axes[1, 0].set_ylabel("ratio to the baseline")
    legend(figure, axes, hue, list(style))
    footnote(
        figure,
        f"{count_text(int(frame['n_blocks'].max()))}; 95 % intervals over blocks; lines fitted",
    )
    return figure


def _frame(above: Axes, below: Axes, label: str, margin: float | None) -> None:
    """Draw what no cost would be, and the axis of the sizes."""
    above.axhline(0, color="0.4", lw=0.8)
    below.axhline(1, color="0.4", lw=0.8)
    if margin:
        below.axhspan(1 / (1 + margin), 1 + margin, color="0.5", alpha=0.15, lw=0)
    below.set_xlabel(label)
    below.xaxis.set_major_locator(MaxNLocator(5))
    below.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _of(table: pd.DataFrame, column: str | None, level: Any) -> pd.DataFrame:
    return table if column is None else table[(table[column] == level).to_numpy()]


def _points(
    axis: Axes,
    part: pd.DataFrame,
    names: tuple[str, str, str],
    look: Mapping[str, Any],
    label: str,
    scale: float,
) -> None:
    middle, low, high = (part[name].to_numpy(dtype=np.float64) * scale for name in names)
    reach = np.nan_to_num(np.array([middle - low, high - middle]))
    options: dict[str, Any] = {"color": look["color"], "marker": look["marker"], "label": label}
    axis.errorbar(part["_at"], middle, yerr=reach, ls="none", ms=4.5, capsize=2, lw=1, **options)


def _line(
    axis: Axes, rows: pd.DataFrame, sizes: pd.Series[Any], look: Mapping[str, Any], scale: float
) -> None:
    """Draw the line of one contrast where it was fitted."""
    for row in rows.to_dict("records"):
        if math.isfinite(row["intercept"]) and len(sizes):
            x = np.array([0.0, float(sizes.max())])
            y = (row["intercept"] + row["slope"] * x) * scale
            axis.plot(x, y, color=look["color"], ls=look["linestyle"], lw=1.2)
