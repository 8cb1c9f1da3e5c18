"""Distributions of samples, trials over blocks, and shifts of quantiles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from labkit.analysis.trials import (
    SortedSamples,
    groups,
    order_of,
    pool,
    require_columns,
    sort_trials,
)
from labkit.plots.figure import (
    DescribedFigure,
    canvas,
    count_text,
    error_bars,
    footnote,
    legend,
    plain_log_ticks,
    ratio_ticks,
    scale_and_label,
    styles,
)
from labkit.units import QUANTILES, level_words

#: Points of a curve.
_POINTS = 300


def ecdf(
    samples: pd.DataFrame,
    *,
    value: str = "rtt_ns",
    hue: str,
    col: str | None = None,
    trials: bool = True,
    tail: bool = False,
    log: bool = True,
) -> Figure:
    """Draw the distribution functions of single trials, thin, and of all trials pooled, thick.

    Parameters
    ----------
    samples : DataFrame
        One row a sample, or the result of `labkit.analysis.sort_trials`, with the columns
        ``trial`` and ``block``.
    value : str
        Column, positive where its axis is logarithmic; nanoseconds are shown in microseconds.
    hue, col : str
        Columns for line styles and for panels.
    trials : bool
        Draw the curves of single trials, too.
    tail : bool
        Draw the share above each value on a logarithmic axis instead.
    log : bool
        Whether the axis of the values is logarithmic.

    Raises
    ------
    UsageError
        For missing columns or an empty frame.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> about = {"trial": "a", "block": 1, "wait": "spin"}
    >>> samples = pd.DataFrame({**about, "rtt_ns": range(8000, 9000)})
    >>> figure = plots.ecdf(samples, hue="wait", tail=True)
    >>> figure.get_supxlabel()
    'n = 1 block, 1 trial, 1,000 samples'
    """
    frame = _sorted(samples, value, hue, col)
    style = styles(order_of(samples[hue]))
    figure, axes, panels = _panels(frame, col, height=3.1, sharex=True, sharey=True)
    factor, label = scale_and_label(value)
    for axis, panel, shown in panels:
        for name in [name for name in style if (shown[hue] == name).any()]:
            look = {"color": style[name]["color"], "linestyle": style[name]["linestyle"]}
            look |= {"tail": tail, "factor": factor}
            cells = list(shown.loc[shown[hue] == name, value])
            for ordered in cells if trials else []:
                # As pixels: hundreds of curves would be most of a page.
                _curve(axis, ordered, alpha=0.4, lw=0.6, zorder=1.9, rasterized=True, **look)
            _curve(axis, pool(cells), lw=1.6, label=str(name), **look, **_few_markers(style, name))
        axis.set_title(f"{panel}{_counts(shown, value)}", fontsize=8)
    _finish_ecdf(axes, len(panels), label, tail, log)
    legend(figure, axes, hue, list(style))
    footnote(figure, _counts(frame, value))
    return figure


def _sorted(samples: pd.DataFrame, value: str, hue: str, col: str | None) -> pd.DataFrame:
    """Return the sorted samples of each trial, with the columns of line styles and panels."""
    panels = [col] if col else []
    require_columns(samples, [value, hue, "trial", "block", *panels])
    by = list(dict.fromkeys(["trial", "block", hue, *panels]))
    return sort_trials(samples, value=value, by=by)


#: Quantiles on the axis of `tail_plot`, as per cent.
_TAIL = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)


def tail_plot(
    samples: pd.DataFrame, *, value: str = "rtt_ns", hue: str, col: str | None = None
) -> DescribedFigure:
    """Draw quantiles on an axis that has as much room for 99 to 99.9 % as for 90 to 99 %.

    Parameters
    ----------
    samples : DataFrame
        As for `ecdf`; the samples of all trials of a series are pooled.
    value : str
        Column; nanoseconds are shown in microseconds.
    hue, col : str
        Columns for line styles and for panels, which share their axes.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> about = {"trial": "a", "block": 1, "wait": "spin"}
    >>> samples = pd.DataFrame({**about, "rtt_ns": range(8000, 9000)})
    >>> figure = plots.tail_plot(samples, hue="wait")
    >>> figure.axes[0].get_ylabel()
    'round-trip time (µs)'
    """
    frame = _sorted(samples, value, hue, col)
    style = styles(order_of(samples[hue]))
    figure, axes, panels = _panels(frame, col, height=3.1, sharex=True, sharey=True)
    factor, label = scale_and_label(value)
    numbers, most = [], 1
    for axis, panel, shown in panels:
        for name in [name for name in style if (shown[hue] == name).any()]:
            pooled = pool(list(shown.loc[shown[hue] == name, value]))
            if not len(pooled):
                continue  # failed trials
            most = max(most, len(pooled))
            # The largest of n samples is the quantile at 1 - 1/n.
            levels = 1 - np.geomspace(1, 1 / len(pooled), _POINTS)
            look = {"color": style[name]["color"], "linestyle": style[name]["linestyle"]}
            at = pooled.quantiles(levels) * factor
            axis.plot(1 / (1 - levels), at, lw=1.5, label=str(name), **look)
            of = {hue: str(name)} | ({col: str(shown[col].iloc[0])} if col else {})
            known = [one for one in _TAIL if one <= 100 * (1 - 1 / len(pooled))]
            values = pooled.quantiles(np.array(known) / 100) * factor
            numbers += [of | {"%": q, label: v} for q, v in zip(known, values, strict=True)]
        axis.set_title(f"{panel}{_counts(shown, value)}", fontsize=8)
        axis.set(xscale="log", yscale="log", xlabel="samples below (%)")
        plain_log_ticks(axis, "y")
    ticks = [one for one in _TAIL[1:] if 100 / (100 - one) <= most]
    labels = [f"{one:g}" for one in ticks]
    for axis in axes.flat[: len(panels)]:
        axis.set_xticks([100 / (100 - one) for one in ticks], labels, fontsize=8)
        axis.set_xticks([], minor=True)
    axes[0, 0].set_ylabel(label)
    legend(figure, axes, hue, list(style))
    footnote(figure, _counts(frame, value))
    figure.numbers = pd.DataFrame(numbers)
    return figure


def _counts(trials: pd.DataFrame, value: str) -> str:
    samples = sum(map(len, trials[value]))
    return count_text(trials["block"].nunique(), len(groups(trials, ["trial", "block"])), samples)


def _panels(
    frame: pd.DataFrame, col: str | None, *, height: float, **shared: Any
) -> tuple[DescribedFigure, NDArray[Any], list[tuple[Axes, str, pd.DataFrame]]]:
    """Return a grid, and for each value of `col` its axes, the start of its title, its rows."""
    names = order_of(frame[col]) if col else [None]
    across = min(len(names), 3)
    down = -(-len(names) // across)
    size = {"width": max(3.4 * across, 5.5), "height": height * down + 0.3}
    figure, axes = canvas(down, across, **size, **shared)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    if not col:
        return figure, axes, [(axes.flat[0], "", frame)]
    panels = [
        (axis, f"{level_words(col, name)}\n", frame[frame[col] == name])
        for axis, name in zip(axes.flat, names, strict=False)
    ]
    return figure, axes, panels


def _few_markers(style: dict[Hashable, dict[str, Any]], name: Hashable) -> dict[str, Any]:
    """Return the markers of a curve, at other places than those of the other curves."""
    apart = (0.02 + 0.2 * list(style).index(name) / len(style), 0.2)
    look = {"marker": style[name]["marker"], "markevery": apart}
    return look | {"markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5}


def curve_levels(n: int, points: int) -> NDArray[np.float64]:
    """Return quantile levels for a curve of at most `points`, dense in both tails.

    Half of them are even, the others at logarithmic distances from 0 and, twice as many, from 1,
    so that the largest sample is always a point. Few points keep pages small.
    """
    if n <= points:
        return np.linspace(0, 1, max(n, 2))
    even = np.linspace(0, 1, points // 2)
    near = np.geomspace(1 / (n - 1), 0.1, points // 6)
    return np.unique(np.concatenate([even, near, 1 - np.geomspace(1 / (n - 1), 0.1, points // 3)]))


def _curve(axis: Axes, ordered: SortedSamples, tail: bool, factor: float, **look: Any) -> None:
    if not len(ordered):
        return  # a failed trial
    levels = curve_levels(len(ordered), _POINTS)
    at = ordered.quantiles(levels) * factor
    # A sample is at or above itself, so the largest is drawn at 1/n, not at 0.
    share = 1 - levels * (len(ordered) - 1) / len(ordered) if tail else levels
    axis.plot(at, share, **look)


def _finish_ecdf(axes: NDArray[Any], panels: int, label: str, tail: bool, log: bool) -> None:
    for number, axis in enumerate(axes.flat[:panels]):
        if log:
            axis.set_xscale("log")
        if tail:
            axis.set_yscale("log")
        axis.set_xlabel(label)
        if number % axes.shape[1] == 0:
            axis.set_ylabel(
                "share of samples at or above" if tail else "share of samples at or below"
            )
        if log:
            plain_log_ticks(axis)


def block_plot(
    trials: pd.DataFrame,
    *,
    value: str,
    hue: str,
    col: str | None = None,
    flagged: str | None = None,
) -> Figure:
    """Draw each trial's summary over the blocks, in order of execution.

    It shows drift, jumps and odd blocks, and the variation that pairing by block removes.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, with the column ``block``.
    value : str
        Column of summaries; NaN (failed trials) is left out and counted in the title.
    hue, col : str
        Columns for markers and panels.
    flagged : str, optional
        Boolean column: trials to ring.

    Examples
    --------
    >>> from labkit import load, plots
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> figure = plots.block_plot(trials, value="rtt_ns_median", hue="placement")
    >>> figure.axes[0].get_xlabel()
    'block, in order of execution'
    """
    require_columns(trials, [value, hue, "block", *([col] if col else [])])
    style = styles(order_of(trials[hue]))
    factor, label = scale_and_label(value)
    figure, axes, panels = _panels(trials, col, height=2.6, sharex=True)
    for number, (axis, panel, shown) in enumerate(panels):
        _strip(axis, shown, value=value, hue=hue, factor=factor, style=style)
        if flagged:
            ringed = shown[shown[flagged].astype(bool)]
            ring: dict[str, Any] = {"s": 90, "facecolors": "none", "edgecolors": "black"}
            axis.scatter(ringed["block"], ringed[value] * factor, **ring)
        failed = int(shown[value].isna().sum())
        text = count_text(shown["block"].nunique(), int(shown[value].notna().sum()))
        axis.set_title(f"{panel}{text}" + (f", {failed} failed" if failed else ""), fontsize=8)
        axis.set_xlabel("block, in order of execution")
        if number % axes.shape[1] == 0:
            axis.set_ylabel(label)
    legend(figure, axes, hue, list(style))
    footnote(figure, count_text(trials["block"].nunique(), int(trials[value].notna().sum())))
    return figure


def _strip(
    axis: Axes,
    shown: pd.DataFrame,
    *,
    value: str,
    hue: str,
    factor: float,
    style: dict[Hashable, dict[str, Any]],
) -> None:
    for name, look in style.items():
        part = shown[shown[hue] == name]
        if part.empty:
            continue
        axis.plot(
            part["block"],
            part[value] * factor,
            linestyle="none",
            marker=look["marker"],
            color=look["color"],
            markersize=4.5,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=str(name),
        )
        means = (part.groupby("block", observed=True)[value].mean() * factor).sort_index()
        axis.plot(means.index, means, color=look["color"], linestyle=look["linestyle"], lw=0.8)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def shift_plot(
    table: pd.DataFrame,
    *,
    baseline: str,
    value: str = "rtt_ns",
    conditions: Sequence[Hashable] | None = None,
    relative: bool = False,
) -> Figure:
    """Draw the difference of each quantile from the baseline's, with intervals over blocks.

    Parameters
    ----------
    table : DataFrame
        What `labkit.analysis.shift` returns.
    baseline : str
        The baseline's name, for the axis.
    value : str
        The column that was compared, for unit and label.
    conditions : sequence, optional
        Conditions to draw; by default all.
    relative : bool
        Draw ratios instead of differences.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis, plots
    >>> about = {"trial": "a", "block": 1, "wait": "spin"}
    >>> fast = pd.DataFrame({**about, "rtt_ns": range(8000, 9000)})
    >>> slow = fast.assign(trial="b", wait="block", rtt_ns=2 * fast["rtt_ns"])
    >>> both = pd.concat([fast, slow])
    >>> table = analysis.shift(both, condition="wait", baseline="spin")
    >>> figure = plots.shift_plot(table, baseline="spin", relative=True)
    >>> figure.axes[0].get_ylabel()
    'ratio to spin'
    """
    require_columns(table, ["condition", "quantile", "estimate", "difference", "n_blocks"])
    names = order_of(table["condition"]) if conditions is None else list(conditions)
    order = order_of(table["quantile"])
    factor, label = scale_and_label(value)
    fields = ("difference", "difference_low", "difference_high")
    middle, low, high = ("estimate", "low", "high") if relative else fields
    factor = 1.0 if relative else factor
    style = styles(names)
    figure, axes = canvas(1, 1, width=7.5, height=3.4)
    axis = axes[0, 0]
    axis.axhline(1.0 if relative else 0.0, color="0.3", lw=0.8)
    apart = min(0.12, 0.8 / max(len(names), 1))  # of the points of one quantile
    for number, name in enumerate(names):
        part = table[table["condition"] == name].set_index("quantile").reindex(order)
        at = np.arange(len(order)) + apart * (number - (len(names) - 1) / 2)
        ends = (part[column] * factor for column in (middle, low, high))
        error_bars(axis, at, *ends, lw=0.9, ms=4, label=str(name), **style[name])
    words = [QUANTILES.get(str(one), str(one)) for one in order]
    axis.set_xticks(range(len(order)), words, rotation=45, ha="right")
    axis.set_xlabel("quantile of a trial")
    if relative:
        axis.set_yscale("log")
        least, most = axis.get_ylim()
        ticks = ratio_ticks(least, most, 0.08)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
    axis.set_ylabel(f"ratio to {baseline}" if relative else f"difference to {baseline},\n{label}")
    figure.legend(fontsize=7, loc="outside right upper")
    footnote(figure, f"{count_text(int(table['n_blocks'].max()))}; intervals over blocks")
    return figure
