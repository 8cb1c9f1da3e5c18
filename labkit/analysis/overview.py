"""The ledger as a figure and as a table to read, and heat maps of a quantity over two factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.analysis.figure import canvas, counts, plain_log_ticks, say
from labkit.analysis.origin import follows
from labkit.analysis.reduce import require_columns
from labkit.errors import UsageError

#: How a result is drawn: a grey and a hatch, so that no colour has to be told from another.
FACES: dict[str, tuple[str, str]] = {
    "replicated": ("0.25", ""),
    "contradicted": ("1.0", "xxx"),
    "inconclusive": ("0.75", "///"),
    "not decidable on this rig": ("0.9", "..."),
    "not measured": ("1.0", ""),
    "error": ("0.0", ""),
}
_NUMBERS = ("estimate", "low", "high", "published_value")
_MARKERS = {
    "replicated": "o",
    "contradicted": "X",
    "inconclusive": "^",
    "not decidable on this rig": "s",
}


def ledger_overview(rows: pd.DataFrame, *, alpha: float = 0.05) -> Figure:
    """Draw the results of each source, and published beside measured ratios.

    Parameters
    ----------
    rows : DataFrame
        What `labkit.ledger` returns: a row a claim.
    alpha : float
        The level that `labkit.ledger` was given; intervals have 1 - `alpha`.

    Returns
    -------
    Figure
        Left, bars of claims by result, a bar a source. Right, for every measured claim whose
        estimate and published value are ratios, the interval measured here (a line with a marker
        a result) and the published value (a diamond), on a logarithmic axis.

    Raises
    ------
    UsageError
        If columns are missing or there are no rows.
    """
    require_columns(rows, ["id", "source", "result", "unit", "n_blocks", *_NUMBERS])
    ratios = rows[
        (rows["unit"] == "1") & (rows["estimate"] > 0) & np.isfinite(rows["estimate"])
    ].reset_index(drop=True)
    height = max(3.0, 0.2 * len(ratios) + 1.2)
    figure, axes = canvas(1, 2, width=11, height=height, gridspec_kw={"width_ratios": [2, 3]})
    _bars(axes[0, 0], rows)
    _ratios(axes[0, 1], ratios, alpha)
    return figure


@follows
def readable_claims(rows: pd.DataFrame) -> pd.DataFrame:
    """Return claims as a person reads them.

    Parameters
    ----------
    rows : DataFrame
        Rows of what `labkit.ledger` returns.

    Returns
    -------
    DataFrame
        Text, a row a claim, indexed by its number in the table: the statement; the published
        value; what the paper's own arithmetic does; the estimate with its interval (ratios without
        a unit); blocks; setting and result; why.
    """
    require_columns(rows, ["statement", "published", "arithmetic", "unit", "n_blocks", *_NUMBERS])
    shown = {
        "claim": rows["statement"],
        "published": rows["published"],
        "own arithmetic": rows["arithmetic"],
        "measured [interval]": [_measured(row) for row in rows.to_dict("records")],
        "blocks": ["" if pd.isna(number) else str(number) for number in rows["n_blocks"]],
        **{name: rows[name] for name in ("setting", "result", "why")},
    }
    return pd.DataFrame(shown).set_axis(range(1, len(rows) + 1))


def _measured(row: Mapping[Any, Any]) -> str:
    """Return an estimate with its interval and unit; empty where there is none."""
    if not np.isfinite(row["estimate"]):
        return ""
    unit = "" if row["unit"] in ("", "1") else f" {row['unit']}"
    known = not (np.isnan(row["low"]) or np.isnan(row["high"]))
    bounds = f" [{row['low']:.4g}, {row['high']:.4g}]" if known else ", no interval"
    return f"{row['estimate']:.4g}{bounds}{unit}"


def _bars(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw one bar a source, a part a result."""
    sources = list(dict.fromkeys(rows["source"]))
    left = np.zeros(len(sources))
    for result, (grey, hatch) in FACES.items():
        counts = [int(((rows["source"] == s) & (rows["result"] == result)).sum()) for s in sources]
        if any(counts):
            options: dict[str, Any] = {"facecolor": grey, "hatch": hatch, "edgecolor": "0.2"}
            axes.barh(sources, counts, left=left, label=result, linewidth=0.8, **options)
            left += counts
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"claims (n = {len(rows)})")
    axes.grid(visible=False, axis="y")
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def _ratios(axes: Axes, ratios: pd.DataFrame, alpha: float) -> None:
    """Draw the measured interval and the published value of every ratio."""
    if ratios.empty:
        axes.text(0.5, 0.5, "no ratio was measured", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    axes.axvline(1, color="0.4", linewidth=0.8)
    for place, row in enumerate(ratios.to_dict("records")):
        if np.isfinite(row["low"]) and np.isfinite(row["high"]):
            axes.plot([row["low"], row["high"]], [place, place], color="0.2", linewidth=1.2)
        marker = _MARKERS.get(row["result"], "P")
        label = row["result"] if row["result"] in _MARKERS else "other result"
        axes.plot(row["estimate"], place, marker, color="0.2", markersize=5, label=label)
        if pd.notna(row["published_value"]) and row["published_value"] > 0:
            options: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": "0.2"}
            axes.plot(
                row["published_value"], place, "D", markersize=5, label="published", **options
            )
    axes.set_xscale("log")
    plain_log_ticks(axes)
    axes.set_yticks(range(len(ratios)), ratios["id"], fontsize=7)
    axes.invert_yaxis()
    said = f"{_blocks(ratios)}; {100 * (1 - alpha):g} % intervals"
    axes.set_xlabel(f"ratio to the claim's baseline ({said})")
    handles, names = axes.get_legend_handles_labels()
    known = dict(zip(names, handles, strict=True))
    options = {"fontsize": 7, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axes.legend(known.values(), known.keys(), ncols=len(known), frameon=False, **options)


def _blocks(frame: pd.DataFrame) -> str:
    """Return on how many blocks the rows rest."""
    known = frame["n_blocks"].dropna().astype(int)
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    return counts(high) if low == high else f"n = {low} to {high} blocks"


@follows
def heat_map(
    frame: pd.DataFrame,
    *,
    value: str,
    rows: str,
    columns: str,
    label: str,
    centre: float = 0.0,
    marked: str | None = None,
    note: str = "",
) -> Figure:
    """Draw a quantity over two factors, such as the interference ratio of service and neighbour.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    value, rows, columns : str
        Columns: the quantity, and the factors down and across.
    label : str
        What the quantity is, with its unit.
    centre : float
        The value that means no effect: the middle of the scale.
    marked : str, optional
        Boolean column; cells where it holds are framed (a difference found, for instance).
    note : str
        Written below, such as ``n = 5 blocks``; by default the range of the column ``n_blocks``
        where `frame` has it.

    Returns
    -------
    Figure
        Every cell carries its number, so that the map reads without its colours; one that was not
        measured is grey and carries a dash.

    Raises
    ------
    UsageError
        If columns are missing, there are no rows, a cell has several or a value is infinite.
    """
    require_columns(frame, [value, rows, columns, *([marked] if marked else [])])
    if frame.duplicated([rows, columns]).any():
        raise UsageError(f"several rows for one cell of {rows!r} and {columns!r}")
    if np.isinf(frame[value].to_numpy(dtype=float)).any():
        raise UsageError(f"{value!r} is infinite in a cell", remedy="leave it out, or give NaN")
    table = frame.pivot(index=rows, columns=columns, values=value).astype(float)
    rows_at, columns_at = _order(frame[rows]), _order(frame[columns])
    table = table.reindex(index=rows_at, columns=columns_at)
    width, height = 1.1 * len(table.columns) + 2.5, max(0.45 * len(table) + 1.4, 3.0)
    figure, axes = canvas(1, 1, width=width, height=height)
    axis = axes[0, 0]
    reach = float(np.nanmax(np.abs(table.to_numpy(dtype=float) - centre), initial=0)) or 1.0
    limits: dict[str, Any] = {"vmin": centre - reach, "vmax": centre + reach}
    sns.heatmap(table, annot=True, fmt=".3g", cmap="PuOr", ax=axis, **limits)
    axis.collections[0].colorbar.set_label(label, size=8)
    axis.grid(visible=False)
    axis.set_facecolor("0.92")
    for down, across in np.argwhere(table.isna().to_numpy()):
        axis.text(across + 0.5, down + 0.5, "–", ha="center", va="center", color="0.3")
    if marked:
        for cell in frame[frame[marked].eq(other=True).fillna(value=False)].to_dict("records"):
            place = (columns_at.index(cell[columns]), rows_at.index(cell[rows]))
            axis.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor="0", linewidth=1.8))
    say(figure, note or (_blocks(frame) if "n_blocks" in frame else ""))
    return figure


def _order(column: pd.Series[Any]) -> list[Any]:
    """Return the levels in the order of a categorical, or of appearance."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return list(column.cat.categories)
    return list(dict.fromkeys(column))
