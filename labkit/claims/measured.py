"""The cells of a claim in a campaign: one number a block and cell, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.blockwise import joined
from labkit.analysis.checks import spanning
from labkit.analysis.reduce import quantile_level, reduce_trials, samples_needed, sort_trials
from labkit.claims.claim import Cell, Claim, StudyWords, level_words, words
from labkit.dataset import Dataset
from labkit.errors import DatasetError

#: The observer is a treatment: a claim that does not say so is not about trials that were captured.
_UNOBSERVED = {"capture": "off"}


class NotMeasured(Exception):
    """A claim's cell has no value in a campaign; the message says why."""


@dataclass(frozen=True)
class Cells:
    """Values of some cells, by block.

    Parameters
    ----------
    values : DataFrame
        A row a block, a column a cell by its place; NaN where the block has no value. Copies are
        averaged on the log scale, or plainly where a value is 0.
    samples : int
        Samples of the shortest trial; 0 where trials do not say.
    note : str
        What was averaged, failed or left out.
    """

    values: pd.DataFrame
    samples: int
    note: str

    def tidy(self) -> pd.DataFrame:
        """Return the columns ``block``, ``cell`` (its place) and ``value``, a row a value."""
        values = self.values.rename_axis(index="block", columns="cell")
        table = values.melt(var_name="cell", value_name="value", ignore_index=False)
        return table.reset_index().astype({"cell": int})


class Measured:
    """What one campaign has for the claims of its study.

    Samples are read and sorted once a metric, for all statistics that claims ask of it.

    Parameters
    ----------
    dataset : Dataset
        The campaign.
    study : StudyWords
        Its factors: those that take any number are compared as numbers, the others as words.
    claims : iterable of Claim
        What is going to be asked.
    """

    def __init__(self, dataset: Dataset, study: StudyWords, claims: Iterable[Claim]) -> None:
        self.dataset, self.study = dataset, study
        self._statistics: dict[str, dict[str, None]] = {}
        for claim in claims:
            self._statistics.setdefault(claim.metric, {})[claim.statistic] = None
        self._samples: dict[str, pd.DataFrame] = {}
        #: The names of the trials that each claim was held against.
        self.used: dict[str, set[str]] = {}
        self._found: dict[tuple[str, str], pd.DataFrame] = {}
        self._attempts: pd.DataFrame | None = None

    @property
    def attempts(self) -> pd.DataFrame:
        """Every attempt, with the factors as claims write them; settings count as factors."""
        if self._attempts is None:
            there = self.dataset.trials
            wanted = ("trial", "block", "session", "status", "problems", *self.varied)
            table = there[[name for name in wanted if name in there.columns]].copy()
            settings = self.dataset.plan.get("settings", {})
            for name in self.study.factors:
                if name not in self.varied and name in settings:
                    table[name] = settings[name]
            for name in {*self.varied, *self.study.factors} & set(table.columns):
                table[name] = self._typed(name, table[name])
            self._attempts = table
        return self._attempts

    @property
    def varied(self) -> tuple[str, ...]:
        """The factors of the campaign's plan."""
        return tuple(self.dataset.plan["factors"])

    def cells(self, claim: Claim, cells: Sequence[Cell]) -> Cells:
        """Return the values of cells, in the unit of the metric.

        A factor of the campaign that no cell names is averaged over: the levels that all cells
        were measured at. Blocks that span sessions are left out.

        Raises
        ------
        NotMeasured
            A cell has no value, or the cells have no level of another factor in common.
        """
        trials = self._values(claim)
        rows = [self._of(trials, cell, claim) for cell in cells]
        unnamed = [name for name in self.varied if not any(name in cell for cell in cells)]
        alike, unlike = _alike(rows, unnamed)
        used = pd.concat(alike).drop_duplicates("trial")
        split = spanning(used)
        kept = [one[~one["block"].isin(split)] for one in alike]
        if not any(map(len, kept)):
            raise NotMeasured("every block spans several sessions")
        there = _alike(kept, unnamed)[0]
        self.used.setdefault(claim.id, set()).update(str(t) for one in there for t in one["trial"])
        values = pd.DataFrame(dict(enumerate(_averaged(there, unnamed)))).sort_index()
        note = joined(
            f"blocks {', '.join(map(str, split))} span sessions and are left out" if split else "",
            _averages(kept, unnamed),
            unlike,
            self._failures(cells),
            _without(trials, cells, claim),
        )
        return Cells(values, int(used["n"].min()), note)

    def levels(self, claim: Claim, cells: Sequence[Cell]) -> list[float]:
        """Return the numbers of the factor ``claim.over`` at which every cell was measured."""
        trials = self._values(claim)
        if claim.over not in trials.columns:
            raise NotMeasured(f"this campaign does not vary {claim.over}")
        found = [set(self._of(trials, cell, claim)[claim.over]) for cell in cells]
        shared = sorted(set.intersection(*found))
        if len(shared) < 2:
            raise NotMeasured(f"{len(shared)} level of {claim.over} was measured; it takes several")
        return shared

    def _values(self, claim: Claim) -> pd.DataFrame:
        """Return a row a successful trial with its ``value`` (NaN for none) and samples ``n``."""
        key = claim.metric, claim.statistic
        if key not in self._found:
            table = self.attempts
            if not len(table) or not (table["status"] == "ok").any():
                raise NotMeasured(f"no trial of {self.study.name} succeeded{_problems(table)}")
            ok = table[table["status"] == "ok"]
            reduced = self._reduced(claim.metric).set_index("trial")
            self._found[key] = ok.assign(
                value=ok["trial"].map(reduced[claim.statistic]).astype(float),
                n=ok["trial"].map(reduced["n"]).fillna(0).astype(int),
            )
        return self._found[key]

    def _reduced(self, metric: str) -> pd.DataFrame:
        """Return ``trial``, ``n`` and a column a statistic (``""``: the trial's own number)."""
        if self.study.metrics[metric] == "trial":
            ok = self.dataset.ok
            if metric not in ok.columns:
                raise NotMeasured(f"the trials of this campaign have no {metric}")
            return ok[["trial", "n_samples", metric]].set_axis(["trial", "n", ""], axis=1)
        if metric not in self._samples:
            series = self.dataset.series([metric])
            if not len(series):
                raise NotMeasured("the trials of this campaign have no samples")
            self._samples[metric] = reduce_trials(
                sort_trials(series, value=metric),
                value=metric,
                by=["trial"],
                statistics=list(self._statistics[metric]),
            ).astype({"trial": str})
        return self._samples[metric]

    def _of(self, trials: pd.DataFrame, cell: Cell, claim: Claim) -> pd.DataFrame:
        """Return the trials of a cell that have a value."""
        if absent := [name for name in cell if name not in trials.columns]:
            raise NotMeasured(f"this campaign does not vary {', '.join(absent)}")
        unsaid = {name: x for name, x in _UNOBSERVED.items() if name in trials and name not in cell}
        rows = trials[_matches(trials, {**cell, **unsaid})]
        if rows.empty:
            raise NotMeasured(f"{words(cell)}: {self._reason(cell)}")
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
        plan = self.dataset.plan
        refused = [one["reason"] for one in plan.get("refusals", []) if self._refused(one, cell)]
        if refused:
            return f"refused: {'; '.join(dict.fromkeys(refused))}"
        for name in cell.keys() & plan["factors"].keys():
            known = self._typed(name, pd.Series(plan["factors"][name]))
            if cell[name] not in {*known, *self.attempts[name]}:
                return f"{name} {level_words(cell[name])} is not in this campaign"
        failed = self.attempts[_matches(self.attempts, cell)]
        if len(failed):
            return f"none of {len(failed)} attempts succeeded{_problems(failed)}"
        return "no trial of it was run"

    def _refused(self, refusal: Mapping[str, str], cell: Cell) -> bool:
        levels = dict(zip(self.varied, refusal["condition"].split(" | "), strict=False))
        return all(self._plain(name, levels[name]) == cell[name] for name in cell.keys() & levels)

    def _failures(self, cells: Sequence[Cell]) -> str:
        failed = self.attempts[self.attempts["status"] != "ok"]
        lost = sum(int(_matches(failed, cell).sum()) for cell in cells)
        return f"{lost} attempts failed" if lost else ""

    def _typed(self, name: str, column: pd.Series[Any]) -> pd.Series[Any]:
        return column.map(lambda level: self._plain(name, level))

    def _plain(self, name: str, level: Any) -> Any:
        """Return a level as claims write it: a number, or text."""
        if level is None or self.study.factors.get(name, ()) is not None:
            return None if level is None else str(level)
        try:
            return float(level)
        except ValueError:
            raise DatasetError(
                f"{name} = {level!r} is not a number", where=str(self.dataset.path.name)
            ) from None


