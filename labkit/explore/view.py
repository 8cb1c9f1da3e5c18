"""What a view returns: words, a figure, tables."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

#: Inches of a figure in the explorer.
SIZE = (9.0, 4.2)


@dataclass(frozen=True)
class View:
    """What a tab shows.

    Parameters
    ----------
    text : str
        What is seen, in sentences; a reader who cannot see the figure needs no more.
    figure : Figure, optional
        The figure.
    tables : tuple of (str, DataFrame)
        Tables of text, each with its title.
    """

    text: str
    figure: Figure | None = None
    tables: tuple[tuple[str, pd.DataFrame], ...] = ()


def sized(figure: Figure) -> Figure:
    """Return a figure in the explorer's size."""
    figure.set_size_inches(*SIZE)
    return figure
