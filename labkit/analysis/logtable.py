"""Trials on the log scale, a row a block and a column a condition: what comparisons start from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.grouping import is_categorical, numbers, require_columns
from labkit.errors import UsageError


@dataclass(frozen=True)
class LogTable:
    """Logs of trials, averaged over copies.

    Parameters
    ----------
    logs : DataFrame
        A row a block, a column a condition; NaN where a block has no value.
    notes : dict
        For each condition, what averaging copies and failed trials did to it.
    """

    logs: pd.DataFrame
    notes: dict[Hashable, str]


def log_table(trials: pd.DataFrame, *, value: str, condition: str, block: str) -> LogTable:
    """Return the logs of trial-level values by block and condition.

    Parameters
    ----------
    trials : DataFrame
        One row a trial; several of a condition in a block are averaged.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    condition, block : str
        Columns that name the condition and the block.

    Raises
    ------
    UsageError
        For missing columns or names, no rows, or values without a logarithm.
    """
    require_columns(trials, [value, condition, block])
    values = numbers(trials, value).astype(np.float64)
    bad = ~np.isnan(values) & ~((values > 0) & np.isfinite(values))
    if bad.any():
        first = trials[[condition, block]].iloc[int(np.argmax(bad))].to_dict()
        raise UsageError(
            f"{int(bad.sum())} values of {value!r} are zero, negative or infinite: no ratio",
            where=f"first in {first}, {values[bad][0]}",
            remedy="a value of a failed trial is NaN; compare other values by their difference",
        )
    cell, blocks, names = _cells(trials[block], trials[condition])
    shape, known = (len(blocks), len(names)), ~np.isnan(values)
    logs = np.log(values)
    # Means from a cell's own value: of equal numbers exactly that number, however many they are.
    centre = np.full(len(blocks) * len(names), np.nan)
    centre[cell[known]] = logs[known]
    count = np.bincount(cell[known], minlength=len(centre))
    total = np.bincount(cell[known], (logs - centre[cell])[known], minlength=len(centre))
    means = (centre + total / np.maximum(count, 1)).reshape(shape)
    size = np.bincount(cell, minlength=len(centre)).reshape(shape)
    # Names that are tuples stay names, and do not become levels of an index.
    index, columns = (pd.Index(one, tupleize_cols=False) for one in (blocks, names))
    table = pd.DataFrame(means, index=index, columns=columns)
    return LogTable(table, _notes(names, size, count.reshape(shape)))


def _cells(
    block: pd.Series[Any], condition: pd.Series[Any]
) -> tuple[NDArray[np.int64], list[Hashable], list[Hashable]]:
    """Return each row's cell, counted block by block, and the names of blocks and conditions.

    Conditions are in the order of a categorical or of appearance, blocks in their own order, or of
    appearance where their names have none among them.
    """
    rows, names = pd.factorize(condition, sort=is_categorical(condition))
    try:
        places, blocks = pd.factorize(block, sort=True)
    except TypeError:
        places, blocks = pd.factorize(block)
    if min(rows.min(), places.min()) < 0:
        raise UsageError(f"{condition.name!r} or {block.name!r} is missing in some rows")
    return places * len(names) + rows, list(blocks), list(names)


def _notes(
    names: Sequence[Hashable], sizes: NDArray[np.int64], counts: NDArray[np.int64]
) -> dict[Hashable, str]:
    """Return, for each condition, what averaging copies and failed trials did to it."""
    notes: dict[Hashable, str] = {}
    for name, size, count in zip(names, sizes.T, counts.T, strict=True):
        parts = []
        if size.max() > 1:
            parts.append(f"{name}: up to {size.max()} trials a block, averaged on the log scale")
        if lost := int((size - count).sum()):
            parts.append(f"{name}: {lost} of {size.sum()} trials without a value")
        notes[name] = "; ".join(parts)
    return notes
