"""Figures that print well and read in grey; each states its units and its number of blocks.

Every function returns a `matplotlib.figure.Figure` and shows nothing by itself.
"""

from labkit.plots.beside import beside_bars, beside_curves, extremes_plot
from labkit.plots.curves import curve_plot, overhead_plot
from labkit.plots.distributions import block_plot, ecdf, shift_plot, tail_plot
from labkit.plots.figure import canvas, footnote, styles
from labkit.plots.intervals import interval_plot, ladder_plot, rig_plot
from labkit.plots.overview import heat_map, ledger_overview, stacked_plot

__all__ = [
    "beside_bars",
    "beside_curves",
    "block_plot",
    "canvas",
    "curve_plot",
    "ecdf",
    "extremes_plot",
    "footnote",
    "heat_map",
    "interval_plot",
    "ladder_plot",
    "ledger_overview",
    "overhead_plot",
    "rig_plot",
    "shift_plot",
    "stacked_plot",
    "styles",
    "tail_plot",
]
