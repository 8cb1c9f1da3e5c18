"""Figures of a paper beside the same figures of what was measured here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labkit.analysis.trials import order_of, require_columns
from labkit.answers import in_unit
from labkit.plots.figure import (
    DescribedFigure,
    blocks_text,
    canvas,
    error_bars,
    footnote,
    legend,
    plain_log_ticks,
    styles,
)

#: So that bars differ also without colour.
_HATCHES = ("", "///", "---", "xxx", "\\\\\\", "|||")
#: Columns of a side: the value, its bounds, its spread and its unit.
_SIDES = {"paper": ("paper", "paper_sd", "paper_unit"), "here": ("here", "sd", "unit")}
#: Rows of a result of `Paper.beside` that a figure passes on as its numbers.
_NUMBERS = ("quantity", "condition", "paper", "paper_sd", "paper_unit", "here", "sd", "unit")
_RATIOS = (
    *("quantity", "condition", "paper_ratio", "paper_ratio_low", "paper_ratio_high"),
    *("ratio", "ratio_low", "ratio_high"),
)
_TITLES = {"paper": "in the paper", "here": "here"}
_ABSENT = {"paper": "not printed", "here": "not measured here"}
_WIDTH = 0.8


def beside_bars(
    rows: pd.DataFrame,
    *,
    label: str,
    hue: str | None = None,
    ylabel: str,
    ratio: bool = False,
    boxes: bool = False,
    title: str = "",
) -> DescribedFigure:
    """Draw what a paper prints as bars, and beside it what was measured.

    Parameters
    ----------
    rows : DataFrame
        What `labkit.claims.Paper.beside` returns, of one quantity, a row a condition.
    label, hue : str
        Columns for the bars' places, and for bars side by side.
    ylabel : str
        What the axes show, without its unit.
    ratio : bool
        Draw ratios to the baseline, on one axis and with 95 % intervals, in place of values, on
        an axis a side and with standard deviations.
    boxes : bool
        Draw the blocks measured here as box plots; a paper prints mean and deviation only.
    title : str
        Title of the figure.

    Returns
    -------
    Figure
        Two panels. What was not measured, or not printed, says so in its place.

    Examples
    --------
    >>> from labkit import claims, plots
    >>> paper = claims.Paper("haruna2019")
    >>> rows = paper.beside(
    ...     "Table 5.1", {"throughput": "throughput_mbit_per_s"}, study="application-networks"
    ... )
    >>> figure = plots.beside_bars(rows, label="placement", ylabel="throughput")
    >>> [axis.get_title() for axis in figure.axes]
    ['in the paper', 'here (n = 8 to 40 blocks)']
    """
    require_columns(rows, [label, *([hue] if hue else []), *_NUMBERS, *_RATIOS])
    places = order_of(rows[label])
    names = order_of(rows[hue]) if hue else [""]
    looks = styles(names)
    printed = (
        rows[["paper_ratio", "paper_ratio_low"] if ratio else ["paper"]].notna().any(axis=None)
    )
    sides = [*_SIDES] if printed else ["here"]
    width = min(5.2, 0.34 * len(places) * len(names) + 1.4)
    figure, axes = canvas(
        1, len(sides), width=len(sides) * max(3.6, width) + 0.8, height=3.3, sharey=ratio
    )
    for side, axis in zip(sides, axes.flat, strict=True):
        factor, unit = (1.0, "") if ratio else _scale(rows, side)
        for place, level in enumerate(places):
            there = rows[rows[label] == level]
            own = [name for name in names if not hue or (there[hue] == name).any()]
            for row in there.to_dict("records"):
                name = row[hue] if hue else ""
                at = place + _shift(own.index(name), len(own), len(names))
                hatch = _HATCHES[names.index(name) % len(_HATCHES)]
                bar = {"width": _WIDTH / len(names), "label": str(name), "hatch": hatch}
                bar |= {"color": looks[name]["color"]}
                _bar(axis, row, at, side, factor, bar, ratio=ratio, boxes=boxes)
        if ratio:
            axis.axhline(1, color="black", lw=1.2, ls="--")
        axis.set_xticks(range(len(places)), [_short(one) for one in places], fontsize=8)
        _slant(axis, places)
        blocks = f" ({blocks_text(rows['n_blocks'])})" if side == "here" else ""
        axis.set_title(f"{_TITLES[side]}{blocks}", fontsize=9)
        axis.set_ylabel(f"{ylabel} ({unit})" if unit else ylabel, fontsize=9)
        axis.tick_params(axis="y", labelsize=8, labelleft=True)
        axis.set_xlim(-0.6, len(places) - 0.4)
        axis.grid(visible=False, axis="x")
    for axis in axes.flat:  # at last: a limit ends scaling, and panels may share their axis
        axis.set_ylim(bottom=0)
    figure.suptitle(title, fontsize=10)
    if hue:
        legend(figure, axes, hue, names)
    spread = "95 % intervals" if ratio else "standard deviations, here over blocks"
    shown = f"black bars: {spread}"
    if boxes:
        shown = "black bars: standard deviations; boxes: quartiles over blocks; crosses: means"
    footnote(figure, shown)
    figure.numbers = rows[[label, *([hue] if hue else []), *(_RATIOS if ratio else _NUMBERS)]]
    return figure


def _bar(
    axis: Axes,
    row: Mapping[Hashable, Any],
    at: float,
    side: str,
    factor: float,
    bar: dict[str, Any],
    *,
    ratio: bool,
    boxes: bool,
) -> None:
    """Draw one bar with its spread, a span, a box, or why there is nothing."""
    look = {"edgecolor": "0.15", "linewidth": 0.6, **bar}
    value, low, high = _ends(row, side, factor, ratio=ratio)
    if np.isnan(value) and not np.isnan(low):  # the paper prints a range
        axis.bar(at, max(high - low, 0.004), bottom=low, **look)
    elif np.isnan(value):
        _absent(axis, at, bar["label"], side)
    elif boxes and side == "here":
        values = np.asarray(row["values"], dtype=np.float64) * factor
        axis.boxplot(
            [values], positions=[at], widths=bar["width"] * 0.8, showmeans=True, manage_ticks=False,
            meanprops={"marker": "x", "markeredgecolor": "black"}, medianprops={"color": "black"},
        )  # fmt: skip
    else:
        axis.bar(at, value, **look)
        if not (np.isnan(low) and np.isnan(high)):
            points: dict[str, Any] = {"fmt": "none", "ecolor": "black", "elinewidth": 1.1}
            error_bars(axis, [at], [value], [low], [high], **points)


def _absent(axis: Axes, at: float, name: str, side: str) -> None:
    """Write in the place of a bar that there is none."""
    said = f"{name}: {_ABSENT[side]}" if name else _ABSENT[side]
    place: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "ha": "center"}
    axis.text(at, 0.03, said, rotation=90, va="bottom", fontsize=7, color="0.3", **place)


def _ends(
    row: Mapping[Hashable, Any], side: str, factor: float, *, ratio: bool
) -> tuple[float, float, float]:
    """Return the value of a side with its bounds; NaN for what there is none of."""
    if ratio:
        prefix = "paper_" if side == "paper" else ""
        ends = [float(row[f"{prefix}ratio{end}"]) for end in ("", "_low", "_high")]
        return ends[0], ends[1], ends[2]
    value, spread = (factor * float(row[name]) for name in _SIDES[side][:2])
    return value, value - spread, value + spread


def _scale(rows: pd.DataFrame, side: str) -> tuple[float, str]:
    """Return the factor and the unit in which the values of a side are read best."""
    value, _, unit = _SIDES[side]
    known = rows[rows[value].notna()]
    if known.empty:
        return 1.0, ""
    largest, stored = float(known[value].max()), str(known[unit].iloc[0])
    if largest <= 0 or stored in ("", "1"):
        return 1.0, ""
    number, shown = in_unit(largest, stored)
    return number / largest, shown


def _shift(number: int, count: int, most: int) -> float:
    """Return how far one of `count` bars, as wide as for `most`, lies from its place's middle."""
    return _WIDTH * (number - (count - 1) / 2) / most


