"""Explore datasets with widgets: choose a study, conditions and a statistic, and look.

What is seen here decides nothing, because conditions are chosen after the numbers were seen. The
pages of the studies decide, by what their plans fixed before measuring.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

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
    sort_samples,
    statistic_of,
)
from labkit.answers import percent
from labkit.dataset import Dataset
from labkit.dataset.files import campaigns_within
from labkit.errors import DatasetError, LabkitError, UsageError
from labkit.paths import project
from labkit.plots import styles
from labkit.plots.figure import count_text, scale_and_label
from labkit.report.accessible import make_accessible
from labkit.report.html import number, picture
from labkit.units import KEYS, METRICS, QUANTILES

#: Classes and functions without types.
widgets: Any = untyped_widgets
html_output: Any = HTML
show: Any = display
#: What a trial's samples can be reduced to.
STATISTICS = ["median", "mean", "min", "p90", "p95", "p99", "p99.9", "max", "std"]
#: Limits of the conditions chosen at first and drawn at once, and of the rows listed.
MOST_CONDITIONS, MOST_ROWS = 12, 500
#: Inches of a figure.
_SIZE = (9.0, 4.2)
_STYLE = """<style>.labkit-view .wide { max-height: 26em; overflow: auto }
.labkit-view caption { text-align: left }
.labkit-view :is(th, td) { white-space: nowrap }</style>"""


@dataclass(frozen=True)
class Choice:
    """What the controls are set to.

    `levels` are the chosen levels by factor (all of them where none is named) and `baseline` is a
    condition, by default the plan's. `log` and `tail` are for distributions.
    """

    quantity: str
    statistic: str = "median"
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: str = ""
    counter: str = ""
    log: bool = True
    tail: bool = False


class View(NamedTuple):
    """What is shown: sentences, a figure, and tables by their titles."""

    sentences: list[str]
    figure: Figure | None = None
    tables: Mapping[str, pd.DataFrame] = {}


def text_of(column: str, statistic: str = "") -> str:
    """Return what a column holds, with its unit."""
    return scale_and_label(column, statistic=statistic)[1]


class Study:
    """A campaign with successful trials. A trial's samples are read once, when first chosen."""

    def __init__(self, campaign: Dataset) -> None:
        self.campaign, self.plan = campaign, campaign.plan
        if campaign.ok.empty:
            problems = [str(text) for text in campaign.trials.get("problems", [])]
            raise DatasetError(
                "no trial of this campaign succeeded",
                where=str(campaign.path),
                why="; ".join(problems[:1]) or "nothing was measured",
                remedy="run the study again: it resumes",
            )
        self.attempts = campaign.trials.copy()
        for name, planned in self.plan["factors"].items():
            column = self.attempts[name].fillna("not stated").astype(str)
            order = dict.fromkeys([*map(str, planned), *column])
            self.attempts[name] = pd.Categorical(column, list(order))
        self.trials = self.attempts[self.attempts["status"] == "ok"].reset_index(drop=True)
        levels = {name: order_of(self.trials[name]) for name in self.plan["factors"]}
        #: The levels of each factor that has several.
        self.factors = {name: names for name, names in levels.items() if len(names) > 1}
        self.spanned = checks.blocks_across_sessions(self.trials)
        names = join_factors(self.trials, list(self.factors)) if self.factors else "all trials"
        self.trials["all factors"] = pd.Series(names, self.trials.index).astype(str)
        #: Columns of samples, and columns with a number a trial: metrics and counters.
        self.sampled = list(dict.fromkeys(c for of in campaign.sampled.values() for c in of))
        quantiles = {f"{column}_{name}" for column in self.sampled for name in QUANTILES}
        others = [*KEYS, *self.plan["factors"], *self.sampled, *quantiles, "all factors"]
        self.single = list(self.trials.columns.difference(others, sort=False))
        self._samples: dict[str, dict[str, Any]] = {}

    @cached_property
    def quantities(self) -> list[str]:
        """Columns of samples, metrics (those first of which more or less is better), counters."""
        single = [name for name in self.single if self.numbers(name).notna().any()]
        metrics = {name for record in self.campaign.records for name in record.get("metrics", {})}
        judged = {name for name, metric in METRICS.items() if metric.better != "neither"}
        single.sort(key=lambda name: (name not in metrics, name not in judged))
        return [*sorted(self.sampled, key=lambda name: name not in judged), *single]

    @cached_property
    def counters(self) -> list[str]:
        """The columns with a number a trial that differs between trials."""
        return [name for name in self.single if self.numbers(name).nunique() > 1]

    def numbers(self, column: str) -> pd.Series[float]:
        """Return a column of `trials` in the unit that is shown, NaN where a trial has none."""
        numbers = pd.to_numeric(self.trials[column], errors="coerce").astype(float)
        return numbers * scale_and_label(column)[0]

    def samples(self, column: str, trials: pd.Series[Any]) -> pd.Series[Any]:
        """Return the sorted samples of trials that have them."""
        known = self._samples.setdefault(column, {})
        if wanted := set(trials) - known.keys():
            part = self.campaign.part(lambda record: record["trial"] in wanted)
            table = part.series([column], reduce=sort_samples)
            known.update(zip(table["trial"].astype(str), table[column], strict=True))
        return trials.map(known)

    def has(self, quantity: str) -> pd.Series[bool]:
        """Tell which trials have a quantity, without reading samples."""
        if quantity not in self.sampled:
            return self.numbers(quantity).notna()
        sampled = self.campaign.sampled
        return self.trials["trial"].map(lambda trial: quantity in sampled.get(trial, ()))

    def first_levels(self, quantity: str) -> dict[str, tuple[str, ...]]:
        """Return levels to begin with: all, or of more than 12 conditions one comparison.

        That is the combination of the other factors with most conditions in which only the
        factors of the baseline vary.
        """
        conditions = self.trials[self.has(quantity)].drop_duplicates("all factors")
        baseline = self.plan.get("baseline") or {}
        free = [name for name in self.factors if name in baseline] or list(self.factors)[:1]
        others = [name for name in self.factors if name not in free]
        if len(conditions) <= MOST_CONDITIONS or not others:
            return {}
        levels: Any = conditions.value_counts(others).idxmax()
        return {name: (str(level),) for name, level in zip(others, levels, strict=True)}

    def select(self, choice: Choice) -> Selection:
        """Return the chosen trials that have the quantity, each with its number.

        Raises
        ------
        UsageError
            There is none.
        """
        chosen = self.trials[_having(self.trials, choice.levels)]
        rows = chosen[self.has(choice.quantity)[chosen.index]]
        statistic = choice.statistic if choice.quantity in self.sampled else ""
        label, needed = text_of(choice.quantity, statistic), ""
        if statistic:
            cells = self.samples(choice.quantity, rows["trial"])
            values = np.array([statistic_of(cell, statistic) for cell in cells], dtype=float)
            numbers = pd.Series(values * scale_and_label(choice.quantity)[0], rows.index)
            rows = rows.assign(**{choice.quantity: cells})
            if level := quantile_level(statistic):
                needed = f", which takes {samples_needed(level):,} samples"
        else:
            numbers = self.numbers(choice.quantity)[rows.index]
        rows = rows.assign(**{label: numbers})[numbers.notna()]
        if rows.empty:
            levels = [f"{name}: {', '.join(of)}" for name, of in choice.levels.items() if of]
            raise UsageError(
                f"no trial with these levels has {label}{needed}",
                where=str(self.campaign.path),
                why=f"chosen are {'; '.join(levels)}" if levels else "",
                remedy="choose more levels or another statistic: "
                "not every combination is a condition of the plan",
            )
        differing = [name for name in self.factors if rows[name].nunique() > 1]
        condition = " + ".join(differing) or "condition"
        names = join_factors(rows, differing) if differing else rows["all factors"]
        rows = rows.assign(**{condition: pd.Series(names, rows.index).astype("category")})
        sentences = []
        if same := [f"{n} {rows[n].iloc[0]}" for n in self.factors if n not in differing]:
            sentences.append(f"In all of them: {', '.join(same)}.")
        if len(rows) < len(chosen):
            missing = f"{len(chosen) - len(rows)} of {len(chosen)} trials with these levels"
            sentences.append(f"{missing} have no {label}{needed}: they are not shown.")
        baseline = self._baseline(rows, condition, choice.baseline)
        return Selection(self, choice, rows, condition, label, baseline, sentences)

    def _baseline(self, rows: pd.DataFrame, condition: str, chosen: str) -> str:
        """Return the condition that was chosen, or the plan's baseline, or the first one."""
        planned = {
            name: (str(level),)
            for name, level in (self.plan.get("baseline") or {}).items()
            if name in self.factors
        }
        for mask in (rows["all factors"] == chosen, _having(rows, planned)):
            if mask.any():
                rows = rows[mask]
                break
        return str(order_of(rows[condition])[0])


