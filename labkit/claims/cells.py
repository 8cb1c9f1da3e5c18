"""The cells of a claim in a campaign: one number a block and cell, or why there is none."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.checks import blocks_across_sessions, spanned_note
from labkit.analysis.estimates import join_notes
from labkit.analysis.trials import quantile_level, reduce_trials, samples_needed, sort_samples
from labkit.answers import quantity
from labkit.claims.schema import (
    Cell,
    Claim,
    FixedOffset,
    Knee,
    Level,
    Linear,
    Monotone,
    level_text,
    words,
)
from labkit.dataset import Dataset
from labkit.errors import DatasetError
from labkit.tools.parsing import NOT_REACHED
from labkit.units import METRICS, factor_words, level_words, plural

_T = TypeVar("_T")
#: A load generator that used more of its CPUs than this may be the bottleneck, and so may one that
#: did not reach this share of the rate that was asked of it, and is flagged for that.
SATURATED, REACHED = 0.9, 0.95
#: So may one that waited for its own CPU for more than this share of the time.
WAITED = 0.05
#: The columns of a window with a capture, at the rate that is offered.
_LOADED = "loaded_"
#: Statistics of samples that the papers print.
_PRINTED = ("mean", "median", "min", "max", "std", "p95", "p99")


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
    #: Why the load generator, and not the server, may have set the values; empty where it did not.
    limited: str = ""

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

    Samples are read and sorted once a metric, for all statistics that claims ask of it. Trials are
    kept as arrays over all attempts: a ledger asks for hundreds of cells.
    """

    def __init__(self, dataset: Dataset, claims: Iterable[Claim]) -> None:
        self.dataset, self.datasets = dataset, [dataset]
        plan = dataset.plan
        self.study = str(plan["study"])
        #: The factors of the plan, and the settings that a claim can select, with their levels.
        self.varied = tuple(plan["factors"])
        self.known = {
            name: [value]
            for name, value in plan.get("settings", {}).items()
            if isinstance(value, str | int | float) and not isinstance(value, bool)
        } | {name: list(levels) for name, levels in plan["factors"].items()}
        self._numeric = {
            name: bool(np.isfinite(_numbers(levels)).all()) for name, levels in self.known.items()
        }
        self._statistics: dict[str, dict[str, None]] = {}
        for claim in claims:
            self._statistics.setdefault(claim.metric, {})[claim.statistic] = None
        self._samples: dict[str, pd.DataFrame] = {}
        self._values: dict[tuple[str, str], _Values] = {}
        self._masks: dict[frozenset[tuple[str, Level]], NDArray[np.bool_]] = {}
        self._codes: dict[tuple[str, ...], NDArray[np.intp]] = {}
        trials = dataset.trials.reset_index(drop=True)
        self._trials = trials
        self._ok = (trials.get("status", pd.Series(dtype=object)) == "ok").to_numpy(dtype=bool)
        self._limited = {prefix: _limited(trials, prefix) for prefix in ("", _LOADED)}
        self._one_session = bool(trials.get("session", pd.Series(dtype=object)).nunique() == 1)
        self._levels = {
            name: _Levels.of(trials[name] if name in trials.columns else levels * len(trials))
            for name, levels in self.known.items()
        }

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
            elif self._numeric[factor] is number:
                continue
            elif isinstance(level, float) and math.isnan(level):
                said = f"{factor} has no numbers; write levels"
            else:
                wanted = "words" if number else "a number"
                levels = self.known[factor]
                said = f"{factor} takes {wanted} and not {level_text(level)}, as {levels} are"
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
        data = self._data(claim)
        rows = [self._of(data, cell, claim) for cell in cells]
        unnamed = [name for name in self.varied if not any(name in cell for cell in cells)]
        codes = self._combined(unnamed)
        shared, lost = _shared(rows, codes, unnamed)
        blocks = self._trials["block"].to_numpy()
        split = [] if self._one_session else self._spanning(shared)
        kept = [indices[~np.isin(blocks[indices], split)] for indices in shared]
        if not any(map(len, kept)):
            raise NotMeasured("every block spans several sessions")
        used, _ = _shared(kept, codes, unnamed)
        positive = all(bool((data.value[indices] > 0).all()) for indices in used)
        means = [
            _block_means(data.value[indices], blocks[indices], codes[indices], positive)
            for indices in used
        ]
        # By array: a table of series would be aligned anew for each of hundreds of claims.
        every = np.unique(np.concatenate([names for names, _ in means]))
        values = np.full((len(every), len(means)), np.nan)
        for place, (names, mean) in enumerate(means):
            values[np.searchsorted(every, names), place] = mean
        members = [self._matches(cell) for cell in cells]
        failures = sum(int((member & ~self._ok).sum()) for member in members)
        valueless = sum(int((member & self._ok & np.isnan(data.value)).sum()) for member in members)
        several = [
            name for name in unnamed if len(np.unique(self._levels[name].codes[kept[0]])) > 1
        ]
        repeated = any(len(np.unique(blocks[indices])) < len(indices) for indices in kept)
        note = join_notes(
            spanned_note(split),
            f"averaged over {', '.join(map(factor_words, several))}" if several else "",
            "averaged without logs, as a value is 0" if repeated and not positive else "",
            f"{plural(lost, 'trial')} left out: not every condition was measured at their "
            f"{', '.join(map(factor_words, unnamed))}"
            if lost
            else "",
            f"{plural(failures, 'attempt')} failed" if failures else "",
            f"{plural(valueless, 'trial')} without {quantity(claim.metric, claim.statistic)}"
            if valueless
            else "",
        )
        samples = int(data.n[np.concatenate(shared)].min())
        limited = self._load_limit(used, claim.metric)
        return Cells(pd.DataFrame(values, index=every), samples, note, limited)

    def levels(self, claim: Claim, over: str, cells: Sequence[Cell]) -> list[float]:
        """Return the numbers of a factor at which every cell was measured."""
        data = self._data(claim)
        if over not in self._levels:
            raise NotMeasured(f"this campaign does not vary the {factor_words(over)}")
        numbers = self._levels[over].numbers
        levels = [set(map(float, numbers[self._of(data, cell, claim)])) for cell in cells]
        return _several(levels, over)

    def _spanning(self, cells: Sequence[NDArray[np.intp]]) -> list[Any]:
        """Return the blocks in which the trials of cells ran in several sessions."""
        return blocks_across_sessions(self._trials.loc[np.unique(np.concatenate(cells))])

    def _data(self, claim: Claim) -> _Values:
        """Return the value and the number of samples of every attempt."""
        key = claim.metric, claim.statistic
        if key not in self._values:
            if not self._ok.any():
                raise NotMeasured(f"no trial of {self.study} succeeded{_problems(self._trials)}")
            reduced = self._reduced(claim.metric, claim.statistic).set_index("trial")
            names = self._trials["trial"].where(self._ok)
            self._values[key] = _Values(
                names.map(reduced[claim.statistic]).to_numpy(dtype=np.float64),
                names.map(reduced["n"]).fillna(0).to_numpy(dtype=np.int64),
            )
        return self._values[key]

    def _reduced(self, metric: str, statistic: str) -> pd.DataFrame:
        """Return ``trial``, ``n`` and a column a statistic (``""``: the trial's own number)."""
        if not statistic:
            ok = self.dataset.ok
            own = ok[metric] if metric in ok.columns else np.nan
            return ok[["trial", "n_samples"]].set_axis(["trial", "n"], axis=1).assign(**{"": own})
        if statistic not in self._samples.get(metric, ()):
            sampled = self.dataset.sampled
            if not any(metric in names for names in sampled.values()):
                if metric not in METRICS:
                    raise DatasetError(f"{metric!r} was not measured, and no study declares it")
                raise NotMeasured(f"the trials of this campaign have no {METRICS[metric].text}")
            # Such as the time at a host, which only captured trials have.
            part = self.dataset.part(lambda one: metric in sampled.get(one["trial"], ()))
            series = part.series([metric], reduce=sort_samples)
            asked = self._statistics.get(metric, {})
            # What no claim asks of it, a table may: read the samples again only once.
            more = {} if statistic in asked else dict.fromkeys([statistic, *_PRINTED])
            self._samples[metric] = reduce_trials(
                series,
                value=metric,
                by=["trial"],
                statistics=[name for name in {**asked, **more} if name],
            ).astype({"trial": str})
        return self._samples[metric]

    def _matches(self, cell: Cell) -> NDArray[np.bool_]:
        """Return which attempts are of a cell."""
        key = frozenset(cell.items())
        if key not in self._masks:
            every = np.full(len(self._trials), True)
            masks = [self._levels[name].equal(level) for name, level in cell.items()]
            self._masks[key] = np.logical_and.reduce([every, *masks])
        return self._masks[key]

    def _combined(self, names: Sequence[str]) -> NDArray[np.intp]:
        """Return a number for each attempt that is the same where the levels of factors are."""
        key = tuple(names)
        if key not in self._codes:
            columns = [self._levels[name].codes for name in names]
            table = np.stack([*columns, np.zeros(len(self._trials), dtype=np.intp)])
            self._codes[key] = np.unique(table, axis=1, return_inverse=True)[1].ravel()
        return self._codes[key]

    def _of(self, data: _Values, cell: Cell, claim: Claim) -> NDArray[np.intp]:
        """Return the attempts of a cell that have a value."""
        indices = np.flatnonzero(self._matches(cell) & self._ok)
        if not len(indices):
            raise NotMeasured(f"{words(cell)}: {self._reason(cell)}")
        if not claim.statistic and claim.metric not in self._trials.columns:
            known = sorted({name for record in self.dataset.records for name in record["metrics"]})
            raise DatasetError(
                f"{claim.id}: metric: unknown metric {claim.metric!r}",
                why=f"the trials of {self.study} have {known}",
                remedy="correct it, or write statistic where it has samples",
            )
        values = data.value[indices]
        if np.isinf(values).any() or (values < 0).any():
            raise DatasetError(
                f"{claim.metric} is negative or infinite in a trial", where=words(cell)
            )
        if np.isnan(values).all():
            raise NotMeasured(f"{words(cell)}: {_no_value(int(data.n[indices].max()), claim)}")
        return indices[~np.isnan(values)]

    def _load_limit(self, cells: Sequence[NDArray[np.intp]], metric: str) -> str:
        """Return why the load generator limits a cell, where it limits a tenth of its trials."""
        limited = self._limited[_LOADED if metric.startswith(_LOADED) else ""]
        for indices in cells:
            reasons = [reason for reason in limited[indices] if reason]
            if len(reasons) > 0.1 * len(indices):
                return f"{reasons[0]}; it was the limit in {len(reasons)} of {len(indices)} trials"
        return ""

    def _reason(self, cell: Cell) -> str:
        """Return why no trial of a cell succeeded."""
        infeasible = self.dataset.plan.get("infeasible", [])
        if reasons := [entry["reason"] for entry in infeasible if self._covers(entry, cell)]:
            return f"infeasible: {'; '.join(dict.fromkeys(reasons))}"
        for name, level in cell.items():
            planned = _Levels.of(self.known[name]).equal(level).any()
            if not planned and not self._levels[name].equal(level).any():
                return f"{level_words(name, level)} is not in this campaign"
        failed = self._trials[self._matches(cell)]
        if len(failed):
            return f"none of {len(failed)} attempts succeeded{_problems(failed)}"
        # A condition that a trial would have measured beside that of the plan.
        for name in cell:
            rest = {other: level for other, level in cell.items() if other != name}
            reasons = [entry["reason"] for entry in infeasible if self._covers(entry, rest)]
            if reasons and not self._matches(rest).any():
                return f"infeasible: {'; '.join(dict.fromkeys(reasons))}"
        return "no trial of it was run"

    def _covers(self, entry: Mapping[str, str], cell: Cell) -> bool:
        levels = dict(zip(self.varied, entry["condition"].split(" | "), strict=False))
        return all(
            bool(_level(levels[name]).equal(cell[name]).all()) for name in cell.keys() & levels
        )


