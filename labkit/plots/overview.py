"""The ledger as a figure, heat maps over two factors, and shares of a whole."""

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

from labkit.analysis.trials import levels_of, order_of, require_columns
from labkit.errors import UsageError
from labkit.plots.figure import (
    blocks_text,
    canvas,
    count_text,
    footnote,
    legend,
    plain_log_ticks,
)

#: The grey and the hatch of a result, which differ also without colour.
FACES: dict[str, tuple[str, str]] = {
    "replicated": ("0.25", ""),
    "contradicted": ("1.0", "xxx"),
    "undecided": ("0.75", "///"),
    "not decidable on this rig": ("0.9", "..."),
    "not measured": ("1.0", ""),
    "error": ("0.0", ""),
}


_NUMBERS = ("estimate", "low", "high", "published_value")


_MARKERS = {
    "replicated": "o",
    "contradicted": "X",
    "undecided": "^",
    "not decidable on this rig": "s",
}


def ledger_overview(rows: pd.DataFrame) -> Figure:
    """Draw the results of each source, and published and measured ratios.

    Parameters
    ----------
    rows : DataFrame
        What `labkit.ledger` returns: a row a claim.

    Returns
    -------
    Figure
        Above, for each source a bar of its claims by result. Below, for each measured claim about
        a ratio, the interval measured here (a line, with a marker by result; its level is the
        row's ``confidence``) and the published value (a diamond), on a logarithmic axis.

    Raises
    ------
    UsageError
        If columns are missing or there are no rows.

    Examples
    --------
    >>> from labkit import ledger, plots
    >>> figure = plots.ledger_overview(ledger("data/reference/rps"))
    >>> len(figure.axes)
    2
    """
    require_columns(rows, ["id", "source", "result", "unit", "n_blocks", *_NUMBERS])
    ratios = rows[
        (rows["unit"] == "1") & (rows["estimate"] > 0) & np.isfinite(rows["estimate"])
    ].reset_index(drop=True)
    heights = [0.3 * rows["source"].nunique() + 0.7, max(1.5, 0.2 * len(ratios) + 0.7)]
    figure, axes = canvas(
        2, 1, width=9, height=sum(heights), gridspec_kw={"height_ratios": heights}
    )
    _bars(axes[0, 0], rows)
    _ratios(axes[1, 0], ratios)
    return figure


