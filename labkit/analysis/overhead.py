"""Fixed or proportional: is what a condition adds constant, or does it grow with the size.

The difference to the baseline is taken inside each block and fitted there on 1 and the size; the
intercepts and slopes of the blocks are then averaged with a t interval (random coefficients as
summary measures; Matthews et al. 1990). Levels are weighted by 1 over the square of the baseline's
mean there, as noise grows with the value.

The size is what was set, so it has no error, and least squares needs no correction for errors on
both sides. Whether the cost is a share of what the baseline does is a question about the measured
baseline, which has errors; regressing on it would bend the slope towards 0. The size then serves
as an instrument (Wald 1940; Durbin 1954): the slope of the difference over the slope of the
baseline, both over the size, with Fieller's interval (1954).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.blockwise import (
    Blocks,
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
from labkit.analysis.origin import follows
from labkit.analysis.reduce import require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Overhead:
    """What a condition adds to the baseline, as a line over the size.

    Parameters
    ----------
    intercept : Estimate
        Added at size 0, in the unit of the value.
    slope : Estimate
        Added per unit of the size.
    relative : Inference
        Growth of what is added, from the smallest to the largest size, as a share of the
        baseline's own mean value over the sizes: 0 is a fixed cost, 0.02 a growth of 2 % of the
        baseline. The margin of "fixed" applies to it, and it can be told even where the baseline
        hardly grows.
    proportion : Inference
        The slope as a share of the baseline's own slope: 0 is a fixed cost, 0.1 a cost of 10 % of
        what the baseline does per unit. The whole line where the baseline does not surely grow.
    ratio : Estimate
        Geometric mean over the sizes of condition / baseline (log scale).
    levels : tuple of float
        Sizes measured.
    missing : tuple
        Blocks left out because they lack a cell.
    n_blocks : int
        Blocks that were fitted.
    note : str
        What to know about it.
    """

    intercept: Estimate
    slope: Estimate
    relative: Inference
    proportion: Inference
    ratio: Estimate
    levels: tuple[float, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""


@follows
def overhead(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    other: Hashable,
    over: str,
    block: str,
) -> Overhead:
    """Fit other - baseline, inside blocks, on 1 + `over`.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    condition : str
        Column in which `baseline` and `other` are values.
    baseline, other : hashable
        The two conditions.
    over : str
        Column of the size, a number; sizes that both conditions have are used.
    block : str
        Column of the block. Blocks that lack a cell are left out and reported.

    Raises
    ------
    UsageError
        For missing columns, conditions that are not there, fewer than two common sizes, or values
        that are not positive and finite.
    """
    require_columns(frame, [value, condition, over, block])
    frame = numbered(frame, over)
    parts = [_rows(frame, condition, name) for name in (baseline, other)]
    levels = common_levels(parts, over)
    base, with_it = (
        blocks_of(part, value=value, level=over, block=block, levels=levels, log=True)
        for part in parts
    )
    every = base.cells.index.intersection(with_it.cells.index)
    missing = tuple(name for name in pd.unique(frame[block]) if name not in set(every))
    note = joined(
        "two sizes: a line fits whatever is there" if len(levels) == 2 else "",
        *(
            f"{name}: {part.note}"
            for name, part in ((baseline, base), (other, with_it))
            if part.note
        ),
    )
    return _fitted(
        base.only(list(every)), with_it.only(list(every)), np.array(levels), missing, note
    )


def _fitted(
    base: Blocks, other: Blocks, levels: Floats, missing: tuple[Hashable, ...], note: str
) -> Overhead:
    logs = base.values, other.values
    own, added = np.exp(logs[0]), np.exp(logs[1]) - np.exp(logs[0])
    typical = np.exp(logs[0].mean(axis=0)) if len(own) else np.ones(len(levels))
    solve = line_functionals(levels, 1 / typical**2)
    line, own_slope = added @ solve.T, own @ solve[1]
    span = float(np.ptp(levels))
    size = float(own.max()) if own.size else 0.0
    growth = line[:, 1] * span
    return Overhead(
        intercept=over_blocks(line[:, 0], note=note, size=size),
        slope=over_blocks(line[:, 1], note=note, size=size / span),
        relative=ratio_of_means(growth, own.mean(axis=1), note=note),
        proportion=ratio_of_means(line[:, 1], own_slope, note=note),
        ratio=over_blocks((logs[1] - logs[0]).mean(axis=1), scale="log", note=note),
        levels=tuple(map(float, levels)),
        missing=missing,
        n_blocks=len(own),
        note=note,
    )


def _rows(frame: pd.DataFrame, column: str, name: Hashable) -> pd.DataFrame:
    rows = frame[(frame[column] == name).to_numpy()]
    if rows.empty:
        raise UsageError(
            f"{column!r} has no value {name!r}",
            remedy=f"it has {', '.join(map(repr, pd.unique(frame[column])))}",
        )
    return rows
