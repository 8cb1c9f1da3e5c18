"""What conditions add to a baseline over a size, as a table of lines, one family; and its figure.

`labkit.analysis.overhead` fits one pair of conditions. Here several are fitted, in cells of other
factors, and each gets a verdict in words: is the cost fixed, or does it grow or fall with the size?
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from labkit.analysis.blockwise import numbered
from labkit.analysis.figure import canvas, counts, legend, say, styles
from labkit.analysis.intervals import holm
from labkit.analysis.origin import follows
from labkit.analysis.overhead import Overhead, overhead
from labkit.analysis.reduce import groups, order_of, require_columns
from labkit.errors import UsageError
from labkit.power import least_blocks

COLUMNS = (
    *("n_blocks", "n_levels", "intercept", "intercept_low", "intercept_high"),
    *("slope", "slope_low", "slope_high", "growth", "growth_low", "growth_high"),
    *("ratio", "ratio_low", "ratio_high", "p_intercept", "p_growth", "p_fixed"),
    *("verdict", "blocks_missing", "note"),
)
_ESTIMATES = {"intercept": "intercept", "slope": "slope", "growth": "relative", "ratio": "ratio"}


@follows
def costs(
    frame: pd.DataFrame,
    factor: str,
    baseline: Hashable,
    others: Sequence[Hashable],
    within: Sequence[str],
    *,
    value: str,
    over: str,
    block: str = "block",
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Fit what each level of a factor adds to the baseline level, in every cell, as one family.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    factor, baseline, others
        Column of the factor, its baseline level, and the levels compared with it.
    within : sequence of str
        Columns of other factors; each combination that occurs is a cell.
    value, over, block : str
        As for `labkit.analysis.overhead.overhead`.
    margin : float
        Growth up to which a cost counts as fixed: from the smallest to the largest size, as a share
        of the baseline's mean over the sizes.
    alpha : float
        Level; intervals, which are not adjusted, have 1 - `alpha`.

    Returns
    -------
    DataFrame
        `within` and ``contrast``; ``intercept`` (added at size 0), ``slope`` (per unit of the
        size), ``growth`` (the slope over all sizes, as a share of the baseline) and ``ratio``
        (geometric mean over the sizes), each with ``_low`` and ``_high``; ``p_intercept`` and
        ``p_growth``, that they are not 0, by Holm over the rows; ``p_fixed``, that the growth lies
        within the margin; ``verdict``: ``fixed`` (a cost at size 0, growth within the margin),
        ``growing`` or ``falling`` (growth alone, by the sign of the slope), ``fixed and growing``
        or ``fixed and falling``, ``none`` (no cost at size 0 was found, growth within the margin)
        or ``inconclusive``. A line rests on three sizes at least: with fewer the verdict is
        ``inconclusive``. All of it is said of the fitted line; single sizes may differ from it.

    Raises
    ------
    UsageError
        For missing columns, no rows, or an impossible margin.
    """
    require_columns(frame, [factor, value, over, block, *within])
    if not (margin > 0 and math.isfinite(margin)):
        raise UsageError(f"margin={margin!r} is no margin", remedy="0.02 for 2 %")
    rows = []
    for cell, index in groups(frame, list(within)):
        part = frame.iloc[index]
        for other in others:
            row = {**cell, "contrast": f"{other} / {baseline}"}
            pair: dict[str, Any] = {"condition": factor, "baseline": baseline, "other": other}
            try:
                found = overhead(part, value=value, over=over, block=block, **pair)
            except UsageError as error:
                rows.append({**row, **_nothing(error)})
            else:
                rows.append({**row, **_row(found, margin, alpha)})
    table = pd.DataFrame.from_records(rows, columns=[*within, "contrast", *COLUMNS])
    for name in ("p_intercept", "p_growth"):
        table[name] = holm(table[name].to_numpy(dtype=np.float64))
    table["verdict"] = [_verdict(row, alpha) for row in table.to_dict("records")]
    return table


def _nothing(error: UsageError) -> dict[str, Any]:
    """Return the row of what was not measured, or not at two sizes."""
    numbers = [name for name in COLUMNS if name not in ("verdict", "blocks_missing", "note")]
    row: dict[str, Any] = dict.fromkeys(numbers, math.nan) | {"n_blocks": 0, "n_levels": 0}
    return row | {"blocks_missing": (), "note": error.what}


def _row(found: Overhead, margin: float, alpha: float) -> dict[str, Any]:
    row: dict[str, Any] = {"n_blocks": found.n_blocks, "n_levels": len(found.levels)}
    for name, attribute in _ESTIMATES.items():
        estimate = getattr(found, attribute)
        low, high = estimate.interval(alpha)
        row |= {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
    return row | {
        "p_intercept": found.intercept.p_outside(0, 0),
        "p_growth": found.slope.p_outside(0, 0),
        "p_fixed": found.relative.p_within(-margin, margin),
        "blocks_missing": found.missing,
        "note": found.note,
    }


def _verdict(row: Mapping[Any, Any], alpha: float) -> str:
    if row["n_blocks"] < least_blocks(alpha) or row["n_levels"] < 3:
        return "inconclusive"
    begins = row["p_intercept"] < alpha and row["intercept"] > 0
    if row["p_fixed"] < alpha:
        return "fixed" if begins else "none"
    if row["p_growth"] < alpha:
        grows = "growing" if row["slope"] > 0 else "falling"
        return f"fixed and {grows}" if begins else grows
    return "inconclusive"


@follows
def readable_costs(
    table: pd.DataFrame,
    *,
    scale: float = 1e-3,
    unit: str = "µs",
    per: float = 1024,
    per_unit: str = "KiB",
) -> pd.DataFrame:
    """Return what `costs` found as text, indexed by what names its rows.

    Parameters
    ----------
    table : DataFrame
        What `costs` returns.
    scale, unit : float, str
        From the stored unit of the value to the one shown; nanoseconds to microseconds.
    per, per_unit : float, str
        The slope is shown for so much of the size; bytes to KiB.
    """
    keys = [name for name in table.columns if name not in COLUMNS]
    shown = table[keys].astype(str)
    shown["blocks"] = table["n_blocks"].astype(str)
    columns = {
        f"at size 0, {unit} [95 %]": ("intercept", scale, 2),
        f"for each {per_unit}, {unit} [95 %]": ("slope", scale * per, 4),
        "growth, % of the baseline [95 %]": ("growth", 100, 2),
        "ratio, mean over sizes [95 %]": ("ratio", 1, 3),
    }
    for heading, (name, factor, digits) in columns.items():
        parts = table[[name, f"{name}_low", f"{name}_high"]] * factor
        shown[heading] = [_with_interval(row, digits) for row in parts.to_numpy().tolist()]
    for name, heading in (("p_growth", "p of growth"), ("p_fixed", "p of fixed")):
        shown[heading] = [_p_value(value) for value in table[name]]
    shown["verdict"], shown["note"] = table["verdict"], table["note"]
    return shown.set_index(keys)


def _with_interval(values: Sequence[float], digits: int) -> str:
    middle, low, high = values
    if not math.isfinite(middle):
        return ""
    known = math.isfinite(low) and math.isfinite(high)
    return f"{middle:.{digits}f}" + (f" [{low:.{digits}f}, {high:.{digits}f}]" if known else "")


def _p_value(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


@follows
def cost_plot(
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
        What `labkit.analysis.summary.factor_effect` returns, with `over` among its cells.
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
    frame = numbered(effects[effects["n_blocks"] > 0], over)
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
    say(figure, f"{counts(int(frame['n_blocks'].max()))}; 95 % intervals over blocks; lines fitted")
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
