"""Ratios of two means, and ratios of two ratios, with the uncertainty of every mean in them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.blockwise import blocks_of, checked, joined, over_blocks
from labkit.analysis.estimates import Estimate
from labkit.analysis.inference import Inference, Quotient
from labkit.analysis.intervals import mean_and_error
from labkit.analysis.origin import follows
from labkit.analysis.reduce import require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]


@follows
def interaction(
    frame: pd.DataFrame,
    *,
    value: str,
    by: str,
    block: str,
    condition: Hashable,
    baseline: Hashable,
    condition2: Hashable,
    baseline2: Hashable,
) -> Estimate:
    """Return (condition / baseline) / (condition2 / baseline2), paired by block.

    The contrast of a two by two design, whose t interval over the blocks asks nothing of the four
    variances (Matthews et al. 1990).

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    by : str
        The column that names a trial's cell, in which the four are values.
    block : str
        Column of the block.
    condition, baseline, condition2, baseline2 : hashable
        Four cells; one of them may stand twice.

    Returns
    -------
    Estimate
        On the log scale: 1 is no interaction.

    Raises
    ------
    UsageError
        For missing columns, cells that are not there, or values without a logarithm.
    """
    cells = (condition, baseline, condition2, baseline2)
    table = blocks_of(
        frame, value=value, level=by, block=block, levels=list(dict.fromkeys(cells)), log=True
    )
    a, b, c, d = (table.cells[cell].to_numpy(dtype=np.float64) for cell in cells)
    return over_blocks((a - b) - (c - d), scale="log", note=table.note)


@dataclass(frozen=True)
class Interference:
    """The interference ratio IR = (mean beside a neighbour - mean alone) / mean alone.

    Parameters
    ----------
    ratio : Inference
        Mean beside a neighbour / mean alone, which is IR + 1.
    """

    ratio: Inference

    @property
    def value(self) -> float:
        """IR: 0 for none, -0.2 for a loss of 20 %."""
        return self.ratio.value - 1

    @property
    def n_blocks(self) -> int:
        """Blocks that it rests on; unpaired, the smaller number of the two."""
        return self.ratio.n_blocks

    @property
    def note(self) -> str:
        """What to know about it."""
        return self.ratio.note

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the interval of IR."""
        low, high = self.ratio.interval(alpha)
        return low - 1, high - 1

    def p_within(self, low: float, high: float) -> float:
        """Return the p-value that shows IR to lie between two bounds."""
        return self.ratio.p_within(1 + low, 1 + high)

    def p_outside(self, low: float, high: float) -> float:
        """Return the two-sided p-value that shows IR to lie beyond one of two bounds."""
        return self.ratio.p_outside(1 + low, 1 + high)


@follows
def interference_ratio(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    other: Hashable,
    block: str,
    paired: bool = True,
) -> Interference:
    """Return the interference ratio, with the uncertainty of both means in its interval.

    Paired by block it is a ratio of geometric means, by t on log ratios. Unpaired it is a ratio of
    arithmetic means, by the interval of Fieller (1954) with degrees of freedom of Welch (1947),
    taken at the estimate.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed. Unpaired any finite ones.
    condition : str
        Column in which `baseline` (alone) and `other` (beside the neighbour) are values.
    baseline, other : hashable
        The two conditions.
    block : str
        Column of the block; several trials of one condition in a block are averaged.
    paired : bool
        Pair by block; False for blocks that have nothing in common.

    Raises
    ------
    UsageError
        For missing columns, conditions that are not there, or values that are not finite (or,
        paired, have no logarithm).
    """
    if paired:
        ends = [baseline, other]
        table = blocks_of(frame, value=value, level=condition, block=block, levels=ends, log=True)
        logs = table.values[:, 1] - table.values[:, 0]
        return Interference(over_blocks(logs, scale="log", note=table.note))
    alone, beside = (_means(frame, value, condition, name, block) for name in (baseline, other))
    return Interference(quotient(beside, alone))


def quotient(above: Floats, below: Floats, *, note: str = "") -> Quotient:
    """Return the ratio of the means of two independent samples (Fieller 1954)."""
    n = min(len(above), len(below))
    if n == 0:
        return Quotient(np.nan, np.nan, (np.nan,) * 3, np.nan, 0, joined(note, "no value"))
    top, bottom = float(above.mean()), float(below.mean())
    if n == 1:
        note = joined(note, "one block: no spread")
        return Quotient(top, bottom, (np.nan,) * 3, np.nan, 1, note)
    ratio = top / bottom if bottom else np.nan
    # Welch's degrees of freedom belong to above - r below, at the ratio that was found.
    _, _, df = mean_and_error(ratio * below, above, paired=False)
    spread = (float(above.var(ddof=1)) / len(above), 0.0, float(below.var(ddof=1)) / len(below))
    return Quotient(top, bottom, spread, df, n, note)


def _means(frame: pd.DataFrame, value: str, column: str, name: Hashable, block: str) -> Floats:
    """Return one arithmetic mean a block of one condition."""
    require_columns(frame, [value, column, block])
    rows = frame[(frame[column] == name).to_numpy()]
    if rows.empty:
        raise UsageError(f"{column!r} has no value {name!r}")
    means = pd.Series(checked(rows, value)).groupby(rows[block].to_numpy()).mean()
    return np.asarray(means.dropna().to_numpy(), dtype=np.float64)
