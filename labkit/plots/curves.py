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
from labkit.analysis.estimates import mean_over_blocks
from labkit.analysis.models import numeric_levels
from labkit.analysis.trials import order_of, require_columns
from labkit.errors import UsageError
from labkit.plots.figure import (
    canvas,
    count_text,
    error_bars,
    footnote,
    legend,
    plain_log_ticks,
    scale_and_label,
    styles,
)
from labkit.units import level_words


def curve_plot(
    trials: pd.DataFrame,
    *,
    values: Sequence[str],
    over: str,
    label: str,
    hue: str | None = None,
    units: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    references: Mapping[str, pd.DataFrame] | None = None,
    marks: Mapping[str, tuple[float, float, float]] | None = None,
    logarithmic: bool = True,
) -> Figure:
    """Draw quantities of trials over a number, one panel below the other.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, with the column ``block``; trials of one block at one level are averaged.
    values : sequence of str
        Columns, a panel each; NaN (a failed trial) is left out.
    over : str
        Column of the number, whose levels are ticks.
    label : str
        What the number is, with its unit.
    hue : str, optional
        Column whose levels are separate curves.
    units, labels : mapping, optional
        Stored unit and axis label by value, where the value's name does not tell them.
    references : mapping of str to DataFrame, optional
        Further curves, such as published ones, by name: the column `over` and some of `values`.
    marks : mapping of str to (low, middle, high), optional
        Vertical lines by name, with intervals.
    logarithmic : bool
        Logarithmic axes; where a value is 0 its axis is linear below 1.

    Returns
    -------
    Figure
        A point a trial, and a line through the means over blocks, with 95 % intervals (t, on logs
        where all values are positive) if there are at least 5 blocks.

    Raises
    ------
    UsageError
        For missing columns, no rows, or levels of `over` that are not positive numbers.

    Examples
    --------
    >>> from labkit import load, plots
    >>> trials = load("data/reference/cpu-quota").ok
    >>> trials = trials.query("placement == 'docker host' and quota_us != '0'")
    >>> names = {"values": ["latency_ns_p99"], "over": "quota_us", "label": "quota (µs)"}
    >>> figure = plots.curve_plot(trials, **names)
    >>> figure.axes[0].get_ylabel()
    'latency of a call, 99 % (µs)'
    """
    require_columns(trials, [*values, over, "block", *([hue] if hue else [])])
    frame = numeric_levels(trials, over)
    if (frame[over] <= 0).any():
        raise UsageError(f"{over!r} has levels that are not positive")
    names = order_of(frame[hue]) if hue else [""]
    style = styles(names)
    figure, axes = canvas(len(values), 1, width=6.8, height=1.9 * len(values) + 0.7, sharex=True)
    for axis, value in zip(axes.flat, values, strict=True):
        factor, text = scale_and_label(value, (units or {}).get(value))
        for name in names:
            part = frame[frame[hue] == name] if hue else frame
            _curve(axis, part, value, over, factor, str(name) or "here", style[name])
        _others(axis, value, over, factor, references or {})
        drawn = [frame, *(references or {}).values()]
        heights = pd.concat([table[value] * factor for table in drawn if value in table])
        _mark(axis, marks or {})
        axis.tick_params(labelsize=8)
        if logarithmic:
            _stretch(axis, heights.dropna().to_numpy(dtype=np.float64))
        axis.set_ylabel((labels or {}).get(value, text), fontsize=8)
    _ticks(axes.flat[-1], sorted(set(frame[over])), label, logarithmic=logarithmic)
    shown = [str(name) or "here" for name in names]
    legend(figure, axes, hue or "", [*shown, *(references or {}), *(marks or {})])
    blocks = frame["block"].nunique()
    note = "intervals over blocks" if blocks >= PILOT_BLOCKS else "too few blocks for intervals"
    footnote(figure, f"{count_text(blocks, len(frame))}; {note}")
    return figure


def _curve(
    axis: Axes,
    part: pd.DataFrame,
    value: str,
    over: str,
    factor: float,
    name: str,
    look: dict[str, Any],
) -> None:
    known = part[part[value].notna()]
    points: dict[str, Any] = {"s": 9, "alpha": 0.45, "linewidths": 0, "color": look["color"]}
    axis.scatter(known[over], known[value] * factor, marker=look["marker"], **points)
    cells = (
        known.groupby([over, "block"], observed=True)[value].mean().unstack("block").sort_index()
    )
    if cells.empty:
        return
    rows = [
        _mean_with_interval(row.dropna().to_numpy(dtype=np.float64)) for _, row in cells.iterrows()
    ]
    middle, low, high = (np.array(column) * factor for column in zip(*rows, strict=True))
    error_bars(axis, cells.index, middle, low, high, lw=1.2, ms=4, label=name, **look)