def _having(rows: pd.DataFrame, levels: Mapping[str, tuple[str, ...]]) -> pd.Series[bool]:
    """Tell which rows have one of the chosen levels of each factor."""
    mask = pd.Series(data=True, index=rows.index)
    for name, chosen in levels.items():
        if chosen:
            mask &= rows[name].isin(list(chosen))
    return mask


@dataclass(frozen=True)
class Selection:
    """The trials of a choice: a row a trial, with its condition, and its number as `label`."""

    study: Study
    choice: Choice
    trials: pd.DataFrame
    condition: str
    label: str
    baseline: str
    remarks: list[str]

    @property
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
        return self.of_drawn(self.trials)

    def of_drawn(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the conditions that are drawn."""
        return rows[rows[self.condition].isin(self.drawn)]

    @property
    def sampled(self) -> bool:
        """Whether the quantity is a column of samples."""
        return self.choice.quantity in self.study.sampled

    @property
    def positive(self) -> bool:
        """Whether every number has a logarithm."""
        return bool((self.trials[self.label] > 0).all())

    def sentences(self) -> list[str]:
        """Return how much there is, what all conditions have in common, and what is not shown."""
        blocks = int(self.trials["block"].nunique())
        samples = sum(map(len, self.trials[self.choice.quantity])) if self.sampled else None
        sentences = [f"{count_text(blocks, len(self.trials), samples)}."]
        if blocks < PILOT_BLOCKS:
            sentences.append(f"Fewer than {PILOT_BLOCKS} blocks: a pilot.")
        if len(self.drawn) < len(self.names):
            sentences.append(
                f"The figure has {len(self.drawn)} of {len(self.names)} conditions: choose fewer "
                "levels to see the others."
            )
        return sentences + self.remarks

    def spread(self) -> dict[str, pd.DataFrame]:
        """Return the middle, least and largest number of each condition's trials."""
        groups = self.trials.groupby(self.condition, observed=True)
        numbers = groups[self.label].agg(["median", "min", "max"]).map(number)
        numbers.columns = pd.Index(["middle trial", "least", "largest"])
        counts = pd.DataFrame({"blocks": groups["block"].nunique(), "trials": groups.size()})
        return {f"{self.label}, over the trials of each condition": counts.join(numbers)}


def distribution(selection: Selection) -> View:
    """Show the distribution functions of the conditions, and of samples those of each trial."""
    quantity, shown, sampled = selection.choice.quantity, selection.shown, selection.sampled
    sentences = [f"Distribution of {text_of(quantity)}.", *selection.sentences()]
    least = min(cell.min for cell in shown[quantity]) if sampled else shown[selection.label].min()
    log = selection.choice.log and least > 0
    if selection.choice.log and not log:
        sentences.append("Some values are 0 or below: the axis is not logarithmic.")
    figure = plots.ecdf(
        shown,
        value=quantity if sampled else selection.label,
        hue=selection.condition,
        trials=sampled,
        tail=selection.choice.tail,
        log=log,
    )
    sentences.append(
        "A thick curve is all trials of a condition together, each thin one a trial."
        if sampled
        else "A trial has one number of it, so the curves are over trials."
    )
    return View(sentences, figure, selection.spread())


def quantile_shift(selection: Selection) -> View:
    """Show ratios to the baseline with intervals, and of samples the shift of every quantile."""
    study, label, baseline = selection.study, selection.label, selection.baseline
    reason = ""
    if len(selection.names) < 2:
        reason = f"There is one condition only, {baseline}: nothing to compare it with."
    elif not selection.positive:
        reason = f"Some numbers of {label} are 0 or below: these have no ratio to a baseline."
    if reason:
        return View([reason, *selection.sentences()], tables=selection.spread())
    paired = selection.trials[~selection.trials["block"].isin(study.spanned)]
    options: dict[str, Any] = {
        "condition": selection.condition,
        "baseline": baseline,
        "margin": study.campaign.margin,
    }
    table = compare(paired, value=label, **options)
    sentences = [f"{label}, against {baseline}.", *selection.sentences()]
    if study.spanned:
        sentences.append(f"{checks.spanned_note(study.spanned).capitalize()}.")
    sentences += [
        not_compared(table),
        "Ratios and differences are paired by block. Intervals and p are corrected by Holm over "
        f"these rows, and {percent(study.campaign.margin)} either way counts as equal.",
        "What was chosen after looking decides nothing: the study's page does, as planned before.",
    ]
    if selection.sampled:
        quantity = selection.choice.quantity
        shifts = shift(selection.of_drawn(paired), value=quantity, **options)
        figure = plots.shift_plot(shifts, baseline=baseline, value=quantity)
        # The name of a baseline may be longer than the axis.
        axis = figure.axes[0]
        axis.set_ylabel("\n".join(textwrap.wrap(axis.get_ylabel(), 48)), fontsize=9)
    else:
        rows = table[table["condition"].astype(str).isin(selection.drawn)]
        figure = plots.interval_plot(rows, margin=study.campaign.margin, baseline=baseline)
    measured, metric = table[table["n_blocks"] > 0], selection.choice.quantity
    stored = ["difference", "difference_low", "difference_high"]
    measured = measured.assign(**measured[stored] / scale_and_label(metric)[0])
    shown = format_comparison(measured, metric=metric, margin=study.campaign.margin)
    return View(sentences, figure, {f"{label} against {baseline}": shown})


def over_blocks(selection: Selection) -> View:
    """Show each trial's number over the blocks, with odd trials ringed, and drift."""
    trials, tables = selection.trials, selection.spread()
    sentences = [f"{selection.label}, block after block.", *selection.sentences()]
    options: dict[str, Any] = {"value": selection.label, "condition": selection.condition}
    if selection.positive:
        trials = checks.outliers(trials, **options)
        odd = trials.loc[trials["outlier"], "trial"]
        sentences.append(
            f"{len(odd)} of {len(trials)} trials are unlike the others of their condition and "
            f"block, and ringed{': ' if len(odd) else ''}{', '.join(odd)}."
        )
        drift = checks.drift(selection.trials, **options).set_index(selection.condition)
        shown = drift[["slope", "low", "high"]].map("{:+.2%}".format)
        change = shown["slope"] + " [" + shown["low"] + ", " + shown["high"] + "]"
        tables["Drift over the blocks"] = pd.DataFrame(
            {
                "blocks": drift["n"],
                "change a block [95 %]": change.where(drift["slope"].notna(), "takes 3 blocks"),
                "p, corrected by Holm": drift["p_adjusted"].map("{:.3g}".format),
            }
        )
    else:
        sentences.append("Some numbers are 0 or below: neither drift nor odd trials are shown.")
    figure = plots.block_plot(
        selection.of_drawn(trials),
        value=selection.label,
        hue=selection.condition,
        flagged="outlier" if selection.positive else None,
    )
    return View(sentences, figure, tables)


def mechanism(selection: Selection) -> View:
    """Show a counter of each trial against its number, and the means of all counters."""
    counters = selection.study.counters
    if not counters:
        return View(["These trials carry no mechanism evidence that differs between them."])
    chosen = selection.choice.counter if selection.choice.counter in counters else counters[0]
    values = {text_of(name): selection.study.numbers(name) for name in counters}
    table = selection.trials[[selection.condition, selection.label]].assign(**values)
    means = table.groupby(selection.condition, observed=True).mean().T
    points = selection.of_drawn(table).dropna(subset=text_of(chosen))
    looks = styles(selection.drawn)
    figure, axes = plots.canvas(1, 1, width=_SIZE[0], height=_SIZE[1])
    seaborn.scatterplot(
        points.astype({selection.condition: str}),
        x=text_of(chosen),
        y=selection.label,
        hue=selection.condition,
        style=selection.condition,
        hue_order=selection.drawn,
        style_order=selection.drawn,
        palette={name: look["color"] for name, look in looks.items()},
        markers={name: look["marker"] for name, look in looks.items()},
        s=48,
        ax=axes[0, 0],
    )
    axes[0, 0].legend(title=selection.condition, fontsize=7, title_fontsize=7)
    sentences = [f"{selection.label} and {text_of(chosen)}, a point a trial."]
    sentences += selection.sentences()
    if lacking := len(selection.shown) - len(points):
        sentences.append(f"{lacking} trials did not record it.")
    sentences.append("A correlation need not be the cause: see what else differs in the table.")
    return View(sentences, figure, {"Means over the trials of each condition": means.map(number)})


def attempts(selection: Selection) -> View:
    """List every attempt with the chosen levels, failed ones too, and where its files are."""
    study, counter = selection.study, selection.choice.counter
    rows = study.attempts[_having(study.attempts, selection.choice.levels)]
    ok = rows["status"] == "ok"
    names = rows["trial"].where(ok)
    table = rows[["block", "replicate", "session", *study.factors, "status"]].astype(str)
    columns = {selection.label: selection.trials.set_index("trial")[selection.label]}
    if counter in study.counters:
        columns[text_of(counter)] = study.numbers(counter).set_axis(study.trials["trial"])
    for heading, numbers in columns.items():
        table[heading] = names.map(numbers).map(number, na_action="ignore").fillna("")
    started = pd.to_datetime(rows["started_ns"], unit="ns")
    table["began, UTC"] = started.dt.strftime("%Y-%m-%d %H:%M:%S")
    table = table.join(rows[["flags", "problems"]])
    folders = rows["trial"].str.partition("/")[0] + "-a" + rows["attempt"].astype(str)
    table = table.set_index(folders.rename("folder"))
    # A trial that measured several conditions has a row for each.
    failed, flagged = (
        table.index[there.to_numpy()].nunique() for there in (~ok, rows["flags"] != "")
    )
    text = f"{table.index.nunique()} attempts, {failed} failed, {flagged} with a flag."
    if len(table) > MOST_ROWS:
        text += f" The table has the first {MOST_ROWS}: choose fewer levels to see the others."
    where = f"The record and the output of an attempt are stored under {study.campaign.path}."
    return View([text, where], tables={"Attempts, in the plan's order": table.head(MOST_ROWS)})


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
    for title, table in shown.tables.items():
        caption = f"<caption>{escape(title)}</caption><thead>"
        parts.append(table.to_html(border=0).replace("<thead>", caption, 1))
    body = make_accessible("".join(parts))
    return f'<div class="jp-RenderedHTMLCommon labkit-view">{body}</div>'


def _alert(error: LabkitError) -> str:
    return f'<div role="alert"><pre>{escape(str(error))}</pre></div>'


def panel(study: Study) -> Any:
    """Return the controls of one campaign above the view that they choose."""
    conditions = order_of(study.trials["all factors"])
    first = study.first_levels(study.quantities[0])
    preferred = [name for name in study.counters if name == "context_switches"]
    counters = list(dict.fromkeys([*preferred, *study.counters]))
    # No keyword of a choice has such a name.
    levels = {
        f"levels of {name}": widgets.SelectMultiple(
            options=names, value=first.get(name, ()), description=name, rows=min(len(names), 6)
        )
        for name, names in study.factors.items()
    }

    def draw(view: str, **values: Any) -> None:
        chosen = {name: values.pop(f"levels of {name}") for name in study.factors}
        show(html_output(render(study, view, Choice(levels=chosen, **values))))

    form = widgets.interactive(
        draw,
        view=widgets.ToggleButtons(options=list(VIEWS)),
        quantity=[(text_of(name), name) for name in study.quantities],
        statistic=STATISTICS,
        baseline=[("the plan's", ""), *((name, name) for name in conditions)],
        counter=[(text_of(name), name) for name in counters] or [("none", "")],
        log=widgets.Checkbox(value=True, description="logarithmic axis"),
        tail=widgets.Checkbox(value=False, description="share above, logarithmic"),
        **levels,
    )
    form.update()
    view, *controls = form.children[:-1]
    row = widgets.HBox(controls, layout={"flex_flow": "row wrap"})
    hint = "Ctrl or Shift chooses several levels of a factor; none chosen means all."
    return widgets.VBox([view, row, widgets.Label(hint), form.out])


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
    if isinstance(where, Dataset):
        studies = {where.path.name: where}
    else:
        with contextlib.suppress(RuntimeError):  # no such user: a folder of that name
            where = Path(where).expanduser()
        folder = project(where)
        paths = campaigns_within(folder)
        studies = {path.relative_to(folder.parent).as_posix(): Dataset(path) for path in paths}
    panels: dict[str, Any] = {}

    def choose(change: Any = None) -> None:
        name = study.value
        try:
            if name not in panels:
                panels[name] = panel(Study(studies[name]))
            body.children = (panels[name],)
        except LabkitError as error:
            body.children = (widgets.HTML(_alert(error)),)

    study = widgets.Dropdown(options=list(studies), description="study")
    body = widgets.VBox()
    study.observe(choose, "value")
    choose()
    box = widgets.VBox([study, body])
    box.add_class("labkit-explorer")
    return box
