"""A ladder, rung by rung: each condition against the one below it.

Where conditions differ by one thing at a time, as the ladder of baselines does, the ratio of two
neighbours is the cost of that one thing. Methods as in `labkit.analysis.compare`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from labkit.analysis.blockwise import over_blocks
from labkit.analysis.compare import LogTable, contrast, decide, log_table


def steps(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    rungs: Sequence[Hashable],
    block: str = "block",
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare each rung with the one below it, paired by block, as one family.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    condition, block : str
        Columns that name the rung and the block.
    rungs : sequence
        The rungs from the lowest up. One that no trial has is left out, and the rung above it is
        compared with the next one below.
    margin, alpha : float
        As for `labkit.analysis.compare.compare`.

    Returns
    -------
    DataFrame
        One row a rung that was measured, from the lowest up: ``condition``; ``level, level_low,
        level_high``, the geometric mean over blocks in the unit of `value` and its interval;
        ``below``, the rung that it is compared with, missing for the lowest; then the columns of
        `compare` from ``n_blocks`` on, missing for the lowest too.

    Raises
    ------
    UsageError
        As `compare`.
    """
    table = log_table(frame, value=value, condition=condition, block=block)
    there = [rung for rung in rungs if rung in table.logs.columns]
    rows = [_step(table, *pair, margin, alpha) for pair in itertools.pairwise(there)]
    decided = decide(rows, alpha=alpha, keys=("condition", "below"))
    levels = pd.DataFrame([_level(table, rung, alpha) for rung in there])
    return levels.merge(decided, on="condition", how="left") if len(levels) else levels


def _step(
    table: LogTable, below: Hashable, rung: Hashable, margin: float, alpha: float
) -> dict[str, Any]:
    row = contrast(table.logs[below], table.logs[rung], margin, alpha, paired=True)
    notes = filter(None, [row["note"], table.notes.get(rung), table.notes.get(below)])
    return {"condition": rung, "below": below, **row, "note": "; ".join(notes)}


def _level(table: LogTable, rung: Hashable, alpha: float) -> dict[str, Any]:
    found = over_blocks(table.logs[rung].dropna().to_numpy(), scale="log")
    low, high = found.interval(alpha)
    return {"condition": rung, "level": found.value, "level_low": low, "level_high": high}
