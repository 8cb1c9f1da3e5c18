"""What is looked at: a choice, and the trials that it comes to with a number each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from labkit.analysis.compare import PILOT_BLOCKS
from labkit.analysis.figure import counts
from labkit.analysis.reduce import order_of, quantile_level, samples_needed, statistic_of
from labkit.errors import UsageError
from labkit.explore.quantity import Quantity
from labkit.explore.study import MOST, Explored, Told

#: What a trial's samples can be reduced to, and how it is listed.
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


@dataclass(frozen=True)
class Choice:
    """What the controls are set to.

    Parameters
    ----------
    value : str
        Quantity.
    statistic : str
        One of `STATISTICS`; it says nothing where a trial has one number.
    levels : mapping of str to tuple of str
        The levels of factors; all where none is named.
    baseline : tuple of str
        A level of each factor that varies; the plan's baseline where no chosen condition has them.
    counter : str
        The mechanism evidence to see beside the number.
    log, tail, single : bool
        Of distributions: a logarithmic axis, the share above each value, single trials too.
    relative : bool
        Of shifts: ratios instead of differences.
    """

    value: str
    statistic: str = "median"
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: tuple[str, ...] = ()
    counter: str = ""
    log: bool = True
    tail: bool = False
    single: bool = True
    relative: bool = False


@dataclass(frozen=True)
class Part:
    """The trials of a choice.

    Parameters
    ----------
    study : Explored
        The campaign.
    choice : Choice
        What was chosen.
    quantity : Quantity
        What is looked at.
    trials : DataFrame
        One row a trial with a number: the columns of `Explored.trials`, `condition`, `number`, and
        of samples a column of sorted ones, named as the quantity.
    condition, number : str
        Columns: what names a condition, and the trial's number (in the unit of the quantity).
    baseline : str
        The condition that the others are compared with.
    without : str
        In words, which chosen trials have no number; empty when all have one.
    """

    study: Explored
    choice: Choice
    quantity: Quantity
    trials: pd.DataFrame
    condition: str
    number: str
    baseline: str
    without: str

    @property
    def unit(self) -> str:
        """The unit in which numbers are shown."""
        return self.quantity.shown_unit

    @property
    def scale(self) -> float:
        """The factor from the stored unit to the one that is shown."""
        return self.quantity.scale

    @cached_property
    def names(self) -> list[str]:
        """The conditions with a number, in the order of the plan's levels."""
        return [str(name) for name in order_of(self.trials[self.condition])]

    @cached_property
    def drawn(self) -> list[str]:
        """Those that a figure shows: the baseline is among the first 12."""
        if len(self.names) <= MOST or self.baseline not in self.names:
            return self.names[:MOST]
        others = [name for name in self.names if name != self.baseline]
        kept = {self.baseline, *others[: MOST - 1]}
        return [name for name in self.names if name in kept]

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The trials of the conditions that are drawn."""
        return self.trials[self.trials[self.condition].isin(self.drawn)]

    @cached_property
    def paired(self) -> pd.DataFrame:
        """The trials of blocks that lie within one session: only these are compared."""
        return self.trials[~self.trials["block"].isin(self.study.spanned)]

    @property
    def positive(self) -> bool:
        """Whether every number has a logarithm."""
        numbers = self.trials[self.number].to_numpy(dtype=np.float64)
        return bool(((numbers > 0) & np.isfinite(numbers)).all())

    def said(self, *, drawn: bool = True) -> list[str]:
        """Return, in sentences, how much there is, what is the same in all, what is not `drawn`."""
        blocks = int(self.trials["block"].nunique())
        total = sum(map(len, self.trials[self.quantity.name])) if self.quantity.sampled else None
        pilot = f" Fewer than {PILOT_BLOCKS} blocks: a pilot." if blocks < PILOT_BLOCKS else ""
        sentences = [f"{counts(blocks, len(self.trials), total)}.{pilot}"]
        apart = self.condition.split(" + ") if len(self.names) > 1 else []
        alike = [
            f"{name} {self.trials[name].iloc[0]}"
            for name in self.study.varying
            if name not in apart
        ]
        if alike and len(self.names) > 1:
            sentences.append(f"In all of them: {', '.join(alike)}.")
        if self.without:
            sentences.append(self.without)
        if drawn and len(self.drawn) < len(self.names):
            sentences.append(
                f"The figure has {len(self.drawn)} of {len(self.names)} conditions: choose fewer "
                "levels to see the others."
            )
        return sentences


def part_of(study: Explored, choice: Choice, told: Told = lambda done, total: None) -> Part:
    """Return the trials of a choice; the samples of a trial are read when first asked for.

    Parameters
    ----------
    study : Explored
        The campaign.
    choice : Choice
        What was chosen.
    told : callable, optional
        Is told how many trials were read of how many, while they are.

    Raises
    ------
    UsageError
        No trial has these levels and this quantity.
    DatasetError
        Samples cannot be read.
    """
    quantity = study.quantities[choice.value]
    rows, condition = study.chosen(choice.value, choice.levels)
    number = quantity.text
    if quantity.sampled:
        number = f"{quantity.text}, {STATISTICS[choice.statistic]}"
        found = study.ordered(choice.value, list(rows["trial"]), told)
        cells = np.empty(len(rows), dtype=object)
        for place, trial in enumerate(rows["trial"]):
            cells[place] = found[trial]
        rows = rows.assign(**{quantity.name: cells})
        rows[number] = [statistic_of(one, choice.statistic) for one in cells]
    else:
        rows[number] = study.numbers(quantity.name)[rows.index]
    conditions = study.conditions(choice.value, choice.levels)
    named = {key: name for name, key in conditions.items()}
    baseline = named.get(choice.baseline) or named[study.baseline(conditions)]
    there = rows[number].notna()
    if not there.any():
        raise UsageError(
            f"no chosen trial has {number}",
            where=study.home,
            why=f"each has fewer samples than the {samples_needed(level):,} that this takes"
            if (level := quantile_level(choice.statistic)) and quantity.sampled
            else "",
            remedy="choose another statistic, or other levels",
        )
    without = _without(study, choice, int((~there).sum()), len(rows))
    return Part(study, choice, quantity, rows[there], condition, number, baseline, without)


def _without(study: Explored, choice: Choice, unreduced: int, measured: int) -> str:
    """Return in words which chosen trials have no number, and why."""
    quantity, level = study.quantities[choice.value], quantile_level(choice.statistic)
    every = len(study.within(study.trials, choice.levels))
    parts = []
    if measured < every:
        parts.append(
            f"{every - measured} of {every} trials with these levels have no {quantity.text}: "
            "they are not shown."
        )
    if unreduced:
        why = f", which takes {samples_needed(level):,} samples" if level else ""
        parts.append(
            f"{unreduced} of {measured} trials have no {STATISTICS[choice.statistic]}{why}."
        )
    return " ".join(parts)
