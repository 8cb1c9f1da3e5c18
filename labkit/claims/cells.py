"""The cells of a claim in a campaign: one number a block and cell, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.checks import blocks_across_sessions
from labkit.analysis.estimates import join_notes
from labkit.analysis.trials import quantile_level, reduce_trials, samples_needed, sort_trials
from labkit.claims.schema import (
    Cell,
    Claim,
    FixedOffset,
    Knee,
    Level,
    Linear,
    Monotone,
    level_words,
    words,
)
from labkit.dataset import Dataset
from labkit.errors import DatasetError


class NotMeasured(Exception):
    """A claim's cell has no value in a campaign; the message says why."""


@dataclass(frozen=True)
class Cells:
    """Values of some cells, by block."""

    #: A row a block, a column a cell by its place; NaN where the block has no value. A/A replicates
    #: are averaged on the log scale, or plainly where a value is 0.
    values: pd.DataFrame
    #: Samples of the shortest trial; 0 where trials do not say.
    samples: int
    #: What was averaged, failed or left out.
    note: str

    @property
    def positive(self) -> bool:
        """Whether every value has a logarithm."""
        return not bool((self.values <= 0).to_numpy().any())

    def tidy(self) -> pd.DataFrame:
        """Return the columns ``block``, ``cell`` (its place) and ``value``, a row a value."""
        values = self.values.rename_axis(index="block", columns="cell")
        table = values.melt(var_name="cell", value_name="value", ignore_index=False)
        return table.reset_index().astype({"cell": int})


