"""Interval plots: estimates with intervals and verdicts, and the margin as a band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.analysis.compare import with_verdict_intervals
from labkit.analysis.trials import order_of, require_columns
from labkit.answers import Answer, ratio_bounds, ratio_text, word_of
from labkit.plots.figure import blocks_text, canvas, footnote, ratio_ticks, styles
from labkit.units import METRICS, level_words

#: Labels on the axis of ratios are at least so many inches apart.
_APART = 0.33
#: So many rigs have a line each.
_RIGS_APART = 30
_BOUNDS = ("estimate", "low", "high")
#: What is passed on as a figure's numbers.
_NUMBERS = ("metric", "n_blocks", "value", "base", *_BOUNDS, "confidence", "verdict")


def interval_plot(
    table: pd.DataFrame,
    *,
    margin: float,
    label: str | Sequence[str] = "condition",
    baseline: str = "baseline",
    title: str = "",
) -> Figure:
    """Draw ratios with their intervals, the equivalence margin as a band and the verdicts.

    Parameters
    ----------
    table : DataFrame
        What `compare` or `factor_effect` returns; rows without an estimate say why in words.
        Where a column ``metric`` names what was compared (``rtt_ns_median``), rows also have their
        value, and say slower or faster.
    margin : float
        The margin that the verdicts used.
    label : str or sequence of str
        Columns that name a row.
    baseline : str
        What the ratio is to.
    title : str
        Title of the figure.

    Examples
    --------
    >>> from labkit import compare, load, plots
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "docker host"}
    >>> table = compare(trials, value="rtt_ns_median", **names).assign(metric="rtt_ns_median")
    >>> figure = plots.interval_plot(table, margin=0.02, baseline="docker host")
    >>> figure.axes[0].get_xlabel()
    'ratio to docker host (1 = equal; below 1: less)'
    """
    names = [label] if isinstance(label, str) else list(label)
    require_columns(table, [*names, "n_blocks", "estimate", "low", "high", "verdict"])
    table = with_verdict_intervals(table)
    figure, axes = canvas(1, 1, width=8.4, height=0.34 * len(table) + 1.4)
    _forest(axes[0, 0], table, names, margin)
    axes[0, 0].set_xlabel(f"ratio to {baseline} (1 = equal; below 1: less)")
    axes[0, 0].set_title(title, fontsize=9)
    _note_blocks(figure, table)
    figure.numbers = table[[*names, *(name for name in _NUMBERS if name in table)]]
    return figure


def ladder_plot(
    table: pd.DataFrame,
    mechanisms: pd.DataFrame,
    *,
    margin: float,
    columns: Sequence[str],
    level: str | None = None,
    baseline: str = "baseline",
    title: str = "",
) -> Figure:
    """Draw an interval plot, and to its right the mechanism counters of each row.

    Parameters
    ----------
    table : DataFrame
        What `compare` returns, a row a baseline level.
    mechanisms : DataFrame
        Counters, with the column ``condition``; conditions that `table` lacks (the baseline)
        come first.
    columns : sequence of str
        Counters, a panel each; a panel says so where one was not recorded.
    level : str, optional
        Column of `mechanisms` whose levels have different markers (``wait``).
    margin, baseline, title
        As for `interval_plot`.

    Examples
    --------
    >>> from labkit import analysis, compare, load, plots
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "bare clean"}
    >>> table = compare(trials, value="rtt_ns_median", **names)
    >>> counters = analysis.mechanisms(trials, by=["placement"], columns=["softirqs"])
    >>> counters = counters.rename(columns={"placement": "condition"})
    >>> figure = plots.ladder_plot(table, counters, margin=0.02, columns=["softirqs"])
    >>> len(figure.axes), figure.axes[0].get_xlabel()
    (2, 'ratio to baseline')
    """
    require_columns(table, ["condition", "n_blocks", "estimate", "low", "high", "verdict"])
    require_columns(mechanisms, ["condition", *([level] if level else [])])
    known = set(table["condition"])
    extra = [name for name in order_of(mechanisms["condition"]) if name not in known]
    order = [*extra, *table["condition"]]
    rows = with_verdict_intervals(table).set_index("condition").reindex(order).reset_index()
    figure, axes = canvas(
        1,
        1 + len(columns),
        width=5.0 + 1.25 * len(columns),
        height=0.34 * len(rows) + 1.6,
        sharey=True,
        width_ratios=[2.6, *([1] * len(columns))],
    )
    _forest(axes[0, 0], rows, ["condition"], margin)
    axes[0, 0].set_xlabel(f"ratio to {baseline}")
    for column, axis in zip(columns, axes[0, 1:], strict=True):
        _counter(axis, mechanisms, column, level=level, order=order)
    named = [axis for axis in axes[0, 1:] if axis.get_legend_handles_labels()[1]]
    if level and named:
        named[-1].legend(title=level, fontsize=6, title_fontsize=6, loc="best")
    figure.suptitle(title, fontsize=9)
    _note_blocks(figure, table)
    return figure


def rig_plot(over: pd.DataFrame, each: pd.DataFrame) -> Figure:
    """Draw effects on each rig and over rigs: a forest over rigs for each condition.

    Parameters
    ----------
    over, each : DataFrame
        What `labkit.dataset.rigs.over_rigs` returns.

    Examples
    --------
    Campaigns of one study on three rigs; here the same one three times:

    >>> from labkit import load, plots
    >>> from labkit.dataset.rigs import over_rigs
    >>> rigs = [load("data/reference/rps")] * 3
    >>> figure = plots.rig_plot(*over_rigs(rigs, values=["latency_ns_median"]))
    >>> figure.axes[0].get_yticklabels()[0].get_text().endswith("3 rigs")
    True
    """
    require_columns(over, ["condition", "baseline", "estimate", "low", "high", "n_rigs"])
    require_columns(each, ["condition", "rig", "estimate", "low", "high"])
    rigs = list(dict.fromkeys(each["rig"]))
    # A line a rig while they can be told apart; more share a band.
    apart = len(rigs) <= _RIGS_APART
    band = len(rigs) + 1.5 if apart else 4.0
    figure, axes = canvas(1, 1, width=7.2, height=0.16 * band * len(over) + 1.6)
    axis, shown, ticks = axes[0, 0], [np.ones(1)], []
    axis.axvline(1, color="0.3", lw=0.8)
    for number, row in enumerate(over.to_dict("records")):
        own = each[(each["value"] == row["value"]) & (each["condition"] == row["condition"])]
        estimate, low, high = (own[x].to_numpy(dtype=np.float64) for x in _BOUNDS)
        top = number * band
        at = top + 1.5 + (np.arange(len(own)) if apart else np.linspace(0, 1.5, len(own)))
        axis.hlines(at, low, high, color="0.6", lw=0.8 if apart else 0.2)
        axis.scatter(estimate, at, s=12 if apart else 3, color="0.4", zorder=2)
        axis.hlines(top, row["prediction_low"], row["prediction_high"], color="0.75", lw=6)
        axis.hlines(top, row["low"], row["high"], color="black", lw=1.8)
        axis.scatter([row["estimate"]], [top], s=34, marker="D", color="black", zorder=3)
        ticks.append((top, f"{row['condition']}, {row['n_rigs']} rigs"))
        ticks += [(y, rig) for y, rig in zip(at, own["rig"], strict=True)] if apart else []
        bounds = [row[x] for x in (*_BOUNDS, "prediction_low", "prediction_high")]
        shown += [estimate, np.array(bounds, dtype=np.float64)]
        shown += [low, high] if apart else []
    axis.set_yticks([y for y, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    values = np.concatenate(shown)
    _ratio_scale(axis, values[np.isfinite(values) & (values > 0)])
    axis.set_xlabel("ratio to the baseline of the cell (1 = equal; below 1: lower)")
    footnote(
        figure,
        "diamonds: mean over rigs with its interval; grey bars: where another rig would lie (95 %)",
    )
    _ratio_ticks(axis)
    figure.numbers = each
    return figure


def _note_blocks(figure: Figure, table: pd.DataFrame) -> None:
    text = blocks_text(table["n_blocks"])
    footnote(figure, f"{text}; intervals of the verdicts, paired by block; the band is the margin")


def _forest(axis: Axes, rows: pd.DataFrame, names: Sequence[str], margin: float) -> None:
    estimate = rows["estimate"].to_numpy(dtype=np.float64)
    numbers = rows[list(_BOUNDS)].to_numpy(dtype=np.float64)
    low, high = np.array([ratio_bounds(*row) for row in numbers]).T
    at = np.arange(len(rows))
    axis.axvspan(1 / (1 + margin), 1 + margin, color="0.88", zorder=0)
    axis.axvline(1, color="0.3", lw=0.8)
    # An unknown bound is not drawn; the text of the row states it.
    left, right = (
        np.where(np.isfinite(low) & (low > 0), low, estimate),
        np.where(np.isfinite(high), high, estimate),
    )
    axis.hlines(at, left, right, color="black", lw=1.6)
    filled = rows["differs"].fillna(False).astype(bool) if "differs" in rows else [True] * len(rows)
    colours = ["black" if full else "white" for full in filled]
    axis.scatter(estimate, at, s=28, c=colours, edgecolors="black", zorder=3)
    axis.set_yticks(at, [_label(names, key) for key in rows[list(names)].to_numpy().tolist()])
    axis.invert_yaxis()
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    shown = np.concatenate([left, right, [1 / (1 + margin), 1 + margin]])
    _ratio_scale(axis, shown[np.isfinite(shown) & (shown > 0)])
    # Where there is no bound, the line is dotted up to the end of the axis.
    least, most = axis.get_xlim()
    axis.hlines(at[low == 0], least, left[low == 0], color="black", lw=1.6, ls=":")
    axis.hlines(at[np.isinf(high)], right[np.isinf(high)], most, color="black", lw=1.6, ls=":")
    for number, row in enumerate(rows.to_dict("records")):
        axis.annotate(
            _words(row, margin),
            (1.01, number),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            annotation_clip=False,
        )
    _ratio_ticks(axis)


def _label(names: Sequence[str], levels: Sequence[Any]) -> str:
    """Return what names a row: levels in words; of a contrast its name."""
    contrasts = ("condition", "contrast")
    pairs = zip(names, levels, strict=True)
    return ", ".join(
        str(one) if name in contrasts else level_words(name, one) for name, one in pairs
    )


def _ratio_scale(axis: Axes, known: Any) -> None:
    low, high = float(known.min()), float(known.max())
    reach = (high / low) ** 0.06
    low, high = low / reach, high * reach
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.set_xticks([], minor=True)


def _ratio_ticks(axis: Axes) -> None:
    """Label as many ratios as there is room for: long names of rows leave a narrow axis."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    width = axis.get_window_extent().width / figure.dpi
    low, high = axis.get_xlim()
    ticks = ratio_ticks(low, high, _APART / width)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)