def _short(level: Hashable) -> str:
    """Return a level on two lines where it has two words."""
    return str(level).replace(" ", "\n", 1)


def _slant(axis: Axes, places: Sequence[Hashable]) -> None:
    """Write labels upwards where they would touch."""
    longest = max(len(part) for one in places for part in str(one).split(" ", 1))
    if longest * len(places) > 44:
        axis.tick_params(axis="x", labelrotation=45, labelsize=7)


def beside_curves(
    paper: pd.DataFrame | None,
    here: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str,
    xlabel: str | tuple[str, str],
    ylabel: str | tuple[str, str],
    log: str = "",
    lines: bool = True,
    title: str = "",
) -> DescribedFigure:
    """Draw curves of a paper, and beside them the same curves of what was measured.

    Parameters
    ----------
    paper, here : DataFrame
        Long tables with the columns `x`, `y` and `hue`; `paper` is None where it prints no numbers
        of a figure, which then has one panel.
    x, y, hue : str
        Columns for the axes and the curves.
    xlabel, ylabel : str or pair of str
        Labels with units, where they differ for each side.
    log : str
        Axes that are logarithmic: ``x``, ``y``, ``xy``.
    lines : bool
        Connect the points.
    title : str
        Title of the figure.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> runs = pd.DataFrame({"run": [1, 2], "time": [4.1, 4.2], "placement": "bare"})
    >>> names = {"x": "run", "y": "time", "hue": "placement", "xlabel": "run", "ylabel": "us"}
    >>> figure = plots.beside_curves(runs, runs.assign(time=9.0), **names)
    >>> len(figure.axes)
    2
    """
    tables = {"paper": paper, "here": here} if paper is not None else {"here": here}
    for table in tables.values():
        if len(table):
            require_columns(table, [x, y, hue])
    names = list(dict.fromkeys(one for table in tables.values() for one in order_of(table[hue])))
    looks = styles(names)
    figure, axes = canvas(1, len(tables), width=4.2 * len(tables) + 1.2, height=3.3)
    for number, (side, axis) in enumerate(zip(tables, axes.flat, strict=True)):
        table = tables[side]
        for name in names:
            part = table[table[hue] == name].dropna(subset=[x, y])
            look = looks[name] if lines else {**looks[name], "linestyle": "none"}
            dense = len(part) > 40
            look = {**look, "marker": ""} if dense else look
            axis.plot(part[x], part[y], ms=4.5, lw=1.4, label=str(name), **look)
        axis.set_title(_TITLES[side], fontsize=9)
        labels = [one if isinstance(one, str) else one[number] for one in (xlabel, ylabel)]
        axis.set_xlabel(labels[0], fontsize=9)
        axis.set_ylabel(labels[1], fontsize=9)
        axis.tick_params(labelsize=8)
        if "x" not in log and (pd.to_numeric(table[x], errors="coerce") % 1 == 0).all():
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        drawn = len(table.dropna(subset=[x, y])) > 0
        for which in log if drawn else "":
            getattr(axis, f"set_{which}scale")("log")
            plain_log_ticks(axis, which)
        if not drawn:
            axis.text(0.5, 0.5, _ABSENT[side], ha="center", transform=axis.transAxes)
    figure.suptitle(title, fontsize=10)
    legend(figure, axes, hue, names)
    return figure


