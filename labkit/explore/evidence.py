"""The mechanism evidence beside the number: a counter of each trial, and all of a condition."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.analysis.figure import canvas, counts, legend, say, scale_and_label, styles
from labkit.explore.part import Part
from labkit.explore.quantity import Quantity, with_unit
from labkit.explore.view import SIZE, View
from labkit.report.text import number as written

#: A column of its own: the counter may be called as the number is.
_COUNTER = "counter of the trial"


def evidence(part: Part) -> View:
    """Return a counter of the trials beside their number, and all counters by condition."""
    counters = part.study.counters
    if part.choice.counter not in counters:
        return View("These trials carry no mechanism evidence that differs between them.")
    counter = counters[part.choice.counter]
    beside = part.study.trials.loc[part.trials.index, [*counters]]
    beside = beside.apply(pd.to_numeric, errors="coerce").astype(float)
    known = beside[counter.name].notna()
    sentences = [f"{part.number} beside {counter.text}, a point a trial.", *part.said()]
    if not known.all():
        sentences.append(f"{int((~known).sum())} trials did not record it.")
    sentences.append("What goes together need not be the cause: see what else differs below.")
    there = known[part.shown.index]
    shown = part.shown[there].assign(**{_COUNTER: beside[counter.name]})
    figure = _scatter(part, shown, counter) if there.any() else None
    return View(" ".join(sentences), figure, (_means(part, beside, counter),))


def _scatter(part: Part, shown: pd.DataFrame, counter: Quantity) -> Figure:
    figure, axes = canvas(1, 1, width=SIZE[0], height=SIZE[1])
    axis, look = axes[0, 0], styles(part.drawn)
    x_scale, x_label = scale_and_label(counter.text, counter.unit)
    y_scale, y_label = scale_and_label(part.number, part.quantity.unit)
    for name in part.drawn:
        trials = shown[shown[part.condition] == name]
        axis.scatter(
            trials[_COUNTER] * x_scale,
            trials[part.number] * y_scale,
            s=48,
            marker=look[name]["marker"],
            color=look[name]["color"],
            edgecolors="white",
            linewidths=0.4,
            label=name,
        )
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    legend(figure, axes, part.condition, part.drawn)
    say(figure, counts(shown["block"].nunique(), len(shown)))
    return figure


def _means(part: Part, beside: pd.DataFrame, counter: Quantity) -> tuple[str, pd.DataFrame]:
    """Return the mean of the number and of every counter that differs, a column a condition."""
    counters = part.study.counters
    differing = [n for n in counters if n != counter.name and beside[n].nunique() > 1]
    columns = [counter.name, *differing]
    scaled = beside[columns] * [counters[name].scale for name in columns]
    means = scaled.groupby(part.trials[part.condition], observed=True).mean()
    first = part.trials.groupby(part.condition, observed=True)[part.number].mean() * part.scale
    table = pd.concat([first.rename("number"), means], axis=1).T.map(_written)
    named = [(counters[name].text, counters[name].shown_unit) for name in columns]
    texts = [(part.number, part.unit), *named]
    table.index = pd.Index([with_unit(*one) for one in texts])
    table.columns = [str(name) for name in table.columns]
    return "Means over the trials of each condition; what is the same in all is left out", table


def _written(value: float) -> str:
    return written(value) if np.isfinite(value) else ""
