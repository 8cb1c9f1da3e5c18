"""The views: each makes of a `Part` a figure, what is seen in it in words, and tables.

They are functions of the part alone, and know no widget.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.analysis import checks, plots
from labkit.analysis.compare import compare
from labkit.analysis.figure import counts, say, scale_and_label
from labkit.analysis.readable import absent, readable
from labkit.analysis.shift import shift
from labkit.explore.evidence import evidence
from labkit.explore.part import Part
from labkit.explore.quantity import with_unit
from labkit.explore.rows import attempts
from labkit.explore.view import View, sized
from labkit.report.text import number as written

#: Quantiles a curve, of which the picture has no more than a few pixels each.
_POINTS = 300
_LOOKED = (
    "What was chosen after looking decides nothing: the study's page does, as its plan said before."
)


def distribution(part: Part) -> View:
    """Return the distribution functions of the conditions, and of their trials."""
    quantity, choice = part.quantity, part.choice
    sentences = [f"Distribution of {quantity.text} over {_conditions(part)}.", *part.said()]
    log = choice.log and _least(part) > 0
    if choice.log and not log:
        sentences.append("Some values are 0 or below: the axis is not logarithmic.")
    options: dict[str, Any] = {
        "hue": part.condition,
        "tail": choice.tail,
        "log": log,
        "points": _POINTS,
    }
    if quantity.sampled:
        figure = plots.ecdf(part.shown, value=quantity.name, trials=choice.single, **options)
        thin = ", each thin one a trial" if choice.single else ""
        sentences.append(f"A thick curve is all trials of a condition together{thin}.")
    else:
        figure = _over_trials(part, options)
        sentences.append("A trial has one number of it, so the curves are over trials.")
    return View(" ".join(sentences), sized(figure), (_spread(part),))


def _over_trials(part: Part, options: dict[str, Any]) -> Figure:
    """Draw the distribution of one number a trial: it counts trials, and no samples."""
    # In the unit that is shown: the column's own name may not say which it is stored in.
    numbers = part.shown.assign(**{part.number: part.shown[part.number] * part.scale})
    figure = plots.ecdf(numbers, value=part.number, trials=False, **options)
    axis, n = figure.axes[0], counts(numbers["block"].nunique(), len(numbers))
    axis.set_xlabel(scale_and_label(part.number, part.quantity.unit)[1])
    axis.set_ylabel(f"share of trials at or {'above' if part.choice.tail else 'below'}")
    axis.set_title(n, fontsize=8)
    say(figure, n)
    return figure


def _least(part: Part) -> float:
    values = part.shown[part.quantity.name]
    return float(min(one.min for one in values) if part.quantity.sampled else values.min())


def _spread(part: Part) -> tuple[str, pd.DataFrame]:
    """Return the trials' number of each condition: the middle one, the least and the largest."""
    table = part.trials.groupby(part.condition, observed=True)
    numbers = table[part.number].agg(["median", "min", "max"]) * part.scale
    shown = pd.DataFrame(
        {
            "blocks": table["block"].nunique().astype(str),
            "trials": table.size().astype(str),
            with_unit("middle trial", part.unit): numbers["median"].map(written),
            "least": numbers["min"].map(written),
            "largest": numbers["max"].map(written),
        }
    )
    return f"{part.number}, over the trials of each condition", shown


def against_baseline(part: Part) -> View:
    """Return ratios to the baseline with intervals, and of samples every quantile's shift."""
    if len(part.names) < 2:
        return View(
            f"There is one condition only, {part.names[0]}: nothing to compare it with. Choose "
            "more levels of a factor.",
            tables=(_spread(part),),
        )
    if not part.positive:
        return View(
            f"Some numbers of {part.number} are 0 or below: these have no ratio to a baseline, and "
            f"are not compared here. {' '.join(part.said())}",
            tables=(_spread(part),),
        )
    sentences = [f"{part.number}: {_others(part)} against {part.baseline}.", *part.said()]
    if part.study.spanned:
        blocks = ", ".join(map(str, part.study.spanned))
        sentences.append(f"Not compared: block {blocks}, which span sessions.")
    names: dict[str, Any] = {"condition": part.condition, "baseline": part.baseline}
    names |= {"block": "block", "margin": part.study.margin}
    table = compare(part.paired, value=part.number, **names)
    sentences += [absent(table)] if absent(table) else []
    sentences += [
        "Ratios and differences are paired by block, with intervals of 95 % over blocks; p is "
        f"corrected by Holm over these rows, and {part.study.margin:.1%} either way counts as "
        "equal.",
        _LOOKED,
    ]
    shown = readable(table[table["n_blocks"] > 0], scale=part.scale, unit=part.unit or "as stored")
    title = f"{part.number} against {part.baseline}"
    return View(" ".join(sentences), _shifts(part, table, names), ((title, shown),))


