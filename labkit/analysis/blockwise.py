"""Blocks as the unit of replication: one number a block, then t over the blocks.

Whatever is asked of several levels (a slope, a curvature, a ratio of ratios) is first computed
inside each block, where drift and the block's own level cancel; the numbers of the blocks are
independent, and their mean has a t interval whatever the variances of the levels are. This is the
summary-measures analysis of repeated measurements (Matthews, Altman, Campbell & Royston 1990).
Where the quantity is a ratio of two such means, the test is inverted as Fieller (1954) does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.estimates import Estimate
from labkit.analysis.inference import Quotient
from labkit.analysis.reduce import numbers, order_of, require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]
#: Spreads below this share of the numbers that they come from are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Blocks:
    """Numbers by block and level, of the blocks that have every level.

    Parameters
    ----------
    cells : DataFrame
        A row a complete block, a column a level; several trials of a cell are averaged.
    missing : tuple
        Blocks that lack a level, so that they are left out.
    note : str
        What averaging, failed trials and missing blocks did.
    """

    cells: pd.DataFrame
    missing: tuple[Hashable, ...]
    note: str

    @property
    def values(self) -> Floats:
        """The cells as an array, shape (blocks, levels)."""
        return np.asarray(self.cells.to_numpy(), dtype=np.float64)

    def only(self, blocks: Sequence[Hashable]) -> Blocks:
        """Return the same of fewer blocks."""
        return Blocks(self.cells.loc[list(blocks)], self.missing, self.note)


def blocks_of(
    frame: pd.DataFrame,
    *,
    value: str,
    level: str,
    block: str,
    levels: Sequence[Hashable] | None = None,
    log: bool = False,
) -> Blocks:
    """Arrange trials by block and level.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of finite numbers; NaN stands for a trial that failed.
    level, block : str
        Columns that name the level (or condition) and the block.
    levels : sequence, optional
        The levels to keep, in order; otherwise all, sorted where they are numbers, else in the
        order of a categorical or of appearance.
    log : bool
        Take natural logarithms first, so that cells hold means of logs.

    Raises
    ------
    UsageError
        For missing columns, an empty frame, levels that are not there, infinite values, and with
        `log` values that have no logarithm.
    """
    require_columns(frame, [value, level, block])
    if frame[[level, block]].isna().to_numpy().any():
        raise UsageError(f"{level!r} or {block!r} is missing in some rows")
    present = order_of(frame[level])
    if levels is None:
        is_number = pd.api.types.is_numeric_dtype(frame[level])
        levels = sorted(present) if is_number else present
    if absent := [name for name in levels if name not in present]:
        raise UsageError(
            f"{level!r} has no level {', '.join(map(repr, absent))}",
            remedy=f"it has {', '.join(map(repr, present))}",
        )
    column = checked(frame, value, log)
    kept = frame[level].isin(list(levels)).to_numpy()
    tidy = pd.DataFrame({"b": frame[block], "l": frame[level], "v": column})[kept]
    cells = tidy.groupby(["b", "l"], observed=True, sort=False)["v"]
    table = cells.mean().unstack("l").reindex(columns=list(levels)).sort_index()
    whole = table.notna().all(axis=1)
    missing = tuple(table.index[~whole])
    return Blocks(table[whole], missing, _note(cells.size(), tidy["v"], len(missing)))


def checked(frame: pd.DataFrame, value: str, log: bool = False) -> Floats:
    """Return a column, or its logs, and refuse numbers that a trial cannot have."""
    column = numbers(frame, value).astype(np.float64)
    if np.isinf(column).any():
        raise UsageError(f"{value!r} holds infinite values", remedy="a failed trial is NaN")
    if log and (column <= 0).any():
        raise UsageError(
            f"{value!r} holds zero or negative values: no logarithm, no ratio",
            remedy="a value of a failed trial is NaN",
        )
    return np.asarray(np.log(column) if log else column, dtype=np.float64)


def _note(sizes: pd.Series[int], values: pd.Series[float], missing: int) -> str:
    parts = []
    if len(sizes) and sizes.max() > 1:
        parts.append(f"up to {sizes.max()} trials a cell, averaged")
    if lost := int(values.isna().sum()):
        parts.append(f"{lost} of {len(values)} trials without a value")
    if missing:
        parts.append(f"{missing} blocks lack a level and are left out")
    return "; ".join(parts)


def joined(*notes: str) -> str:
    """Return notes as one, each once."""
    return "; ".join(dict.fromkeys(filter(None, notes)))


def over_blocks(
    figures: Floats,
    *,
    scale: Literal["linear", "log"] = "linear",
    note: str = "",
    size: float = 0.0,
) -> Estimate:
    """Return the mean of one number a block with its t distribution.

    Parameters
    ----------
    figures : array of float, shape (blocks,)
        One number a block: logs for the scale ``log``.
    scale, note
        As for `Estimate`.
    size : float
        Magnitude of the numbers that the figures were computed from: a spread that is rounding
        beside it counts as none.

    Returns
    -------
    Estimate
        Its error is NaN below two blocks; it is all NaN without blocks.
    """
    n = len(figures)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, scale, 0, joined(note, "no complete block"))
    mean = float(np.mean(figures))
    if n == 1:
        return Estimate(mean, math.nan, math.nan, scale, 1, joined(note, "one block: no spread"))
    floor = ROUNDING * max(size, float(np.abs(figures).max()), 1.0 if scale == "log" else 0.0)
    spread = float(np.std(figures, ddof=1))
    if spread <= floor:
        note = joined(note, "no variance between blocks")
        return Estimate(0.0 if abs(mean) <= floor else mean, 0.0, n - 1.0, scale, n, note)
    return Estimate(mean, spread / math.sqrt(n), n - 1.0, scale, n, note)


@np.errstate(over="ignore", invalid="ignore")
def ratio_of_means(above: Floats, below: Floats, *, note: str = "") -> Quotient:
    """Return the ratio of two means of numbers paired by block (Fieller 1954, paired form).

    A bound r is tested by the t test of ``above - r * below`` over the blocks, which is exact for
    normal numbers. Where the lower mean is not told from 0 the interval is the whole line.
    """
    n = len(above)
    means = (float(np.mean(above)), float(np.mean(below))) if n else (math.nan, math.nan)
    if n < 2:
        note = joined(note, "no complete block" if n == 0 else "one block: no spread")
        return Quotient(*means, (math.nan, math.nan, math.nan), math.nan, n, note)
    spread = np.cov(above, below) / n
    return Quotient(*means, (spread[0, 0], spread[0, 1], spread[1, 1]), n - 1.0, n, note)


def numbered(frame: pd.DataFrame, over: str) -> pd.DataFrame:
    """Return the frame with a column of levels as numbers, however it was stored.

    Raises
    ------
    UsageError
        If some level is no number.
    """
    require_columns(frame, [over])
    plain = frame[over].astype(object)
    levels = pd.to_numeric(plain, errors="coerce")
    if levels.isna().any() or plain.map(lambda one: isinstance(one, bool)).any():
        raise UsageError(f"{over!r} is not a number in every row: no line over it")
    return frame.assign(**{over: levels})


def common_levels(parts: Sequence[pd.DataFrame], over: str) -> list[float]:
    """Return the levels, sorted, that all parts have; at least two finite numbers."""
    shared = set.intersection(*(set(part[over]) for part in parts))
    if len(shared) < 2 or not np.isfinite(list(shared)).all():
        raise UsageError(
            f"{over!r} has {len(shared)} levels that can be used",
            remedy="a line takes two or more, finite",
        )
    return sorted(shared)


def line_functionals(levels: Floats, weights: Floats) -> Floats:
    """Return the two rows that turn values at the levels into intercept and slope.

    Weighted least squares on 1 and the level; shape (2, levels).
    """
    # The level is scaled for the solution, so that bytes in millions do not spoil it.
    scale = float(np.abs(levels).max())
    design = np.column_stack([np.ones(len(levels)), levels / scale])
    root = np.sqrt(weights / weights.max())[:, None]
    solved = np.linalg.pinv(design * root) * root.T
    return np.asarray(solved / np.array([[1.0], [scale]]), dtype=np.float64)
