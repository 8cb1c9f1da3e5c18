"""Shares of a whole as stacked bars, such as CPU time by category."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from labkit.analysis.figure import canvas, counts, legend, say
from labkit.analysis.origin import follows
from labkit.analysis.reduce import order_of, require_columns

__all__ = ["stacked_plot"]

#: Beside the colour, so that parts are told apart in grey, too.
_HATCHES = ("", "///", "", "...", "xxx", "\\\\\\")


@follows
def stacked_plot(
    trials: pd.DataFrame,
    *,
    panels: Mapping[str, Mapping[str, str]],
    label: str,
    row: str,
    unit: str,
    block: str = "block",
) -> Figure:
    """Draw the mean shares of trials, of a whole of 1, as stacked bars.

    Parameters
    ----------
    trials : DataFrame
        One row a trial; a share that is missing counts as not there.
    panels : mapping of str to mapping
        A panel each, side by side: its title, and its columns with what they are called. Parts of
        the same name look the same in all panels.
    label : str
        Column whose levels are bars.
    row : str
        Column whose levels are rows of panels.
    unit : str
        What the whole is, for the axis.
    block : str
        Column of the block.
    """
    columns = [column for parts in panels.values() for column in parts]
    require_columns(trials, [*columns, label, row, block])
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
    say(figure, f"{counts(trials[block].nunique(), len(trials))}; means over trials")
    return figure
