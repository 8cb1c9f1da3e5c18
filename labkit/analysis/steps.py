"""Levels in order: all the way up or down, or all the same.

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
)
from labkit.analysis.estimates import Estimate
from labkit.analysis.intervals import holm
from labkit.errors import UsageError

Floats = NDArray[np.float64]


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