def _mean_with_interval(figures: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean over blocks with its interval: geometric where all are positive."""
    if (figures > 0).all():
        mean = mean_over_blocks(np.log(figures), scale="log")
    else:
        mean = mean_over_blocks(figures)
    ends = mean.interval() if len(figures) >= PILOT_BLOCKS else (math.nan, math.nan)
    return (mean.value, *ends)


def _others(
    axis: Axes, value: str, over: str, factor: float, references: Mapping[str, pd.DataFrame]
) -> None:
    """Draw reference curves, in grey and without intervals."""
    for number, (name, table) in enumerate(references.items()):
        if value in table:
            rows = table.dropna(subset=[value]).sort_values(over)
            look: dict[str, Any] = {"color": "0.45", "ls": (0, (1, 1.5)), "lw": 1.0, "mfc": "white"}
            axis.plot(rows[over], rows[value] * factor, "DXP"[number % 3], ms=5, label=name, **look)


def _mark(axis: Axes, marks: Mapping[str, tuple[float, float, float]]) -> None:
    """Draw vertical lines with their intervals; NaN is not drawn, but named in the legend."""
    for name, (low, middle, high) in marks.items():
        axis.axvline(middle, color="0.2", lw=0.9, ls="--", label=name)
        if np.isfinite(low) and np.isfinite(high):
            axis.axvspan(low, high, color="0.2", alpha=0.12, lw=0)


def _stretch(axis: Axes, heights: NDArray[np.float64]) -> None:
    """Make a logarithmic axis with limits by the values, not by wide intervals."""
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
    col: str | None = None,
    margin: float | None = None,
) -> Figure:
    """Draw the added cost over the size with the fitted lines, and the ratios below it.

    Parameters
    ----------
    effects : DataFrame
        What `labkit.analysis.factor_effect` returns, in nanoseconds, with the column `over`.
    lines : DataFrame
        What `labkit.analysis.overhead_table` returns for the same contrasts; may have no rows.
    over, label : str
        Column of the size, and what it is, with its unit.
    col : str, optional
        Column of the panels side by side.
    margin : float, optional
        Drawn as a band around a ratio of 1.

    Examples
    --------
    >>> from labkit import analysis, load, plots
    >>> trials = load("data/reference/network-isolation").ok
    >>> trials = trials.query("sides == 'server' and direction == 'receive'")
    >>> options = {"value": "latency_ns_median"}
    >>> levels = ["docker host", "docker nat"]
    >>> effects = analysis.factor_effect(trials, "placement", levels, ["size_b"], **options)
    >>> names = ["placement", "docker host", ["docker nat"], []]
    >>> lines = analysis.overhead_table(trials, *names, over="size_b", **options)
    >>> figure = plots.overhead_plot(effects, lines, over="size_b", label="size (B)")
    >>> figure.axes[-1].get_xlabel()
    'size (B)'
    """
    columns = [over, "contrast", *([col] if col else []), "estimate", "difference", "n_blocks"]
    require_columns(effects, columns)
    frame = numeric_levels(effects[effects["n_blocks"] > 0], over)
    panels = order_of(frame[col]) if col else [None]
    style = styles(order_of(frame["contrast"]))
    width = max(6.0, 4.2 * len(panels))
    figure, axes = canvas(2, len(panels), width=width, height=5.2, sharex=True, sharey="row")
    for number, panel in enumerate(panels):
        above, below = axes[:, number]
        for place, (name, look) in enumerate(style.items()):
            part = _of(_of(frame, col, panel), "contrast", name).sort_values(over)
            # Intervals of one size must not cover each other.
            part["_at"] = part[over] + (place - (len(style) - 1) / 2) * 0.012 * frame[over].max()
            names = ("difference", "difference_low", "difference_high")
            points = look | {"linestyle": "none", "ms": 4.5, "lw": 1, "label": str(name)}
            error_bars(above, part["_at"], *(part[column] / 1000 for column in names), **points)
            error_bars(below, part["_at"], part["estimate"], part["low"], part["high"], **points)
            _line(above, _of(_of(lines, col, panel), "contrast", name), part[over], look)
        above.set_title(level_words(col, panel) if col else "", fontsize=9)
        _frame(above, below, label, margin)
    axes[0, 0].set_ylabel("added (µs)")
    axes[1, 0].set_ylabel("ratio to the baseline")
    legend(figure, axes, "contrast", list(style))
    footnote(
        figure,
        f"{count_text(int(frame['n_blocks'].max()))}; intervals at the level of each comparison "
        "(Holm); lines fitted",
    )
    return figure


def _frame(above: Axes, below: Axes, label: str, margin: float | None) -> None:
    """Draw lines at no cost, and the axis of the sizes."""
    above.axhline(0, color="0.4", lw=0.8)
    below.axhline(1, color="0.4", lw=0.8)
    if margin:
        below.axhspan(1 / (1 + margin), 1 + margin, color="0.5", alpha=0.15, lw=0)
    below.set_xlabel(label)
    below.xaxis.set_major_locator(MaxNLocator(5))
    below.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _of(table: pd.DataFrame, column: str | None, level: Any) -> pd.DataFrame:
    return table if column is None else table[(table[column] == level).to_numpy()]


def _line(axis: Axes, rows: pd.DataFrame, sizes: pd.Series[Any], look: Mapping[str, Any]) -> None:
    """Draw the fitted line of one contrast."""
    for row in rows.to_dict("records"):
        if math.isfinite(row["intercept"]) and len(sizes):
            x = np.array([0.0, float(sizes.max())])
            y = (row["intercept"] + row["slope"] * x) / 1000
            axis.plot(x, y, color=look["color"], ls=look["linestyle"], lw=1.2)