class Measured:
    """What one campaign has for the claims on its study.

    Samples are read and sorted once a metric, for all statistics that claims ask of it.
    """

    def __init__(self, dataset: Dataset, claims: Iterable[Claim]) -> None:
        self.dataset = dataset
        plan = dataset.plan
        self.study = str(plan["study"])
        #: The factors of the plan, and the settings that a claim can select, with their levels.
        self.varied = tuple(plan["factors"])
        self.known = {
            name: [value]
            for name, value in plan.get("settings", {}).items()
            if isinstance(value, str | int | float) and not isinstance(value, bool)
        } | {name: list(levels) for name, levels in plan["factors"].items()}
        self._statistics: dict[str, dict[str, None]] = {}
        for claim in claims:
            self._statistics.setdefault(claim.metric, {})[claim.statistic] = None
        self._samples: dict[str, pd.DataFrame] = {}
        self._values: dict[tuple[str, str], pd.DataFrame] = {}
        trials = dataset.trials
        wanted = ("trial", "block", "session", "status", "problems", *self.varied)
        settings = self.known.keys() - set(wanted)
        #: Every attempt, with its levels as the plan writes them; settings stand beside factors.
        self.attempts = trials[[name for name in wanted if name in trials.columns]].assign(
            **{name: self.known[name][0] for name in settings}
        )

    def check(self, claim: Claim) -> None:
        """Raise `DatasetError` where a claim names a factor that the plan does not have.

        A number for a factor whose levels are words, or words for one of numbers, are such a
        mistake too. A level that is merely absent is not: a campaign may have been run with fewer.
        """
        cells = {"where": claim.where, **claim.complete_cells()}
        used = [(key, *level) for key, cell in cells.items() for level in cell.items()]
        used += [("each", name, level) for name, levels in claim.each.items() for level in levels]
        if isinstance(claim, Linear | Monotone | FixedOffset | Knee):
            used += [("over", claim.over, level) for level in claim.levels or (math.nan,)]
        messages: dict[tuple[str, str], str] = {}
        for key, factor, level in used:
            number = isinstance(level, int | float)
            if factor not in self.known:
                said = f"unknown factor {factor!r}; known are {[*self.known]}"
            elif self._numeric(factor) is number:
                continue
            elif isinstance(level, float) and math.isnan(level):
                said = f"{factor} has no numbers; write levels"
            else:
                wanted = "words" if number else "a number"
                levels = self.known[factor]
                said = f"{factor} takes {wanted} and not {level_words(level)}, as {levels} are"
            messages.setdefault((key, factor), f"{key}: {said}")
        if messages:
            raise DatasetError(
                f"{claim.id} does not fit the plan of {self.study}",
                why="; ".join(messages.values()),
                remedy="correct its selectors in claims.toml",
            )

    def cells(self, claim: Claim, cells: Sequence[Cell]) -> Cells:
        """Return the values of cells, in the unit of the metric.

        A factor of the campaign that no cell names is averaged over: the levels that all cells
        were measured at. Blocks that span sessions are left out.
        """
        trials = self._trials(claim)
        rows = [self._of(trials, cell, claim) for cell in cells]
        unnamed = [name for name in self.varied if not any(name in cell for cell in cells)]
        alike, lost = _alike(rows, unnamed)
        used = pd.concat(alike).drop_duplicates("trial")
        split = blocks_across_sessions(used)
        kept = [table[~table["block"].isin(split)] for table in alike]
        if not any(map(len, kept)):
            raise NotMeasured("every block spans several sessions")
        shared = _alike(kept, unnamed)[0]
        values = pd.DataFrame(dict(enumerate(_averaged(shared, unnamed)))).sort_index()
        failed = self.attempts[self.attempts["status"] != "ok"]
        failures = sum(int(_matches(failed, cell).sum()) for cell in cells)
        note = join_notes(
            f"blocks {', '.join(map(str, split))} span sessions and are left out" if split else "",
            _averages(kept, unnamed),
            lost,
            f"{failures} attempts failed" if failures else "",
            _without(trials, cells, claim),
        )
        return Cells(values, int(used["n"].min()), note)

    def levels(self, claim: Claim, over: str, cells: Sequence[Cell]) -> list[float]:
        """Return the numbers of a factor at which every cell was measured."""
        trials = self._trials(claim)
        if over not in trials.columns:
            raise NotMeasured(f"this campaign does not vary {over}")
        levels = [set(_numbers(self._of(trials, cell, claim)[over])) for cell in cells]
        shared = sorted(set.intersection(*levels))
        if len(shared) < 2:
            raise NotMeasured(f"{len(shared)} level of {over} was measured; it takes several")
        return shared

    def _numeric(self, factor: str) -> bool:
        """Tell whether all levels of a factor are numbers."""
        return bool(_numbers(pd.Series(self.known[factor], dtype=object)).notna().all())

    def _trials(self, claim: Claim) -> pd.DataFrame:
        """Return a row a successful trial with its ``value`` (NaN for none) and samples ``n``."""
        key = claim.metric, claim.statistic
        if key not in self._values:
            if not (self.attempts.get("status", pd.Series()) == "ok").any():
                raise NotMeasured(f"no trial of {self.study} succeeded{_problems(self.attempts)}")
            ok = self.attempts[self.attempts["status"] == "ok"]
            reduced = self._reduced(claim.metric, claim.statistic).set_index("trial")
            self._values[key] = ok.assign(
                value=ok["trial"].map(reduced[claim.statistic]).astype(float),
                n=ok["trial"].map(reduced["n"]).fillna(0).astype(int),
            )
        return self._values[key]

    def _reduced(self, metric: str, statistic: str) -> pd.DataFrame:
        """Return ``trial``, ``n`` and a column a statistic (``""``: the trial's own number)."""
        if not statistic:
            ok = self.dataset.ok
            own = ok[metric] if metric in ok.columns else np.nan
            return ok[["trial", "n_samples"]].set_axis(["trial", "n"], axis=1).assign(**{"": own})
        if metric not in self._samples:
            series = self.dataset.series([metric])
            if not len(series):
                raise NotMeasured("the trials of this campaign have no samples")
            self._samples[metric] = reduce_trials(
                sort_trials(series, value=metric),
                value=metric,
                by=["trial"],
                statistics=[name for name in self._statistics[metric] if name],
            ).astype({"trial": str})
        return self._samples[metric]

    def _of(self, trials: pd.DataFrame, cell: Cell, claim: Claim) -> pd.DataFrame:
        """Return the trials of a cell that have a value."""
        rows = trials[_matches(trials, cell)]
        if rows.empty:
            raise NotMeasured(f"{words(cell)}: {self._reason(cell)}")
        if not claim.statistic and claim.metric not in self.dataset.ok.columns:
            known = sorted({name for record in self.dataset.records for name in record["metrics"]})
            raise DatasetError(
                f"{claim.id}: metric: unknown metric {claim.metric!r}",
                why=f"the trials of {self.study} have {known}",
                remedy="correct it, or write statistic where it has samples",
            )
        values = rows["value"].to_numpy(dtype=np.float64)
        if np.isinf(values).any() or (values < 0).any():
            raise DatasetError(
                f"{claim.metric} is negative or infinite in a trial", where=words(cell)
            )
        if np.isnan(values).all():
            raise NotMeasured(f"{words(cell)}: {_no_value(rows, claim)}")
        valued: pd.DataFrame = rows[~np.isnan(values)]
        return valued

    def _reason(self, cell: Cell) -> str:
        """Return why no trial of a cell succeeded."""
        infeasible = self.dataset.plan.get("infeasible", [])
        if reasons := [entry["reason"] for entry in infeasible if self._covers(entry, cell)]:
            return f"refused: {'; '.join(dict.fromkeys(reasons))}"
        for name, level in cell.items():
            levels = pd.Series([*self.known[name], *self.attempts[name]], dtype=object)
            if not _equals(levels, level).any():
                return f"{name} {level_words(level)} is not in this campaign"
        failed = self.attempts[_matches(self.attempts, cell)]
        if len(failed):
            return f"none of {len(failed)} attempts succeeded{_problems(failed)}"
        return "no trial of it was run"

    def _covers(self, entry: Mapping[str, str], cell: Cell) -> bool:
        levels = dict(zip(self.varied, entry["condition"].split(" | "), strict=False))
        return all(
            _equals(pd.Series([levels[name]], dtype=object), cell[name]).all()
            for name in cell.keys() & levels
        )


