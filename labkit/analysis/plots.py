"""Figures of results as SVG with text as text, each with an alt text.

The ink is ``currentColor`` where a page has a figure inline, and else a grey that reads on white
and on black. A ``table`` is that of a `Comparison`; ``factor`` is that of its ``condition``, or "".
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

from labkit.analysis import words
from labkit.analysis.stats import Mean
from labkit.analysis.tables import Html
from labkit.units import column

#: Inches and characters of a figure, which fits a page of 390 px, and of a wide one's labels.
_WIDTH, _LINE, _WIDE, _LONG = 3.7, 55, 9.1, 70
_KEY = "blue: shown to differ; hollow: cannot tell; band: margin"
_INK = "#7d7d7d"
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
#: Colours that read on white and on black.
_PALETTE = [sns.color_palette("colorblind")[number] for number in (0, 1, 2, 3, 4, 9, 5, 7)]
_STYLE: Any = {
    **sns.plotting_context("paper", font_scale=0.92),  # ticks have 8.1 points
    **sns.axes_style("ticks", {"axes.spines.top": False, "axes.spines.right": False}),
    **dict.fromkeys(_INKED, _INK),
    "savefig.transparent": True,
    "legend.frameon": False,
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "labkit",
}


class Figure(MatplotlibFigure):
    """A figure with an alt text, which notebooks display as SVG, and pages as wide as fits."""

    alt = ""
    wide: Any = None

    @mpl.rc_context(_STYLE)
    def svg(self) -> str:
        """Return the figure as SVG; the same text for the same figure."""
        file = StringIO()
        undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.savefig(file, format="svg", metadata=undated)
        text = file.getvalue().replace(_INK, "currentColor").partition("<svg ")[2]
        text = text.replace("<defs>", f"<style>svg:root {{color: {_INK}}}</style><defs>", 1)
        return f'<svg role="img" aria-label="{escape(self.alt)}" {text}'

    def _ipython_display_(self) -> None:
        show: Any = display
        shown = {"image/svg+xml": self.svg(), "text/plain": self.alt}
        about = {"alt": self.alt, "wide": self.wide.svg() if self.wide else ""}
        show(shown, metadata={"image/svg+xml": about}, raw=True)


def _levels(values: pd.Series[Any]) -> list[Any]:
    """Return the levels of a column in their own order, or sorted."""
    return list(pd.Categorical(values).remove_unused_categories().categories)


def _log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """Make an axis logarithmic, with as many plain numbers as fit a narrow panel."""
    decades = math.log10(high / low)
    nice = LogLocator(subs=[1, 2, 5] if decades < 1.8 else [1, 3] if decades < 2.3 else [1])
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(nice if decades > 0.7 else MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set(minor_locator=NullLocator(), major_formatter="{x:,.10g}")


def _drawn(draw: Callable[..., Figure]) -> Callable[..., Figure | Html]:
    """Draw in the style; of an empty frame say that nothing was measured."""

    @functools.wraps(draw)
    @mpl.rc_context(_STYLE)
    def drawn(frame: pd.DataFrame, *names: Any, **options: Any) -> Figure | Html:
        if not len(frame):
            return Html("<p>Nothing of this was measured.</p>")
        return draw(frame, *names, **options)

    return drawn


@_drawn
def forest(table: pd.DataFrame, factor: Any = "", by: Any = (), *, wide: bool = False) -> Figure:
    """Draw ratios with intervals; labels stand above them, in a `wide` figure to their left."""
    figure = Figure()
    figure.set_layout_engine("constrained", rect=(0.52, 0, 0.48, 1) if wide else (0, 0, 1, 1))
    axes = figure.subplots()
    place = figure.transFigure if wide else axes.transAxes
    across = blended_transform_factory(place, axes.transData)
    table = table.astype({"low": float, "high": float})  # of one block they are None in JSON
    known = table[table["verdict"] != "not measured"]
    band = 1 + table["margin"].max()
    ratios = known["estimate"]
    low = np.nanmin([*known["low"].clip(ratios / 5), *ratios, 1 / band]) / 1.02
    high = np.nanmax([*known["high"].clip(upper=ratios * 5), *ratios, band]) * 1.02
    baselines = list(dict.fromkeys(words.level(factor, level) for level in table["to"]))
    line, rows = 0.5, list[str]()
    for record in table.to_dict("records"):
        texts, verdict, band = words.row(record), record["verdict"], 1 + record["margin"]
        label = words.label(record, factor, by)
        label += f" against {words.level(factor, record['to'])}" if len(baselines) > 1 else ""
        rows.append(f"{label}: {texts['ratio']} {texts['verdict']}".replace("  ", " "))
        unbroken = rows[-1].replace(texts["ratio"], texts["ratio"].replace(" ", "\u00a0"))
        text = textwrap.fill(unbroken, _LONG if wide else _LINE)
        middle, line = line + text.count("\n") / 2, line + text.count("\n") + (1.4 if wide else 1)
        drawn = axes.text(0, middle, text, va="center", linespacing=1.3, transform=across)
        drawn.set_in_layout(False)
        if verdict != "not measured":
            at, line = (middle, line) if wide else (line, line + 1.2)
            color = _PALETTE[0] if verdict.startswith("differs") else _INK
            face = "none" if verdict == "cannot tell" else color
            reach = np.clip([[record["low"]], [record["high"]]], low, high) - record["estimate"]
            look: dict[str, Any] = {"fmt": "o", "color": color, "mfc": face, "clip_on": False}
            axes.errorbar(record["estimate"], at, None, abs(reach), **look)
            ends = (at - 0.5, at + 0.5)
            axes.fill_betweenx(ends, 1 / band, band, color=_INK, alpha=0.3, linewidth=0)
            axes.vlines(1, *ends, color=_INK, linewidth=1)
    _log_axis(axes, "x", low, high)
    metric = table["metric"].iloc[0] if table["metric"].nunique() == 1 else ""
    counts = known["n_blocks"].agg(["min", "max"]).fillna(0).astype(int).astype(str).unique()
    baseline = f" to {baselines[0]}" if len(baselines) == 1 else ""
    label = f"{column(metric).text} ratio{baseline}, n = {' to '.join(counts)} blocks".strip()
    figure.alt = f"{label}: {'; '.join(rows)}."
    sides = f"← {words.word(0.5, metric)} · {words.word(2, metric)} →"
    axes.set(yticks=[], ylim=(line, 0))
    axes.set_xlabel(f"{textwrap.fill(label, _LINE)}\n{sides}\n{_KEY}")
    axes.spines["left"].set_visible(False)
    figure.set_size_inches(_WIDE if wide else _WIDTH, 0.175 * (line + 5.6))
    figure.wide = None if wide else forest(table, factor, by, wide=True)
    return figure


def _curves(
    frame: pd.DataFrame, x: str, y: str, hue: str, col: str | None, labels: Any, **look: Any
) -> Figure:
    """Draw a line a level of `hue` in a panel a level of `col`; `labels`: of x, y, the counts."""
    names = {level: words.level(hue, level) for level in _levels(frame[hue])}
    order = list(names.values())
    frame = frame.assign(**{hue: frame[hue].map(names).astype(str)})
    panels = _levels(frame[col]) if col else [""]
    figure = Figure(figsize=(_WIDTH, 1.2 + 2 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), sharex=True, sharey=True, squeeze=False)
    look |= {"hue_order": order, "style_order": order, "palette": (3 * _PALETTE)[: len(order)]}
    for axes, panel in zip(grid.flat, panels, strict=True):
        part = frame[frame[col] == panel] if col else frame
        sns.lineplot(part, x=x, y=y, hue=hue, style=hue, ax=axes, **look)
        axes.set(title=words.level(col or "", panel), xlabel=labels[0], ylabel=labels[1])
        axes.label_outer()
        axes.grid(color=_INK, alpha=0.2)
        axes.yaxis.set_major_formatter("{x:,.10g}")
        handles, _ = axes.get_legend_handles_labels()
        axes.get_legend().remove()
    columns = max(1, _LINE // (max(map(len, order)) + 10))
    figure.legend(handles, order, title=labels[2], loc="outside lower center", ncols=columns)
    titles = f" ({', '.join(axes.get_title() for axes in figure.axes)})" if col else ""
    figure.alt = f"{labels[1]} by {labels[0]}{titles}: {', '.join(order)}; {labels[2]}."
    return figure


@_drawn
def tail(samples: pd.DataFrame, value: str, hue: str) -> Figure:
    """Draw quantiles of samples, up to the one that leaves ten samples of each line beyond it."""
    groups = samples.groupby(hue, observed=True)[value]
    least = min(0.5, 10 / groups.size().min())
    beyond = np.geomspace(0.99, least, 150)
    quantiles = groups.apply(lambda one: one.quantile(1 - beyond))
    frame = quantiles.rename_axis([hue, "beyond"]).reset_index()
    frame["beyond"] = 1 - frame["beyond"]
    factor, unit = words.scale(frame[value].median(), value)
    frame[value] *= factor
    counts = f"n = {len(samples):,} samples, {samples['trial'].nunique():,} trials"
    labels = (words.heading(value, unit), "percentile", counts)
    figure = _curves(frame, value, "beyond", hue, None, labels, estimator=None, sort=False)
    low, high = frame[value].clip(lower=factor).min() / 1.02, frame[value].max() * 1.02
    _log_axis(figure.axes[0], "x", low, high)
    ticks = [tick for tick in (0.5, *(10.0**-nines for nines in range(1, 10))) if tick >= least]
    figure.axes[0].set(yscale="log", ylim=(0.99, least))
    figure.axes[0].set_yticks(ticks, [f"{100 * (1 - tick):.10g}" for tick in ticks])
    figure.axes[0].yaxis.set_minor_locator(NullLocator())
    return figure


def _mean(values: pd.Series[float]) -> Mean:
    """Return the mean as comparisons have it: of logarithms where all values are above 0."""
    positive = bool((values > 0).all())
    return Mean.of(np.log(values) if positive else values, log=positive)


@_drawn
def curve(trials: pd.DataFrame, value: str, over: str, hue: str, col: str | None = None) -> Figure:
    """Draw means over blocks with their 95 % intervals over a factor, or the values over blocks."""
    keys = dict.fromkeys(["block", over, hue, *([col] if col else [])])
    groups = trials.groupby(list(keys), observed=True)[value]
    table = groups.agg(lambda values: _mean(values).value).dropna().reset_index()
    factor, unit = words.scale(table[value].median(), value)
    table[value] *= factor
    heading, counts = words.heading(value, unit), f"n = {table['block'].nunique()} blocks"
    if over == "block":
        figure = _curves(table, over, value, hue, col, (over, heading, counts), errorbar=None)
        figure.axes[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
        return figure
    table = table.sort_values([over, "block"])  # seaborn would sort the values of each point
    if not (numeric := pd.api.types.is_numeric_dtype(table[over])):
        table[over] = table[over].map(lambda level: textwrap.fill(str(level), 7))
    labels = (words.heading(over), heading, f"{counts}, 95 % intervals")
    look = {"estimator": lambda values: _mean(values).value, "err_style": "bars", "markers": True}
    look |= {"errorbar": lambda values: _mean(values).interval(), "sort": False}
    figure = _curves(table, over, value, hue, col, labels, **look)
    figure.axes[0].set_ylim(bottom=min(0, table[value].min()))
    if numeric:
        figure.axes[0].xaxis.set_major_formatter("{x:,.10g}")
    for which, name in (("x", over), ("y", value)) if numeric else (("y", value),):
        low, high = table[name].min(), table[name].max()
        if high > 50 * low > 0:
            _log_axis(figure.axes[0], which, low / 1.2, high * 1.2)
    return figure


@_drawn
def grid(table: pd.DataFrame, rows: str, cols: str, factor: str | Sequence[str] = "") -> Figure:
    """Draw ratios as a heat map, coloured where shown; `rows`, `cols`: ``condition`` or others."""
    shown = table["verdict"].str.startswith("differs")
    tidy = pd.DataFrame({"shade": np.log(table["estimate"].where(shown, 1.0).astype(float))})
    for side, name in (("row", rows), ("column", cols)):
        key = factor if name == "condition" else name
        tidy[side] = [textwrap.fill(words.level(key, level), 14) for level in table[name]]
    cells = [words.row(record) for record in table.to_dict("records")]
    lines = [[cell["ratio"].split(" ")[0], *textwrap.wrap(cell["verdict"], 12)] for cell in cells]
    tidy["text"] = ["\n".join(line[:4]).strip() for line in lines]
    wide = tidy.pivot(index="row", columns="column").reindex(tidy["row"].unique())
    shades, labels = (wide[one][tidy["column"].unique()] for one in ("shade", "text"))
    size = (1.2 + 0.95 * shades.shape[1], 0.6 + 0.6 * len(shades))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    sns.heatmap(shades, annot=labels, fmt="", cmap="vlag", center=0, cbar=False, ax=axes)
    axes.set(xlabel="", ylabel="")
    axes.tick_params(length=0, rotation=0)
    texts = "; ".join(tidy[["row", "column", "text"]].agg(" ".join, axis=1)).replace("\n", " ")
    metrics = ", ".join(column(name).text for name in table["metric"].unique())
    figure.alt = f"{metrics}, ratios: {texts}."
    return figure
