"""Shared by all figures: axes with units, styles that survive grey print, text alternatives."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from hashlib import sha256
from io import StringIO
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython import display as ipython_display
from matplotlib import figure as drawing
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from labkit.units import about_column, heading, plural

#: Of more panels or rows than this, the text alternative names the first and the last only.
_NAMED = 8
#: More points, joined or not, are drawn as pixels, as they would be most of a page.
_MANY = 300
_TAG = re.compile("<[^>]+>")
_DECIMALS = re.compile(r"-?\b\d+\.\d{3,}\b")
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")
_STYLE = re.compile(' style="([^"]*)"')


class DescribedFigure(drawing.Figure):
    """A figure that notebooks show as SVG with `alt_text`, and with its numbers as CSV.

    `numbers` is the table that it was drawn from, where it is small.
    """

    numbers: pd.DataFrame | None = None

    def _ipython_display_(self) -> None:
        """Display the figure; IPython would make a PNG without a text alternative."""
        shown = {"image/svg+xml": svg(self), "text/plain": alt_text(self)}
        if self.numbers is not None:
            shown["text/csv"] = self.numbers.to_csv(index=False, float_format="%.6g")
        described = {"image/svg+xml": {"alt": alt_text(self)}}
        display: Any = ipython_display.display
        display(shown, metadata=described, raw=True)


def svg(figure: drawing.Figure) -> str:
    """Return a figure as SVG; the same text for the same figure."""
    file = StringIO()
    for line in figure.findobj(Line2D):
        if np.size(line.get_xdata()) > _MANY:
            line.set_rasterized(True)
    for points in figure.findobj(PathCollection):
        if np.shape(points.get_offsets())[0] > _MANY:
            points.set_rasterized(True)
    swatches = {one for legend in figure.findobj(Legend) for one in legend.findobj(Rectangle)}
    for patch in figure.findobj(Rectangle):
        # Else a drawing of its own for each bar; in a legend, pixels would be misplaced.
        if patch.get_hatch() and patch not in swatches:
            patch.set_rasterized(True)
    # Text stays text, and ids do not depend on the process.
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "labkit"}
    look["font.sans-serif"] = ["DejaVu Sans"]
    with plt.rc_context(look):
        absent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", bbox_inches="tight", dpi=110, metadata=absent)
    # A hundredth of a point is finer than any screen; the text between tags stays.
    text = _TAG.sub(
        lambda tag: _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}", tag[0]), file.getvalue()
    )
    return _with_classes(_BETWEEN.sub("><", _COMMENT.sub("", text)))


def _with_classes(text: str) -> str:
    """Return SVG with each style written once, as a rule, and not at every element.

    A class is named by its style, so that the figures of one document agree.
    """
    rules: dict[str, str] = {}

    def named(style: re.Match[str]) -> str:
        name = f"s{sha256(style[1].encode()).hexdigest()[:6]}"
        rules[name] = style[1]
        return f' class="{name}"'

    text = _STYLE.sub(named, text)
    written = "".join(f".{name}{{{style}}}" for name, style in rules.items())
    return text.replace("</style>", f"{written}</style>", 1)


def alt_text(figure: drawing.Figure) -> str:
    """Return what a figure shows as text: panels, axes, rows with results, series, counts."""
    # The colour scale of a heat map is not a panel.
    axes = [axis for axis in figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>"]
    scales = [axis.get_ylabel() for axis in figure.axes if axis.get_label() == "<colorbar>"]
    legends = [*figure.legends, *filter(None, (axis.get_legend() for axis in axes))]
    series = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts = {
        "": [figure.get_suptitle()],
        "Panels: ": _few([axis.get_title() for axis in axes]),
        "Across: ": [axis.get_xlabel() for axis in axes],
        "Up: ": [axis.get_ylabel() for axis in axes],
        "Cells: ": scales,
        "Rows: ": _few([row for axis in axes[:1] for row in _rows(axis)]),
        "Series: ": series,
        "Numbers: ": [figure.get_supxlabel()],
    }
    texts = {name: "; ".join(_once(lines)) for name, lines in parts.items()}
    return " ".join(f"{name}{text.rstrip('.')}." for name, text in texts.items() if text)


def _rows(axis: Axes) -> list[str]:
    """Return the row labels of a panel, each with the text to its right."""
    names = [label.get_text() for label in axis.get_yticklabels()]
    # The ticks of a logarithmic axis have letters too: 1e+06, or mathematics.
    if axis.get_yscale() != "linear" or not any(map(str.isalpha, "".join(names))):
        return []
    notes = [text.get_text() for text in axis.texts]
    if len(notes) != len(names):
        return names
    return [f"{name}: {words}" for name, words in zip(names, notes, strict=True)]


def _few(texts: list[str]) -> list[str]:
    """Return a few texts, or of many their number, the first and the last."""
    texts = _once(texts)
    if len(texts) <= _NAMED:
        return texts
    return [f"{len(texts)}, the first {texts[0]}, the last {texts[-1]}"]


def _once(texts: Iterable[str]) -> list[str]:
    """Return the distinct texts that are not empty, each on one line."""
    return list(dict.fromkeys(line for text in texts if (line := " ".join(text.split()))))


#: Nanoseconds are shown as microseconds; other units as they are stored.
_SCALES = {"ns": (1e-3, "µs"), "1": (1.0, "")}


#: Dashes that can be distinguished also in thin lines.
_LINES: tuple[Any, ...] = (
    "-",
    (0, (7, 2)),
    (0, (1, 1.2)),
    (0, (7, 2, 1, 2)),
    (0, (2.5, 2.5)),
    (0, (7, 1.5, 1, 1.5, 1, 1.5)),
    (0, (1, 4)),
)


_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def canvas(
    rows: int, columns: int, *, width: float, height: float, **options: Any
) -> tuple[DescribedFigure, NDArray[Any]]:
    """Return a figure (closed for pyplot, so that a notebook shows it once) and its 2-D axes.

    Examples
    --------
    >>> from labkit import plots
    >>> figure, axes = plots.canvas(1, 2, width=7, height=3)
    >>> axes.shape
    (1, 2)
    """
    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(width, height),
            squeeze=False,
            layout="constrained",
            FigureClass=DescribedFigure,
            **options,
        )
    plt.close(figure)
    assert isinstance(figure, DescribedFigure)
    return figure, axes


def scale_and_label(value: str, unit: str | None = None, statistic: str = "") -> tuple[float, str]:
    """Return the factor from stored to shown values, and what a column holds with its unit."""
    known, text = about_column(value)
    stored = unit or known or ("ns" if value.endswith("_ns") else "")
    factor, shown = _SCALES.get(stored, (1.0, stored))
    text = text or value.removesuffix("_ns").replace("_", " ")
    text += f", {statistic}" if statistic else ""
    return factor, f"{text} ({shown})" if shown else text


def styles(names: Sequence[Hashable]) -> dict[Hashable, dict[str, Any]]:
    """Return colour, line style and marker of each name, which differ also without colour.

    Examples
    --------
    >>> from labkit import plots
    >>> styles = plots.styles(["block", "spin"])
    >>> styles["block"]["marker"], styles["spin"]["marker"]
    ('o', 's')
    """
    # Luminance falls evenly along the palette, so the order survives a grey printer.
    colours = sns.color_palette("viridis", len(names) + 1)[: len(names)]
    return {
        name: {
            "color": colours[number],
            "linestyle": _LINES[number % len(_LINES)],
            "marker": _MARKERS[number % len(_MARKERS)],
        }
        for number, name in enumerate(names)
    }


def count_text(blocks: int, trials: int | None = None, samples: int | None = None) -> str:
    """Return the counts that a figure states: ``n = 10 blocks, 60 trials, ...``."""
    parts = [(blocks, "block"), (trials, "trial"), (samples, "sample")]
    texts = [plural(n, word) for n, word in parts if n is not None]
    return "n = " + ", ".join(texts)


def blocks_text(counts: pd.Series[Any]) -> str:
    """Return how many blocks the rows of a table rest on, as a range where they differ."""
    known = counts.dropna().astype(int)
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    return count_text(high) if low == high else f"n = {low} to {high} blocks"


def error_bars(axis: Axes, x: Any, middle: Any, low: Any, high: Any, **look: Any) -> None:
    """Draw points with their intervals; a bound that is NaN is not drawn."""
    middle, low, high = (np.asarray(values, dtype=np.float64) for values in (middle, low, high))
    reach = np.abs(np.nan_to_num(np.array([middle - low, high - middle])))
    axis.errorbar(x, middle, yerr=reach, capsize=2, **look)


def footnote(figure: Figure, text: str) -> None:
    """Write the counts below a figure.

    Examples
    --------
    >>> from labkit import plots
    >>> figure, _ = plots.canvas(1, 1, width=4, height=3)
    >>> plots.footnote(figure, "n = 5 blocks")
    >>> figure.get_supxlabel()
    'n = 5 blocks'
    """
    figure.supxlabel(text, fontsize=8, color="0.25", x=0.99, ha="right")


def legend(figure: Figure, axes: NDArray[Any], title: str, order: Sequence[Hashable]) -> None:
    """Put one legend right of the panels, with the names of `order` that any of them shows."""
    named = {
        name: handle
        for axis in axes.flat
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [str(name) for name in order if str(name) in named]
    options: dict[str, Any] = {"fontsize": 7, "title_fontsize": 7, "loc": "outside right upper"}
    figure.legend([named[name] for name in names], names, title=heading(title), **options)


#: Ratios to label, the most wanted first; each of the later ones only where there is room.
_RATIOS = (
    *(1, 0.1, 10, 0.01, 100, 0.001, 1000, 0.5, 2, 0.2, 5, 0.05, 20, 0.02, 50, 0.8, 1.25),
    *(0.9, 1.1, 0.7, 1.5, 3, 0.3, 0.95, 1.05, 0.98, 1.02, 0.99, 1.01),
)


def ratio_ticks(low: float, high: float, apart: float) -> list[float]:
    """Return the ratios to label on a logarithmic axis, at least this share of it apart."""
    width, chosen = math.log(high / low), list[float]()
    for ratio in _RATIOS:
        near = any(abs(math.log(ratio / other)) < apart * width for other in chosen)
        if low <= ratio <= high and not near:
            chosen.append(float(ratio))
    return sorted(chosen)


def plain_log_ticks(axes: Axes, which: str = "x") -> None:
    """Write plain numbers (20, 50, 100) on a logarithmic axis, as many as there is room for."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    span = high / low if low > 0 else math.inf
    digits = "123456789" if span < 3 else "25" if span < 200 else "3" if span < 1e5 else ""
    # The first significant digit: 0.02 is labelled where 2 and 20 are.
    axis.set_minor_formatter(
        FuncFormatter(lambda number, _: f"{number:g}" if f"{number:.0e}"[0] in digits else "")
    )
    axis.set_tick_params(which="both", labelsize=8)
