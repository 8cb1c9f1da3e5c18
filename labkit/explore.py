"""Explore datasets with widgets: choose a study, conditions and a statistic, and look.

What is found by looking is no result: conditions are chosen after the numbers were seen. The pages
of the studies decide, as their plans fixed before.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as untyped_widgets
import numpy as np
import pandas as pd
import seaborn
from IPython.display import HTML, display
from matplotlib.figure import Figure

from labkit import plots
from labkit.analysis import checks
from labkit.analysis.compare import PILOT_BLOCKS, compare, shift
from labkit.analysis.tables import format_comparison, not_compared
from labkit.analysis.trials import (
    join_factors,
    order_of,
    quantile_level,
    samples_needed,
    sort_trials,
    statistic_of,
)
from labkit.dataset import Dataset
from labkit.dataset.describe import about_column
from labkit.dataset.files import campaigns_within
from labkit.errors import DatasetError, LabkitError, UsageError
from labkit.paths import project
from labkit.plots import canvas, count_text, footnote, styles
from labkit.report.accessible import make_accessible
from labkit.report.html import number, picture
from labkit.units import METRICS, QUANTILES

#: Classes and functions without types.
widgets: Any = untyped_widgets
html_output: Any = HTML
show: Any = display
#: What a trial's samples can be reduced to, with its label.
STATISTICS = {
    "median": "median",
    "mean": "mean",
    "min": "least",
    "p90": "90 %",
    "p95": "95 %",
    "p99": "99 %",
    "p99.9": "99.9 %",
    "max": "largest",
    "std": "standard deviation",
}
#: At most so many conditions are chosen at first and drawn at once, and so many rows are listed.
MOST_CONDITIONS, MOST_ROWS = 12, 500
#: Quantiles a curve, and inches of a figure.
_POINTS, _SIZE = 300, (9.0, 4.2)
_STYLE = """<style>.labkit-view .wide { max-height: 26em; overflow: auto }
.labkit-view caption { text-align: left }
.labkit-view :is(th, td) { white-space: nowrap }</style>"""


@dataclass(frozen=True)
class Quantity:
    """Something that trials have: samples, or one number each."""

    name: str
    sampled: bool

    @property
    def text(self) -> str:
        """What is measured."""
        return about_column(self.name)[1] or self.name.removesuffix("_ns").replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit as stored."""
        return about_column(self.name)[0] or ("ns" if self.name.endswith("_ns") else "")

    @property
    def shown_unit(self) -> str:
        """The unit in which it is shown."""
        return {"ns": "µs", "1": ""}.get(self.unit, self.unit)

    @property
    def scale(self) -> float:
        """The factor from the unit as stored to the one that is shown."""
        return 1e-3 if self.unit == "ns" else 1.0

    @property
    def label(self) -> str:
        """How it is listed."""
        unit = f" ({self.shown_unit})" if self.shown_unit else ""
        return self.text + unit + (", samples" if self.sampled else "")


@dataclass(frozen=True)
class Choice:
    """What the controls are set to.

    `levels` has the chosen levels of factors, all where none is named; `baseline` is a condition,
    the plan's baseline by default. `log`, `tail` and `single` are for distributions, `relative` is
    for shifts.
    """

    quantity: str
    statistic: str = "median"
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: str = ""
    counter: str = ""
    log: bool = True
    tail: bool = False
    single: bool = True
    relative: bool = False