def _shifts(part: Part, table: pd.DataFrame, names: dict[str, Any]) -> Figure:
    """Draw the shift of every quantile; where a trial has one number, the ratios of that."""
    others = [name for name in part.drawn if name != part.baseline]
    if not part.quantity.sampled:
        drawn = table[table["condition"].astype(str).isin(others)]
        return plots.interval_plot(drawn, margin=part.study.margin, baseline=part.baseline)
    paired = part.paired[part.paired[part.condition].isin(part.drawn)]
    # The same whatever the statistic is, and the longest part of an answer.
    chosen = (part.quantity.name, part.baseline, tuple(part.drawn), str(part.choice.levels))
    if chosen not in part.study.shifts:
        part.study.shifts[chosen] = shift(paired, value=part.quantity.name, **names)
    found = part.study.shifts[chosen]
    figure = plots.shift_plot(
        found,
        baseline=part.baseline,
        value=part.quantity.name,
        conditions=[name for name in others if name in set(found["condition"])],
        relative=part.choice.relative,
    )
    # The name of a baseline may be longer than the axis.
    label = figure.axes[0].get_ylabel().replace("\n", " ")
    figure.axes[0].set_ylabel("\n".join(textwrap.wrap(label, 48)), fontsize=9)
    return sized(figure)


def over_blocks(part: Part) -> View:
    """Return each trial's number over the blocks, in the order in which they ran."""
    sentences = [f"{part.number}, {_conditions(part)}, block after block.", *part.said()]
    trials, flagged, tables = part.trials, None, [_spread(part)]
    if part.positive:
        trials = checks.outliers(trials, value=part.number, condition=part.condition)
        flagged = "outlier"
        odd = trials.loc[trials["outlier"], "trial"]
        named = f": {', '.join(odd)}" if len(odd) else ""
        sentences.append(
            f"{len(odd)} of {len(trials)} trials are unlike the others of their condition and "
            f"block, and ringed{named}."
        )
        tables.append(_drift(part))
    else:
        sentences.append("Some numbers are 0 or below: neither drift nor odd trials are asked for.")
    figure = plots.block_plot(
        trials[trials[part.condition].isin(part.drawn)],
        value=part.number,
        hue=part.condition,
        flagged=flagged,
        unit=part.quantity.unit,
    )
    return View(" ".join(sentences), sized(figure), tuple(tables))


def _drift(part: Part) -> tuple[str, pd.DataFrame]:
    found = checks.drift(part.trials, value=part.number, condition=part.condition)
    shown = pd.DataFrame(
        {
            "blocks": found["n"].astype(str),
            "change a block [95 %]": [
                f"{row['slope']:+.2%} [{row['low']:+.2%}, {row['high']:+.2%}]"
                if np.isfinite(row["slope"])
                else "takes 3 blocks"
                for row in found.to_dict("records")
            ],
            "p, corrected by Holm": [
                f"{p:.3g}" if np.isfinite(p) else "" for p in found["p_adjusted"]
            ],
        }
    )
    return "Drift over the blocks", shown.set_index(found[part.condition].astype(str))


def rows(part: Part) -> View:
    """Return every attempt with these levels: its number, flags, and where its files are."""
    table, text = attempts(part)
    return View(
        " ".join([text, *part.said(drawn=False)]),
        tables=(("Attempts, in the plan's order", table),),
    )


def _conditions(part: Part) -> str:
    number = len(part.names)
    return f"{number} conditions" if number > 1 else f"one condition, {part.names[0]}"


def _others(part: Part) -> str:
    number = len(part.names) - 1
    only = next(name for name in part.names if name != part.baseline) if number == 1 else ""
    return only or f"{number} conditions"


#: The tabs, in their order.
VIEWS: dict[str, Callable[[Part], View]] = {
    "Distribution": distribution,
    "Shift": against_baseline,
    "Blocks": over_blocks,
    "Mechanism": evidence,
    "Rows": rows,
}
