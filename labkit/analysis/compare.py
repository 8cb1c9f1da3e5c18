"""Conditions against a baseline: effect sizes with intervals, tests and a verdict in words.

The trial is the unit of replication. Samples are reduced to one number a trial, trials of one
condition in one block (A/A copies) are averaged on the log scale, and conditions are compared with
the baseline inside blocks: a paired t test and interval on log ratios, which in simulations keeps
the nominal error where tests on pooled samples are wrong in up to 87 % of null experiments
(`benchmarks/simulate.py`).

Methods: ratio of geometric means by t on logs, paired by block or Welch (1947) when unpaired;
equivalence by two one-sided tests (Schuirmann 1987; Lakens 2017); family-wise error by Holm (1979);
beside the paired t the signed-rank test (Wilcoxon 1945), whose disagreement is noted.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.intervals import holm, interval, mean_and_error, p_values, signed_rank
from labkit.analysis.logtable import LogTable, log_table
from labkit.analysis.origin import follows
from labkit.analysis.reduce import Statistic, statistic_name, trial_statistic
from labkit.errors import UsageError
from labkit.power import blocks_for, least_blocks

__all__ = ["COLUMNS", "PILOT_BLOCKS", "LogTable", "compare"]
__all__ += ["contrast", "contrasts", "decide", "log_table"]

#: Fewer blocks than this are called a pilot.
PILOT_BLOCKS = 5

Floats = NDArray[np.float64]

COLUMNS = (
    *("condition", "n_blocks", "estimate", "low", "high"),
    *("difference", "difference_low", "difference_high"),
    *("p_value", "p_adjusted", "p_equivalence", "differs", "equivalent", "verdict"),
    *("blocks_missing", "needed_blocks", "sd", "note"),
)


@follows
def compare(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    block: str,
    statistic: Statistic | None = None,
    trial: str | None = None,
    margin: float = 0.02,
    alpha: float = 0.05,
    paired: bool = True,
) -> pd.DataFrame:
    """Compare every condition with a baseline, inside blocks, as ratios.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, or with `statistic` and `trial` one row a sample.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    condition, block : str
        Columns that name the condition and the block.
    baseline : hashable
        The condition that the others are divided by.
    statistic : str or callable, optional
        Reduces samples to a number a trial: ``mean``, ``median``, ``min``, ``max``, ``std``,
        ``p95``, ``p99``, ``q0.999``, or a function of a trial's sorted samples.
    trial : str, optional
        With `statistic`: the column that, within condition and block, names the trial.
    margin : float
        Equivalence margin: a ratio between 1/(1 + margin) and 1 + margin counts as equal.
    alpha : float
        Level of the tests; intervals have 1 - alpha.
    paired : bool
        Pair by block. False compares independent groups of blocks (Welch).

    Returns
    -------
    DataFrame
        One row for each other condition, in the order of a categorical or of appearance:

        - ``condition``; ``n_blocks``, those compared (unpaired: the smaller number of the two);
        - ``estimate, low, high``: ratio to the baseline and its interval (not adjusted);
        - ``difference, difference_low, difference_high``: in the unit of `value`;
        - ``p_value``, two-sided; ``p_adjusted``, Holm over the rows of this call;
          ``p_equivalence``, the larger of the two one-sided tests, not adjusted;
        - ``differs`` (``p_adjusted < alpha``), ``equivalent`` (``p_equivalence < alpha``): both
          may hold; ``verdict``: ``different``, ``equivalent``, ``different within margin`` or
          ``inconclusive``, which it always is on too few blocks for `alpha`
          (`labkit.power.least_blocks`: 5 at 0.05, 7 at 0.01);
        - ``blocks_missing``: a tuple of blocks in which the condition or the baseline lacks a
          value, so that they could not be paired;
        - ``needed_blocks``: how many it takes to call equal conditions equivalent at this margin,
          with power 0.8 and the variance seen, never fewer than any verdict takes, which is all
          that can be said when no variance was seen (missing when beyond planning);
        - ``sd``: standard deviation between blocks of the log ratio;
        - ``note``: what to know, such as failed trials, too few blocks, or that the signed-rank
          test finds what the t test does not (or the reverse).

    Raises
    ------
    UsageError
        For missing columns, an empty frame, an unknown baseline, options out of range, or values
        that have no logarithm (zero, negative, infinite): a ratio says nothing of those.
    """
    if (statistic is None) != (trial is None):
        raise UsageError(
            "samples are reduced by trial: give both statistic and trial, or neither",
            why="samples of one trial are not independent replicates",
        )
    if statistic is not None and trial is not None:
        by = list(dict.fromkeys([trial, condition, block]))
        frame = trial_statistic(frame, value=value, by=by, statistic=statistic)
        value = statistic_name(statistic)
    rows = contrasts(
        log_table(frame, value=value, condition=condition, block=block),
        baseline,
        margin=margin,
        alpha=alpha,
        paired=paired,
    )
    return decide([{"condition": name, **row} for name, row in rows.items()], alpha=alpha)


def contrasts(
    table: LogTable, baseline: Hashable, *, margin: float, alpha: float, paired: bool = True
) -> dict[Hashable, dict[str, Any]]:
    """Return, for each other condition, the fields of its row before the correction."""
    if not (margin > 0 and math.isfinite(margin)) or not 0 < alpha < 0.5:
        raise UsageError(
            f"margin={margin!r} and alpha={alpha!r} are not usable",
            remedy="margin > 0 (0.02 for 2 %) and 0 < alpha < 0.5",
        )
    logs = table.logs
    if not pd.api.types.is_hashable(baseline) or baseline not in logs.columns:
        raise UsageError(
            f"the baseline {baseline!r} is no condition here",
            remedy=f"one of {list(logs.columns)}",
        )
    rows: dict[Hashable, dict[str, Any]] = {}
    for name in logs.columns:
        if name != baseline:
            row = contrast(logs[baseline], logs[name], margin, alpha, paired=paired)
            notes = [row["note"], table.notes.get(name, ""), table.notes.get(baseline, "")]
            rows[name] = {**row, "note": "; ".join(filter(None, notes))}
    return rows


def decide(
    rows: Sequence[dict[str, Any]], *, alpha: float, keys: Sequence[str] = ("condition",)
) -> pd.DataFrame:
    """Return contrasts as a frame, adjusted by Holm as one family, with verdicts in words."""
    columns = [*keys, *COLUMNS[1:]]
    table = pd.DataFrame.from_records(list(rows), columns=columns)
    p_value = table["p_value"].to_numpy(dtype=np.float64)
    adjusted = holm(p_value)
    enough = table["n_blocks"].to_numpy(dtype=np.int64) >= least_blocks(alpha)
    differs = enough & (adjusted < alpha)
    equivalent = enough & (table["p_equivalence"].to_numpy(dtype=np.float64) < alpha)
    words = np.array(["inconclusive", "different", "equivalent", "different within margin"])
    table["p_adjusted"], table["differs"], table["equivalent"] = adjusted, differs, equivalent
    table["verdict"] = words[differs + 2 * equivalent]
    table["needed_blocks"] = table["needed_blocks"].astype("Int64")
    only_alone = enough & (p_value < alpha) & ~differs
    table.loc[only_alone, "note"] = [
        "; ".join(filter(None, [note, "differs alone, not after Holm's correction"]))
        for note in table.loc[only_alone, "note"]
    ]
    return table


def contrast(
    base: pd.Series[float], other: pd.Series[float], margin: float, alpha: float, *, paired: bool
) -> dict[str, Any]:
    """Compare two series of logs indexed by block; the fields of a row before the correction."""
    both = base.notna() & other.notna()
    missing = tuple(base.index[~both])
    if paired:
        x, y = _floats(base[both]), _floats(other[both])
    else:
        x, y = _floats(base.dropna()), _floats(other.dropna())
    n = min(len(x), len(y))
    mean, error, df = mean_and_error(x, y, paired, size=1.0)
    low, high = interval(mean, error, df, alpha)
    change, change_error, change_df = mean_and_error(np.exp(x), np.exp(y), paired)
    change_low, change_high = interval(change, change_error, change_df, alpha)
    p_value, p_equivalence = p_values(mean, error, df, math.log1p(margin))
    sd = error * math.sqrt(n) if n else math.nan
    needed = blocks_for(margin, sd, alpha=alpha) if math.isfinite(sd) else 2
    needed = needed and max(needed, least_blocks(alpha))
    notes = [_few(n, alpha, needed), _spread(len(missing) if paired else 0, error)]
    if paired and error > 0:
        notes.append(_disagreement(p_value, signed_rank(y - x), n, alpha))
    return {
        "n_blocks": n,
        "estimate": _exp(mean),
        "low": _exp(low),
        "high": _exp(high),
        "difference": change,
        "difference_low": change_low,
        "difference_high": change_high,
        "p_value": p_value,
        "p_equivalence": p_equivalence,
        "blocks_missing": missing,
        "needed_blocks": needed,
        "sd": sd,
        "note": "; ".join(filter(None, notes)),
    }


def _floats(series: pd.Series[float]) -> Floats:
    return np.asarray(series.to_numpy(), dtype=np.float64)


def _exp(log: float) -> float:
    return math.inf if log > 700 else math.exp(log)


def _few(n: int, alpha: float, needed: int | None) -> str:
    """Return what to know about the number of blocks; empty when there are enough."""
    least = least_blocks(alpha)
    if n >= max(least, PILOT_BLOCKS):
        return ""
    parts = [f"{'pilot' if n < PILOT_BLOCKS else 'too few'}: {_blocks(n)}"]
    if n < least:
        parts.append(f"a verdict at alpha={alpha:g} takes at least {least}")
    if n > 1 and needed is not None and needed > max(n, least):
        parts.append(f"about {_blocks(needed)} decide the margin")
    return "; ".join(parts)


def _spread(missing: int, error: float) -> str:
    parts = [f"{_blocks(missing)} could not be compared"] if missing else []
    if error == 0:
        parts.append("no variance between blocks: constant or coarsely rounded values")
    return "; ".join(parts)


def _disagreement(p_value: float, p_rank: float, n: int, alpha: float) -> str:
    """Return a note where the signed-rank test, if it can reach `alpha`, decides otherwise."""
    if 2.0 ** (1 - n) >= alpha or (p_value < alpha) == (p_rank < alpha):
        return ""
    return f"the signed-rank test disagrees (p = {p_rank:.2g})"


def _blocks(number: int) -> str:
    return f"{number} block{'' if number == 1 else 's'}"