class Study:
    """A campaign with successful trials. Samples are read and sorted once, when first needed."""

    def __init__(self, campaign: Dataset) -> None:
        self.campaign, self.plan = campaign, campaign.plan
        self.margin = float(self.plan.get("margin", 0.02))
        if campaign.ok.empty:
            failed = [one for one in campaign.records if one["status"] != "ok"]
            first = (failed[0].get("error") or {}).get("what", "") if failed else ""
            raise DatasetError(
                "no trial of this campaign succeeded",
                where=str(campaign.path),
                why=f"{len(failed)} attempts failed, the first: {first}"
                if failed
                else "nothing was measured",
                remedy="run the study again: it resumes",
            )
        self.attempts = campaign.trials.copy()
        for name, planned in self.plan["factors"].items():
            column = self.attempts[name].fillna("not stated").astype(str)
            order = [*map(str, planned), *column]
            self.attempts[name] = pd.Categorical(column, list(dict.fromkeys(order)))
        self.trials = self.attempts[self.attempts["status"] == "ok"].reset_index(drop=True)
        levels = {name: order_of(self.trials[name]) for name in self.plan["factors"]}
        self.factors = {name: list(map(str, of)) for name, of in levels.items() if len(of) > 1}
        self.spanned = checks.blocks_across_sessions(self.trials)
        names = join_factors(self.trials, list(self.factors)) if self.factors else "all trials"
        self.trials["all factors"] = pd.Series(names, self.trials.index).astype(str)
        self._samples: dict[str, pd.Series[Any]] = {}
        self._shifts: dict[Any, pd.DataFrame] = {}

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """Samples first, and those first that a user wants more or less of."""
        sampled = dict.fromkeys(n for names in self.campaign.sampled.values() for n in names)
        # The samples have their own quantiles.
        quantiles = {f"{name}_{last}" for name in sampled for last in QUANTILES}
        found = [Quantity(name, sampled=True) for name in sampled]
        found += [
            Quantity(name, sampled=False)
            for name in self._recorded("metrics")
            if name not in {*sampled, *quantiles} and self.numbers(name).notna().any()
        ]
        if not found:
            raise DatasetError(
                "no trial of this campaign has samples or numbers",
                where=str(self.campaign.path),
                remedy="choose another study",
            )
        wanted = {name for name, metric in METRICS.items() if metric.better != "neither"}
        found.sort(key=lambda one: (not one.sampled, one.name not in wanted))
        return {one.name: one for one in found}

    @cached_property
    def counters(self) -> dict[str, Quantity]:
        """The mechanism evidence that is not the same in every trial."""
        names = self._recorded("mechanisms")
        return {n: Quantity(n, False) for n in names if self.numbers(n).nunique() > 1}

    def _recorded(self, part: str) -> list[str]:
        ok = [one for one in self.campaign.records if one["status"] == "ok"]
        records = [of.get(part, {}) for one in ok for of in (one, *one.get("also", []))]
        return list(dict.fromkeys(name for record in records for name in record))

    def numbers(self, name: str) -> pd.Series[float]:
        """Return a column of `trials` as numbers, NaN where a trial has none."""
        return pd.to_numeric(self.trials[name], errors="coerce").astype(float)

    def samples(self, name: str) -> pd.Series[Any]:
        """Return the sorted samples of each trial that has them, by trial."""
        if name not in self._samples:
            sampled = self.campaign.sampled
            part = self.campaign.part(lambda one: name in sampled.get(one["trial"], ()))
            table = sort_trials(part.series([name]), value=name)
            self._samples[name] = table.set_index(table["trial"].astype(str))[name]
        return self._samples[name]

    def _having(self, quantity: str) -> pd.DataFrame:
        """Return the trials that have a quantity."""
        if not self.quantities[quantity].sampled:
            return self.trials[self.numbers(quantity).notna()]
        sampled = self.campaign.sampled
        names = [trial for trial, columns in sampled.items() if quantity in columns]
        return self.trials[self.trials["trial"].isin(names)]

    def shifts(self, key: Any, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Return the shifts of quantiles of one choice, computed once."""
        if key not in self._shifts:
            self._shifts[key] = compute()
        return self._shifts[key]

    def within(self, table: pd.DataFrame, levels: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
        """Return the rows with one of the chosen levels; of a factor without any, all."""
        for name, chosen in levels.items():
            if chosen:
                table = table[table[name].isin(list(chosen))]
        return table

    def first_levels(self, quantity: str) -> dict[str, tuple[str, ...]]:
        """Return levels to begin with: all, or of more than 12 conditions one comparison.

        That is the cell with most conditions in which only the factors of the baseline vary.
        """
        conditions = self._having(quantity).drop_duplicates("all factors")
        planned = self.plan.get("baseline") or {}
        free = [name for name in self.factors if name in planned] or list(self.factors)[:1]
        others = [name for name in self.factors if name not in free]
        if len(conditions) <= MOST_CONDITIONS or not others:
            return {}
        cell = conditions.groupby(others, observed=True).size().idxmax()
        cell = cell if isinstance(cell, tuple) else (cell,)
        return {name: (str(level),) for name, level in zip(others, cell, strict=True)}

    def select(self, choice: Choice) -> Selection:
        """Return the chosen trials, each with its number."""
        quantity = self.quantities[choice.quantity]
        chosen = self.within(self.trials, choice.levels)
        rows, label = self.within(self._having(quantity.name), choice.levels), quantity.text
        if rows.empty:
            levels = [f"{name}: {', '.join(of)}" for name, of in choice.levels.items() if of]
            raise UsageError(
                f"no trial with these levels has {quantity.text}",
                where=str(self.campaign.path),
                why=f"chosen are {'; '.join(levels)}" if levels else "",
                remedy="choose more levels: not every combination is a condition of the plan",
            )
        if quantity.sampled:
            label = f"{quantity.text}, {STATISTICS[choice.statistic]}"
            cells = self.samples(quantity.name).reindex(rows["trial"]).to_numpy()
            rows = rows.assign(**{quantity.name: cells})
            rows[label] = [statistic_of(one, choice.statistic) for one in cells]
        else:
            rows = rows.assign(**{label: self.numbers(quantity.name)})
        differing = [name for name in self.factors if rows[name].nunique() > 1]
        condition = " + ".join(differing) or "condition"
        only = rows["all factors"].iloc[0]
        names = join_factors(rows, differing) if differing else pd.Categorical([only] * len(rows))
        rows = rows.assign(**{condition: names})
        baseline = self._baseline(rows, condition, choice.baseline)
        known = rows[label].notna()
        level = quantile_level(choice.statistic) if quantity.sampled else None
        needed = f"takes {samples_needed(level):,} samples" if level else ""
        if not known.any():
            raise UsageError(
                f"no chosen trial has {label}",
                where=str(self.campaign.path),
                why=f"it {needed}" if needed else "",
                remedy="choose another statistic, or other levels",
            )
        missing = []
        if len(rows) < len(chosen):
            missing.append(
                f"{len(chosen) - len(rows)} of {len(chosen)} trials with these levels have no "
                f"{quantity.text}: they are not shown."
            )
        if not known.all():
            missing.append(
                f"{int((~known).sum())} of {len(rows)} trials have no "
                f"{STATISTICS[choice.statistic]}{f', which {needed}' if needed else ''}."
            )
        return Selection(self, choice, quantity, rows[known], condition, label, baseline, missing)

    def _baseline(self, rows: pd.DataFrame, condition: str, chosen: str) -> str:
        """Return the condition that was chosen, or the plan's, or the first one."""
        planned = pd.Series(data=True, index=rows.index)
        for name, level in (self.plan.get("baseline") or {}).items():
            if name in self.factors:
                planned &= rows[name].astype(str) == str(level)
        for mask in (rows["all factors"] == chosen, planned):
            if mask.any():
                rows = rows[mask]
                break
        return str(order_of(rows[condition])[0])


@dataclass(frozen=True)
class Selection:
    """The trials of a choice: one row a trial, with its condition, number and samples."""

    study: Study
    choice: Choice
    quantity: Quantity
    trials: pd.DataFrame
    condition: str
    label: str
    baseline: str
    missing: list[str]

    @cached_property
    def names(self) -> list[str]:
        """The conditions, in the order of the plan's levels."""
        return [str(name) for name in order_of(self.trials[self.condition])]

    @cached_property
    def drawn(self) -> list[str]:
        """The conditions that a figure shows: the first ones and the baseline."""
        others = [name for name in self.names if name != self.baseline]
        kept = {self.baseline, *others[: MOST_CONDITIONS - 1]}
        return [name for name in self.names if name in kept]

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The trials of the conditions that are drawn."""
        return self.trials[self.trials[self.condition].isin(self.drawn)]

    @property
    def positive(self) -> bool:
        """Whether every number has a logarithm."""
        numbers = self.trials[self.label].to_numpy(dtype=float)
        return bool(((numbers > 0) & np.isfinite(numbers)).all())

    def with_unit(self, text: str) -> str:
        """Return the heading of a column in the shown unit."""
        return f"{text}, {self.quantity.shown_unit}" if self.quantity.shown_unit else text

    def sentences(self) -> list[str]:
        """Return how much there is, what is the same in all conditions, and what is not drawn."""
        blocks = int(self.trials["block"].nunique())
        total = None
        if self.quantity.sampled:
            total = sum(map(len, self.trials[self.quantity.name]))
        pilot = f" Fewer than {PILOT_BLOCKS} blocks: a pilot." if blocks < PILOT_BLOCKS else ""
        sentences = [f"{count_text(blocks, len(self.trials), total)}.{pilot}"]
        same = [
            f"{name} {self.trials[name].iloc[0]}"
            for name in self.study.factors
            if name not in self.condition.split(" + ")
        ]
        if same and len(self.names) > 1:
            sentences.append(f"In all of them: {', '.join(same)}.")
        if len(self.drawn) < len(self.names):
            sentences.append(
                f"The figure has {len(self.drawn)} of {len(self.names)} conditions: choose fewer "
                "levels to see the others."
            )
        return sentences + self.missing

    def spread(self) -> tuple[str, pd.DataFrame]:
        """Return the middle, least and largest number of each condition's trials."""
        groups = self.trials.groupby(self.condition, observed=True)
        numbers = groups[self.label].agg(["median", "min", "max"]) * self.quantity.scale
        table = pd.DataFrame(
            {
                "blocks": groups["block"].nunique(),
                "trials": groups.size(),
                self.with_unit("middle trial"): numbers["median"].map(number),
                "least": numbers["min"].map(number),
                "largest": numbers["max"].map(number),
            }
        )
        return f"{self.label}, over the trials of each condition", table


@dataclass(frozen=True)
class View:
    """What is shown: sentences, a figure, and tables with their titles."""

    sentences: list[str]
    figure: Figure | None = None
    tables: tuple[tuple[str, pd.DataFrame], ...] = ()


def distribution(selection: Selection) -> View:
    """Show the distribution functions of the conditions, and of their trials."""
    quantity, choice, shown = selection.quantity, selection.choice, selection.shown
    values = shown[quantity.name if quantity.sampled else selection.label]
    log = choice.log and min(one.min if quantity.sampled else one for one in values) > 0
    options: dict[str, Any] = {"hue": selection.condition, "tail": choice.tail, "log": log}
    options["points"] = _POINTS
    sentences = [f"Distribution of {quantity.text}.", *selection.sentences()]
    if choice.log and not log:
        sentences.append("Some values are 0 or below: the axis is not logarithmic.")
    if quantity.sampled:
        figure = plots.ecdf(shown, value=quantity.name, trials=choice.single, **options)
        thin = ", each thin one a trial" if choice.single else ""
        sentences.append(f"A thick curve is all trials of a condition together{thin}.")
    else:
        scaled = shown.assign(**{selection.label: shown[selection.label] * quantity.scale})
        figure = plots.ecdf(scaled, value=selection.label, trials=False, **options)
        axis, text = figure.axes[0], count_text(shown["block"].nunique(), len(shown))
        axis.set_xlabel(quantity.label)
        axis.set_ylabel(f"share of trials at or {'above' if choice.tail else 'below'}")
        axis.set_title(text, fontsize=8)
        footnote(figure, text)
        sentences.append("A trial has one number of it, so the curves are over trials.")
    return View(sentences, figure, (selection.spread(),))


def quantile_shift(selection: Selection) -> View:
    """Show ratios to the baseline with intervals, and of samples the shift of every quantile."""
    study, label, baseline = selection.study, selection.label, selection.baseline
    if len(selection.names) < 2 or not selection.positive:
        reason = (
            f"There is one condition only, {selection.names[0]}: nothing to compare it with."
            if len(selection.names) < 2
            else f"Some numbers of {label} are 0 or below: these have no ratio to a baseline."
        )
        return View([reason, *selection.sentences()], tables=(selection.spread(),))
    paired = selection.trials[~selection.trials["block"].isin(study.spanned)]
    options: dict[str, Any] = {"condition": selection.condition, "baseline": baseline}
    options |= {"block": "block", "margin": study.margin}
    table = compare(paired, value=label, **options)
    sentences = [f"{label}, against {baseline}.", *selection.sentences()]
    if study.spanned:
        blocks = ", ".join(map(str, study.spanned))
        sentences.append(f"Not compared: block {blocks}, which span sessions.")
    sentences += [
        not_compared(table),
        "Ratios and differences are paired by block, with intervals of 95 % over blocks; p is "
        f"corrected by Holm over these rows, and {study.margin:.1%} either way counts as equal.",
        "What was chosen after looking decides nothing: the study's page does, as planned before.",
    ]
    others = [name for name in selection.drawn if name != baseline]
    if selection.quantity.sampled:
        paired = paired[paired[selection.condition].isin(selection.drawn)]
        name = selection.quantity.name
        shifts = study.shifts(
            (name, baseline, tuple(selection.drawn), str(selection.choice.levels)),
            lambda: shift(paired, value=name, **options),
        )
        figure = plots.shift_plot(
            shifts,
            baseline=baseline,
            value=name,
            conditions=[name for name in others if name in set(shifts["condition"])],
            relative=selection.choice.relative,
        )
        # The name of a baseline may be longer than the axis.
        axis = figure.axes[0]
        axis.set_ylabel("\n".join(textwrap.wrap(axis.get_ylabel(), 48)), fontsize=9)
    else:
        drawn = table[table["condition"].astype(str).isin(others)]
        figure = plots.interval_plot(drawn, margin=study.margin, baseline=baseline)
    unit = selection.quantity.shown_unit or "as stored"
    shown = format_comparison(
        table[table["n_blocks"] > 0], scale=selection.quantity.scale, unit=unit
    )
    return View(sentences, figure, ((f"{label} against {baseline}", shown),))


def over_blocks(selection: Selection) -> View:
    """Show each trial's number over the blocks, odd trials ringed, and drift."""
    trials, label, tables = selection.trials, selection.label, [selection.spread()]
    sentences = [f"{label}, block after block.", *selection.sentences()]
    if selection.positive:
        trials = checks.outliers(trials, value=label, condition=selection.condition)
        odd = trials.loc[trials["outlier"], "trial"]
        sentences.append(
            f"{len(odd)} of {len(trials)} trials are unlike the others of their condition and "
            f"block, and ringed{': ' if len(odd) else ''}{', '.join(odd)}."
        )
        drift = checks.drift(selection.trials, value=label, condition=selection.condition)
        ends = zip(drift["slope"], drift["low"], drift["high"], strict=True)
        table = pd.DataFrame(
            {
                "blocks": drift["n"],
                "change a block [95 %]": [
                    f"{slope:+.2%} [{low:+.2%}, {high:+.2%}]"
                    if np.isfinite(slope)
                    else "takes 3 blocks"
                    for slope, low, high in ends
                ],
                "p, corrected by Holm": [
                    f"{p:.3g}" if np.isfinite(p) else "" for p in drift["p_adjusted"]
                ],
            }
        ).set_index(drift[selection.condition].astype(str))
        tables.append(("Drift over the blocks", table))
    else:
        sentences.append("Some numbers are 0 or below: neither drift nor odd trials are shown.")
    figure = plots.block_plot(
        trials[trials[selection.condition].isin(selection.drawn)],
        value=label,
        hue=selection.condition,
        flagged="outlier" if selection.positive else None,
        unit=selection.quantity.unit,
    )
    return View(sentences, figure, tuple(tables))


def mechanism(selection: Selection) -> View:
    """Show a counter of each trial and its number, and the means of all counters."""
    counters = selection.study.counters
    if not counters:
        return View(["These trials carry no mechanism evidence that differs between them."])
    chosen = counters.get(selection.choice.counter, next(iter(counters.values())))
    values = {name: selection.study.numbers(name) * of.scale for name, of in counters.items()}
    shown = selection.shown
    x_label, y_label = chosen.label, selection.with_unit(selection.label)
    points = pd.DataFrame(
        {
            "x": values[chosen.name].reindex(shown.index),
            "y": shown[selection.label] * selection.quantity.scale,
            selection.condition: shown[selection.condition].astype(str),
        }
    )
    looks = styles(selection.drawn)
    figure, axes = canvas(1, 1, width=_SIZE[0], height=_SIZE[1])
    order = {"hue_order": selection.drawn, "style_order": selection.drawn}
    seaborn.scatterplot(
        points.dropna(),
        x="x",
        y="y",
        hue=selection.condition,
        style=selection.condition,
        palette={name: look["color"] for name, look in looks.items()},
        markers={name: look["marker"] for name, look in looks.items()},
        s=48,
        ax=axes[0, 0],
        **order,
    )
    axes[0, 0].set(xlabel=x_label, ylabel=y_label)
    axes[0, 0].legend(title=selection.condition, fontsize=7, title_fontsize=7)
    footnote(figure, count_text(shown["block"].nunique(), len(shown)))
    groups = selection.trials[selection.condition]
    columns = {y_label: selection.trials[selection.label] * selection.quantity.scale}
    columns |= {of.label: values[name] for name, of in counters.items()}
    table = pd.DataFrame(columns).reindex(groups.index).groupby(groups, observed=True).mean().T
    table = table.map(lambda value: number(value) if np.isfinite(value) else "")
    sentences = [f"{selection.label} and {chosen.text}, a point a trial.", *selection.sentences()]
    if lacking := int(points["x"].isna().sum()):
        sentences.append(f"{lacking} trials did not record it.")
    sentences.append("A correlation need not be the cause: see what else differs in the table.")
    return View(sentences, figure, (("Means over the trials of each condition", table),))


def attempts(selection: Selection) -> View:
    """List every attempt with the chosen levels, failed ones too, and where its files are."""
    study, choice = selection.study, selection.choice
    rows = study.within(study.attempts, choice.levels)
    scaled = selection.trials[selection.label] * selection.quantity.scale
    numbers = dict(zip(selection.trials["trial"], scaled, strict=True))
    ok = rows["status"] == "ok"
    columns = ["block", "replicate", "session", *study.factors, "status"]
    table = rows[columns].astype(str)
    table[selection.with_unit(selection.label)] = [
        number(numbers[trial]) if fine and trial in numbers else ""
        for trial, fine in zip(rows["trial"], ok, strict=True)
    ]
    if choice.counter in study.counters:
        counter = study.counters[choice.counter]
        values = pd.to_numeric(rows[choice.counter], errors="coerce") * counter.scale
        table[counter.label] = [number(one) if np.isfinite(one) else "" for one in values]
    started = pd.to_datetime(rows["started_ns"], unit="ns")
    table["began, UTC"] = started.dt.strftime("%Y-%m-%d %H:%M:%S")
    table = table.join(rows[["flags", "problems"]])
    folders = rows["trial"].str.partition("/")[0] + "-a" + rows["attempt"].astype(str)
    table = table.set_index(folders.rename("folder"))
    flagged = int((rows["flags"] != "").sum())
    text = f"{len(table)} attempts, {int((~ok).sum())} failed, {flagged} with a flag."
    if len(table) > MOST_ROWS:
        text += f" The table has the first {MOST_ROWS}: choose fewer levels to see the others."
    where = f"The record and the output of an attempt are stored under {study.campaign.path}."
    title = "Attempts, in the plan's order"
    return View([text, where], tables=((title, table.head(MOST_ROWS)),))


VIEWS: dict[str, Callable[[Selection], View]] = {
    "Distribution": distribution,
    "Shift": quantile_shift,
    "Blocks": over_blocks,
    "Mechanism": mechanism,
    "Rows": attempts,
}


def render(study: Study, view: str, choice: Choice) -> str:
    """Return a view as HTML: sentences, the figure with these as its text, and tables."""
    try:
        shown = VIEWS[view](study.select(choice))
    except LabkitError as error:
        return _alert(error)
    text = escape(" ".join(filter(None, shown.sentences)))
    parts = [_STYLE, f"<p>{text}</p>"]
    if shown.figure is not None:
        shown.figure.set_size_inches(*_SIZE)
        parts.append(f'<img alt="{text}" style="max-width:100%" src="{picture(shown.figure)}">')
    for title, table in shown.tables:
        caption = f"<caption>{escape(title)}</caption><thead>"
        parts.append(table.to_html(border=0).replace("<thead>", caption, 1))
    body = make_accessible("".join(parts))
    return f'<div class="jp-RenderedHTMLCommon labkit-view">{body}</div>'


def _alert(error: LabkitError) -> str:
    return f'<div role="alert"><pre>{escape(str(error))}</pre></div>'


def panel(study: Study) -> Any:
    """Return the controls of one campaign above the view that they choose."""

    def dropdown(name: str, options: list[tuple[str, str]]) -> Any:
        style = {"description_width": "6em"}
        return widgets.Dropdown(
            options=options, description=name, style=style, layout={"width": "30em"}
        )

    def checkbox(name: str, *, value: bool) -> Any:
        return widgets.Checkbox(
            value=value, description=name, indent=False, layout={"width": "auto"}
        )

    conditions = order_of(study.trials["all factors"])
    baselines = [("the plan's", ""), *((str(name), str(name)) for name in conditions)]
    controls = {
        "view": widgets.ToggleButtons(options=list(VIEWS), description="view"),
        "quantity": dropdown("quantity", [(q.label, q.name) for q in study.quantities.values()]),
        "statistic": dropdown("statistic", [(text, name) for name, text in STATISTICS.items()]),
        "baseline": dropdown("baseline", baselines),
        "counter": dropdown("counter", [(c.label, c.name) for c in study.counters.values()]),
        "log": checkbox("logarithmic axis", value=True),
        "tail": checkbox("tail: share above, logarithmic", value=False),
        "single": checkbox("single trials", value=True),
        "relative": checkbox("ratios instead of differences", value=False),
    }
    if "context_switches" in study.counters:
        controls["counter"].value = "context_switches"
    first = study.first_levels(next(iter(study.quantities)))
    # No keyword of a choice has such a name.
    levels = {
        f"levels of {name}": widgets.SelectMultiple(
            options=of, value=first.get(name, ()), description=name, rows=min(len(of), 6)
        )
        for name, of in study.factors.items()
    }

    def draw(view: str, **values: Any) -> None:
        chosen = {name: values.pop(f"levels of {name}") for name in study.factors}
        values["counter"] = values["counter"] or ""
        show(html_output(render(study, view, Choice(levels=chosen, **values))))

    output = widgets.interactive_output(draw, controls | levels)
    row = {"layout": {"flex_flow": "row wrap"}}
    names = iter(controls)
    help_text = "Ctrl or Shift chooses several levels of a factor; none chosen means all."
    return widgets.VBox(
        [
            controls[next(names)],
            widgets.HBox([controls[name] for name in list(names)[:4]], **row),
            widgets.HBox([controls[name] for name in ("log", "tail", "single", "relative")], **row),
            widgets.Label(help_text),
            widgets.HBox(list(levels.values()), **row),
            output,
        ]
    )


def explore(where: str | Path | Dataset = "data/reference") -> Any:
    """Open the explorer on datasets; the last line of a notebook's cell shows it.

    Parameters
    ----------
    where : str, Path or Dataset
        A folder with campaigns at any depth, one campaign, or what `labkit.load` returned. A
        relative path starts at the project's folder.

    Returns
    -------
    VBox
        The widgets.

    Raises
    ------
    DatasetError
        There is no campaign. An error in one campaign of several is shown when it is chosen.
    """
    studies = find_campaigns(where)
    opened: dict[str, Any] = {}

    def choose(change: Any = None) -> None:
        name = study.value
        try:
            opened.setdefault(name, None)
            opened[name] = opened[name] or panel(Study(studies[name]))
            body.children = (opened[name],)
        except LabkitError as error:
            body.children = (widgets.HTML(_alert(error)),)

    study = widgets.Dropdown(options=list(studies), description="study")
    body = widgets.VBox()
    study.observe(choose, "value")
    choose()
    box = widgets.VBox([study, body])
    box.add_class("labkit-explorer")
    return box


def find_campaigns(where: str | Path | Dataset) -> dict[str, Dataset]:
    """Return every campaign in a folder by its path inside; nothing of them is read yet."""
    if isinstance(where, Dataset):
        return {where.path.name: where}
    folder = project(Path(where).expanduser())
    if not folder.is_dir():
        raise DatasetError(
            "no such folder",
            where=str(folder),
            why="" if Path(where).is_absolute() else "a relative path starts at the project",
            remedy="name a folder with campaigns (data/reference, data/local), or one campaign",
        )
    return {
        folder.name if path == folder else path.relative_to(folder).as_posix(): Dataset(path)
        for path in campaigns_within(folder)
    }