class Combined:
    """Several campaigns of one plan on one rig: the blocks of all of them."""

    def __init__(self, campaigns: Sequence[Measured]) -> None:
        self.campaigns = campaigns
        self.dataset = campaigns[-1].dataset
        self.datasets = [campaign.dataset for campaign in campaigns]

    def check(self, claim: Claim) -> None:
        """Raise `DatasetError` where a claim names a factor that the plan does not have."""
        self.campaigns[-1].check(claim)

    def cells(self, claim: Claim, cells: Sequence[Cell]) -> Cells:
        """Return the values of cells, over the blocks of all campaigns."""
        several = self.each(lambda campaign: campaign.cells(claim, cells))
        return Cells(
            pd.concat([each.values for each in several], ignore_index=True),
            min(each.samples for each in several),
            join_notes(*(each.note for each in several)),
            next((each.limited for each in several if each.limited), ""),
        )

    def levels(self, claim: Claim, over: str, cells: Sequence[Cell]) -> list[float]:
        """Return the numbers of a factor at which every cell was measured in every campaign."""
        return _several(self.each(lambda campaign: campaign.levels(claim, over, cells)), over)

    def each(self, read: Callable[[Measured], _T]) -> list[_T]:
        """Return what is read of each campaign that has it."""
        values, reasons = [], []
        for campaign in self.campaigns:
            try:
                values.append(read(campaign))
            except NotMeasured as reason:
                reasons.append(reason)
        if not values:
            raise reasons[-1]
        return values