def _matches(table: pd.DataFrame, cell: Cell) -> NDArray[np.bool_]:
    found = np.ones(len(table), dtype=bool)
    for name, level in cell.items():
        found &= (table[name] == level).to_numpy(dtype=bool)
    return found


def _alike(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> tuple[list[pd.DataFrame], str]:
    """Return the trials at those levels of other factors that all cells have, and what is lost."""
    if not unnamed:
        return list(rows), ""
    levels = [pd.MultiIndex.from_frame(one[unnamed]) for one in rows]
    alike = [
        one[np.all([own.isin(other) for other in levels], axis=0)]
        for one, own in zip(rows, levels, strict=True)
    ]
    if not all(map(len, alike)):
        raise NotMeasured(f"the cells have no level of {', '.join(unnamed)} in common")
    lost = sum(map(len, rows)) - sum(map(len, alike))
    said = f"{lost} trials left out: not every cell was measured at their {', '.join(unnamed)}"
    return alike, said if lost else ""


def _averaged(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> list[pd.Series[float]]:
    """Return a number a block for each cell, averaged over copies and then over other factors."""
    positive = _positive(rows)
    means = []
    for one in rows:
        value = np.log(one["value"]) if positive else one["value"]
        cell = value.groupby([one["block"], *(one[name] for name in unnamed)]).mean()
        # A block that lacks a level averaged over has no value: the others would bias it.
        means.append(cell.unstack(unnamed).mean(axis=1, skipna=False) if unnamed else cell)
    return [np.exp(one) for one in means] if positive else means


def _positive(rows: Sequence[pd.DataFrame]) -> bool:
    return all(bool((one["value"] > 0).all()) for one in rows)


def _averages(rows: Sequence[pd.DataFrame], unnamed: list[str]) -> str:
    several = [name for name in unnamed if rows[0][name].nunique() > 1]
    plain = not _positive(rows) and any(one["block"].duplicated().any() for one in rows)
    return joined(
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
