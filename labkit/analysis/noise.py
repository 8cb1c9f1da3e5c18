"""The noise floor: what two copies of the same condition, in the same block, differ by.

An A/A comparison shows what the laboratory reports where there is nothing to find, and its spread
says what any comparison of this campaign can decide.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.compare import contrasts
from labkit.analysis.logtable import log_table
from labkit.analysis.origin import follows
from labkit.analysis.reduce import (
    Statistic,
    groups,
    order_of,
    require_columns,
    statistic_name,
    trial_statistic,
)
from labkit.power import decidable_margin, detectable_difference

COLUMNS = (
    *("n_blocks", "ratio", "low", "high", "p_value", "sd", "sd_trial"),
    *("decidable_margin", "detectable_difference", "blocks_missing", "note"),
)


@follows
def noise_floor(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    block: str = "block",
    copy: str = "copy",
    statistic: Statistic | None = None,
    trial: str | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
) -> pd.DataFrame:
    """Compare the two copies of each condition that was run twice a block.

    Parameters
    ----------
    frame : DataFrame
        One row a trial (or a sample, with `statistic` and `trial`).
    value : str
        Column of positive numbers; NaN for a failed trial.
    condition : str or sequence of str
        Columns that together name the condition.
    block, copy : str
        The block; the number of the copy inside it, 1 or 2.
    statistic, trial, alpha
        As for `labkit.analysis.compare.compare`.
    power : float
        Power at which the margin and the difference are stated.

    Returns
    -------
    DataFrame
        One row a condition with both copies: the condition's columns; ``n_blocks``; ``ratio`` of
        copy 2 to copy 1 with ``low, high`` and ``p_value`` (a ratio that differs from 1 betrays
        the laboratory, or is one of the 1 in 20); ``sd``, the standard deviation between blocks of
        the log ratio of a pair; ``sd_trial``, between trials of a block (``sd / sqrt(2)``);
        ``decidable_margin`` and ``detectable_difference``, relative, for this spread and number of
        blocks (`labkit.power`); ``blocks_missing``; ``note``. No rows when nothing ran twice.

    Raises
    ------
    UsageError
        As `compare`.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(frame, [value, block, copy, *names])
    if statistic is not None and trial is not None:
        by = list(dict.fromkeys([trial, *names, block, copy]))
        frame = trial_statistic(frame, value=value, by=by, statistic=statistic)
        value = statistic_name(statistic)
    rows = []
    for key, index in groups(frame, names):
        cell = frame.iloc[index]
        if {1, 2} <= set(cell[copy]):
            cell = cell[cell[copy].isin([1, 2])]
            rows.append({**key, **_floor(cell, value, block, copy, alpha, power)})
    return pd.DataFrame.from_records(rows, columns=[*names, *COLUMNS])


def _floor(
    cell: pd.DataFrame, value: str, block: str, copy: str, alpha: float, power: float
) -> dict[str, Any]:
    """Return the fields of one condition's row."""
    table = log_table(cell, value=value, condition=copy, block=block)
    # The margin given here is not used: only the ratio and its spread are.
    row = contrasts(table, 1, margin=0.02, alpha=alpha)[2]
    n, sd = int(row["n_blocks"]), float(row["sd"])
    known = math.isfinite(sd)
    few = ("pilot: no block has both copies", "pilot: one block shows no spread")
    notes = [*few[n : n + 1], *(f"copy {note}" for note in table.notes.values() if note)]
    return {
        "n_blocks": n,
        "ratio": row["estimate"],
        **{name: row[name] for name in ("low", "high", "p_value", "sd", "blocks_missing")},
        "sd_trial": sd / math.sqrt(2),
        "decidable_margin": decidable_margin(sd, n, alpha=alpha, power=power) if known else np.inf,
        "detectable_difference": (
            detectable_difference(sd, n, alpha=alpha, power=power) if known else np.inf
        ),
        "note": "; ".join(notes),
    }


def pooled_sd(floor: pd.DataFrame) -> float:
    """Return the standard deviation of the paired log ratio, pooled over conditions.

    Variances are weighted by their degrees of freedom, which takes them for equal; NaN when no
    condition has two blocks.
    """
    known = floor[floor["sd"].notna() & (floor["n_blocks"] > 1)]
    if known.empty:
        return math.nan
    weight = known["n_blocks"].to_numpy(dtype=np.float64) - 1
    variance = known["sd"].to_numpy(dtype=np.float64) ** 2
    return math.sqrt(float(np.average(variance, weights=weight)))


def margins(floor: pd.DataFrame, by: str) -> dict[Hashable, float]:
    """Return, for each value of a column of `noise_floor`, the largest decidable margin.

    In the order of a categorical, whose categories without a condition that ran twice are there
    with NaN: nothing is known of them. Infinite where the spread is unknown.
    """
    largest = floor.groupby(by, observed=True)["decidable_margin"].max()
    known = floor[by].dtype
    names = known.categories if isinstance(known, pd.CategoricalDtype) else order_of(floor[by])
    return {name: float(largest.get(name, math.nan)) for name in names}