def extremes_plot(
    rows: pd.DataFrame, *, label: str, hue: str, ylabel: str, title: str = ""
) -> DescribedFigure:
    """Draw means with the smallest and largest value, as bars on a logarithmic axis.

    Parameters
    ----------
    rows : DataFrame
        A row a condition, with ``min``, ``mean`` and ``max``; NaN says that it was not measured.
    label, hue : str
        Columns for places and for bars side by side.
    ylabel : str
        What the axis shows, with its unit.
    title : str
        Title of the figure.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> row = {"network": "host", "runtime": "docker", "min": 1.0, "mean": 2.0, "max": 9.0}
    >>> figure = plots.extremes_plot(
    ...     pd.DataFrame([row]), label="network", hue="runtime", ylabel="latency (ms)"
    ... )
    >>> figure.axes[0].get_yscale()
    'log'
    """
    require_columns(rows, [label, hue, "min", "mean", "max"])
    places, names = order_of(rows[label]), order_of(rows[hue])
    looks = styles(names)
    figure, axes = canvas(1, 1, width=7.2, height=3.3)
    axis = axes[0, 0]
    axis.set_yscale("log")
    for row in rows.to_dict("records"):
        number = names.index(row[hue])
        at = places.index(row[label]) + _shift(number, len(names), len(names))
        if np.isnan(row["mean"]):
            _absent(axis, at, str(row[hue]), "here")
            continue
        look = {"color": looks[row[hue]]["color"], "hatch": _HATCHES[number % len(_HATCHES)]}
        options: dict[str, Any] = {"width": _WIDTH / len(names), "edgecolor": "0.15", **look}
        span = row["max"] - row["min"]
        axis.bar(at, span, bottom=row["min"], alpha=0.6, label=str(row[hue]), **options)
        half = _WIDTH / len(names) / 2
        axis.hlines(row["mean"], at - half, at + half, color="black", lw=2)
    axis.set_xticks(range(len(places)), [str(one) for one in places], fontsize=8)
    axis.set_ylabel(ylabel, fontsize=9)
    axis.grid(visible=False, axis="x")
    if (known := rows[rows["min"] > 0])["min"].notna().any():
        axis.set_ylim(known["min"].min() / 1.4, known["max"].max() * 1.4)
    plain_log_ticks(axis, "y")
    figure.suptitle(title, fontsize=10)
    legend(figure, axes, hue, names)
    footnote(figure, "bars: smallest to largest; black lines: means")
    figure.numbers = rows[[label, hue, "min", "mean", "max"]]
    return figure
