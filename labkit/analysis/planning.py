"""How many blocks next time, from the variance that a comparison has seen.

``needed_blocks`` of `labkit.analysis.compare` answers this for its own margin. Here the question is
put to any margin and any difference, and the answer is given twice: for the spread that was seen,
and for one that is larger, as a spread from few blocks is itself uncertain.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from scipy import stats

from labkit.analysis.reduce import require_columns
from labkit.errors import UsageError
from labkit.power import blocks_for, blocks_to_detect, least_blocks

#: The larger spread is the upper limit at this confidence (Browne 1995).
CAREFUL = 0.8


def next_time(
    comparison: pd.DataFrame,
    *,
    margin: float = 0.02,
    difference: float | None = None,
    alpha: float = 0.05,
    power: float = 0.8,
) -> pd.DataFrame:
    """Return how many blocks each comparison would take in another campaign.

    Parameters
    ----------
    comparison : DataFrame
        From `compare`, `shift` or `noise_floor`: ``n_blocks`` and ``sd``, the standard deviation
        between blocks of the log ratio of a pair; other columns that name the row are kept.
    margin : float
        Equivalence margin to be decided between conditions that are equal.
    difference : float, optional
        Relative difference to be found; the margin without it.
    alpha, power : float
        Level and power of the decisions.

    Returns
    -------
    DataFrame
        The columns before ``n_blocks``, which name the row; ``n_blocks``, ``sd``; ``sd_careful``,
        the upper limit of the spread at 80 % confidence (Browne 1995); ``to_equate`` and
        ``to_detect``, blocks for the spread seen; ``to_equate_careful`` and ``to_detect_careful``
        for the larger one. At least `labkit.power.least_blocks`; missing where the spread is
        unknown or beyond planning (`labkit.power.MOST_BLOCKS`).

    Raises
    ------
    UsageError
        For missing columns or options out of range.
    """
    require_columns(comparison, ["n_blocks", "sd"])
    difference = margin if difference is None else difference
    if not (margin > 0 and difference > 0 and math.isfinite(margin + difference)):
        raise UsageError(f"margin={margin!r} and difference={difference!r} must be above 0")
    # What stands before the number of blocks names the row.
    names = list(comparison.columns[: list(comparison.columns).index("n_blocks")])
    rows = [
        {
            **dict(zip(names, key, strict=True)),
            **_row(int(n), float(sd), margin, difference, alpha, power),
        }
        for n, sd, *key in comparison[["n_blocks", "sd", *names]].itertuples(index=False)
    ]
    table = pd.DataFrame.from_records(rows)
    wanted = [name for name in table.columns if str(name).startswith("to_")]
    return table.astype(dict.fromkeys(wanted, "Int64"))


def _row(
    n: int, sd: float, margin: float, difference: float, alpha: float, power: float
) -> dict[str, Any]:
    careful = math.nan
    if n >= 2 and math.isfinite(sd):
        careful = sd * math.sqrt((n - 1) / float(stats.chi2.ppf(1 - CAREFUL, n - 1)))
    row: dict[str, Any] = {"n_blocks": n, "sd": sd, "sd_careful": careful}
    for name, spread in (("", sd), ("_careful", careful)):
        known = math.isfinite(spread)
        equate = blocks_for(margin, spread, alpha=alpha, power=power) if known else None
        detect = blocks_to_detect(difference, spread, alpha=alpha, power=power) if known else None
        row[f"to_equate{name}"] = equate and max(equate, least_blocks(alpha))
        row[f"to_detect{name}"] = detect and max(detect, least_blocks(alpha))
    return row