def _several(levels: Sequence[Iterable[float]], over: str) -> list[float]:
    """Return the levels of a factor that all have; raise `NotMeasured` where they are not two."""
    shared = sorted(set.intersection(*map(set, levels)))
    if len(shared) < 2:
        raise NotMeasured(
            f"{plural(len(shared), 'level')} of the {factor_words(over)} measured: it takes several"
        )
    return shared


@dataclass(frozen=True)
class _Values:
    """One number for each attempt (NaN for none), and the samples that it rests on."""

    value: NDArray[np.float64]
    n: NDArray[np.int64]


@dataclass(frozen=True)
class _Levels:
    """A column of levels: as objects, as numbers, and numbered by their distinct values."""

    objects: NDArray[np.object_]
    numbers: NDArray[np.float64]
    codes: NDArray[np.intp]

    @classmethod
    def of(cls, column: Iterable[Any]) -> _Levels:
        objects = np.array([*column, None], dtype=object)[:-1]
        return cls(objects, _numbers(objects), pd.factorize(objects)[0])

    def equal(self, level: Level) -> NDArray[np.bool_]:
        """Return where the column has a level: a number as a number, text as text."""
        column = self.numbers if isinstance(level, int | float) else self.objects
        return np.asarray(column == level, dtype=bool)


