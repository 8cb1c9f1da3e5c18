"""The words of a claim against the vocabulary of its study, and its cells among themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from labkit.analysis.reduce import quantile_level
from labkit.claims.claim import Cell, Claim, Level, StudyWords

#: Fields of a claim that hold one cell.
CELLS = ("condition", "baseline", "condition2", "baseline2")
_STATISTICS = ("mean", "median", "min", "max", "std")


def word_problems(
    claim: Claim, entry: Mapping[str, Any], studies: Mapping[str, StudyWords]
) -> list[str]:
    """Return what is wrong with the words of a claim.

    Parameters
    ----------
    claim : Claim
        The claim, with complete cells.
    entry : mapping
        The claim as the file has it, of its kind's shape.
    studies : mapping
        The vocabulary by study.

    Returns
    -------
    list of str
        A sentence a problem; none where all is well.
    """
    study = studies.get(claim.study)
    if study is None:
        return [f"study {claim.study!r} is unknown; known are {sorted(studies)}"]
    found = _metric_problems(claim, study)
    given = [(name, entry[name]) for name in ("where", *CELLS) if name in entry]
    for name in ("cells", "conditions"):
        given += [(f"{name}[{i}]", cell) for i, cell in enumerate(entry.get(name, []))]
    for name, cell in given:
        found += _cell_problems(name, cell, claim.where, study)
    found += _each_problems(claim, study)
    found += _comparison_problems(claim)
    return found + (_curve_problems(claim, study) if claim.over else [])


def _metric_problems(claim: Claim, study: StudyWords) -> list[str]:
    sort = study.metrics.get(claim.metric)
    if sort is None:
        known = sorted(study.metrics)
        return [f"metric {claim.metric!r} is not of study {study.name}; known are {known}"]
    if sort == "trial":
        said = f"{claim.metric} is one number a trial: leave statistic out"
        return [said] if claim.statistic else []
    if not claim.statistic:
        return [f"statistic missing; {claim.metric} has many samples a trial"]
    if claim.statistic in _STATISTICS or quantile_level(claim.statistic) is not None:
        return []
    return [f"statistic {claim.statistic!r} is unknown; known are {_STATISTICS}, p99, q0.999"]


def _cell_problems(
    name: str, cell: Mapping[str, Level], where: Cell, study: StudyWords
) -> list[str]:
    found = []
    for factor, level in cell.items():
        found += [f"{name}: {problem}" for problem in _level_problems(factor, level, study)]
        if where.get(factor, level) != level:
            fixed = where[factor]
            found.append(f"{name}: {factor} = {level!r}, which where fixes to {fixed!r}")
    return found


def _each_problems(claim: Claim, study: StudyWords) -> list[str]:
    """Return what is wrong with the levels for each of which a claim must hold."""
    found = []
    cells = (claim.where, *(getattr(claim, name) for name in CELLS), *claim.cells)
    for factor, levels in claim.each.items():
        if factor == claim.over or any(factor in cell for cell in cells):
            found.append(f"each: {factor} is fixed in a cell, or is what the curve runs over")
        for level in levels:
            found += [f"each: {problem}" for problem in _level_problems(factor, level, study)]
    return found


def _level_problems(factor: str, level: Level, study: StudyWords) -> list[str]:
    if factor not in study.factors:
        return [f"factor {factor!r} is not of study {study.name}; known are {list(study.factors)}"]
    levels = study.factors[factor]
    if levels is None:
        number = isinstance(level, int | float) and math.isfinite(level)
        return [] if number else [f"{factor} takes a number and not {level!r}"]
    return [] if level in levels else [f"{factor} has no level {level!r}; known are {list(levels)}"]


def _comparison_problems(claim: Claim) -> list[str]:
    """Return what is wrong between the cells, and with the numbers, of a claim."""
    found = []
    pairs = [("condition", claim.condition, claim.baseline)] if claim.baseline else []
    pairs += [("condition2", claim.condition2, claim.baseline2)] if claim.baseline2 else []
    if claim.kind == "range-of-ratios":
        pairs = [(f"conditions[{i}]", one, claim.baseline) for i, one in enumerate(claim.cells)]
    elif claim.cells:
        pairs = [(f"cells[{i}]", one, claim.cells[0]) for i, one in enumerate(claim.cells[1:], 1)]
    for name, cell, other in pairs:
        if cell.keys() != other.keys():
            odd = sorted(cell.keys() ^ other.keys())
            found.append(f"{name}: compared with a cell that has not the same factors: {odd}")
        elif cell == other:
            found.append(f"{name}: compared with itself")
    if claim.condition2 and (odd := sorted(claim.condition.keys() ^ claim.condition2.keys())):
        found.append(f"condition2: the first pair has not the same factors: {odd}")
    if not claim.low <= claim.high:
        found.append(f"low = {claim.low} lies above high = {claim.high}")
    if claim.at_least < 1:
        found.append(f'at_least = {claim.at_least} is below 1: only with direction = "lower"')
    return found


def _curve_problems(claim: Claim, study: StudyWords) -> list[str]:
    """Return what is wrong with the factor that a curve runs over."""
    if claim.over not in study.factors:
        known = list(study.factors)
        return [f"over: factor {claim.over!r} is not of study {study.name}; known are {known}"]
    found = []
    if any(claim.over in cell for cell in (claim.where, claim.condition, claim.baseline)):
        found.append(f"over: {claim.over} is fixed in a cell")
    if study.factors[claim.over] is not None and not (claim.kind == "monotone" and claim.levels):
        found.append(f"over: {claim.over} has no numbers; only monotone can take it, with levels")
    for level in claim.levels:
        found += [f"levels: {text}" for text in _level_problems(claim.over, level, study)]
    return found
