"""Each kind of claim as estimates, each with the region in which the claim says that it lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from labkit.analysis.blockwise import joined, over_blocks, ratio_of_means
from labkit.analysis.estimates import Estimate
from labkit.analysis.growth import linear
from labkit.analysis.inference import Inference
from labkit.analysis.knee import knee
from labkit.analysis.overhead import overhead
from labkit.analysis.ratios import interaction
from labkit.claims.claim import Cell, Claim, Level, words
from labkit.claims.measured import Cells, Measured, NotMeasured
from labkit.claims.parts import Evaluation, Part
from labkit.units import METRICS

Region = tuple[float, float]
#: Units that a factor's name ends with.
_UNITS = {"us": "us", "ns": "ns", "b": "B"}
_NO_LOGARITHM = "a value of 0 has no logarithm"


def evaluate(claim: Claim, measured: Measured) -> Evaluation:
    """Return what a campaign says to a claim, at each combination of levels that it names.

    Raises
    ------
    NotMeasured
        The campaign lacks what the claim is about; the message says why.
    LabkitError
        Anything else that stops it.
    """
    versions = claim.versions()
    found = [KINDS[claim.kind](version, measured) for version in versions]
    if len(found) == 1:
        return found[0]
    levels = [words({name: one.where[name] for name in claim.each}) for one in versions]
    return Evaluation(
        tuple(
            replace(part, label=f"{name}: {part.label}")
            for name, one in zip(levels, found, strict=True)
            for part in one.parts
        ),
        min(one.samples for one in found),
        max(found, key=lambda one: np.nan_to_num(one.p_replicates, nan=1.0)).shown,
        max(one.also for one in found),
        joined(*(one.note for one in found)),
    )


def _beyond(direction: str, factor: float = 1.0) -> Region:
    """Return the ratios above a factor, or below its inverse."""
    up = direction in ("higher", "increasing")
    return (factor, math.inf) if up else (-math.inf, 1 / factor)


def _near(margin: float) -> Region:
    return 1 / (1 + margin), 1 + margin


def _difference(claim: Claim, measured: Measured) -> Evaluation:
    region = _beyond(claim.direction, claim.at_least)
    return _ratios(claim, measured, [(claim.condition, claim.baseline)], region)


def _equivalence(claim: Claim, measured: Measured) -> Evaluation:
    pairs = [(claim.condition, claim.baseline)]
    return _ratios(claim, measured, pairs, _near(claim.margin))


def _ratio(claim: Claim, measured: Measured) -> Evaluation:
    pairs = [(claim.condition, claim.baseline)]
    return _ratios(claim, measured, pairs, (claim.low, claim.high))


def _range_of_ratios(claim: Claim, measured: Measured) -> Evaluation:
    pairs = [(cell, claim.baseline) for cell in claim.cells]
    return _ratios(claim, measured, pairs, (claim.low, claim.high))


def _order(claim: Claim, measured: Measured) -> Evaluation:
    pairs = list(zip(claim.cells[1:], claim.cells, strict=False))
    return _ratios(claim, measured, pairs, _beyond(claim.direction))


def _monotone(claim: Claim, measured: Measured) -> Evaluation:
    cells = _curve(claim, _levels(claim, measured, [claim.where]), claim.where)
    pairs = list(zip(cells[1:], cells, strict=False))
    return _ratios(claim, measured, pairs, _beyond(claim.direction))


def _constant_product(claim: Claim, measured: Measured) -> Evaluation:
    cells = _curve(claim, claim.levels, claim.where)
    return _ratios(claim, measured, [(cell, cells[0]) for cell in cells[1:]], _near(claim.margin))


def _ratios(
    claim: Claim, measured: Measured, pairs: Sequence[tuple[Cell, Cell]], region: Region
) -> Evaluation:
    """Return one ratio a pair of cells, all of which have to lie in one region."""
    cells, places = _unique([cell for pair in pairs for cell in pair])
    found = measured.cells(claim, cells)
    parts = []
    for number, (above, below) in enumerate(pairs):
        top, bottom = places[2 * number : 2 * number + 2]
        label = f"{words(above, without=below)} / {words(below, without=above)}"
        parts.append(Part(label, _paired(found.values[top], found.values[bottom]), *region))
    return Evaluation(tuple(parts), found.samples, note=found.note)


def _paired(above: pd.Series[float], below: pd.Series[float]) -> Inference:
    """Return the ratio of two cells, paired by block: by t on logs where they have logarithms."""
    both = above.notna() & below.notna()
    note = _incomplete(both)
    top, bottom = (np.asarray(one[both], dtype=np.float64) for one in (above, below))
    if (top > 0).all() and (bottom > 0).all():
        return over_blocks(np.log(top) - np.log(bottom), scale="log", note=note)
    note = joined(note, f"{_NO_LOGARITHM}: ratio of arithmetic means (Fieller 1954)")
    return ratio_of_means(top, bottom, note=note)


def _incomplete(known: pd.Series[bool]) -> str:
    lost = int((~known).sum())
    return f"{lost} of {len(known)} blocks incomplete" if lost else ""


def _contrast(claim: Claim, measured: Measured) -> Evaluation:
    four = (claim.condition, claim.baseline, claim.condition2, claim.baseline2)
    cells, places = _unique(four)
    found = measured.cells(claim, cells)
    names = ("condition", "baseline", "condition2", "baseline2")
    estimate: Inference = _nothing(found)
    if _positive(found):
        by_name = dict(zip(names, places, strict=True))
        estimate = interaction(found.tidy(), value="value", by="cell", block="block", **by_name)
    first, second = (
        f"({words(a, without=b)} / {words(b, without=a)})" for a, b in (four[:2], four[2:])
    )
    part = Part(f"{first} / {second}", estimate, *_beyond(claim.direction))
    return Evaluation((part,), found.samples, note=found.note)


def _fixed_offset(claim: Claim, measured: Measured) -> Evaluation:
    levels = _levels(claim, measured, [claim.condition, claim.baseline])
    cells = [
        *_curve(claim, levels, claim.baseline),
        *_curve(claim, levels, claim.condition),
    ]
    found = measured.cells(claim, cells)
    unit = _unit(claim)
    if not _positive(found):
        part = Part("added at size 0", _nothing(found), 0.0, math.inf, unit)
        return Evaluation((part,), found.samples, note=found.note)
    frame = found.tidy()
    frame["side"] = np.where(frame["cell"].to_numpy() < len(levels), "baseline", "condition")
    frame["level"] = [levels[int(place) % len(levels)] for place in frame["cell"]]
    fit = overhead(
        frame,
        value="value",
        condition="side",
        baseline="baseline",
        other="condition",
        over="level",
        block="block",
    )
    offset = Part(f"added at {claim.over} 0", fit.intercept, 0.0, math.inf, unit)
    grown = Part("growth as a share of the baseline", fit.relative, -claim.margin, claim.margin)
    return Evaluation((offset, grown), found.samples, offset, note=joined(found.note, fit.note))


def _linear(claim: Claim, measured: Measured) -> Evaluation:
    levels = _levels(claim, measured, [claim.where])
    found = measured.cells(claim, _curve(claim, levels, claim.where))
    frame = found.tidy()
    frame["level"] = [levels[int(place)] for place in frame["cell"]]
    line = linear(frame, value="value", over="level", block="block")
    up = claim.direction == "increasing"
    region = (0.0, math.inf) if up else (-math.inf, 0.0)
    near = (-claim.margin, claim.margin)
    slope = Part(f"slope over {claim.over}", line.slope, *region, f"{_unit(claim)} each")
    straight = tuple(
        Part(
            f"deviation from the line at {claim.over} {level:g}, as a share of its rise", one, *near
        )
        for level, one in zip(line.levels, line.deviations, strict=len(line.deviations) > 1)
    )
    growth = Part("last / first level", line.growth, *_beyond(claim.direction))
    return Evaluation((slope, *straight), found.samples, growth, note=joined(found.note, line.note))


def _knee(claim: Claim, measured: Measured) -> Evaluation:
    # No knee can lie at 0, by which a quota says that there is none.
    levels = [one for one in map(float, _levels(claim, measured, [claim.where])) if one > 0]
    if len(levels) < 4:
        raise NotMeasured(f"{len(levels)} levels of {claim.over}, and a knee takes 4 above 0")
    found = measured.cells(claim, _curve(claim, levels, claim.where))
    label, unit = f"the knee over {claim.over}", _UNITS.get(claim.over.rpartition("_")[2], "1")
    if not _positive(found):
        part = Part(label, _nothing(found), claim.low, claim.high, unit)
        return Evaluation((part,), found.samples, note=found.note)
    frame = found.tidy()
    frame["level"] = [levels[int(place)] for place in frame["cell"]]
    bent = knee(frame, value="value", over="level", block="block")
    misfit = f"a hinge fits badly (p = {bent.p_lack_of_fit:.2g})"
    note = joined(found.note, bent.note, misfit if bent.p_lack_of_fit < 0.05 else "")
    part = Part(label, bent.at, claim.low, claim.high, unit)
    # A place of a knee is shown only where there is a knee.
    return Evaluation((part,), found.samples, also=bent.p_knee, note=note)


def _bound(claim: Claim, measured: Measured) -> Evaluation:
    found = measured.cells(claim, [claim.condition])
    known = found.values[0].notna()
    values, note = found.values[0][known].to_numpy(dtype=np.float64), _incomplete(known)
    if _positive(found):
        estimate = over_blocks(np.log(values), scale="log", note=note)
    else:
        estimate = over_blocks(values, note=joined(note, f"{_NO_LOGARITHM}: arithmetic mean"))
    part = Part(words(claim.condition), estimate, claim.low, claim.high, _unit(claim))
    return Evaluation((part,), found.samples, note=found.note)


KINDS: Mapping[str, Callable[[Claim, Measured], Evaluation]] = {
    "difference": _difference,
    "equivalence": _equivalence,
    "ratio": _ratio,
    "order": _order,
    "contrast": _contrast,
    "fixed-offset": _fixed_offset,
    "linear": _linear,
    "monotone": _monotone,
    "constant-product": _constant_product,
    "knee": _knee,
    "bound": _bound,
    "range-of-ratios": _range_of_ratios,
}


def _levels(claim: Claim, measured: Measured, cells: Sequence[Cell]) -> Sequence[Level]:
    """Return the levels of a curve: those of the claim, or all that were measured, rising."""
    return claim.levels or measured.levels(claim, cells)


def _curve(claim: Claim, levels: Sequence[Level], cell: Cell) -> list[Cell]:
    return [{**cell, claim.over: level} for level in levels]


def _unique(cells: Sequence[Cell]) -> tuple[list[Cell], list[int]]:
    """Return each cell once, and the place of every one among them."""
    once: list[Cell] = []
    for cell in cells:
        if cell not in once:
            once.append(cell)
    return once, [once.index(cell) for cell in cells]


def _positive(found: Cells) -> bool:
    return not bool((found.values <= 0).to_numpy().any())


def _nothing(found: Cells) -> Estimate:
    blocks = len(found.values.dropna())
    return Estimate(math.nan, math.nan, math.nan, n_blocks=blocks, note=_NO_LOGARITHM)


def _unit(claim: Claim) -> str:
    """Return the unit of a metric as it is stored."""
    known = METRICS.get(claim.metric)
    return claim.unit or (known.unit if known else "")