def _bars(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a bar for each source, with a part for each result."""
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


def _ratios(axes: Axes, ratios: pd.DataFrame) -> None:
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
    axes.set_ylim(len(ratios), -1)
    note = f"{blocks_text(ratios['n_blocks'])}; intervals at the level of each result"
    axes.set_xlabel(f"ratio to the claim's baseline ({note})")
    handles, names = axes.get_legend_handles_labels()
    known = dict(zip(names, handles, strict=True))
    options = {"fontsize": 7, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axes.legend(known.values(), known.keys(), ncols=len(known), frameon=False, **options)


def heat_map(
    frame: pd.DataFrame,
    *,
    value: str,
    rows: str,
    columns: str,
    label: str,
    marked: str | None = None,
    note: str = "",
) -> Figure:
    """Draw a quantity over two factors as cells with numbers and colours.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    value, rows, columns : str
        Columns: the quantity, and the factors down and across.
    label : str
        What the quantity is, with its unit.
    marked : str, optional
        Boolean column; cells where it is true are framed.
    note : str
        Text below the map; by default the range of the column ``n_blocks``, if `frame` has it.

    Returns
    -------
    Figure
        A map whose colour scale is centred on 0. A cell that was not measured has a dash.

    Raises
    ------
    UsageError
        If columns are missing, there are no rows, a cell has several or a value is infinite.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> cells = pd.DataFrame([{"service": "linpack", "neighbour": "stream", "ir": -0.2}])
    >>> names = {"rows": "service", "columns": "neighbour"}
    >>> figure = plots.heat_map(cells, value="ir", label="IR", **names)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('neighbour', 'service')
    """
    require_columns(frame, [value, rows, columns, *([marked] if marked else [])])
    if frame.duplicated([rows, columns]).any():
        raise UsageError(f"several rows for one cell of {rows!r} and {columns!r}")
    if np.isinf(frame[value].to_numpy(dtype=float)).any():
        raise UsageError(f"{value!r} is infinite in a cell", remedy="leave it out, or give NaN")
    table = frame.pivot(index=rows, columns=columns, values=value).astype(float)
    rows_at, columns_at = levels_of(frame[rows]), levels_of(frame[columns])
    table = table.reindex(index=rows_at, columns=columns_at)
    width, height = 1.1 * len(table.columns) + 2.5, max(0.45 * len(table) + 1.4, 3.0)
    figure, axes = canvas(1, 1, width=width, height=height)
    axis = axes[0, 0]
    reach = float(np.nanmax(np.abs(table.to_numpy(dtype=float)), initial=0)) or 1.0
    limits: dict[str, Any] = {"vmin": -reach, "vmax": reach}
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
    footnote(figure, note or (blocks_text(frame["n_blocks"]) if "n_blocks" in frame else ""))
    return figure


#: So that parts differ also without colour.
_HATCHES = ("", "///", "", "---", "xxx", "\\\\\\")


def stacked_plot(
    trials: pd.DataFrame,
    *,
    panels: Mapping[str, Mapping[str, str]],
    label: str,
    row: str,
    unit: str,
) -> Figure:
    """Draw the mean shares of trials as stacked bars.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, with the column ``block``; a missing share counts as 0.
    panels : mapping of str to mapping
        Panels side by side: by title, the columns with their names in the legend. Parts of the
        same name look the same in all panels.
    label : str
        Column whose levels are bars.
    row : str
        Column whose levels are rows of panels.
    unit : str
        Label of the axis.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import plots
    >>> used = {"placement": ["host", "nat"], "application": "nginx", "block": 1}
    >>> used = pd.DataFrame({**used, "user": [0.2, 0.3], "kernel": [0.1, 0.2]})
    >>> panels = {"server": {"user": "user", "kernel": "kernel"}}
    >>> names = {"label": "placement", "row": "application", "unit": "share"}
    >>> figure = plots.stacked_plot(used, panels=panels, **names)
    >>> figure.axes[0].get_title()
    'nginx, server'
    """
    columns = [column for parts in panels.values() for column in parts]
    require_columns(trials, [*columns, label, row, "block"])
    bars, rows = order_of(trials[label]), order_of(trials[row])
    names = list(dict.fromkeys(name for parts in panels.values() for name in parts.values()))
    colours = sns.color_palette("viridis", len(names) + 1)
    height = len(rows) * (0.22 * len(bars) + 0.45) + 0.9
    figure, axes = canvas(
        len(rows), len(panels), width=8.4, height=height, sharex=True, sharey=True
    )
    means = trials.groupby([row, label], observed=True)[columns].mean()
    for place, level in enumerate(rows):
        shown = means.loc[level].reindex(bars)
        for axis, (title, parts) in zip(axes[place], panels.items(), strict=True):
            left = np.zeros(len(bars))
            for column, name in parts.items():
                number, width = names.index(name), shown[column].fillna(0.0).to_numpy(np.float64)
                look = {"color": colours[number], "hatch": _HATCHES[number % len(_HATCHES)]}
                axis.barh(
                    range(len(bars)), width, left=left, label=name, ec="white", lw=0.3, **look
                )
                left += width
            axis.set_yticks(range(len(bars)), list(map(str, bars)), fontsize=7)
            axis.set_title(f"{level}, {title}", fontsize=8)
            axis.grid(visible=False, axis="y")
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xlim(0, 1)
    for axis in axes[-1]:
        axis.set_xlabel(unit, fontsize=8)
    legend(figure, axes, "", names)
    footnote(figure, f"{count_text(trials['block'].nunique(), len(trials))}; means over trials")
    return figure
