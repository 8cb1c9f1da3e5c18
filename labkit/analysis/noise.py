"""What a campaign can decide: its noise floor, the ladder of baselines, blocks for the next one.

An A/A comparison shows what the lab reports where there is nothing to find, and its spread says
what any comparison of this campaign can decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.compare import LogTable, contrast, contrasts, decide, log_table
from labkit.analysis.estimates import Estimate, join_notes, mean_over_blocks
from labkit.analysis.power import (
    blocks_for,
    blocks_to_detect,
    decidable_margin,
    detectable_difference,
    least_blocks,
)
from labkit.analysis.robust import checked
from labkit.analysis.trials import groups, require_columns
from labkit.errors import UsageError

NOISE_COLUMNS = (
    *("n_blocks", "ratio", "low", "high", "p_value", "sd"),
    *("decidable_margin", "detectable_difference", "blocks_missing", "note"),
)


def noise_floor(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare the two copies of each condition that was run twice a block.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block`` and the number of the replicate, 1 or 2,
        in ``replicate``.
    value : str
        Column of positive numbers; NaN for a failed trial.
    condition : str or sequence of str
        Columns that together name the condition.
    alpha : float
        Level of the tests; intervals have 1 - alpha.

    Returns
    -------
    DataFrame
        One row a condition with both copies: the condition's columns; ``n_blocks``; ``ratio`` of
        replicate 2 to 1 with ``low, high`` and ``p_value`` (a ratio that differs from 1 shows a
        bias of the lab, or is one of the 1 in 20); ``sd``, the standard deviation between blocks of
        the log ratio of a pair; ``decidable_margin`` and ``detectable_difference``, relative, for
        this spread and number of blocks with power 0.8; ``blocks_missing``; ``note``. No rows when
        nothing ran twice.

    Raises
    ------
    UsageError
        As `compare`.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> names = ["placement", "affinity", "wait", "capture"]
    >>> floor = analysis.noise_floor(trials, value="rtt_ns_median", condition=names)
    >>> bool((floor["decidable_margin"] > 0.005).all())
    True
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(frame, [value, "block", "replicate", *names])
    rows = []
    for key, index in groups(frame, names):
        cell = frame.iloc[index]
        if {1, 2} <= set(cell["replicate"]):
            cell = cell[cell["replicate"].isin([1, 2])]
            rows.append({**key, **_floor(cell, value, alpha)})
    return pd.DataFrame.from_records(rows, columns=[*names, *NOISE_COLUMNS])


def _floor(cell: pd.DataFrame, value: str, alpha: float) -> dict[str, Any]:
    """Return the fields of one condition's row."""
    table = log_table(cell, value=value, condition="replicate")
    # The margin given here is not used: only the ratio and its spread are.
    row = contrasts(table, 1, margin=0.02, alpha=alpha)[2]
    n, sd = int(row["n_blocks"]), float(row["sd"])
    low, high = Estimate(row["mean"], row["error"], row["df"], "log").interval(alpha)
    known = math.isfinite(sd)
    few = {0: "pilot: no block has both copies", 1: "pilot: one block shows no spread"}
    notes = [few.get(n, ""), *(f"replicate {note}" for note in table.notes.values() if note)]
    if sd > 0:
        changes = (table.logs[2] - table.logs[1]).dropna().to_numpy(dtype=np.float64)
        notes.append(checked(changes).note)
    return {
        "n_blocks": n,
        "ratio": row["estimate"],
        "low": low,
        "high": high,
        **{name: row[name] for name in ("p_value", "sd", "blocks_missing")},
        "decidable_margin": decidable_margin(sd, n, alpha=alpha) if known else np.inf,
        "detectable_difference": detectable_difference(sd, n, alpha=alpha) if known else np.inf,
        "note": join_notes(*notes),
    }


def baseline_steps(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    levels: Sequence[Hashable],
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare each baseline level with the one below it, paired by block, as one family."""
    table = log_table(frame, value=value, condition=condition)
    measured = [level for level in levels if level in table.logs.columns]
    rows = [_step(table, *pair, margin, alpha) for pair in itertools.pairwise(measured)]
    decided = decide(rows, alpha=alpha, keys=("condition", "below"))
    means = pd.DataFrame([_level(table, level, alpha) for level in measured])
    return means.merge(decided, on="condition", how="left") if len(means) else means


def _step(
    table: LogTable, below: Hashable, upper: Hashable, margin: float, alpha: float
) -> dict[str, Any]:
    row = contrast(table.logs[below], table.logs[upper], margin, alpha, paired=True)
    note = join_notes(row["note"], table.notes[upper], table.notes[below])
    return {"condition": upper, "below": below, **row, "note": note}


def _level(table: LogTable, upper: Hashable, alpha: float) -> dict[str, Any]:
    mean = mean_over_blocks(table.logs[upper].dropna().to_numpy(), scale="log")
    low, high = mean.interval(alpha)
    return {"condition": upper, "level": mean.value, "level_low": low, "level_high": high}


def blocks_needed(
    comparison: pd.DataFrame,
    *,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return how many blocks each comparison would take in another campaign.

    Parameters
    ----------
    comparison : DataFrame
        From `compare`, `shift` or `noise_floor`: ``n_blocks`` and ``sd``, the standard deviation
        between blocks of the log ratio of a pair; other columns that name the row are kept.
    margin : float
        Relative difference to be found, and equivalence margin to be decided between conditions
        that are equal.
    alpha : float
        Level of the decisions.

    Returns
    -------
    DataFrame
        The columns before ``n_blocks``, which name the row; ``n_blocks``, ``sd``; ``to_equate``
        and ``to_detect``, blocks that reach power 0.8 on average over what the spread may be,
        given the blocks it was estimated from (`labkit.analysis.power`). At least `least_blocks`;
        missing where the spread is unknown or beyond planning (`MOST_BLOCKS`).

    Raises
    ------
    UsageError
        For missing columns or options out of range.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> seen = pd.DataFrame({"condition": ["docker host"], "n_blocks": [5], "sd": [0.05]})
    >>> analysis.blocks_needed(seen, margin=0.02)
         condition  n_blocks    sd  to_equate  to_detect
    0  docker host         5  0.05        100         80
    """
    require_columns(comparison, ["n_blocks", "sd"])
    if not (margin > 0 and math.isfinite(margin)):
        raise UsageError(f"invalid margin: {margin!r}", remedy="margin > 0 (0.02 for 2 %)")
    # What stands before the number of blocks names the row.
    names = list(comparison.columns[: list(comparison.columns).index("n_blocks")])
    rows = [
        {
            **dict(zip(names, key, strict=True)),
            **_blocks_row(int(n), float(sd), margin, alpha),
        }
        for n, sd, *key in comparison[["n_blocks", "sd", *names]].itertuples(index=False)
    ]
    return pd.DataFrame.from_records(rows).astype({"to_equate": "Int64", "to_detect": "Int64"})


def _blocks_row(n: int, sd: float, margin: float, alpha: float) -> dict[str, Any]:
    row: dict[str, Any] = {"n_blocks": n, "sd": sd, "to_equate": None, "to_detect": None}
    if n >= 2 and math.isfinite(sd):
        for name, blocks in (
            ("to_equate", blocks_for(margin, sd, alpha=alpha, pilot=n)),
            ("to_detect", blocks_to_detect(margin, sd, alpha=alpha, pilot=n)),
        ):
            row[name] = blocks and max(blocks, least_blocks(alpha))
    return row