def _words(row: dict[Any, Any], margin: float) -> str:
    """Return the text of a row: value, ratio with interval, and the answer in words."""
    verdict, estimate = row["verdict"], float(row["estimate"])
    if not isinstance(verdict, str):
        return "baseline"
    if not np.isfinite(estimate):
        return str(row.get("note", "")) or "not measured"
    if not isinstance(row.get("metric"), str):
        bounds = float(row["low"]), float(row["high"])
        return f"{ratio_text(estimate, *bounds)} {word_of(verdict, estimate, margin)}"
    told = Answer.from_comparison(
        row | {"condition": ""}, metric=row["metric"], baseline="", margin=margin
    )
    cells = told.cells()
    return f"{cells['value']}, {cells['ratio']} {told.word}"


def _counter(
    axis: Axes,
    mechanisms: pd.DataFrame,
    column: str,
    *,
    level: str | None,
    order: Sequence[Any],
) -> None:
    known = METRICS.get(column)
    text = column.replace("_", " ") + (f"\n({known.unit})" if known else "")
    axis.set_xlabel(text, fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(visible=False, axis="y")
    row_of = {name: number for number, name in enumerate(order)}
    shown = mechanisms[mechanisms["condition"].isin(row_of)]
    values = pd.to_numeric(shown[column], errors="coerce") if column in shown else None
    if values is None or values.isna().all():
        axis.text(0.5, 0.5, "not recorded", transform=axis.transAxes, ha="center", fontsize=7)
        return
    levels = order_of(shown[level]) if level else [None]
    for name, look in styles(levels).items():
        mask = (shown[level] == name) if level else pd.Series(True, index=shown.index)
        at = [row_of[name] for name in shown.loc[mask, "condition"]]
        axis.scatter(
            values[mask], at, s=26, color=look["color"], marker=look["marker"], label=str(name)
        )
    axis.set_xlim(0, 1.15 * float(values.max()) or 1.0)
