"""Results of a campaign, which display themselves: comparisons, their reasons and figures."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display
from scipy.stats import linregress

from labkit.analysis import package, plots, stats, words
from labkit.analysis.claims import COLUMNS, SATURATED_SHARE, Evidence, evaluate, load_claims
from labkit.analysis.papers import side_by_side
from labkit.analysis.publish import ANSWER
from labkit.analysis.stats import BlockTable, Mean, NotMeasured, holm
from labkit.analysis.tables import Html, Table
from labkit.data import CPU_SLOW, CPUS_APART, Campaign, expand, load, refuse_unknown, select
from labkit.errors import UsageError
from labkit.paths import project, relative
from labkit.units import column as described

Names = str | Sequence[str]
Shown = plots.Figure | Html


@dataclass(frozen=True, repr=False)
class Answers:
    """Some rows of a comparison, each with its sentence, which display themselves."""

    rows: list[dict[Any, Any]]

    def __repr__(self) -> str:
        return "\n".join(row["sentence"] for row in self.rows)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(f"**{row['sentence']}**" for row in self.rows)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Conditions against a baseline, inside blocks; one family, which `Results.compare` makes.

    `table` has a row a condition, as `labkit.compare` returns it, after the columns of its levels.
    """

    table: pd.DataFrame
    results: Results
    factor: str | list[str]
    by: list[str]
    #: ``to``, ``metric`` and ``margin`` of all rows.
    shared: Mapping[str, Any]

    def __repr__(self) -> str:
        return repr(self.answer())

    def _repr_html_(self) -> str:
        rows = []
        for row in self.answer().rows:
            shown = {"condition": row["condition"], "against": row["to"]}
            rows.append(_shown({name: row[name] for name in self.by}) | shown | words.row(row))
        names = {"ratio": "ratio [95 % interval]"}
        frame = pd.DataFrame(rows).rename(columns=names).drop(columns="baseline", errors="ignore")
        text = described(self.shared["metric"]).text
        caption = f"{text[:1].upper()}{text[1:]}"
        if len({row["against"] for row in rows}) == 1:
            caption += f" against {frame.pop('against').iloc[0]}"
        caption += f"; margin {words.percent(self.shared['margin'])}"
        caption += "; •: after Holm's correction too" * any("•" in row["verdict"] for row in rows)
        return Table(frame, caption if rows else f"{caption}: not measured")._repr_html_()

    def _rows(self, levels: Sequence[Any], by: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of some levels, in their order; those not measured say so."""
        table = select(self.table, by)
        known, parts = list(table["condition"]), []
        for level in levels:
            found = table[[one == level for one in known]]
            if not len(found):
                at = {name: " and ".join(map(str, np.atleast_1d(one))) for name, one in by.items()}
                row = {**dict.fromkeys(self.by, ""), **at, "condition": level, **self.shared}
                reason = f"not in this campaign, which has {', '.join(map(str, known)) or 'none'}"
                found = pd.DataFrame([row | stats.unmeasured(reason)])
            parts.append(found)
        return pd.concat(parts, ignore_index=True) if levels else table

    def answer(self, *levels: Any, **by: Any) -> Answers:
        """Return a sentence for each of some levels, or for all."""
        rows: Any = self._rows(levels, by).to_dict("records")
        for row in rows:
            row["sentence"] = words.sentence(row, self.factor, self.by)
            row |= {name: words.level(self.factor, row[name]) for name in ("condition", "to")}
        return Answers(rows)

    def why(self, level: Any, *counters: str, **by: Any) -> Table:
        """Return counters of a level and of its baseline: where they differ may be the reason."""
        row, names = self._rows([level], by).iloc[0], _names(self.factor)
        pair = [row["condition"], row["to"]]
        levels = [pair] if isinstance(self.factor, str) else map(list, zip(*pair, strict=True))
        at = {name: row[name] for name in self.by} | dict(zip(names, levels, strict=True))
        return self.results.where(**at).counters(*counters, by=names)

    def plot(self, *levels: Any, **by: Any) -> Shown:
        """Return the ratios of some levels, or of all, with their intervals as a figure."""
        return plots.forest(self._rows(levels, by), self.factor, self.by)

    def grid(self, rows: str, cols: str) -> Shown:
        """Return the ratios as a heat map."""
        return plots.grid(self.table, rows, cols, self.factor)


@dataclass(frozen=True, repr=False)
class Results:
    """Trials of a campaign that have some levels; `results` reads them."""

    campaign: Campaign
    levels: Mapping[str, Any]

    def where(self, **levels: Any) -> Results:
        """Return the results at some levels; a list has several of a factor, in their order."""
        return replace(self, levels={**self.levels, **levels})

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Attempts, failed ones included: a row each."""
        return select(self.campaign.trials, self.levels)

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Successful trials."""
        return self.trials[self.trials["status"] == "ok"]

    @cached_property
    def factors(self) -> dict[str, list[Any]]:
        """Measured levels of each factor, in the order of `where`, or of the plan, then others."""
        found = {}
        for name, planned in self.campaign.factors.items():
            asked = self.levels.get(name)
            order = asked if isinstance(asked, list) else planned
            here = [*self.trials[name].unique(), *self._infeasible[name]]
            found[name] = [one for one in dict.fromkeys([*order, *here]) if one in here]
        return found

    @cached_property
    def _infeasible(self) -> pd.DataFrame:
        """Conditions that the rig could not run, with the reason."""
        factors, entries = self.campaign.factors, self.campaign.plan["infeasible"]
        rows = [[*entry["condition"].split(" | "), entry["reason"]] for entry in entries]
        frame = pd.DataFrame(rows, columns=[*factors, "reason"], dtype=object)
        for name, levels in factors.items():
            known = {str(level): level for level in levels}
            frame[name] = [known.get(text, text) for text in frame[name]]
        return select(frame, {n: level for n, level in self.levels.items() if n in factors})

    def _column(self, of: str | None) -> str:
        """Return a column, by default the plan's first outcome."""
        column = of or next(iter(self.campaign.plan["outcomes"]), "")
        if described(column).kind == "other":
            refuse_unknown("column", [column], self.trials)
        return column

    @cached_property
    def _tables(self) -> list[BlockTable]:
        """Blocks of all trials, and of those whose CPUs were not disturbed."""
        calm = self.trials[~self.trials["flags"].str.contains(f"{CPU_SLOW}|{CPUS_APART}")]
        return [BlockTable(one, list(self.campaign.factors)) for one in (self.trials, calm)]

    def _groups(self, by: Names) -> list[dict[str, Any]]:
        """Return the planned combinations of levels of some factors, in the order of the plan."""
        names, found = _names(by), set[tuple[Any, ...]]()
        refuse_unknown("factor", names, self.factors)
        for frame in (self.trials, self._infeasible):
            found |= set(frame[names].astype(object).itertuples(index=False, name=None))
        products = expand({name: self.factors[name] for name in names})
        return [levels for levels in products if not names or tuple(levels.values()) in found]

    def compare(
        self, factor: Names, to: Any, *, by: Names = (), of: str | None = None
    ) -> Comparison:
        """Compare the levels of a factor with one of them, inside blocks, at the plan's margin.

        Parameters
        ----------
        factor : str or list of str
            What differs between conditions; of several factors a level is a tuple.
        to : hashable
            The level to compare with, or None for the one before in the plan. Rows of a level that
            the campaign lacks say that it was not measured.
        by : str or list of str
            Factors at each combination of whose levels it is compared; the rows are one family.
        of : str
            Column of `trials`, such as ``rtt_ns_p99``; the plan's first outcome by default.

        Raises
        ------
        UsageError
            A factor or column is unknown, or a factor is left open: conditions that differ in more
            than one respect are never pooled.
        """
        names, by, rows = _names(factor), _names(by), []
        levels, groups = self._groups(names), self._groups(by)
        for name, known in self.factors.items():
            measured = [level for level in known if (self.trials[name] == level).any()]
            if name not in (*names, *by) and len(measured) > 1:
                why = f"it has the levels {', '.join(map(str, measured))}"
                remedy = f"choose one: .where({name}={measured[0]!r}), or name it in by"
                raise UsageError(f"the factor {name!r} is left open", why=why, remedy=remedy)
        pairs, level_of = list(itertools.pairwise(levels)), itemgetter(*names)
        if to is not None:
            baseline = dict(zip(names, [to] if isinstance(factor, str) else to, strict=True))
            pairs = [(baseline, one) for one in levels if one != baseline]
        shared = {"to": to, "metric": self._column(of), "margin": self.campaign.plan["margin"]}
        for group, (other, own) in itertools.product(groups, pairs):
            if row := self._row(shared["metric"], [group | own, group | other], other):
                about = {**shared, "to": level_of(other), "condition": level_of(own)}
                rows.append({**group, **own, **about, **row})
        columns = dict.fromkeys([*names, *by, *shared, "condition", *stats.unmeasured("")])
        frame = pd.DataFrame(rows, columns=list(columns))
        frame["p_adjusted"] = holm(frame["p_value"])
        return Comparison(frame, self, names[0] if len(names) == 1 else names, by, shared)

    def _row(self, column: str, cells: Any, baseline: stats.Cell) -> dict[str, Any]:
        """Return the comparison of two cells, or why there is none; {} if none was planned."""
        margin, (every, calm) = self.campaign.plan["margin"], self._tables
        try:
            row = stats.row(every.cells(column, *cells), margin, 0.05)
        except NotMeasured as error:
            reasons = [self._reason(cell) for cell in cells]
            if reasons[0] != "" and not len(select(self.trials, baseline)):
                reasons[1] = reasons[1] or str(error)
            why = "; ".join(dict.fromkeys(filter(None, reasons))) or str(error)
            return stats.unmeasured(why) if "" not in reasons else {}
        undisturbed = "not measured"
        with contextlib.suppress(NotMeasured):
            undisturbed = stats.row(calm.cells(column, *cells), margin, 0.05)["verdict"]
        if max(select(self.ok, cell)["saturated"].mean() for cell in cells) > SATURATED_SHARE:
            reason = "the load generator was the limit"
        elif row["verdict"] != undisturbed:
            reason = "it rests on trials whose CPUs were disturbed"
        else:
            return row
        undecided = {"differs": False, "equivalent": False, "verdict": "cannot tell"}
        return row | undecided | {"p_value": math.nan, "reason": reason}

    def _reason(self, cell: Mapping[str, Any]) -> str | None:
        """Return why a cell has no trial: "" if it was never planned, None if it has trials."""
        attempts = select(self.trials, cell)
        if (attempts["status"] == "ok").any():
            return None
        if len(attempts):
            return f"{len(attempts)} attempts failed: {attempts['problem'].iloc[0]}"
        return next(iter(select(self._infeasible, cell)["reason"]), "")

    def about(self) -> Table:
        """Return machine, dates, size, rig and limits of the campaign."""
        campaign, rig = self.campaign, self.campaign.rig
        plain = [f"{k} {v}" for k, v in campaign.settings.items() if not isinstance(v, dict | list)]
        rows = [*package.about(campaign).items()]
        rows.append(("rig", f"{rig['name']}: {'; '.join(rig['caveats'])}"))
        rows.append(("margin", words.percent(campaign.plan["margin"])))
        rows.append(("settings", ", ".join(plain)))
        infeasible = self._infeasible.astype(str).groupby("reason", sort=False)
        for why, those in infeasible[list(campaign.factors)]:
            rows.append(("infeasible", f"{', '.join(those.agg(' '.join, axis=1))}: {why}"))
        where = relative(campaign.path.absolute(), project())
        frame = pd.DataFrame(rows, columns=["", "this campaign"])
        return Table(frame, f"{campaign.study} ({where})")

    def _repr_html_(self) -> str:
        return self.about()._repr_html_()

    def __repr__(self) -> str:
        return repr(self.about())

    def validity(self, by: Names = (), *, of: str | None = None) -> Table:
        """Return noise, drift, failures and flags, as one table.

        Repeats are conditions that run twice in each block (A/A): their ratio should be 1, and its
        interval gives the smallest margin that these blocks decide (80 % power). Drift is the trend
        of a condition's logarithm over the blocks.
        """
        column, rows = self._column(of), []
        for group in self._groups(by):
            part = self.where(**group)
            if not len(part.ok):
                continue
            tried, done = (one.groupby(["block", "position"]) for one in (part.trials, part.ok))
            row = {**_shown(group), "ratio of repeats": "nothing ran twice", "decidable margin": ""}
            if noisiest := part._noisiest(column):
                row["ratio of repeats"] = words.ratio(noisiest.value, *noisiest.interval())
                row["decidable margin"] = words.percent(noisiest.decidable_margin())
            row["drift"] = part._drift(column)
            row["failed attempts"] = str(len(part.trials) - len(part.ok))
            row["lost trials"] = str(tried.ngroups - done.ngroups)
            row["flagged"] = words.percent(float((part.ok["flags"] != "").mean()))
            row["generator at its limit"] = words.percent(float(part.ok["saturated"].mean()))
            rows.append(row)
        return Table(pd.DataFrame(rows), f"Validity of the {described(column).text}")

    def _noisiest(self, column: str) -> Mean | None:
        """Return the ratio of repeats of the condition for which it decides the widest margin."""
        factors, found = [*self.campaign.factors, "repeat"], []
        twice: Any = self.trials.loc[self.trials["repeat"] == 2, factors].drop_duplicates()
        table = BlockTable(self.trials, factors)
        for cell in twice.to_dict("records"):
            with contextlib.suppress(NotMeasured):
                found.append(table.cells(column, cell, {**cell, "repeat": 1}).estimate())
        return max(found, key=Mean.decidable_margin, default=None)

    def _drift(self, column: str) -> str:
        """Return how many conditions drift (5 %, Holm), and the largest trend."""
        trends, p_values = [], []
        trials = self.ok[self.ok[column] > 0] if column in self.ok else self.ok[:0]
        for _, part in trials.groupby(list(self.campaign.factors)):
            if part["block"].nunique() >= stats.LEAST_BLOCKS:
                fit = linregress(part["block"], np.log(part[column]))
                trends.append(math.expm1(fit.slope * np.ptp(part["block"])))
                p_values.append(fit.pvalue)
        drifting = [one for one, p in zip(trends, holm(p_values), strict=True) if p < 0.05]
        largest = f", up to {max(drifting, key=abs):+.0%}" if drifting else ""
        return f"{len(drifting)} of {len(trends)} conditions{largest}"

    def counters(self, *names: str, by: Names) -> Table:
        """Return columns of the trials as medians, a row a combination of levels."""
        rows = []
        for group in self._groups(by):
            part = select(self.ok, group)
            medians = {name: part[name].median() if name in part else math.nan for name in names}
            texts = {described(name).text: words.amount(one, name) for name, one in medians.items()}
            rows += [{**_shown(group), **texts}] if len(part) else []
        return Table(pd.DataFrame(rows), "Medians of trials")

    def published(self, paper: str, *tables: str) -> Table:
        """Return tables of a paper next to the same quantities here."""
        frame = side_by_side(self.campaign, paper, tables)
        return Table(frame, f"{paper} and here: {', '.join(tables)}")

    def claims(self, paper: str) -> Table:
        """Return the verdicts on the claims of a paper about this study, by this campaign alone."""
        evidence, wanted = Evidence(self.campaign), (paper, self.campaign.study)
        own = [one for one in load_claims() if (one.source, one.study) == wanted]
        rows = pd.DataFrame([evaluate(one, evidence) for one in own], columns=COLUMNS)
        why = rows["needs"].where(rows["needs"] != "", rows["why"])
        shown = {
            "claim": rows["says"] + " (" + rows["place"] + ")",
            "verdict": rows["verdict"] + " " + rows["marks"],
            "here [95 % interval]": rows["parts"],
            "why": why.where(why != rows["parts"], ""),
            "blocks": rows["n_blocks"],
        }
        return Table(
            pd.DataFrame(shown), f"Claims of {paper} by this campaign; marks: see the ledger"
        )

    def tail(self, hue: str, *, of: str = "rtt_ns") -> Shown:
        """Return the distribution of samples up to its tail, as a figure."""
        return plots.tail(self.campaign.samples(of, **self.levels), of, hue)

    def curve(self, over: str, hue: str, col: str | None = None, *, of: str | None = None) -> Shown:
        """Return means over blocks along a factor, or along "block" the values, as a figure."""
        column = self._column(of)
        frame = self.ok.dropna(subset=[column]) if column in self.ok else self.ok[:0]
        # Factors of text in the plan's order.
        text = [name for name in self.factors if frame[name].dtype == "str"]
        frame = frame.assign(**{n: pd.Categorical(frame[n], self.factors[n]) for n in text})
        return plots.curve(frame, column, over, hue, col)

    def summary(self, *answers: Answers) -> None:
        """Display the answers of a page for the index, those that were measured first."""
        rows = [row for one in answers for row in one.rows]
        rows.sort(key=lambda row: row["verdict"] == "not measured")
        plain = json.loads(pd.DataFrame(rows).to_json(orient="records"))  # JSON has no NaN
        bundle = {"study": self.campaign.study, "rows": plain}
        display({ANSWER: bundle, "text/plain": repr(Answers(rows))}, raw=True)  # type: ignore[no-untyped-call]


def _shown(levels: Mapping[str, Any]) -> dict[str, str]:
    """Return levels in words, by their headings."""
    return {words.heading(name): words.level(name, level) for name, level in levels.items()}


def _names(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def results(path: Path | str) -> Results:
    """Return the results of a campaign, or of the newest one in a study's folder.

    A relative path starts at the project's folder, as JupyterLab starts in the notebook's.

    Examples
    --------
    >>> from labkit import results
    >>> r = results("data/reference/affinity-spinning")
    >>> tuned = r.where(capture="off", affinity="split", wait="spin")
    >>> tuned.compare("placement", to="docker host", of="rtt_ns_p99").answer("docker bridge")
    ... # doctest: +ELLIPSIS
    docker bridge is slower than docker host: p99 round-trip time ...
    """
    return Results(load(project(path)), {})
