"""`Page`: one campaign prepared for analysis, and the report sections that all studies share.

A notebook makes one `Page` and calls its sections in order (what was run, the rig, validity,
claims, conclusions), with the analysis of the study itself between them. The sections work for a
campaign of any size: with one block they say that nothing can be decided, and failed trials and
infeasible conditions are counted and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython import display as ipython_display
from numpy.typing import NDArray

from labkit import dataset, plots
from labkit.analysis import checks, power, tables
from labkit.analysis.compare import PILOT_BLOCKS, contrasts, decide, factor_effect, log_table
from labkit.analysis.estimates import join_notes
from labkit.analysis.noise import noise_floor
from labkit.analysis.summary import STATISTICS, mechanisms, summarise
from labkit.analysis.tables import (
    format_claims,
    format_comparison,
    format_numbers,
    headline,
    in_words,
    not_compared,
)
from labkit.analysis.trials import join_factors, order_of, sort_samples
from labkit.answers import (
    SAME,
    Answer,
    interval_text,
    percent,
    quantity,
    ratio_text,
    scaled,
    unit_of_word,
    word_of,
)
from labkit.claims.ledger import RESULTS, counts_text, ledger
from labkit.claims.published import published
from labkit.claims.schema import Claims, load_claims
from labkit.dataset.comparison import level_of
from labkit.paths import project
from labkit.report.html import SUMMARY_MIME, fact_at, render_part
from labkit.report.provenance import provenance, provenance_html
from labkit.units import capability_words, heading, level_words, metric_of, plural

#: Level of the tests of a page.
ALPHA = 0.05
#: Functions without types, looked up when they are called.
_notebook: Any = ipython_display
#: Numeric columns that identify a trial; every other numeric column was measured.
_KEYS = [
    *("trial", "attempt", "block", "position", "replicate", "session", "started_ns"),
    *("n", "n_samples"),
]
#: What the table of hosts shows: the label, and the path in a host's facts.
_FACTS: dict[str, tuple[str, ...]] = {
    "Processor": ("cpu", "model"),
    "CPUs": ("cpu", "count"),
    "Threads of a core (SMT)": ("cpu", "smt"),
    "Frequency governor": ("cpu", "governor"),
    "CPUs isolated at boot": ("cpu", "isolated"),
    "Idle driver": ("idle", "driver"),
    "Idle governor": ("idle", "governor"),
    "Kernel": ("kernel", "release"),
    "Clock source": ("kernel", "clock_source"),
    "Virtualisation": ("virtualisation", "detected"),
    "Product of the virtualisation": ("virtualisation", "product"),
    "TCP congestion control, as found": ("kernel", "sysctl", "net/ipv4/tcp_congestion_control"),
    "Engine": ("engine", "version"),
    "Security options of the engine": ("engine", "SecurityOptions"),
    "File system of the engine": ("storage", "engine", "filesystem"),
    "Disk of the engine": ("storage", "engine", "disk"),
}
#: What a page shows of a claim; the ledger has the rest.
_CLAIM_COLUMNS = ["claim", "published", "measured [interval]", "setting", "result", "why"]
#: Numbers in the flags of trials, without which flags of one kind are the same text; not those of
#: an application's name (``nginx 1 MB: ...``).
_AMOUNTS = r"[0-9.,%]++(?! [KM]?B:|/s:)"
#: Up to so many failed attempts are listed one by one.
_FAILED_ROWS = 20
_FLOOR = ("n_blocks", "sd", "decidable_margin", "detectable_difference")
#: Verdicts of comparisons that are decided.
_DECIDED = ("different", *SAME)
#: Results that do not come from what was measured: more blocks would not change them.
_UNMEASURED = ("not decidable on this rig", "not measured", "from its tables")
_SESSIONS = """### Sessions

A session is a part of a campaign without a reboot of the hosts and without a pause of more than \
30 minutes. Where one ended inside a block, differences inside that block may be differences \
between sessions. Tables and distributions include such a block; the paired comparisons of this \
page leave it out. A claim leaves it out only where the conditions of the claim span sessions."""
_NOISE = """### The noise floor

Some conditions ran twice in every block (A/A replicates). Their ratio to themselves shows what \
this rig reports where there is no difference; its spread between blocks (`sd`, of the log ratio \
of a pair) determines what can be decided. `decidable margin` is the smallest margin within which \
equal conditions are found equivalent with 80 % power, `detectable difference` the smallest \
difference that is found."""
_GROUPS = """ Groups of conditions may differ in noise, so both are stated for each group; a \
comparison between two groups is as precise as the noisier one."""
_DRIFT = """### Drift, dependence, odd trials

Drift over the campaign is the slope of the log value on the order of the blocks. Pairing removes \
drift that all conditions share, but not the drift of one condition alone."""
_INSIDE = """`effective` is the number of independent samples that a trial is worth. A trial is \
`changing` when one stretch of it, such as a warm-up, differs from the rest (1 % of steady trials \
are called so by chance). `cannot tell` is a warning too: the trial is too short for the \
dependence of its samples, so nothing shows that it is steady. Changes are shares of the median, \
without sign. A change inside a trial is no reason to leave it out: comparisons use one number a \
trial, and the spread between trials includes such changes."""
_FLAGS = """### Flags

Flags set by labkit's validity rules, and attempts that failed. They are counted and shown; \
nothing is removed because of its outcome."""
_CLAIMS = """Every testable claim of the paper about this study, in our words, from the ledger of \
all papers (`data/claims.toml`): what the paper reports, whether its own tables support it, and \
what was measured here, with the interval that the result rests on.

`setting` compares this rig with the paper's: `same`, `analogue` (the claim can be decided, but \
the paper's rig had more), or `unsuitable`. `result` is what the measurement says: `replicated` \
and `contradicted` each rest on a test, corrected by Holm over the paper's claims that can be \
decided, here and by its other studies that are measured beside this one, and for looks: `p` is \
compared with 0.05. `undecided` is neither, with the number of blocks needed; on an unsuitable rig \
the result is `not decidable on this rig`, whatever was measured."""


