"""What each kind of claim estimates, each estimate with the region in which it is said to lie.

A claim of several parts holds when every part does: it is shown by the largest of their p-values
(intersection-union; Berger 1982). It fails when any part does: it is refuted by the smallest, times
the number of parts (Bonferroni). Where a claim says "most", both are p-values of a partial
conjunction (Benjamini and Heller 2008), of which these are the two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.estimates import Estimate, Inference, join_notes
from labkit.analysis.knee import fit_knee
from labkit.analysis.models import fit_line, interaction
from labkit.analysis.overhead import fit_overhead
from labkit.analysis.robust import block_mean, block_ratio
from labkit.analysis.sequential import over_campaigns
from labkit.claims.cells import Cells, Combined, Measured, NotMeasured
from labkit.claims.schema import (
    Bound,
    Cell,
    Claim,
    Contrast,
    FixedOffset,
    Knee,
    Level,
    Linear,
    Monotone,
    Ratio,
    Region,
    beyond,
    words,
)
from labkit.units import METRICS, factor_words, level_words, plural, unit_of_name

#: The region that has every value.
ANY: Region = (-math.inf, math.inf)
_NO_LOGARITHM = "a value of 0 has no logarithm"


@dataclass(frozen=True)
class Part:
    """One estimate and the region in which a claim says that it lies."""

    label: str
    estimate: Inference
    low: float
    high: float
    unit: str = "1"
    #: Whether it is the ratio of two conditions, and so slower, faster, more or less.
    compared: bool = False
    #: The side of 1 that the claim states: only there is the part shown to hold.
    side: Region = ANY

    @property
    def inner(self) -> Region:
        """The part of the region in which the estimate has to be for the part to hold."""
        return max(self.low, self.side[0]), min(self.high, self.side[1])

    @property
    def p_within(self) -> float:
        """The p-value that shows the part to hold."""
        return self.estimate.p_within(*self.inner)

    @property
    def p_outside(self) -> float:
        """The p-value that shows the part to fail."""
        return self.estimate.p_outside(self.low, self.high)


@dataclass(frozen=True)
class Evaluation:
    """What a campaign says to a claim."""

    #: All of them have to hold, or `required` of them.
    parts: tuple[Part, ...]
    #: Samples of the shortest trial; 0 where trials do not say.
    samples: int = 0
    #: The p-value of what has to be shown beside the parts; 0 where there is no such thing.
    also: float = 0.0
    note: str = ""
    #: Why the load generator may have set the values; empty where it did not.
    limited: str = ""
    #: How many parts have to hold; 0 for all.
    required: int = 0

    @property
    def must_hold(self) -> int:
        """How many parts have to hold."""
        return self.required or len(self.parts)

    @property
    def may_fail(self) -> int:
        """How many parts may fail."""
        return len(self.parts) - self.must_hold

    @property
    def deciding(self) -> tuple[Part, ...]:
        """The parts that are nearest to being shown to hold, as many as have to."""
        within = [part.p_within for part in self.parts]
        chosen = np.argsort(within, kind="stable")[: self.must_hold]  # unknown ones stand last
        return tuple(self.parts[place] for place in sorted(chosen))

    @property
    def p_replicates(self) -> float:
        """The p-value that shows enough parts to hold; NaN where that of one is unknown."""
        shown = self._shown([part.p_within for part in self.parts])
        return float(np.maximum(self.also, shown))

    @property
    def p_contradicts(self) -> float:
        """The p-value that shows too many parts to fail; NaN where too few are known."""
        return self._refuted([part.p_outside for part in self.parts])

    def _shown(self, p_values: Sequence[float]) -> float:
        """Return the p-value that shows as many parts to hold as have to."""
        return float(np.minimum(1.0, (self.may_fail + 1) * np.sort(p_values)[self.must_hold - 1]))

    def _refuted(self, p_values: Sequence[float]) -> float:
        """Return the p-value that shows more parts to fail than may."""
        known = sorted(p for p in p_values if not math.isnan(p))
        if len(known) <= self.may_fail:
            return math.nan
        return min(1.0, self.must_hold * known[self.may_fail])

    def p_direction(self, opposite: bool = False) -> float:
        """Return the p-value that every ratio lies on the stated side of 1, or any on the other.

        NaN for a claim without a direction: not of ratios, or of a region that 1 lies inside.
        """
        inner = [part.inner for part in self.parts]
        sides = {(1.0, math.inf) if low >= 1 else (-math.inf, 1.0) for low, _ in inner}
        directed = all(part.unit == "1" for part in self.parts) and all(
            low >= 1 or high <= 1 for low, high in inner
        )
        if not directed or len(sides) != 1:
            return math.nan
        (side,) = sides
        if not opposite:
            return self._shown([part.estimate.p_within(*side) for part in self.parts])
        return self._refuted([part.estimate.p_outside(*side) for part in self.parts])

    @property
    def weakest(self) -> Part:
        """Of the parts that have to hold, the one that is furthest from being shown to."""
        return sorted(
            self.parts, key=lambda part: (math.isnan(part.p_within), part.p_within), reverse=True
        )[self.may_fail]

    @property
    def worst(self) -> Part:
        """The part that is nearest to being shown to fail, but for those that may."""
        return sorted(self.parts, key=lambda part: (math.isnan(part.p_outside), part.p_outside))[
            self.may_fail
        ]

    @property
    def n_blocks(self) -> int:
        """Blocks that every part rests on."""
        return min(part.estimate.n_blocks for part in self.parts)


@dataclass(frozen=True)
class _Case:
    """A claim at one combination of the levels of `each`, and the campaign that it is asked of."""

    claim: Any
    at: Cell
    measured: Measured | Combined

    def cell(self, key: str = "") -> Cell:
        """Return a cell of the claim; what all its cells share, without a key."""
        cell = self.claim.complete_cells()[key] if key else self.claim.where
        return {**cell, **self.at}

    def values(self, cells: Sequence[Cell]) -> Cells:
        """Return the values of cells."""
        return self.measured.cells(self.claim, cells)

    def curve(self, *keys: str) -> tuple[Sequence[Level], list[Cell]]:
        """Return the levels of a curve, and each cell at all of them, cell by cell.

        The levels are those of the claim, or all at which every cell was measured, rising.
        """
        cells = [self.cell(key) for key in keys or ("",)]
        over = self.claim.over
        levels = self.claim.levels or self.measured.levels(self.claim, over, cells)
        return levels, [{**cell, over: level} for cell in cells for level in levels]


def evaluate(claim: Claim, measured: Measured | Combined) -> Evaluation:
    """Return what a campaign says to a claim, at each combination of levels that it names."""
    measured.check(claim)
    whole = _evaluate(claim, measured)
    if isinstance(measured, Combined):
        each = measured.each(lambda campaign: _evaluate(claim, campaign))
        whole = _over_campaigns(whole, each) if len(each) > 1 else whole
    return replace(whole, required=len(whole.parts) // 2 + 1) if claim.most else whole


def _evaluate(claim: Claim, measured: Measured | Combined) -> Evaluation:
    estimate = ESTIMATORS.get(claim.kind, _compared)
    levels = claim.at_each()
    each = [estimate(_Case(claim, at, measured)) for at in levels]
    return each[0] if len(each) == 1 else _joined(levels, each)


def _over_campaigns(whole: Evaluation, each: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of all campaigns with errors that allow for their differences."""
    parts, unchecked = [], ""
    for part in whole.parts:
        alone = [
            one.estimate
            for evaluation in each
            for one in evaluation.parts
            if one.label == part.label and isinstance(one.estimate, Estimate)
        ]
        if isinstance(part.estimate, Estimate) and len(alone) > 1:
            parts.append(replace(part, estimate=over_campaigns(part.estimate, alone)))
        else:
            parts.append(part)
            unchecked = "whether the campaigns differ was not checked"
    return replace(whole, parts=tuple(parts), note=join_notes(whole.note, unchecked))


