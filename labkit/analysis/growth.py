"""Growth with a number (layers, chain length): straight lines, order, constant products.

Computed inside each block and averaged over the blocks (summary measures; Matthews et al. 1990), so
that intervals hold whatever the variances at the levels are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

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
from labkit.analysis.intervals import holm
from labkit.analysis.reduce import require_columns
from labkit.errors import UsageError

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
    size = float(np.abs(values).max()) if values.size else 0.0
    return Line(
        intercept=over_blocks(line[:, 0], note=note, size=size),
        slope=over_blocks(line[:, 1], note=note, size=size / span),
        growth=_growth(values[:, 0], values[:, -1], note),
        curvature=_curvature(values, levels, line[:, 1] * span, note),
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
        note = joined(note, "two levels have no curvature")
        return Estimate(math.nan, math.nan, math.nan, "linear", len(values), note)
    # The part of the square that is no line: a parabola is a line plus a multiple of it, so its
    # deviation from the line is that multiple times this one's largest.
    centred = (levels - levels.mean()) / float(np.ptp(levels))
    design = np.column_stack([np.ones(len(levels)), centred])
    bow = centred**2 - design @ (np.linalg.pinv(design) @ centred**2)
    deviation = values @ bow / float(bow @ bow) * float(np.abs(bow).max())
    return ratio_of_means(deviation, rise, note=note)


@dataclass(frozen=True)
class Steps:
    """Neighbouring levels compared, and the trend over all of them.

    Parameters
    ----------
    steps : tuple of Estimate
        Ratio of each level to the one before it (log scale): one fewer than levels.
    trend : Estimate
        Mean factor a step: the slope of log values on the level's place (log scale).
    levels : tuple
        Levels, in the order asked.
    missing : tuple
        Blocks left out because they lack a level.
    n_blocks : int
        Blocks compared.
    note : str
        What to know about it.
    logs : array of float
        The logs, shape (blocks, levels).
    """

    steps: tuple[Estimate, ...]
    trend: Estimate
    levels: tuple[Hashable, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""
    logs: Floats = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)

    @property
    def page_p(self) -> float:
        """Two-sided p of a trend in ranks over the blocks, in either direction (Page 1963).

        The trend test of scipy, doubled for two directions; NaN below two blocks or three levels.
        """
        if self.logs.shape[0] < 2 or self.logs.shape[1] < 3:
            return math.nan
        p_values = [
            float(stats.page_trend_test(data, method="asymptotic").pvalue)
            for data in (self.logs, self.logs[:, ::-1])
        ]
        return min(1.0, 2 * min(p_values))


def monotone(
    frame: pd.DataFrame,
    *,
    value: str,
    over: str,
    block: str,
    levels: Sequence[Hashable] | None = None,
) -> Steps:
    """Compare neighbouring levels, in the order of `levels`, paired by block.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    over, block : str
        Columns of the level and of the block. Blocks that lack a level are left out and reported.
    levels : sequence, optional
        The levels in the order that is claimed; without it numbers are sorted, and others are in
        the order of a categorical or of appearance.

    Returns
    -------
    Steps
        To show an order every step has to be shown; no correction is due for that (Berger 1982).

    Raises
    ------
    UsageError
        For missing columns, fewer than two levels, or values without a logarithm.
    """
    table = blocks_of(frame, value=value, level=over, block=block, levels=levels, log=True)
    names = tuple(table.cells.columns)
    if len(names) < 2:
        raise UsageError(f"{over!r} has fewer than two levels: nothing to order")
    logs = table.values
    steps = tuple(
        over_blocks(logs[:, i + 1] - logs[:, i], scale="log", note=table.note)
        for i in range(len(names) - 1)
    )
    place = line_functionals(np.arange(1.0, len(names) + 1), np.ones(len(names)))[1]
    trend = over_blocks(logs @ place, scale="log", note=table.note)
    return Steps(steps, trend, names, table.missing, len(logs), table.note, logs)


@dataclass(frozen=True)
class Constancy:
    """Whether a value is the same at all levels.

    Parameters
    ----------
    to_first : tuple of Estimate
        Ratio of every other level to the first (log scale).
    slope : Estimate
        Slope of log value on log level (linear scale): 0 where constant, 1 where the value grows
        in proportion. NaN with a note where a level is not positive.
    levels, missing, n_blocks, note
        As in `Line`, the reference first.
    """

    to_first: tuple[Estimate, ...]
    slope: Estimate
    levels: tuple[float, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""

    def p_equal(self, margin: float) -> float:
        """Return the p-value that shows every level within `margin` of the first (Berger 1982)."""
        low, high = 1 / (1 + margin), 1 + margin
        return float(np.max([one.p_within(low, high) for one in self.to_first]))

    def p_unequal(self, margin: float = 0.0) -> float:
        """Return the p-value that shows some level beyond `margin`, after Holm's correction."""
        low, high = 1 / (1 + margin), 1 + margin
        return float(np.min(holm(np.array([one.p_outside(low, high) for one in self.to_first]))))


def constant_product(
    frame: pd.DataFrame,
    *,
    value: str,
    over: str,
    block: str,
    levels: Sequence[float] | None = None,
) -> Constancy:
    """Compare the product, which `value` holds, at every level with that at the first.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers, the product itself; NaN stands for a trial that failed.
    over, block : str
        Columns of the level, a number, and of the block.
    levels : sequence of float, optional
        The levels that are claimed equal, the reference first; all of them, sorted, without it.

    Raises
    ------
    UsageError
        For missing columns, fewer than two levels, or values without a logarithm.
    """
    frame = numbered(frame, over)
    table = blocks_of(frame, value=value, level=over, block=block, levels=levels, log=True)
    common_levels([frame[frame[over].isin(list(table.cells.columns))]], over)
    names, logs = np.asarray(table.cells.columns, dtype=np.float64), table.values
    to_first = tuple(
        over_blocks(logs[:, i] - logs[:, 0], scale="log", note=table.note)
        for i in range(1, len(names))
    )
    if (names > 0).all():
        place = line_functionals(np.log(names), np.ones(len(names)))[1]
        slope = over_blocks(logs @ place, note=table.note, size=1.0)
    else:
        note = joined(table.note, "levels that are not positive have no logarithm")
        slope = Estimate(math.nan, math.nan, math.nan, "linear", len(logs), note)
    kept = tuple(map(float, names))
    return Constancy(to_first, slope, kept, table.missing, len(logs), table.note)
