"""Results of a campaign: comparisons, their reasons and figures, which display themselves.

Values are immutable, so that running a cell twice shows the same. A comparison owns its metric,
margin and family, and has one difference and one interval a row; what was not measured shows its
reason.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display
from scipy import stats as scipy_stats

from labkit.analysis import plots, stats, words
from labkit.analysis.claims import current, ledger
from labkit.analysis.html import html_table
from labkit.analysis.papers import side_by_side
from labkit.analysis.stats import BlockTable, Mean, NotMeasured, holm
from labkit.data import Campaign, load, select
from labkit.errors import UsageError, suggestion
from labkit.paths import project, relative
from labkit.units import column as about

#: MIME type of an answer, by which the index collects those of all pages.
ANSWER = "application/vnd.labkit.answer+json"
#: Share of a condition's trials that a saturated load generator may have limited.
_SATURATED = 0.1


@dataclass(frozen=True, repr=False)
class Table:
    """A table in words, which displays itself."""

    frame: pd.DataFrame
    caption: str

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}"

    def _repr_html_(self) -> str:
        return html_table(self.frame, self.caption).text


@dataclass(frozen=True, repr=False)
class Answers:
    """Sentences on some rows of a comparison, which display themselves."""

    rows: tuple[Mapping[str, Any], ...]
    factor: str | Sequence[str]
    by: Sequence[str]

    @property
    def sentences(self) -> list[str]:
        """A sentence a row."""
        return [words.sentence(row, self.factor, self.by) for row in self.rows]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(f"**{sentence}**" for sentence in self.sentences)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Conditions against a baseline, inside blocks; one family.

    Parameters
    ----------
    table : DataFrame
        A row a condition, as `labkit.compare` returns it, after the columns of `by`; with ``to``,
        ``metric``, ``margin`` and ``reason``, why a row was not measured.
    results : Results
        Where it comes from.
    factor : str or list of str
        What is compared.
    by : list of str
        Columns at each combination of which it is compared.
    metric : str
        Column that is compared.
    """

    table: pd.DataFrame
    results: Results
    factor: str | list[str]
    by: list[str]
    metric: str

    def __repr__(self) -> str:
        return "\n".join(Answers(self._rows(), self.factor, self.by).sentences)

    def _rows(self) -> tuple[Mapping[str, Any], ...]:
        return _records(self.table)

    def _repr_html_(self) -> str:
        rows = []
        for row in self._rows():
            texts = words.row(row)
            rows.append(
                {
                    **{words.heading(name): words.level(name, row[name]) for name in self.by},
                    "condition": words.level(self.factor, row["condition"]),
                    "against": words.level(self.factor, row["to"]),
                    "value": texts.get("value", ""),
                    "difference": texts.get("difference", ""),
                    "ratio [95 % interval]": texts.get("ratio", ""),
                    "verdict": texts["verdict"],
                    "blocks": texts.get("blocks", ""),
                }
            )
        frame = pd.DataFrame(rows)
        if frame["against"].nunique() == 1:
            frame = frame.drop(columns="against")
        return html_table(frame, self._caption()).text

    def _caption(self) -> str:
        baselines = self.table["to"].map(lambda level: words.level(self.factor, level)).unique()
        against = f" against {baselines[0]}" if len(baselines) == 1 else ""
        margin = words.percent(float(self.table["margin"].iloc[0]))
        text = about(self.metric).text
        return f"{text[:1].upper()}{text[1:]}{against}; margin {margin}"

    def _select(self, levels: Sequence[Any], by: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of some levels, in their order."""
        table = select(self.table, by)
        known = list(table["condition"])
        for level in levels:
            if level not in known:
                raise UsageError(f"no condition {level!r}", remedy=suggestion(level, known))
        parts = [table[[one == level for one in known]] for level in levels]
        return pd.concat(parts) if parts else table

    def answer(self, *levels: Any, **by: Any) -> Answers:
        """Return a sentence for each of some levels, or for all."""
        return Answers(_records(self._select(levels, by)), self.factor, self.by)

    def why(self, level: Any, *counters: str, **by: Any) -> Table:
        """Return counters of a level and of its baseline: where they differ may be the reason.

        Parameters
        ----------
        level : hashable
            A level that was compared.
        *counters : str
            Columns of `Results.trials`.
        **by
            Levels of the columns of `by`.
        """
        row = self._select([level], by).iloc[0]
        at = {name: row[name] for name in self.by}
        cells = [{**at, **_cell(self.factor, one)} for one in (row["condition"], row["to"])]
        rows = []
        for counter in counters:
            here, there = (
                select(self.results.ok, cell).groupby("block")[counter].mean().median()
                if counter in self.results.ok
                else math.nan
                for cell in cells
            )
            rows.append(
                {
                    "counter": about(counter).text,
                    words.level(self.factor, row["condition"]): words.amount(here, counter),
                    words.level(self.factor, row["to"]): words.amount(there, counter),
                    "ratio": words.ratio(here / there) if there else "",
                }
            )
        return Table(pd.DataFrame(rows), "Counters of the same trials, medians over blocks")

    def plot(self, *levels: Any, **by: Any) -> plots.Figure:
        """Return the ratios of some levels, or of all, with their intervals as a figure."""
        return plots.forest(self._select(levels, by), self.factor, self.by)

    def grid(self, rows: str, cols: str) -> plots.Figure:
        """Return the ratios as a heat map."""
        return plots.grid(self.table, rows, cols, self.factor)


def _cell(factor: str | Sequence[str], level: Any) -> dict[str, Any]:
    """Return the levels of a condition, of one factor or several."""
    if isinstance(factor, str):
        return {factor: level}
    return dict(zip(factor, level, strict=True))


@dataclass(frozen=True, repr=False)
class Results:
    """Trials of a campaign, or of those that have some levels.

    Parameters
    ----------
    campaign : Campaign
        Where they come from.
    levels : mapping
        Levels that all of them have.
    rows : str
        A ledger that was computed before, as CSV; "" to compute it.
    """

    campaign: Campaign
    levels: Mapping[str, Any] = field(default_factory=dict)
    rows: str = ""

    def where(self, **levels: Any) -> Results:
        """Return the results at some levels; a list has several of a factor, in their order."""
        return Results(self.campaign, {**self.levels, **levels}, self.rows)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Attempts, failed ones included: a row each."""
        return select(self.campaign.trials, self.levels)

    @property
    def ok(self) -> pd.DataFrame:
        """Successful trials."""
        return self.trials[self.trials["status"] == "ok"]

    @cached_property
    def factors(self) -> dict[str, list[Any]]:
        """Measured levels of each factor, in the order of `where`, or of the plan, then others."""
        found = {}
        for name, planned in self.campaign.factors.items():
            asked = self.levels.get(name)
            planned = asked if isinstance(asked, list) else planned
            measured = list(self.trials[name].unique())
            infeasible = [one[name] for one, _ in self._infeasible]
            known = [level for level in planned if level in measured or level in infeasible]
            found[name] = known + [level for level in measured if level not in known]
        return found

    @cached_property
    def _infeasible(self) -> list[tuple[dict[str, Any], str]]:
        """Conditions that the rig could not run, with the reason."""
        factors = self.campaign.factors
        found = []
        for entry in self.campaign.plan["infeasible"]:
            texts = entry["condition"].split(" | ")
            cell = {
                name: next((level for level in levels if str(level) == text), text)
                for (name, levels), text in zip(factors.items(), texts, strict=True)
            }
            wanted = (np.atleast_1d(np.array(self.levels.get(n, v))) for n, v in cell.items())
            if all(v in list(w) for v, w in zip(cell.values(), wanted, strict=True)):
                found.append((cell, str(entry["reason"])))
        return found

    def _table(self, column: str) -> BlockTable:
        return BlockTable(self.trials, column, list(self.campaign.factors))

    def _column(self, of: str | None) -> str:
        """Return a column, by default the plan's first outcome; ``rtt_ns.p99`` names one too."""
        outcomes = self.campaign.plan.get("outcomes") or [""]
        column = (of or outcomes[0]).replace(".", "_")
        if column not in self.trials:
            raise UsageError(
                f"no trial has {column!r}", remedy=suggestion(column, list(self.trials))
            )
        return column

    def _groups(self, by: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield each measured combination of levels of some factors, in the order of the plan."""
        for name in by:
            if name not in self.factors:
                raise UsageError(
                    f"no factor called {name!r}", remedy=suggestion(name, self.factors)
                )
        measured = set(map(tuple, self.trials[[*by]].astype(object).to_numpy())) if by else {()}
        for levels in itertools.product(*(self.factors[name] for name in by)):
            if levels in measured:
                yield dict(zip(by, levels, strict=True))

    def compare(
        self,
        factor: str | Sequence[str],
        to: Any,
        *,
        by: str | Sequence[str] = (),
        of: str | None = None,
        margin: float | None = None,
    ) -> Comparison:
        """Compare the levels of a factor with one of them, inside blocks.

        Parameters
        ----------
        factor : str or list of str
            What differs between conditions; of several factors a level is a tuple.
        to : hashable
            The level to compare with.
        by : str or list of str
            Factors at each combination of whose levels it is compared; the rows are one family.
        of : str
            Column of `trials`, such as ``rtt_ns_p99``; the plan's first outcome by default.
        margin : float
            Relative difference up to which two conditions count as equal; the plan's by default.

        Raises
        ------
        UsageError
            A name or the baseline is unknown, or a factor is left open: conditions that differ in
            more than one respect are never pooled.
        """
        names, groups = _names(factor), _names(by)
        levels = [tuple(one.values()) for one in self._groups(names)]
        infeasible = [tuple(cell[name] for name in names) for cell, _ in self._infeasible]
        levels += [one for one in dict.fromkeys(infeasible) if one not in levels]
        baseline = (to,) if isinstance(factor, str) else tuple(to)
        if baseline not in levels:
            known = [one[0] if isinstance(factor, str) else one for one in levels]
            raise UsageError(f"unknown baseline: {to!r}", remedy=suggestion(to, known))
        pairs = [(one, baseline) for one in levels if one != baseline]
        return self._compared(factor, pairs, groups, self._column(of), margin)

    def ladder(
        self, factor: str, *, by: str | Sequence[str] = (), of: str | None = None
    ) -> Comparison:
        """Compare each level of a factor with the one before it, in the order of the plan."""
        levels = [(one,) for one in self.factors[factor]]
        pairs = [(after, before) for before, after in itertools.pairwise(levels)]
        return self._compared(factor, pairs, _names(by), self._column(of), None)

    def _compared(
        self,
        factor: str | Sequence[str],
        pairs: Sequence[tuple[tuple[Any, ...], tuple[Any, ...]]],
        by: list[str],
        column: str,
        margin: float | None,
    ) -> Comparison:
        names = _names(factor)
        self._refuse_open([*names, *by])
        margin = self.campaign.margin if margin is None else margin
        table, rows = self._table(column), []
        for group in self._groups(by):
            for level, baseline in pairs:
                cells = [
                    {**group, **dict(zip(names, one, strict=True))} for one in (level, baseline)
                ]
                row = self._row(table, cells, margin)
                shown = [one[0] if isinstance(factor, str) else one for one in (level, baseline)]
                if row:
                    rows.append({**cells[0], "condition": shown[0], "to": shown[1], **row})
        if not rows:
            why = f"no two levels of {', '.join(names)} were planned under the same conditions"
            raise UsageError("there is nothing to compare", where=self.title, why=why)
        frame = pd.DataFrame(rows).assign(metric=column, margin=margin)
        frame["p_adjusted"] = holm(frame["p_value"])
        key = factor if isinstance(factor, str) else names
        return Comparison(frame, self, key, by, column)

    def _row(
        self, table: BlockTable, cells: Sequence[Mapping[str, Any]], margin: float
    ) -> dict[str, Any]:
        """Return the comparison of two cells, or why there is none; {} if none was planned."""
        try:
            row = stats.row(table.cells(*cells), margin, 0.05)
        except NotMeasured as error:
            reason = self._reason(cells, str(error))
            return stats.unmeasured(reason) if reason else {}
        limited = [select(self.ok, cell)["saturated"].mean() for cell in cells]
        if max(limited) > _SATURATED:
            row |= {"differs": False, "equivalent": False, "verdict": "cannot tell"}
            row["p_value"] = math.nan
            row["reason"] = "the load generator was the limit"
        return row

    def _reason(self, cells: Sequence[Mapping[str, Any]], error: str) -> str:
        """Return why cells have no number; "" where one was never planned."""
        reasons = []
        for cell in cells:
            infeasible = [why for one, why in self._infeasible if cell.items() <= one.items()]
            attempts = select(self.trials, cell)
            if not len(attempts):
                reasons.append(infeasible[0] if infeasible else "")
            elif not (attempts["status"] == "ok").any():
                reasons.append(f"{len(attempts)} attempts failed: {attempts['problem'].iloc[0]}")
        return error if not reasons else "; ".join(reasons) if all(reasons) else ""

    def _refuse_open(self, named: Sequence[str]) -> None:
        """Raise `UsageError` where conditions differ in a factor that is not named."""
        for name, levels in self.factors.items():
            measured = [level for level in levels if (self.trials[name] == level).any()]
            if name not in named and len(measured) > 1:
                raise UsageError(
                    f"the factor {name!r} is left open",
                    why=f"it has the levels {', '.join(map(str, measured))}",
                    remedy=f"choose one: .where({name}={measured[0]!r}), or name it in by",
                )

    def _repr_html_(self) -> str:
        frame = pd.DataFrame(self._about(), columns=["", "of this campaign"])
        return html_table(frame, self.title).text

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"{name}: {text}" for name, text in self._about())])

    @property
    def title(self) -> str:
        """Study and folder."""
        return f"{self.campaign.study} ({relative(self.campaign.path, project())})"

    def _about(self) -> list[tuple[str, str]]:
        """Return size, rig, engine, dates and limits of the campaign."""
        campaign, days = self.campaign, pd.to_datetime(self.trials["started_ns"]).dt.date
        stable = campaign.facts.get("sut", {}).get("stable", {})
        processor, engine = stable.get("cpu", {}), stable.get("engine") or {}
        groups = stable.get("cgroup", {}).get("version")
        plain = [f"{k} {v}" for k, v in campaign.settings.items() if not isinstance(v, dict | list)]
        infeasible: dict[str, list[str]] = {}
        for cell, reason in self._infeasible:
            infeasible.setdefault(reason, []).append(" ".join(map(str, cell.values())))
        return [
            ("trials", f"{len(self.ok)} in {self.trials['block'].nunique()} blocks"),
            ("failed attempts", f"{len(self.trials) - len(self.ok)}, kept as rows"),
            ("flagged trials", f"{int((self.ok['flags'] != '').sum())}"),
            ("measured", " to ".join(map(str, sorted({days.min(), days.max()})))),
            ("rig", f"{campaign.rig['name']}: {'; '.join(campaign.rig['caveats'])}"),
            ("processors", f"{processor.get('count')} x {processor.get('model')}"),
            ("kernel", f"Linux {stable.get('kernel', {}).get('release')}, control groups {groups}"),
            ("engine", f"Docker {engine.get('version')}" if engine else "none"),
            ("margin", words.percent(campaign.margin)),
            ("settings", ", ".join(plain)),
            *(("infeasible", f"{', '.join(those)}: {why}") for why, those in infeasible.items()),
        ]

    def validity(self, by: str | Sequence[str] = (), *, of: str | None = None) -> Table:
        """Return noise, drift, failures and flags, as one table.

        Repeats are conditions that run twice in each block (A/A): their ratio should be 1, and its
        interval gives the smallest margin that these blocks decide (80 % power). Drift is the trend
        of a condition's logarithm over the blocks.
        """
        column, groups = self._column(of), _names(by)
        rows = []
        for group in self._groups(groups):
            part = Results(self.campaign, {**self.levels, **group})
            rows.append(
                {
                    **{words.heading(name): words.level(name, one) for name, one in group.items()},
                    **part._noise(column),
                    "drift": part._drift(column),
                    "failed attempts": f"{int((part.trials['status'] != 'ok').sum())}",
                    "lost trials": f"{part._lost()}",
                    "flagged": words.percent(float((part.ok["flags"] != "").mean())),
                    "generator at its limit": words.percent(float(part.ok["saturated"].mean())),
                }
            )
        return Table(pd.DataFrame(rows), f"Validity of the {about(column).text}")

    def _noise(self, column: str) -> dict[str, str]:
        """Return the ratio of repeats and the margin that it decides, of the noisiest condition."""
        factors = list(self.campaign.factors)
        table = BlockTable(self.trials, column, [*factors, "repeat"])
        twice = self.trials.loc[self.trials["repeat"] == 2, factors].drop_duplicates()
        found = []
        for cell in _records(twice):
            try:
                found.append(stats.ratio(table.cells({**cell, "repeat": 2}, {**cell, "repeat": 1})))
            except NotMeasured:
                continue
        if not found:
            return {"ratio of repeats": "nothing ran twice", "decidable margin": ""}
        noisiest = max(found, key=Mean.decidable_margin)
        low, high = noisiest.interval()
        return {
            "ratio of repeats": words.ratio(noisiest.value, low, high),
            "decidable margin": words.percent(noisiest.decidable_margin()),
        }

    def _drift(self, column: str) -> str:
        """Return how many conditions drift (5 %, Holm), and the largest trend."""
        factors = list(self.campaign.factors)
        trends, p_values = [], []
        for _, part in self.ok.dropna(subset=[column]).groupby(factors):
            positive = part[part[column] > 0]
            if positive["block"].nunique() >= stats.LEAST_BLOCKS:
                fit = scipy_stats.linregress(positive["block"], np.log(positive[column]))
                trends.append(math.expm1(fit.slope * np.ptp(positive["block"])))
                p_values.append(fit.pvalue)
        drifting = [one for one, p in zip(trends, holm(p_values), strict=True) if p < 0.05]
        largest = f", up to {max(drifting, key=abs):+.0%}" if drifting else ""
        return f"{len(drifting)} of {len(trends)} conditions{largest}"

    def _lost(self) -> int:
        """Return how many planned trials never succeeded."""
        planned = self.trials[["block", "position"]].drop_duplicates()
        return len(planned) - len(self.ok[["block", "position"]].drop_duplicates())

    def counters(self, *names: str, by: str | Sequence[str]) -> Table:
        """Return columns of the trials as medians, a row a combination of levels."""
        groups = _names(by)
        rows = []
        for group in self._groups(groups):
            part = select(self.ok, group)
            shown = {words.heading(name): words.level(name, one) for name, one in group.items()}
            for name in names:
                value = part[name].median() if name in part else math.nan
                shown[about(name).text] = words.amount(value, name)
            rows.append(shown)
        return Table(pd.DataFrame(rows), "Medians of trials")

    def line(
        self,
        over: str,
        factor: str,
        to: Any,
        *,
        by: str | Sequence[str] = (),
        of: str | None = None,
    ) -> Table:
        """Return what a level adds to the baseline, as an offset and a slope over a factor.

        A line is fitted to the differences inside each block, weighted by the inverse square of the
        baseline; both ends have the 95 % interval of their mean over blocks.
        """
        column, groups = self._column(of), _names(by)
        self._refuse_open([over, factor, *groups])
        table, rows = self._table(column), []
        others = [level for level in self.factors[factor] if level != to]
        for group, level in itertools.product(self._groups(groups), others):
            sizes = [
                set(select(self.ok, {**group, factor: one})[over].unique()) for one in (level, to)
            ]
            at = sorted(sizes[0] & sizes[1])
            if len(at) < 3:
                continue
            shown = {words.heading(name): words.level(name, one) for name, one in group.items()}
            shown["condition"] = words.level(factor, level)
            cells = [{**group, factor: one, over: size} for one in (level, to) for size in at]
            offset, growth = stats.added_cost(table.cells(*cells), at)
            shown["added at 0"] = words.amount(offset.value, column, *offset.interval())
            low, high = (words.percent(one) for one in growth.interval())
            shown["growth, of the baseline"] = f"{words.percent(growth.value)} [{low}, {high}]"
            rows.append(shown)
        caption = f"Added {about(column).text} over {about(over).text}, against {to}"
        return Table(pd.DataFrame(rows), caption)

    def published(self, paper: str, *tables: str) -> Table:
        """Return tables of a paper next to the same quantities here."""
        rows = []
        for row in _records(side_by_side(self.campaign, paper, tables)):
            unit, here, ratios = row["column"], "", ["", ""]
            if row["n_blocks"] > 0:
                here = words.amount(row["here"], unit, row["low"], row["high"])
            for place, name in enumerate(("paper_ratio", "ratio")):
                if not math.isnan(row[name]):
                    ratios[place] = words.ratio(row[name], row[f"{name}_low"], row[f"{name}_high"])
                elif not math.isnan(row[f"{name}_low"]):
                    ends = (words.ratio(row[f"{name}_{end}"]) for end in ("low", "high"))
                    ratios[place] = " to ".join(ends)
            rows.append(
                {
                    "table": row["table"],
                    "quantity": row["quantity"],
                    "condition": row["condition"],
                    "paper": _printed(row),
                    "here [95 % interval]": here or f"not measured: {row['reason']}",
                    "ratio, paper": ratios[0],
                    "ratio, here": ratios[1],
                }
            )
        return Table(pd.DataFrame(rows), f"{paper} and here: {', '.join(tables)}")

    def claims(self, paper: str) -> Table:
        """Return the verdicts on the claims of a paper about this study."""
        rows = current(
            pd.read_csv(self.rows, keep_default_na=False, dtype={"place": str})
            if self.rows
            else self._ledger
        )
        return claims_table(
            rows[(rows["source"] == paper) & (rows["study"] == self.campaign.study)]
        )

    @cached_property
    def _ledger(self) -> pd.DataFrame:
        return ledger(self.campaign.path.parent)

    def tail(self, hue: str, col: str | None = None, *, of: str = "rtt_ns") -> plots.Figure:
        """Return the distribution of samples up to its tail, as a figure."""
        samples = self.campaign.samples(of, **self.levels)
        return plots.tail(self._ordered(samples), of, hue, col)

    def over_blocks(
        self, hue: str, col: str | None = None, *, of: str | None = None
    ) -> plots.Figure:
        """Return the value of every block, as a figure."""
        return plots.over_blocks(self._ordered(self.ok), self._column(of), hue, col)

    def curve(
        self, over: str, hue: str, col: str | None = None, *, of: str | None = None
    ) -> plots.Figure:
        """Return means over blocks along a factor, as a figure."""
        return plots.curve(self._ordered(self.ok), self._column(of), over, hue, col)

    def _ordered(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return a frame whose factors of text are in the order of the plan."""
        return frame.assign(
            **{
                name: pd.Categorical(frame[name], levels)
                for name, levels in self.factors.items()
                if not pd.api.types.is_numeric_dtype(frame[name])
            }
        )

    def summary(self, *answers: Answers) -> None:
        """Display the answers of a page for the index, which collects them."""
        rows = [
            {name: None if value != value else value for name, value in row.items()}
            | {name: words.level(one.factor, row[name]) for name in ("condition", "to")}
            for one in answers
            for row in one.rows
        ]
        sentences = [sentence for one in answers for sentence in one.sentences]
        bundle = {
            "study": self.campaign.study,
            "sentences": sentences,
            "rows": json.loads(pd.DataFrame(rows).to_json(orient="records")),
        }
        display({ANSWER: bundle, "text/plain": "\n".join(sentences)}, raw=True)  # type: ignore[no-untyped-call]


def _printed(row: Mapping[str, Any]) -> str:
    """Return a printed number with its unit and standard deviation, or a printed range."""
    unit = row["paper_unit"].removeprefix("1")
    if math.isnan(row["paper"]):
        return f"{row['paper_low']:g} to {row['paper_high']:g} {unit}".strip()
    spread = "" if math.isnan(row["paper_sd"]) else f" \N{PLUS-MINUS SIGN} {row['paper_sd']:g}"
    return f"{row['paper']:g}{spread} {unit}".strip()


def _records(frame: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Return the rows of a frame."""
    return tuple(
        {str(name): value for name, value in row.items()} for row in frame.to_dict("records")
    )


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def claims_table(rows: pd.DataFrame) -> Table:
    """Return rows of the ledger in words."""
    shown = pd.DataFrame(
        {
            "claim": rows["says"] + " (" + rows["place"] + ")",
            "verdict": rows["verdict"] + " " + rows["marks"],
            "here [95 % interval]": rows["parts"],
            "why": rows["needs"].where(rows["needs"] != "", rows["why"]),
            "blocks": rows["n_blocks"],
        }
    )
    return Table(shown, "Claims of the paper")


def results(path: Path | str, *, ledger: str = "") -> Results:
    """Return the results of a campaign.

    Parameters
    ----------
    path : Path or str
        The folder of a campaign, or of a study's campaigns: then its newest one. A relative path
        starts at the project's folder, as JupyterLab starts in the notebook's.
    ledger : str
        The CSV of a ledger that was computed before; "" to compute it where claims are shown.

    Raises
    ------
    DatasetError
        There is no campaign.

    Examples
    --------
    >>> from labkit import results
    >>> r = results("data/reference/affinity-spinning")
    >>> tuned = r.where(capture="off", affinity="split", wait="spin")
    >>> tuned.compare("placement", to="bare cgroup", of="rtt_ns_p99").answer("docker host")
    ... # doctest: +ELLIPSIS
    cannot tell whether docker host differs from bare cgroup: ...
    """
    return Results(load(project(path)), {}, ledger)