class Page:
    """One campaign prepared for analysis, and the report sections that all studies share.

    Parameters
    ----------
    data : str or Path
        A campaign, or the folder of a study, of which the newest campaign is read. A relative
        path starts at the project's folder.
    factors : sequence of str, optional
        Factors that name a condition, in the order of tables; by default all of the plan.
    value : str
        What the study measures: a column of samples (``rtt_ns``), or a metric with one number a
        trial.
    margin : float, optional
        Relative difference up to which two conditions count as equal; by default the plan's.
    within : mapping, optional
        Only conditions with these levels (one level, or a list); factors that the plan does not
        have are ignored.

    Attributes
    ----------
    campaign : Dataset
        The campaign, also available as its ``plan`` and ``rig``.
    attempts : DataFrame
        Every attempt, including failed ones.
    trials : DataFrame
        One row a successful trial: ``trial, block``, the factors (categorical, in the order of
        the plan), ``replicate``, every metric and counter, and of a column of samples ``n`` and
        the statistics of `labkit.analysis.summarise`.
    paired : DataFrame
        `trials`, with NaN for measured values of blocks that span sessions.
    samples : DataFrame or None
        The sorted samples of each trial, for all tables and figures; None without samples.
    summary : str
        The column of `trials` that represents a trial: ``median``, or `value` itself.
    margin : float
        The margin of this page.
    tests : dict
        ``margin`` and ``alpha`` for comparisons: `alpha` counts the looks at which the campaign
        could stop.
    n_blocks, failed : int
        Blocks with a successful trial; attempts that failed.
    pilot : bool
        Whether there are fewer than 5 blocks.
    spanned : list
        Blocks that span sessions.

    Examples
    --------
    >>> from labkit import Page
    >>> page = Page("data/reference/rps", value="latency_ns")
    >>> page.n_blocks, page.pilot, page.summary
    (20, False, 'median')
    """

    def __init__(
        self,
        data: str | Path,
        factors: Sequence[str] | None = None,
        value: str = "rtt_ns",
        margin: float | None = None,
        within: Mapping[str, Any] | None = None,
    ) -> None:
        self.data = str(data)
        self._all = dataset.load(project(data))
        self.campaign = _select(self._all, within or {})
        self.plan, self.rig = self.campaign.plan, self.campaign.rig
        self.factors = list(self.plan["factors"] if factors is None else factors)
        self.value = value
        self.margin = self.campaign.margin if margin is None else float(margin)
        columns = [*_KEYS, *self.factors, "status", "flags", "problems"]
        attempts = self.campaign.trials
        self.attempts = attempts if len(attempts) else pd.DataFrame(columns=columns, dtype=object)
        self._joined: dict[str, list[str]] = {}
        ok = [record for record in self.campaign.records if record["status"] == "ok"]
        self._ok, self.failed = len(ok), len(self.campaign.records) - len(ok)
        sampled = any(record["n_samples"] for record in ok) and value not in self.attempts
        self.samples = self._read(self.campaign, sort_samples) if sampled else None
        self.summary = "median" if sampled else value
        self.trials = self._trials()
        self.n_blocks = int(self.trials["block"].nunique())
        self.pilot = self.n_blocks < PILOT_BLOCKS
        alpha = level_of(self._all, ALPHA, self.n_blocks)
        self.tests = {"margin": self.margin, "alpha": alpha}
        self.spanned = checks.blocks_across_sessions(self.trials) if len(self.trials) else []
        self.paired = self._paired()
        # pandas warns at each column that is added to tables of many separate blocks of memory.
        self.trials, self.paired = self.trials.copy(), self.paired.copy()
        #: Collected by the sections, for the conclusions.
        self.floors: list[pd.DataFrame] = []
        self.drifts: list[pd.DataFrame] = []
        self.answers: list[Answer] = []
        self.margins: dict[str, float] = {}
        #: Of which quantities and groups the noise is not known.
        self.unknown: list[str] = []
        self.entries: pd.DataFrame | None = None
        self._validated = False

    @property
    def series(self) -> pd.DataFrame:
        """The samples of each trial in the order they were taken, one row a trial.

        They are read from the dataset at each access, and not kept: they may be large.
        """
        return self._read(self.campaign)

    def _read(
        self, campaign: dataset.Dataset, reduce: Callable[[NDArray[Any]], Any] | None = None
    ) -> pd.DataFrame:
        """Return the samples of each trial, or what is kept of them, with this page's factors."""
        table = self._ordered(campaign.series([self.value], reduce=reduce))
        return table.assign(**{name: join_factors(table, of) for name, of in self._joined.items()})

    def _ordered(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table whose factors are categorical, with the plan's order of levels."""
        for name in self.factors:
            levels = list(self.plan["factors"].get(name, []))
            column = table[name] if name in table else pd.Series(dtype=object)
            levels += [level for level in pd.unique(column.dropna()) if level not in levels]
            table[name] = pd.Categorical(column, levels)
        return table

    def _trials(self) -> pd.DataFrame:
        ok = self.attempts[self.attempts["status"] == "ok"].reset_index(drop=True)
        ok = self._ordered(ok)
        if self.samples is None:
            return ok if self.value in ok else ok.assign(**{self.value: math.nan})
        each = summarise(self.samples, by=["trial"], value=self.value).astype({"trial": "str"})
        each = each[["trial", "n", *STATISTICS, "note"]]
        return ok.merge(each, on="trial", how="left", validate="one_to_one")

    def _paired(self) -> pd.DataFrame:
        """Return the trials of blocks that can be compared, with those that failed, without values.

        A trial that never succeeded may have been a slow one; `compare` allows for that.
        """
        lost, both = self.campaign.lost, self.trials
        if len(lost):
            known = [*_KEYS, *self.factors, "status"]
            rows = lost[[name for name in lost if name in known]]
            both = self._ordered(pd.concat([both, rows], ignore_index=True))
        spans = both["block"].isin(self.spanned)
        if spans.all():  # their conditions are still shown, without values
            numbers = both.select_dtypes("number").columns.difference([*_KEYS, *self.factors])
            return both.assign(**dict.fromkeys(numbers, math.nan))
        return both[~spans].reset_index(drop=True)

    def join(self, name: str, factors: Sequence[str]) -> None:
        """Add several factors as one column, such as ``free + block``, to every table."""
        self._joined[name] = list(factors)
        for table in (self.trials, self.paired, self.samples):
            if table is not None:
                table[name] = join_factors(table, factors) if len(table) else ""

    @staticmethod
    def valued(table: pd.DataFrame, value: str) -> pd.DataFrame:
        """Return the trials that have a positive value of a quantity, and those that failed.

        Other conditions do not measure it, or have too few samples for it. Where a trial measures
        several conditions, a failed one is known of the first only.
        """
        table = _positive(table, value)
        return table[table[value].notna() | table["status"].ne("ok")]

    def part(self, table: pd.DataFrame, within: Mapping[str, Any] | None) -> pd.DataFrame:
        """Return the rows of a table that have the levels of `within` (one level, or a list)."""
        for name, level in (within or {}).items() if len(table) else ():
            table = table[table[name].astype("str").isin(_levels(level))]
        return table

    def effect(
        self,
        factor: str,
        levels: Sequence[str],
        within: Sequence[str] = (),
        *,
        value: str | None = None,
        trials: pd.DataFrame | None = None,
        margin: float | None = None,
    ) -> pd.DataFrame:
        """Compare levels of a factor with the first of them, at the margin and level of the page.

        Parameters
        ----------
        factor, levels, within
            As for `labkit.analysis.factor_effect`.
        value : str, optional
            Column to compare; `summary` by default.
        trials : DataFrame, optional
            Part of `paired`, which is the default.
        margin : float, optional
            The page's by default.

        Returns
        -------
        DataFrame
            As of `factor_effect`; without rows where there are no trials, or fewer than two levels.
        """
        trials = self.paired if trials is None else trials
        tests = self.tests if margin is None else self.tests | {"margin": margin}
        if trials.empty or len(levels) < 2:
            return decide([], alpha=tests["alpha"], keys=[*within, "contrast"])
        value = value or self.summary
        return factor_effect(trials, factor, levels, within, value=value, **tests)

    # What a page shows

    @staticmethod
    def say(text: str) -> None:
        """Display a text in Markdown."""
        _notebook.display(_notebook.Markdown(text))

    @staticmethod
    def show(value: Any, empty: str = "") -> None:
        """Display a table, its headings in words, or a figure; `empty` instead of no rows."""
        if empty and not len(value):
            Page.say(empty)
        elif isinstance(value, pd.DataFrame):
            with pd.option_context("display.max_rows", 100):
                _notebook.display(in_words(value))
        else:
            _notebook.display(value)

    def show_comparison(
        self,
        table: pd.DataFrame,
        value: str | None = None,
        *,
        margin: float | None = None,
    ) -> None:
        """Display a comparison: what was measured as a table, what was not as a sentence.

        Parameters
        ----------
        table : DataFrame
            What `compare`, `effect` or `shift` returns.
        value : str, optional
            The column that was compared; `summary` by default.
        margin : float, optional
            That of the comparison; the page's by default.
        """
        if table.empty:
            self.say("None of this was measured here.")
            return
        margin = self.margin if margin is None else margin
        metric = self.metric(value or self.summary)
        shown = format_comparison(self.measured(table), metric=metric, margin=margin)
        self.show(shown)
        if not_compared(table):
            self.say(not_compared(table))

    @staticmethod
    def show_counters(
        trials: pd.DataFrame, *, by: Sequence[str], columns: Sequence[str], digits: int = 3
    ) -> None:
        """Display the counters of each condition, averaged over its trials.

        Parameters
        ----------
        trials : DataFrame
            `trials` of the page, or part of it.
        by, columns : sequence of str
            Factors, and counters; counters that were not recorded are named in a sentence.
        digits : int
            Decimals.
        """
        recorded = [name for name in columns if name in trials and trials[name].notna().any()]
        if recorded and len(trials):
            table = mechanisms(trials, by=by, columns=recorded)
            Page.show(format_numbers(table.set_index(list(by)), digits))
        if lacking := [heading(name) for name in columns if name not in recorded]:
            Page.say(f"Not recorded here: {'; '.join(lacking)}.")

    @staticmethod
    def measured(table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a comparison that were measured, or all of them where none was."""
        rows = table["n_blocks"] > 0
        return table[rows] if rows.any() else table

    @staticmethod
    def headline_text(line: Mapping[str, Any]) -> str:
        """Return a headline as a line of a list: text, numbers with interval, answer in words.

        An ``amount`` is the value and difference of a ratio; a ``target`` is what the estimate was
        compared with, where that is not 1.
        """
        numbers = [line.get(name) for name in ("estimate", "low", "high")]
        known = [math.nan if one is None else float(one) for one in numbers]
        amount = f"{line['amount']}, " if line.get("amount") else ""
        verdict, pilot, _ = str(line["verdict"]).partition(" (pilot)")
        # A notebook may have tested it against another margin than the page's, which its text says.
        unit = unit_of_word(line.get("metric", ""))
        word = f"{word_of(verdict, known[0] / line.get('target', 1), unit=unit)}{pilot}"
        value, low, high = known
        text = interval_text(value, low, high, str(line.get("unit", "1")))
        return f"- {line['text']}: {amount}{text} **{word}**".replace("  ", " ")

    def word(self, verdict: str, ratio: float, value: str) -> str:
        """Return a verdict on a column of `trials` in words at the page's margin."""
        return word_of(verdict, ratio, self.margin, unit_of_word(self.metric(value)))

    def amount(
        self, value: str, number: float, low: float = math.nan, high: float = math.nan
    ) -> str:
        """Return a number of a column of `trials`, with its interval if any, in a readable unit."""
        unit = metric_of(self.metric(value))[0].shown
        return interval_text(number, low, high, "" if unit == "1" else unit)

    def headlines(
        self, table: pd.DataFrame, text: str, value: str | None = None, **levels: Any
    ) -> list[dict[str, Any]]:
        """Return the headline of one row of a comparison; an empty list if it was not measured.

        Parameters
        ----------
        table : DataFrame
            What `compare` or `effect` returns.
        text : str
            What the row compares, in words.
        value : str, optional
            The column that was compared; `summary` by default.
        **levels
            Column and level of the row, such as ``contrast="docker host / bare clean"``.
        """
        rows = self.part(table[table["n_blocks"] > 0], levels)
        return [self._headline(row, text, value) for _, row in rows.head(1).iterrows()]

    def _headline(self, row: pd.Series, text: str, value: str | None) -> dict[str, Any]:
        metric = self.metric(value or self.summary)
        told = self._answer_of(row, value, condition=text, baseline="")
        cells = told.cells()
        # Of a number without a unit, such as a ratio, the ratio says all.
        amounts = () if told.unit in ("", "1") else (cells["value"], cells["difference"])
        return headline(row, text, metric) | {"amount": ", ".join(filter(None, amounts))}

    # Section: the answer

    def told(
        self,
        table: pd.DataFrame,
        value: str | None = None,
        *,
        condition: str,
        baseline: str,
        **levels: Any,
    ) -> Answer | None:
        """Return one row of a comparison in words; None where it was not measured.

        Parameters
        ----------
        table : DataFrame
            What `compare` or `effect` returns.
        value : str, optional
            The column that was compared; `summary` by default.
        condition, baseline : str
            What was compared with what, as a reader knows it.
        **levels
            Column and level of the row, as for `headlines`.
        """
        rows = self.part(table[table["n_blocks"] > 0], levels)
        if rows.empty:
            return None
        return self._answer_of(rows.iloc[0], value, condition=condition, baseline=baseline)

    def _answer_of(
        self, row: pd.Series, value: str | None, *, condition: str, baseline: str
    ) -> Answer:
        return Answer.from_comparison(
            {str(name): item for name, item in row.items()},
            metric=self.metric(value or self.summary),
            condition=condition,
            baseline=baseline,
            margin=self.margin,
        )

    def metric(self, value: str) -> str:
        """Return the full name of a column of `trials`: of ``median`` that is ``rtt_ns_median``."""
        sampled = self.samples is not None and value in STATISTICS
        return f"{self.value}_{value}" if sampled else value

    def _quantity(self, value: str) -> str:
        """Return a column of `trials` in words."""
        return quantity(self.metric(value))

    def answer(self, *answers: Answer | None) -> None:
        """Show the answer of the page in a sentence or two; the index shows the first.

        Parameters
        ----------
        *answers : Answer or None
            What `told` returns; None is left out.
        """
        self.answers = [one for one in answers if one is not None]
        for one in self.answers:
            self.show(one)
        if not self.answers:
            self.say("Not measured here, so there is no answer.")
        if len(looks := self.plan.get("looks", ())) > 1:
            at = f"{', '.join(map(str, looks[:-1]))} and {looks[-1]}"
            self.say(
                f"The plan is to look at the results after {at} blocks, and to drop conditions "
                "that no open question needs: later blocks do not have them. Comparisons allow for "
                f"it: their level is {percent(self.tests['alpha'])} in place of {percent(ALPHA)}. "
                "Other intervals (of fits, quantiles, single conditions) do not, unless a verdict "
                "rests on them."
            )

    def compared(
        self,
        table: pd.DataFrame,
        value: str | None = None,
        *,
        label: str | Sequence[str],
        baseline: str,
        title: str = "",
    ) -> None:
        """Draw the measured rows of a comparison with their values, slower or faster.

        Parameters
        ----------
        table, value
            As in `told`; where the table has a column ``metric``, it names what each row compares.
        label : str or sequence of str
            Columns that name a row.
        baseline : str
            What the ratio is to, as a reader knows it.
        title : str
            Title of the figure.
        """
        if not (table["n_blocks"] > 0).any():
            self.say("Nothing was compared here.")
            return
        rows = self.measured(table).copy()
        if "metric" not in rows:
            rows["metric"] = self.metric(value or self.summary)
        ends = {str(one).partition(" / ")[2] for one in rows.get("contrast", ())}
        if len(ends) == 1:  # one baseline for all: the axis names it
            rows["contrast"] = rows["contrast"].astype("str").str.partition(" / ")[0]
        names: dict[str, Any] = {"label": label, "baseline": baseline, "title": title}
        self.show(plots.interval_plot(rows, margin=self.margin, **names))

    def distribution(
        self,
        samples: pd.DataFrame | None,
        within: Mapping[str, Any] | None = None,
        *,
        hue: str,
        col: str | None = None,
    ) -> None:
        """Draw the quantiles of samples up to the tail.

        Parameters
        ----------
        samples : DataFrame or None
            `samples`, or part of them.
        within : mapping, optional
            Only trials with these levels.
        hue, col : str
            As in `labkit.plots.tail_plot`.
        """
        part = self.part(pd.DataFrame() if samples is None else samples, within)
        if len(part):
            self.show(plots.tail_plot(part, value=self.value, hue=hue, col=col))
        else:
            self.say("No sample of these conditions was measured.")

    def _answer_record(self) -> dict[str, Any] | None:
        """Return the answer as the index shows it, with the noise of what it compares."""
        if not self.answers:
            return None
        first = self.answers[0]
        named = {first.metric, first.statistic, f"{first.metric}_{first.statistic}"}
        floors = [floor[floor["of"].isin(named)] for floor in self.floors]
        noise = pd.concat([pd.DataFrame(columns=["sd", "low", "high"]), *floors])
        widest = noise.sort_values("sd").tail(1).to_dict("records")
        return {
            **first.as_record(),
            "cells": first.cells(),
            "quantity": first.quantity,
            "noise_low": widest[0]["low"] if widest else None,
            "noise_high": widest[0]["high"] if widest else None,
            "sentences": [one.sentence for one in self.answers],
        }

    def why(
        self,
        trials: pd.DataFrame,
        factor: str,
        levels: Sequence[str],
        counters: Sequence[str],
    ) -> None:
        """Say and draw in which counters two conditions differ, and name the others.

        Parameters
        ----------
        trials : DataFrame
            Part of `paired`.
        factor : str
            Column of the two conditions.
        levels : sequence of str
            The baseline, then the other condition.
        counters : sequence of str
            Columns; tested at the page's level, corrected by Holm over the counters.
        """
        baseline, condition = levels
        compared = [level_words(factor, level) for level in levels]
        part = self.part(trials, {factor: list(levels)})
        both = {*levels} <= {*part[factor].astype("str")}
        known = [one for one in counters if both and one in part and (part[one] > 0).any()]
        if not known:
            self.say(f"No counter was recorded of both {compared[1]} and {compared[0]}.")
            return
        rows, only, others, unrecorded = [], [], [], []
        for name in known:
            seen = part.groupby(part[factor].astype("str"))[name]
            if not seen.count().all():
                unrecorded.append(quantity(name))
                continue
            positive = [level for level, values in seen if (values > 0).any()]
            if len(positive) < len(levels):  # no ratio to nothing
                counted = seen.get_group(positive[0])
                if self.pilot or not (counted > 0).all():
                    others.append(quantity(name))
                    continue
                mean = scaled(float(counted.mean()), metric_of(name)[0].shown)
                with_it = level_words(factor, positive[0])
                only.append(f"{quantity(name)}: counted with {with_it} only, {mean} on average")
                continue
            logs = log_table(_positive(part, name), value=name, condition=factor)
            found = contrasts(logs, baseline, margin=self.margin, alpha=self.tests["alpha"])
            rows.append({"counter": quantity(name), "metric": name, **found[condition]})
        table = decide(rows, alpha=self.tests["alpha"], keys=("counter", "metric"))
        differ = table[table["differs"].astype(bool)]
        texts = [self._counter_text(row) for row in differ.to_dict("records")]
        if texts or only:
            self.say(f"{compared[1]} against {compared[0]}: {'; '.join([*texts, *only])}.")
        else:
            self.say(
                "Nothing that was counted is shown to differ between "
                f"{compared[1]} and {compared[0]}, so these counters do not say why."
            )
        if len(differ):
            self.show(
                plots.interval_plot(
                    differ, margin=self.margin, label="counter", baseline=compared[0]
                )
            )
        others += list(table.loc[~table["differs"].astype(bool), "counter"])
        if others:
            self.say(f"No difference is shown in: {'; '.join(others)}.")
        if unrecorded:
            self.say(f"Not recorded of both: {'; '.join(unrecorded)}.")

    def _counter_text(self, row: Mapping[Any, Any]) -> str:
        """Return a counter that differs as a part of a sentence."""
        metric = str(row["metric"])
        told = Answer.from_comparison(
            row, metric=metric, condition="", baseline="", margin=self.margin
        )
        return f"{told.quantity}: {told.word} ({told.numbers})"

    def trust(self) -> None:
        """Show four marks (noise, drift, failures, infeasible), each with its table.

        `validity` has to run before, for each value of the study.
        """
        marks = [self._noise_mark(), self._drift_mark(), self._failure_mark()]
        marks.append(self._infeasible_mark())
        shown = {"text/html": render_part("trust.html.j2", marks=marks)}
        shown["text/plain"] = "; ".join(f"{one['name']}: {one['text']}" for one in marks)
        _notebook.display(shown, raw=True)

    def _noise_mark(self) -> dict[str, Any]:
        if not self.margins:
            twice = any(map(len, self.floors))
            takes = "more blocks" if twice else "conditions that run twice in each block"
            return _mark("Noise", False, f"not known: it takes {takes}")
        floor = pd.concat(self.floors)
        worst = max(self.margins.values())
        text = (
            f"{plural(self._distinct(floor), 'condition')} ran twice in each block; the smallest "
            f"margin that can be decided is {percent(min(self.margins.values()))} to "
            f"{percent(worst)}, the margin of this page {percent(self.margin)}"
        )
        if self.unknown:
            text += f"; not known for {'; '.join(self.unknown)}"
        several = floor["of"].nunique() > 1
        shown = pd.DataFrame(
            {
                "condition": self._conditions(floor, several=several),
                "ratio to itself": [
                    ratio_text(*row) for row in floor[["ratio", "low", "high"]].to_numpy()
                ],
                "decidable margin": [_share_text(one) for one in floor["decidable_margin"]],
            }
        )
        return _mark("Noise", worst <= self.margin and not self.unknown, text, shown)

    def _drift_mark(self) -> dict[str, Any]:
        if not self.drifts:
            return _mark("Drift", False, "not known: nothing was compared")
        drift = pd.concat(self.drifts)
        drifting = drift[drift["drifts"]]
        count, of = self._distinct(drifting), self._distinct(drift)
        several = drift["of"].nunique() > 1
        text = f"{count} of {of} conditions {'drifts' if count == 1 else 'drift'} over the campaign"
        text += " in at least one quantity" if several else ""
        shown = pd.DataFrame({"condition": self._conditions(drifting, several=True)})
        return _mark("Drift", drifting.empty, text, shown)

    def _distinct(self, table: pd.DataFrame) -> int:
        """Return how many conditions floors or drifts are of, which have a row a quantity."""
        return len(table[self.factors].astype("str").drop_duplicates())

    def _conditions(self, table: pd.DataFrame, *, several: bool) -> list[str]:
        """Return what names each row of floors or drifts, and its value where they have several."""
        rows = table[["of", *self.factors]].to_dict("records")
        return [
            ", ".join(
                [
                    *([self._quantity(str(row["of"]))] if several else []),
                    *(level_words(name, row[name]) for name in self.factors),
                ]
            )
            for row in rows
        ]

    def _failure_mark(self) -> dict[str, Any]:
        flagged = self._flagged()
        text = (
            f"{plural(self.failed, 'attempt')} failed, {len(flagged)} of {self._ok} trials carry "
            "a flag of labkit's checks"
        )
        failed = self.attempts.loc[self.attempts["status"] != "ok", "problems"]
        kinds = {"failed": _without_amounts(failed), "flagged": flagged["flag"].str.split("; ")}
        counts = {kind: texts.explode().value_counts() for kind, texts in kinds.items()}
        shown = pd.concat(counts, names=["why", "what"]).rename("occurrences").reset_index()
        return _mark("Failures", not self.failed and flagged.empty, text, shown)

    def _flagged(self, *by: str) -> pd.DataFrame:
        """Return the trials that carry a flag, once for each group of `by`, with it as `flag`."""
        flags = _without_amounts(self.trials["flags"])
        flagged = self.trials.assign(flag=flags)[flags != ""]
        # A trial has a row for each thing that it measured.
        return flagged.drop_duplicates(["block", "position", "attempt", *by])

    def _infeasible_mark(self) -> dict[str, Any]:
        shown = self._infeasible()
        lacking = len(self.rig.get("capabilities", {}))
        text = f"{plural(len(shown), 'condition')} cannot run on this rig; "
        text += f"it lacks {lacking} {'capability' if lacking == 1 else 'capabilities'}"
        return _mark("Infeasible", shown.empty, text, shown)

    # Section: what was run, and on what

    def what_was_run(self, by: Sequence[str] | None = None) -> None:
        """Show counts, settings, trials of each condition, the margin and what is infeasible.

        Parameters
        ----------
        by : sequence of str, optional
            Columns of the table of trials, the last one across; the factors by default.
        """
        plan, by = self.plan, list(by or self.factors)
        planned = self.campaign.planned
        count = int(self.samples["n"].sum()) if self.samples is not None else 0
        samples = f" {count:,} samples;" if count else ""
        pilot = " **Fewer than 5 blocks: this is a pilot.**" if self.pilot else ""
        blocks = plural(self.n_blocks, "block")
        counts = f"{self._ok} of {planned} planned trials in {blocks};{samples}"
        self.say(f"{counts} {plural(self.failed, 'attempt')} failed.{pilot}")
        pd.options.display.max_colwidth = None
        settings = {**plan["settings"], "seed": plan["seed"]}
        shown = {name: _setting_text(value) for name, value in settings.items()}
        self.show(pd.Series(shown, dtype="object").to_frame("setting"))
        if len(self.trials):
            trials = self.trials.groupby(by, observed=True).size()
            self.show(
                trials.unstack(by[-1], fill_value=0) if len(by) > 1 else trials.to_frame("trials")
            )
        source = "as planned" if "margin" in plan else "labkit's default"
        text = f"Margin: {percent(self.margin)}, {source}."
        if self.margin != self.campaign.margin:
            text = (
                f"**Margin: {percent(self.margin)}, chosen after the plan, which has "
                f"{percent(self.campaign.margin)}.** Verdicts of equality below hold for a margin "
                "that was not fixed before measuring."
            )
        self.say(text)
        infeasible = self._infeasible()
        if len(infeasible):
            self.say("Infeasible on this rig, and therefore not measured:")
        self.show(infeasible, empty="Every condition is feasible on this rig.")

    def _infeasible(self) -> pd.DataFrame:
        """Return the infeasible conditions in words, with the reasons."""
        rows = [
            {
                "condition": ", ".join(
                    map(level_words, self.plan["factors"], one["condition"].split(" | "))
                ),
                "reason": one["reason"],
            }
            for one in self.plan["infeasible"]
        ]
        return pd.DataFrame(rows, columns=["condition", "reason"])

    def the_rig(self) -> None:
        """Show the rig's caveats, what it lacks, its CPUs and its hosts."""
        caveats = "\n".join(f"- {caveat}" for caveat in self.rig.get("caveats", []))
        self.say(caveats or "The rig states no caveats.")
        missing = self.rig.get("capabilities", {}).items()
        reasons = {capability_words(name): str(reason) for name, reason in missing}
        lacking = pd.Series(reasons, dtype="object")
        self.show(lacking.to_frame("why it is missing here"), empty="No capability is missing.")
        cpus = pd.Series(self.rig.get("cpu_map", {}), dtype="object").astype(str)
        self.show(cpus.to_frame("CPUs"))
        if idle := self.plan["settings"].get("idle"):
            self.say(f"Idle states of the machines: {idle}.")
        self.show(self._hosts(), empty="No facts of the hosts were recorded.")

    def _hosts(self) -> pd.DataFrame:
        """Return the facts of each host in the last session, a column a host."""
        stable = {role: facts.get("stable", {}) for role, facts in self.campaign.facts.items()}
        rows = {
            label: {role: fact_at(facts, path) for role, facts in stable.items()}
            for label, path in _FACTS.items()
        }
        table = pd.DataFrame.from_dict(rows, orient="index").dropna(how="all")
        # An empty text means that no CPU is isolated; an unknown fact is an empty mapping.
        words = {"": "none", "nan": "none", "None": "none", "{}": "not stated"}
        return table.map(lambda value: words.get(str(value), str(value)))

    # Section: validity

    def validity(
        self,
        value: str | None = None,
        within: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> None:
        """Show sessions, noise floor, drift, dependence, odd trials and flags.

        A study whose conditions have different metrics calls it once a metric; sessions and flags
        are shown the first time only.

        Parameters
        ----------
        value : str, optional
            Column of `trials`; `summary` by default.
        within : mapping, optional
            Only trials with these levels: ``{"service": "linpack"}``; a list names several levels.
        by : str, optional
            Column (a factor, or one made by `join`) whose groups may differ in noise.
        """
        value = value or self.summary
        first = not self._validated
        self._validated = True
        if first:
            self.say(_SESSIONS)
            self.say(self._sessions_text())
        which = "".join(
            f", {level_words(name, level)}"
            for name, levels in (within or {}).items()
            for level in (levels if isinstance(levels, list) else [levels])
        )
        what = self._quantity(value)
        title = f"### {what[:1].upper()}{what[1:]}{which}"
        self.say(_NOISE + (_GROUPS if by else "") if first else title)
        paired = self.part(_positive(self.paired, value), within)
        trials = self.part(_positive(self.trials, value), within)
        if not trials[value].notna().any():
            self.say(f"Nothing to compare: no trial has a value of this ({what}{which}).")
        else:
            self._show_noise(paired, value, by, which)
            self._show_drift(trials, value, within, by, first=first)
        if first:
            self.say(_FLAGS)
            self._show_flags(by)

    def _sessions_text(self) -> str:
        if not self.spanned:
            return "Every block was measured within one session; all are compared."
        left = self.n_blocks - len(self.spanned)
        said = checks.spanned_note(self.spanned).capitalize()
        left_out = f"**{said} of the comparisons of this page.**"
        return f"{left_out} {left} of {self.n_blocks} blocks are compared."

    def _show_noise(self, paired: pd.DataFrame, value: str, by: str | None, which: str) -> None:
        condition = list(dict.fromkeys([*self.factors, *([by] if by else [])]))
        floor = noise_floor(paired, value=value, condition=condition, alpha=self.tests["alpha"])
        bounds = floor[["ratio", "low", "high"]].to_numpy()
        shown = floor.set_index(self.factors)[list(_FLOOR)].assign(
            sd=[scaled(one) if math.isfinite(one) else "" for one in floor["sd"]],
            **{name: [_share_text(one) for one in floor[name]] for name in _FLOOR[2:]},
        )
        shown.insert(1, "ratio to itself [interval]", [ratio_text(*row) for row in bounds])
        self.show(
            shown,
            empty=f"No condition ran twice in a block{which}: the noise floor is not known.",
        )
        self.floors.append(floor.assign(of=value))
        decidable = {"": floor["decidable_margin"].max()}
        if by:
            # Of a level without a condition that ran twice nothing is known.
            largest = floor.groupby(by, observed=True)["decidable_margin"].max()
            levels = order_of(paired.loc[paired[value].notna(), by])
            decidable = {
                level_words(by, level): float(largest.get(level, math.nan)) for level in levels
            }
            decidable = decidable or {"": math.nan}
        finite = {name: margin for name, margin in decidable.items() if math.isfinite(margin)}
        unknown = [name for name in decidable if name not in finite]
        self.margins |= {f"{value}{which}, {name}": margin for name, margin in finite.items()}
        self.unknown += [
            ", ".join(filter(None, [f"{self._quantity(value)}{which}", name])) for name in unknown
        ]
        if len(floor):
            self.say(self._decidable_text(floor, value, finite, unknown))

    def _decidable_text(
        self, floor: pd.DataFrame, value: str, decidable: dict[str, float], unknown: list[str]
    ) -> str:
        """Return which margins these blocks decide, and how many blocks the page's margin needs."""
        if not decidable:
            return "The spread is not known: a decidable margin needs a campaign with more blocks."
        noisiest = floor.dropna(subset=["sd"]).sort_values("sd", kind="stable").iloc[-1]
        sd, pilot = noisiest["sd"], max(2, int(noisiest["n_blocks"]))
        alpha = self.tests["alpha"]
        needed = power.blocks_for(self.margin, sd, alpha=alpha, pilot=pilot) if sd > 0 else 2
        needed = needed and max(needed, power.least_blocks(alpha))
        count = f"{needed:,}" if needed else "too many"
        each = " of each group" if len(decidable) + len(unknown) > 1 else ""
        parts = [f"{name}: {percent(m)}" if name else percent(m) for name, m in decidable.items()]
        text = (
            f"Decidable margins of the {self._quantity(value)} (80 % power, "
            f"{floor['n_blocks'].max()} blocks, the noisiest condition{each} that ran twice): "
            f"{', '.join(parts)}; a margin of {percent(self.margin)} takes {count} blocks"
            f"{' for these' if unknown else ''}."
        )
        if unknown:
            text += f" Not known for {', '.join(unknown)}: no condition ran twice in enough blocks."
        return text

    def _show_drift(
        self,
        trials: pd.DataFrame,
        value: str,
        within: Mapping[str, Any] | None,
        by: str | None,
        *,
        first: bool,
    ) -> None:
        """Show drift over the blocks, and inside trials where there are samples of this value."""
        sampled = self.samples is not None and value in STATISTICS
        if first:
            self.say(f"{_DRIFT} {_INSIDE}" if sampled else _DRIFT)
        drift = checks.drift(trials, value=value, condition=self.factors)
        self.drifts.append(drift.assign(of=value))
        drifting = drift[drift["drifts"]]
        drifts = "drifts" if len(drifting) == 1 else "drift"
        self.say(f"{len(drifting)} of {len(drift)} conditions {drifts} (5 %, corrected by Holm).")
        if len(drifting):
            self.show(drifting.round(4))
        names = set(self.part(self.trials, within)["trial"].astype("str")) if sampled else ()
        chosen = self.campaign.part(lambda record: record["trial"] in names)
        if any(record["n_samples"] for record in chosen.records):
            self._show_inside(chosen, by or self.factors[0])
        odd = checks.outliers(trials, value=value, condition=self.factors)
        count, of = int(odd["outlier"].sum()), int(odd[value].notna().sum())
        self.say(f"{count} of {of} values are unlike the others of their condition.")

    def _show_inside(self, campaign: dataset.Dataset, by: str) -> None:
        """Show how much the samples of a trial depend on each other, and changes inside trials."""
        read = self._read(campaign, checks.inside)
        inside = pd.DataFrame.from_records(list(read[self.value]))
        inside[by] = read[by].astype(object)
        inside["state"] = pd.Categorical(inside["state"], checks.STATES)
        worth = inside.groupby(by, observed=True)[["n", "lag1", "effective"]]
        self.show(worth.agg(["median", "min"]).round(3))
        states = inside.groupby([by, "state"], observed=False).size().unstack()
        sizes = inside.assign(size=inside["change"].abs()).groupby(by, observed=True)["size"]
        changes = sizes.agg(median_change="median", largest_change="max")
        self.show(changes.join(states).round(3))

    def _show_flags(self, by: str | None) -> None:
        """Show how many trials carry which flag, and the attempts that failed, or their number."""
        group = by or self.factors[0]
        flags = self._flagged(group).groupby(["flag", group], observed=True).size()
        self.show(
            flags.unstack(fill_value=0) if len(flags) else flags, empty="No trial carries a flag."
        )
        failed = self.attempts[self.attempts["status"] != "ok"]
        if len(failed) > _FAILED_ROWS:
            kinds = failed.assign(problems=_without_amounts(failed["problems"]))
            of = kinds.groupby([*self.factors, "problems"], observed=True)
            self.show(of.size().to_frame("failed attempts"))
        else:
            columns = ["trial", "attempt", *self.factors, "status", "problems"]
            self.show(failed[columns], empty="No attempt failed.")

    def block_plot(
        self,
        value: str | None = None,
        within: Mapping[str, Any] | None = None,
        *,
        hue: str | None = None,
        col: str | None = None,
    ) -> None:
        """Draw every trial over the blocks, odd ones ringed.

        Parameters
        ----------
        value, within
            As in `validity`.
        hue, col : str, optional
            Columns for markers and panels; the first factor, and no panels, by default.
        """
        value = value or self.summary
        trials = self.part(_positive(self.trials, value), within)
        if not trials[value].notna().any():
            self.say(f"Nothing to draw: no trial has a value of this ({self._quantity(value)}).")
            return
        checked = checks.outliers(trials, value=value, condition=self.factors)
        metric = self.metric(value)
        named = checked.assign(**{metric: checked[value]})
        options: dict[str, Any] = {"hue": hue or self.factors[0], "col": col}
        self.show(plots.block_plot(named, value=metric, flagged="outlier", **options))

    # Section: claims and conclusions

    @staticmethod
    def published(source: str) -> pd.DataFrame:
        """Return every table value of a paper; see `labkit.claims.published.published`."""
        return published(source)

    def claims(self, source: str, within: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Show a paper's claims about this study and their results; return the ledger's rows.

        Parameters
        ----------
        source : str
            Name of the paper in ``data/claims.toml``.
        within : mapping, optional
            Levels of the part of the campaign that the claims are about, if not of the page's.
        """
        own = self.campaign if within is None else _select(self._all, within)
        known = load_claims()
        others = map(dataset.load, self._beside(source, known))
        rows = ledger([own, *others], claims=known)
        rows = rows[(rows["source"] == source) & (rows["study"] == str(self.plan["study"]))]
        first = self.entries is None
        self.entries = rows if first else pd.concat([self.entries, rows])
        if len(rows):
            decided = rows["result"].isin(["replicated", "contradicted"])
            settings = rows["setting"][decided].unique()
            alike = f" Setting of those decided: {settings[0]}." if len(settings) == 1 else ""
            self.say(f"{plural(len(rows), 'claim')} of {source}: {counts_text(rows)}.{alike}")
            # The table of decided claims does not repeat what the sentence says.
            columns = [name for name in _CLAIM_COLUMNS if name != "setting" or not alike]
            shown = {"text/html": self._claims_html(rows, decided, columns, first)}
            _notebook.display(shown | {"text/plain": counts_text(rows)}, raw=True)
        else:
            self.say(f"No claim of {source}.")
        return rows

    def _beside(self, source: str, known: Claims) -> list[Path]:
        """Return the paper's other studies in the folder of this one: their claims share its error.

        Of each the newest campaign counts.
        """
        others = {claim.study for claim in known if claim.source == source}
        others.discard(str(self.plan["study"]))
        roots = self._all.path.resolve().parents[:2]
        return [
            root / study
            for root in roots
            for study in sorted(others)
            if any((root / study).rglob("plan.json"))
        ]

    @staticmethod
    def _claims_html(
        rows: pd.DataFrame, decided: pd.Series[bool], columns: list[str], first: bool
    ) -> str:
        """Return the claims, decided ones first and the others folded, as HTML."""

        def table(part: pd.DataFrame, named: list[str]) -> str:
            if part.empty:
                return ""
            part = part.sort_values("result", key=lambda one: one.map(RESULTS.index), kind="stable")
            shown = format_claims(part)
            unsupported = shown["own arithmetic"] == "does not follow"
            shown.loc[unsupported, "published"] = [
                join_notes(text, "not all that its text says of this follows from its tables")
                for text in shown.loc[unsupported, "published"]
            ]
            return shown.to_html(index=False, border=0, columns=named, classes="against")

        from nbconvert.filters.markdown import markdown2html  # slow to import

        return render_part(
            "claims.html.j2",
            decided=table(rows[decided], columns),
            others=table(rows[~decided], _CLAIM_COLUMNS),
            open=int((~decided).sum()),
            how=markdown2html(_CLAIMS) if first else "",
        )

    def conclusions(self, lines: Sequence[Mapping[str, Any]], *, title: str) -> None:
        """List headlines, results of claims and provenance, and pass them to the report's index.

        Parameters
        ----------
        lines : sequence of mapping
            Headlines (`headlines`) in the order of the questions.
        title : str
            The study, as the index names it.
        """
        counts = self._counts(lines)
        lines = [self._marked(line) for line in [*lines, *self._claim_headlines()]]
        text = "\n".join(map(self.headline_text, lines))
        self.say(text or "Nothing was measured, so there are no conclusions.")
        if questions := self._questions():
            self.say(
                f"This campaign was planned for {plural(len(questions), 'question')}; its last "
                f"look decided {counts['decided']} of them."
            )
        source = provenance(self._all)
        summary = tables.json_value(
            {
                "study": self.plan["study"],
                "title": title,
                "answer": self._answer_record(),
                "headlines": lines,
                **counts,
                "noise_floor": self._noise_lines(),
                "decidable_margin": max(
                    self.margins.values(), default="unknown (pilot)" if self.pilot else "unknown"
                ),
                "infeasible": self._infeasible().to_dict("records"),
                "rig": self.rig,
                **self._about(),
                "provenance": source,
            }
        )
        shown = {
            SUMMARY_MIME: summary,
            "text/html": str(provenance_html(source, anchor="provenance")),
            "text/plain": f"summary of {summary['study']}",
        }
        _notebook.display(shown, raw=True)

    def _questions(self) -> list[Mapping[str, Any]]:
        """Return the questions of the last planned look, each with its state."""
        return list(self._all.looks[-1].get("questions", [])) if self._all.looks else []

    def _counts(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return how much is decided, as the index counts it.

        Where the campaign took looks, their questions count, which the command line told too; else
        the comparisons that the page concludes from.
        """
        verdicts = [str(line["verdict"]).removesuffix(" (pilot)") for line in lines]
        decided = sum(verdict in _DECIDED for verdict in verdicts)
        opened = verdicts.count("undecided")
        if questions := self._questions():
            decided = sum(one["state"] == "decided" for one in questions)
            opened = len(questions) - decided
        return {"decided": decided, "open": opened}

    def _marked(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a headline, with "(pilot)" after its verdict where this is a pilot."""
        verdict = str(line["verdict"])
        if not self.pilot or verdict.endswith("(pilot)") or verdict in _UNMEASURED:
            return line
        return {**line, "verdict": f"{verdict} (pilot)"}

    def _claim_headlines(self) -> list[dict[str, Any]]:
        """Return a headline for each decided claim, and for each paper one with all counts."""
        if self.entries is None:
            return []
        lines: list[dict[str, Any]] = []
        papers = list(dict.fromkeys(self.entries["source"]))
        for paper in papers:
            rows = self.entries[self.entries["source"] == paper]
            name = "the paper" if len(papers) == 1 else paper
            lines += [
                {
                    "text": f"{name}: {claim['statement'].rstrip('.')}",
                    "verdict": f"{claim['result']} ({claim['setting']} setting)",
                    **{end: tables.json_value(claim[end]) for end in ("estimate", "low", "high")},
                    "unit": claim["unit"],
                }
                for claim in rows.to_dict("records")
                if claim["result"] in ("replicated", "contradicted")
            ]
            lines.append(
                {
                    "text": f"{name}, {plural(len(rows), 'claim')}: {counts_text(rows)}",
                    "verdict": "as counted",
                    "estimate": None,
                }
            )
        return lines

    def _noise_lines(self) -> list[dict[str, Any]]:
        """Return the noise floors; with several values, each line names its value."""
        several = len({str(name) for floor in self.floors for name in floor["of"]}) > 1
        return [
            {"condition": condition}
            | {name: tables.json_value(row[name]) for name in ("sd", "low", "high")}
            for floor in self.floors
            for condition, row in zip(
                self._conditions(floor, several=several), floor.to_dict("records"), strict=True
            )
        ]

    def _about(self) -> dict[str, Any]:
        """Return what was measured, when, and where its data are."""
        parts, started = Path(self.data).parts, ""
        local = parts[:2] == ("data", "local") and len(parts) > 3
        if len(self.attempts):
            first = int(self.attempts["started_ns"].min()) // 10**9
            started = datetime.fromtimestamp(first, UTC).date().isoformat()
        return {
            "blocks": self.n_blocks,
            "trials": self._ok,
            "failed": self.failed,
            "dataset": Path(self.data).name if Path(self.data).is_absolute() else self.data,
            "measured": started,
            "profile": parts[2] if local and parts[2] != self.plan["study"] else "",
            "reference": parts[:2] == ("data", "reference"),
            **({"unmeasured": why} if (why := self._all.unmeasured) else {}),
        }


def _mark(name: str, good: bool, text: str, table: pd.DataFrame | None = None) -> dict[str, Any]:
    """Return one mark of whether the page can be trusted, with its table as HTML."""
    shown = "" if table is None or table.empty else table.to_html(index=False, border=0)
    return {"name": name, "good": good, "text": text, "table": shown}


def _share_text(share: float) -> str:
    return percent(share) if math.isfinite(share) else "unknown"


def _without_amounts(texts: pd.Series[Any]) -> pd.Series[Any]:
    """Return flags or problems without their numbers, so that those of one kind are equal."""
    return texts.astype("object").str.replace(_AMOUNTS, "…", regex=True)


def _setting_text(value: Any) -> str:
    """Return the value of a setting in words."""
    if isinstance(value, Mapping):
        # Keys of a setting are arguments of a tool, which may have the name of a column.
        entries = ((str(name).replace("_", " "), one) for name, one in value.items())
        return "; ".join(f"{name}: {_setting_text(one)}" for name, one in entries)
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting_text, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _levels(level: Any) -> set[str]:
    return set(map(str, level)) if isinstance(level, list | tuple | set) else {str(level)}


def _select(campaign: dataset.Dataset, within: Mapping[str, Any]) -> dataset.Dataset:
    """Return the part of a campaign whose conditions have some levels."""
    levels = {n: _levels(level) for n, level in within.items() if n in campaign.plan["factors"]}
    if not levels:
        return campaign

    def selected(entry: Mapping[str, Any]) -> bool:
        return all(str(entry["levels"][name]) in chosen for name, chosen in levels.items())

    part = campaign.part(selected)
    kept = [n for n, entry in enumerate(campaign.plan["conditions"]) if selected(entry)]
    conditions = [campaign.plan["conditions"][n] for n in kept]
    place = {old: new for new, old in enumerate(kept)}
    order = [[place[n] for n in block if n in place] for block in campaign.plan.get("order", [])]
    part.__dict__["plan"] = campaign.plan | {"conditions": conditions, "order": order}
    return part


def _positive(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return a table in which a value that is not a positive number is NaN: it has no ratio."""
    if value not in table:
        return table.assign(**{value: math.nan})
    numbers = pd.to_numeric(table[value], errors="coerce").astype(float)
    return table.assign(**{value: numbers.where((numbers > 0) & np.isfinite(numbers))})