@functools.cache
def _level(text: str) -> _Levels:
    """Return one level as a column."""
    return _Levels.of([text])


def _numbers(column: Iterable[Any]) -> NDArray[np.float64]:
    """Return levels as numbers, NaN where they are none."""
    series = pd.to_numeric(pd.Series([*column], dtype=object), errors="coerce")
    return series.to_numpy(dtype=np.float64)


def _limited(trials: pd.DataFrame, prefix: str) -> NDArray[np.object_]:
    """Return, for each attempt, why its load generator may have been the bottleneck.

    `prefix` is that of the columns of another window of the trial, which has its own.
    """
    unknown = pd.Series(np.nan, index=trials.index)
    cpu = trials.get("tool_cpu", unknown).astype(float)
    waited = trials.get("client_delay", unknown).astype(float)
    sent = trials.get(f"{prefix}sent_per_s", trials.get("sent_per_s", unknown))
    sent = sent / trials.get("offered_per_s", unknown)
    reached = trials.get("reached", sent).astype(float)
    # Its tool knows how few a load with random intervals may send by chance.
    late = trials.get("flags", unknown).astype(str).str.contains(NOT_REACHED, regex=False)
    reasons = [
        f"the load generator used {used:.0%} of its CPUs"
        if used > SATURATED
        else f"the client waited for its CPU for {delay:.0%} of the time"
        if delay > WAITED
        else f"the load generator reached {share:.0%} of the rate asked for"
        if share < REACHED and flagged
        else ""
        for used, delay, share, flagged in zip(cpu, waited, reached, late, strict=True)
    ]
    return np.array([*reasons, None], dtype=object)[:-1]


def _shared(
    rows: Sequence[NDArray[np.intp]], codes: NDArray[np.intp], unnamed: Sequence[str]
) -> tuple[list[NDArray[np.intp]], int]:
    """Return the trials at those levels of other factors that all cells have, and how many not."""
    if not unnamed:
        return list(rows), 0
    common = functools.reduce(np.intersect1d, [codes[indices] for indices in rows])
    shared = [indices[np.isin(codes[indices], common)] for indices in rows]
    if not all(map(len, shared)):
        names = ", ".join(map(factor_words, unnamed))
        raise NotMeasured(f"the conditions have no level of {names} in common")
    return shared, sum(map(len, rows)) - sum(map(len, shared))


def _block_means(
    values: NDArray[np.float64],
    blocks: NDArray[Any],
    codes: NDArray[np.intp],
    positive: bool,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return blocks and their numbers, averaged over replicates, then levels of other factors.

    A block that lacks a level has no value: the other levels would bias it.
    """
    names, row = np.unique(blocks, return_inverse=True)
    levels, column = np.unique(codes, return_inverse=True)
    place, shape = row * len(levels) + column, (len(names), len(levels))
    logs = np.log(values) if positive else values
    sums = np.bincount(place, logs, minlength=math.prod(shape)).reshape(shape)
    counts = np.bincount(place, minlength=math.prod(shape)).reshape(shape)
    with np.errstate(invalid="ignore"):
        mean = (sums / counts).mean(axis=1)
    return names, np.exp(mean) if positive else mean


def _problems(attempts: pd.DataFrame) -> str:
    if not len(attempts):
        return ""
    said = [text for text in dict.fromkeys(attempts["problems"]) if text]
    return f": {'; '.join(said[:3])}" if said else ""


def _no_value(samples: int, claim: Claim) -> str:
    if (level := quantile_level(claim.statistic)) is not None:
        about, needed = quantity(claim.metric, claim.statistic), samples_needed(level)
        return f"the {about} takes {needed:,} samples a trial, and there are {samples:,}"
    return f"no trial has a value of the {quantity(claim.metric)}"
