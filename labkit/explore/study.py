"""One campaign as the explorer reads it: quantities, conditions, and the numbers of each trial.

The samples of a trial are read and sorted once, when something first asks for them, and kept (four
bytes a sample, eight where values pass 2**31). Every statistic and figure comes from the sorted
samples, so a change of what is looked at costs no pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from labkit.analysis.checks import spanning
from labkit.analysis.reduce import Ordered, order_of, sort_trials
from labkit.analysis.summary import joint
from labkit.errors import DatasetError, UsageError
from labkit.explore.finding import Source
from labkit.explore.quantity import Quantity, described
from labkit.units import METRICS, QUANTILES

#: As many conditions are chosen at first, and drawn at once, at most.
MOST = 12
#: So many samples are read between two words of progress.
_BATCH = 4_000_000

Levels = Mapping[str, tuple[str, ...]]
#: Told how many trials were read, and how many are to be.
Told = Callable[[int, int], None]


class Explored:
    """A campaign with successful trials, prepared for any choice of conditions and quantity.

    Parameters
    ----------
    source : Source
        Where it is.

    Attributes
    ----------
    attempts, trials : DataFrame
        Every attempt; the successful ones. Factors are categories of text, in the plan's order.
    varying : list of str
        Factors of which several levels were measured.
    fixed : dict
        The one level of each other factor.
    spanned : list
        Blocks that span sessions, which no comparison pairs.
    shifts : dict
        Shifts of quantiles that were asked for, by what was chosen.

    Raises
    ------
    DatasetError
        Its plan or a trial cannot be read, or no trial succeeded.
    """

    def __init__(self, source: Source) -> None:
        self.home, self.dataset = source.home, source.dataset
        self.plan = self.dataset.plan
        self.margin = float(self.plan.get("margin", 0.02))
        if self.dataset.ok.empty:
            failed = [one for one in self.dataset.records if one["status"] != "ok"]
            said = (failed[0].get("error") or {}).get("what", "") if failed else ""
            raise DatasetError(
                "no trial of this campaign succeeded",
                where=self.home,
                why=f"{len(failed)} attempts failed, the first: {said}"
                if failed
                else "nothing was measured",
                remedy="run the study again: it resumes",
            )
        self.attempts = self._levelled(self.dataset.trials)
        self.trials = self.attempts[self.attempts["status"] == "ok"].reset_index(drop=True)
        levels = {name: order_of(self.trials[name]) for name in self.plan["factors"]}
        self.varying = [name for name, found in levels.items() if len(found) > 1]
        self.fixed = {name: found[0] for name, found in levels.items() if len(found) == 1}
        self.spanned = spanning(self.trials)
        self._sorted: dict[str, dict[str, Ordered]] = {}
        self.shifts: dict[Any, pd.DataFrame] = {}

    def _levelled(self, table: pd.DataFrame) -> pd.DataFrame:
        table = table.copy()
        for name, planned in self.plan["factors"].items():
            there = table[name] if name in table else pd.Series([None] * len(table), table.index)
            levels = ["not stated" if pd.isna(level) else str(level) for level in there]
            order = dict.fromkeys([str(level) for level in planned if str(level) in levels])
            table[name] = pd.Categorical(levels, [*dict.fromkeys([*order, *levels])])
        return table

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """Everything that can be looked at: samples first, what users want more or less of first.

        Statistics of samples that are here (``rtt_ns_p99``) are not listed: the samples have them.
        """
        series = [name for names in self.dataset.sampled.values() for name in names]
        derived = {f"{name}_{last}" for name in series for last in QUANTILES}
        metrics = [name for one in self._measured("metrics") for name in one]
        metrics = [name for name in dict.fromkeys(metrics) if name not in {*series, *derived}]
        metrics = [name for name in metrics if self.numbers(name).notna().any()]
        found = [described(name, sampled=True) for name in dict.fromkeys(series)]
        found += [described(name) for name in metrics]
        if not found:
            raise DatasetError(
                "no trial of this campaign has samples or numbers",
                where=self.home,
                remedy="choose another study",
            )
        found.sort(key=lambda one: (not one.sampled, not _wanted(one.name)))
        return {one.name: one for one in found}

    @cached_property
    def counters(self) -> dict[str, Quantity]:
        """The mechanism evidence that is not the same in every trial."""
        names = dict.fromkeys(name for one in self._measured("mechanisms") for name in one)
        return {n: described(n) for n in names if self.numbers(n).nunique(dropna=True) > 1}

    def _measured(self, part: str) -> Iterator[Mapping[str, Any]]:
        for one in self.dataset.records:
            if one["status"] == "ok":
                yield from (of.get(part, {}) for of in (one, *one.get("also", [])))

    def numbers(self, name: str) -> pd.Series[float]:
        """Return a column of `trials` as numbers, NaN where a trial has none."""
        return pd.to_numeric(self.trials[name], errors="coerce").astype(float)

    def has(self, name: str) -> pd.Series[bool]:
        """Tell of each of `trials` whether it has a quantity."""
        if not self.quantities[name].sampled:
            return self.numbers(name).notna()
        sampled = self.dataset.sampled
        return self.trials["trial"].map(lambda trial: name in sampled.get(trial, ())).astype(bool)

    def within(self, table: pd.DataFrame, levels: Levels) -> pd.DataFrame:
        """Return the rows with one of the chosen levels; of a factor without any, all."""
        for name, wanted in levels.items():
            if wanted:
                table = table[table[name].isin(list(wanted))]
        return table

    def chosen(self, value: str, levels: Levels) -> tuple[pd.DataFrame, str]:
        """Return the chosen trials that have a quantity, and the column of their condition.

        A condition is named by the factors that differ among them, which name the column too.

        Raises
        ------
        UsageError
            There is no such trial.
        """
        rows = self.within(self.trials, levels)
        rows = rows[self.has(value)[rows.index]]
        if rows.empty:
            said = "; ".join(f"{name}: {', '.join(one)}" for name, one in levels.items() if one)
            raise UsageError(
                f"no trial with these levels has {self.quantities[value].text}",
                where=self.home,
                why=f"chosen are {said}" if said else "",
                remedy="choose more levels: not every combination is a condition of the plan",
            )
        differing = [name for name in self.varying if rows[name].nunique() > 1]
        if differing:
            column = " + ".join(differing)
            return rows.assign(**{column: joint(rows, differing)}), column
        only = " + ".join(str(rows[name].iloc[0]) for name in self.varying) or "all trials"
        return rows.assign(condition=pd.Categorical([only] * len(rows))), "condition"

    def conditions(self, value: str, levels: Levels) -> dict[str, tuple[str, ...]]:
        """Return the name of each chosen condition with its levels of the `varying` factors."""
        rows, column = self.chosen(value, levels)
        first = rows.drop_duplicates(column)
        levels_of = [tuple(map(str, row)) for row in first[self.varying].itertuples(index=False)]
        keys = dict(zip(first[column].astype(str), levels_of, strict=True))
        return {str(name): keys[str(name)] for name in order_of(rows[column])}

    def baseline(self, conditions: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the first of some conditions that the plan calls the baseline, or else the first.

        The plan may name some of the factors only.
        """
        planned = self._planned()
        for key in conditions.values():
            found = dict(zip(self.varying, key, strict=True))
            if all(found.get(name, level) == level for name, level in planned.items()):
                return key
        return next(iter(conditions.values()))

    def _planned(self) -> dict[str, str]:
        baseline = self.plan.get("baseline") or {}
        return {str(name): str(level) for name, level in baseline.items()}

    def first_levels(self, value: str) -> dict[str, tuple[str, ...]]:
        """Return the levels to begin with: all, or of more than 12 conditions one comparison.

        That is the cell with most conditions in which only the baseline's factors differ.
        """
        if not self.varying:
            return {}
        rows = self.trials[self.has(value)].drop_duplicates(self.varying)
        if len(rows) <= MOST:
            return {}
        free = [name for name in self.varying if name in self._planned()] or self.varying[:1]
        others = [name for name in self.varying if name not in free]
        if not others:
            return {}
        sizes = rows.groupby(others, observed=True).size()
        if sizes.max() < 2:
            return {}
        best = sizes.idxmax()
        cell = best if isinstance(best, tuple) else (best,)
        return {name: (str(level),) for name, level in zip(others, cell, strict=True)}

    def ordered(self, value: str, trials: Sequence[str], told: Told) -> dict[str, Ordered]:
        """Return the sorted samples of trials, by trial; read are those that were not before.

        Raises
        ------
        DatasetError
            Samples are missing or damaged; what was read so far is kept.
        """
        kept = self._sorted.setdefault(value, {})
        lacking = [trial for trial in trials if trial not in kept]
        done = 0
        for batch in self._batches(lacking):
            told(done, len(lacking))
            kept.update(self._read(value, batch))
            done += len(batch)
        return kept

    def _read(self, value: str, batch: list[str]) -> dict[str, Ordered]:
        """Read and sort the samples of some trials together, in threads."""
        wanted = set(batch)
        series = self.dataset.part(lambda one: one["trial"] in wanted).series([value])
        found = sort_trials(series, value=value)
        return dict(zip(found["trial"].astype(str), found[value], strict=True))

    def _batches(self, trials: list[str]) -> Iterator[list[str]]:
        """Yield trials in lists of some million samples."""
        sizes = dict(zip(self.trials["trial"], self.trials["n_samples"], strict=True))
        batch: list[str] = []
        for trial in trials:
            batch.append(trial)
            if sum(int(sizes[one]) for one in batch) >= _BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


def _wanted(name: str) -> bool:
    """Tell whether it is a metric of which a user wants more, or less."""
    return name in METRICS and METRICS[name].better != "neither"