def _numbers(column: pd.Series[Any]) -> pd.Series[float]:
    return pd.to_numeric(column, errors="coerce").astype(float)


def _equals(column: pd.Series[Any], level: Level) -> NDArray[np.bool_]:
    """Return where a column has a level: a number as a number, text as text."""
    matches = _numbers(column) == level if isinstance(level, int | float) else column == level
    return matches.to_numpy(dtype=bool)


def _matches(table: pd.DataFrame, cell: Cell) -> NDArray[np.bool_]:
    matches = np.ones(len(table), dtype=bool)
    for name, level in cell.items():
        matches &= _equals(table[name], level)
    return matches


def _alike(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> tuple[list[pd.DataFrame], str]:
    """Return the trials at those levels of other factors that all cells have, and what is lost."""
    if not unnamed:
        return list(rows), ""
    levels = [pd.MultiIndex.from_frame(table[unnamed]) for table in rows]
    alike = [
        table[np.all([own.isin(other) for other in levels], axis=0)]
        for table, own in zip(rows, levels, strict=True)
    ]
    if not all(map(len, alike)):
        raise NotMeasured(f"the cells have no level of {', '.join(unnamed)} in common")
    lost = sum(map(len, rows)) - sum(map(len, alike))
    said = f"{lost} trials left out: not every cell was measured at their {', '.join(unnamed)}"
    return alike, said if lost else ""


def _averaged(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> list[pd.Series[float]]:
    """Return a number a block for each cell, averaged over replicates, then over other factors."""
    positive = _positive(rows)
    means = []
    for table in rows:
        value = np.log(table["value"]) if positive else table["value"]
        cell = value.groupby([table["block"], *(table[name] for name in unnamed)]).mean()
        # A block that lacks a level averaged over has no value: the others would bias it.
        means.append(cell.unstack(unnamed).mean(axis=1, skipna=False) if unnamed else cell)
    return [np.exp(mean) for mean in means] if positive else means


def _positive(rows: Sequence[pd.DataFrame]) -> bool:
    return all(bool((table["value"] > 0).all()) for table in rows)


def _averages(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> str:
    several = [name for name in unnamed if rows[0][name].nunique() > 1]
    plain = not _positive(rows) and any(table["block"].duplicated().any() for table in rows)
    return join_notes(
        f"averaged over {', '.join(several)}" if several else "",
        "averaged without logs, as a value is 0" if plain else "",
    )


def _without(trials: pd.DataFrame, cells: Sequence[Cell], claim: Claim) -> str:
    lost = sum(int(trials.loc[_matches(trials, cell), "value"].isna().sum()) for cell in cells)
    name = f"{claim.statistic} of {claim.metric}" if claim.statistic else claim.metric
    return f"{lost} trials have no {name}" if lost else ""


def _problems(attempts: pd.DataFrame) -> str:
    if not len(attempts):
        return ""
    said = [text for text in dict.fromkeys(attempts["problems"]) if text]
    return f": {'; '.join(said[:3])}" if said else ""


def _no_value(rows: pd.DataFrame, claim: Claim) -> str:
    level = quantile_level(claim.statistic) if claim.statistic else None
    if level is not None:
        has, needs = int(rows["n"].max()), samples_needed(level)
        return f"{claim.statistic} takes {needs:,} samples a trial, and there are {has:,}"
    return f"no trial has {claim.metric}"