def _joined(levels: Sequence[Cell], each: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluations at several combinations of levels as one."""
    return Evaluation(
        tuple(
            replace(part, label=f"{words(at)}: {part.label}")
            for at, evaluation in zip(levels, each, strict=True)
            for part in evaluation.parts
        ),
        min(evaluation.samples for evaluation in each),
        max(evaluation.also for evaluation in each),
        join_notes(*(evaluation.note for evaluation in each)),
        next((evaluation.limited for evaluation in each if evaluation.limited), ""),
    )


def _compared(case: _Case) -> Evaluation:
    """Estimate the ratio of each pair of cells that a claim compares."""
    pairs = [(case.cell(a), case.cell(b)) for a, b in case.claim.pairs()]
    side = case.claim.side() if isinstance(case.claim, Ratio) else ANY
    return _ratios(case, pairs, case.claim.region(), side)


def _monotone(case: _Case) -> Evaluation:
    claim: Monotone = case.claim
    _, cells = case.curve()
    return _ratios(case, list(zip(cells[1:], cells, strict=False)), claim.region())


def _ratios(
    case: _Case, pairs: Sequence[tuple[Cell, Cell]], region: Region, side: Region = ANY
) -> Evaluation:
    """Return one ratio a pair of cells, all of which have to lie in one region."""
    cells, places = _unique([cell for pair in pairs for cell in pair])
    data = case.values(cells)
    parts, values = [], data.values.to_numpy(dtype=np.float64)
    for number, (above, below) in enumerate(pairs):
        top, bottom = places[2 * number : 2 * number + 2]
        label = f"{words(above, without=below)} against {words(below, without=above)}"
        ratio = _paired(values[:, top], values[:, bottom])
        parts.append(Part(label, ratio, *region, compared=True, side=side))
    return _evaluated(data, *parts)


def _evaluated(data: Cells, *parts: Part, note: str = "", also: float = 0.0) -> Evaluation:
    return Evaluation(parts, data.samples, also, join_notes(data.note, note), data.limited)


def _paired(above: NDArray[np.float64], below: NDArray[np.float64]) -> Inference:
    """Return the ratio of two cells, paired by block: by t on logs where they have logarithms."""
    both = ~(np.isnan(above) | np.isnan(below))
    note = _incomplete(both, "a value of both")
    top, bottom = above[both], below[both]
    if (top > 0).all() and (bottom > 0).all():
        return block_mean(np.log(top) - np.log(bottom), scale="log", note=note)
    note = join_notes(note, f"{_NO_LOGARITHM}: ratio of arithmetic means (Fieller 1954)")
    return block_ratio(top, bottom, note=note)


def _incomplete(known: NDArray[np.bool_], what: str) -> str:
    lost = int((~known).sum())
    return f"{lost} of {len(known)} blocks without {what}" if lost else ""


def _contrast(case: _Case) -> Evaluation:
    claim: Contrast = case.claim
    four = [case.cell(key) for key in claim.cell_keys]
    cells, places = _unique(four)
    data = case.values(cells)
    estimate: Inference = _nothing(data)
    if data.positive:
        by_key = dict(zip(claim.cell_keys, places, strict=True))
        estimate = interaction(data.tidy(), value="value", by="cell", **by_key)
    first, second = (
        f"{words(a, without=b)} against {words(b, without=a)}" for a, b in (four[:2], four[2:])
    )
    part = Part(f"ratio of {first} to that of {second}", estimate, *beyond(claim.direction))
    return _evaluated(data, part)


def _bound(case: _Case) -> Evaluation:
    claim: Bound = case.claim
    cell = case.cell("condition")
    data = case.values([cell])
    values = data.values[0].to_numpy(dtype=np.float64)
    known = ~np.isnan(values)
    values, note = values[known], _incomplete(known, "a value")
    if data.positive:
        estimate = block_mean(np.log(values), scale="log", note=note)
    else:
        estimate = block_mean(values, note=join_notes(note, f"{_NO_LOGARITHM}: arithmetic mean"))
    unit = claim.unit if claim.unit not in ("", "1") else _unit(claim)
    part = Part(words(cell), estimate, *claim.region(), unit)
    return _evaluated(data, part)


def _linear(case: _Case) -> Evaluation:
    claim: Linear = case.claim
    levels, cells = case.curve()
    data = case.values(cells)
    line = fit_line(_over(data, levels), value="value", over="level")
    up = claim.direction == "increasing"
    region = (0.0, math.inf) if up else (-math.inf, 0.0)
    over = factor_words(claim.over)
    slope = Part(f"slope over {over}", line.slope, *region, _unit(claim))
    straight = tuple(
        Part(
            f"deviation from the line at {level_words(claim.over, level)}, as a share of its rise",
            deviation,
            -claim.margin,
            claim.margin,
            "share",
        )
        # Below three levels there is one deviation, which is unknown.
        for level, deviation in zip(line.levels, line.deviations, strict=len(line.deviations) > 1)
    )
    return _evaluated(data, slope, *straight, note=line.note)


def _fixed_offset(case: _Case) -> Evaluation:
    claim: FixedOffset = case.claim
    levels, cells = case.curve("baseline", "condition")
    data = case.values(cells)
    unit = _unit(claim)
    if not data.positive:
        part = Part("added at size 0", _nothing(data), 0.0, math.inf, unit)
        return _evaluated(data, part)
    frame = _over(data, levels)
    frame["side"] = np.where(frame["cell"].to_numpy() < len(levels), "baseline", "condition")
    fit = fit_overhead(
        frame,
        value="value",
        condition="side",
        baseline="baseline",
        other="condition",
        over="level",
    )
    offset = Part(f"added at {factor_words(claim.over)} 0", fit.intercept, 0.0, math.inf, unit)
    growth = "growth as a share of the baseline"
    grown = Part(growth, fit.relative, -claim.margin, claim.margin, "share")
    return _evaluated(data, offset, grown, note=fit.note)


def _knee(case: _Case) -> Evaluation:
    claim: Knee = case.claim
    # No knee can lie at 0, by which a quota says that there is none.
    levels, cells = case.curve()
    kept = [place for place, level in enumerate(levels) if float(level) > 0]
    if len(kept) < 4:
        raise NotMeasured(
            f"{plural(len(kept), 'level')} of the {factor_words(claim.over)} above 0: "
            "a knee takes 4"
        )
    data = case.values([cells[place] for place in kept])
    label = f"the knee over the {factor_words(claim.over)}"
    unit = unit_of_name(claim.over) or "1"
    if not data.positive:
        part = Part(label, _nothing(data), *claim.region(), unit)
        return _evaluated(data, part)
    frame = _over(data, [levels[place] for place in kept])
    fit = fit_knee(frame, value="value", over="level")
    misfit = f"a hinge fits badly (p = {fit.p_lack_of_fit:.2g})"
    note = join_notes(fit.note, misfit if fit.p_lack_of_fit < 0.05 else "")
    part = Part(label, fit.at, *claim.region(), unit)
    # A place of a knee is shown only where there is a knee.
    return _evaluated(data, part, also=fit.p_knee, note=note)


#: What estimates each kind that is not only ratios of cells.
ESTIMATORS: Mapping[str, Callable[[_Case], Evaluation]] = {
    "monotone": _monotone,
    "contrast": _contrast,
    "bound": _bound,
    "linear": _linear,
    "fixed-offset": _fixed_offset,
    "knee": _knee,
}


def _over(data: Cells, levels: Sequence[Level]) -> pd.DataFrame:
    """Return the values of a curve's cells with the column ``level``."""
    frame = data.tidy()
    frame["level"] = [float(levels[int(place) % len(levels)]) for place in frame["cell"]]
    return frame


def _unique(cells: Sequence[Cell]) -> tuple[list[Cell], list[int]]:
    """Return each cell once, and the place of every one among them."""
    once: list[Cell] = []
    for cell in cells:
        if cell not in once:
            once.append(cell)
    return once, [once.index(cell) for cell in cells]


def _nothing(data: Cells) -> Estimate:
    blocks = len(data.values.dropna())
    return Estimate(math.nan, math.nan, math.nan, n_blocks=blocks, note=_NO_LOGARITHM)


def _unit(claim: Claim) -> str:
    """Return the unit of a metric, as `labkit.answers.scaled` takes it."""
    known = METRICS.get(claim.metric)
    return known.shown if known else ""
