"""Growth with a number (layers, chain length): a straight line, and whether it is one.

Computed inside each block and averaged over the blocks (summary measures; Matthews et al. 1990), so
that intervals hold whatever the variances at the levels are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.blockwise import (
    blocks_of,
    common_levels,
    joined,
    line_functionals,
    numbered,
    over_blocks,
    ratio_of_means,
)
from labkit.analysis.estimates import Estimate
from labkit.analysis.inference import Inference
from labkit.analysis.reduce import require_columns

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A line over a number, and how straight it is.

    Parameters
    ----------
    intercept, slope : Estimate
        In the unit of the value, and per unit of the number.
    growth : Estimate
        Ratio of the last level's value to the first's (log scale); NaN with a note where values
        are not positive.
    curvature : Inference
        Largest deviation, at the levels, of the best parabola from the best line, as a share of
        the line's rise over them: 0 is straight. Positive where the parabola opens upwards and
        the line rises, or opens downwards and the line falls. NaN below three levels, the whole
        line where the slope is not told from 0.
    deviations : tuple of Inference
        Deviation of each level's mean from the line, as a share of the line's rise: all of them
        are small where a line describes the levels, which no single shape of curve can say. NaN
        below three levels.
    levels : tuple of float
        Levels, rising.
    missing : tuple
        Blocks left out because they lack a level.
    n_blocks : int
        Blocks that were fitted.
    note : str
        What to know about it.
    """

    intercept: Estimate
    slope: Estimate
    growth: Estimate
    curvature: Inference
    deviations: tuple[Inference, ...]
    levels: tuple[float, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""


def linear(frame: pd.DataFrame, *, value: str, over: str, block: str) -> Line:
    """Fit a line and a parabola over a number in every block, and average over the blocks.

    Least squares without weights, as the deviation from the line is judged in the unit of the
    value. The curvature is a ratio of two means that are paired by block (Fieller 1954).

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of finite numbers; NaN stands for a trial that failed.
    over : str
        Column of the number, with two levels or more (three for the curvature).
    block : str
        Column of the block. Blocks that lack a level are left out and reported.

    Raises
    ------
    UsageError
        For missing columns, fewer than two levels, or values that are not finite.
    """
    require_columns(frame, [value, over, block])
    frame = numbered(frame, over)
    levels = np.array(common_levels([frame], over))
    table = blocks_of(frame, value=value, level=over, block=block)
    values = table.values
    line = values @ line_functionals(levels, np.ones(len(levels))).T
    span, note = float(np.ptp(levels)), table.note
    rise = line[:, 1] * span
    size = float(np.abs(values).max()) if values.size else 0.0
    return Line(
        intercept=over_blocks(line[:, 0], note=note, size=size),
        slope=over_blocks(line[:, 1], note=note, size=size / span),
        growth=_growth(values[:, 0], values[:, -1], note),
        curvature=_curvature(values, levels, rise, note),
        deviations=_deviations(values, levels, rise, note),
        levels=tuple(map(float, levels)),
        missing=table.missing,
        n_blocks=len(values),
        note=note,
    )


def _growth(first: Floats, last: Floats, note: str) -> Estimate:
    if (first <= 0).any() or (last <= 0).any():
        note = joined(note, "values that are not positive have no ratio")
        return Estimate(math.nan, math.nan, math.nan, "log", len(first), note)
    return over_blocks(np.log(last) - np.log(first), scale="log", note=note)


def _curvature(values: Floats, levels: Floats, rise: Floats, note: str) -> Inference:
    if len(levels) < 3:
        return _shapeless(len(values), note)
    # The part of the square that is no line: a parabola is a line plus a multiple of it, so its
    # deviation from the line is that multiple times this one's largest.
    centred = (levels - levels.mean()) / float(np.ptp(levels))
    bow = _no_line(levels) @ centred**2
    deviation = values @ bow / float(bow @ bow) * float(np.abs(bow).max())
    return ratio_of_means(deviation, rise, note=note)


def _deviations(values: Floats, levels: Floats, rise: Floats, note: str) -> tuple[Inference, ...]:
    if len(levels) < 3:
        return (_shapeless(len(values), note),)
    left = values @ _no_line(levels)
    return tuple(ratio_of_means(column, rise, note=note) for column in left.T)


def _no_line(levels: Floats) -> Floats:
    """Return the matrix that takes what a line explains away: I - H, with the hat matrix H."""
    centred = (levels - levels.mean()) / float(np.ptp(levels))
    design = np.column_stack([np.ones(len(levels)), centred])
    return np.asarray(np.eye(len(levels)) - design @ np.linalg.pinv(design))


def _shapeless(n_blocks: int, note: str) -> Estimate:
    note = joined(note, "two levels have no curvature")
    return Estimate(math.nan, math.nan, math.nan, "linear", n_blocks, note)
