"""Tables of summary statistics, and the effect of one factor inside cells of the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.compare import LogTable, contrasts, decide, log_table
from labkit.analysis.grouping import require_names
from labkit.analysis.origin import follows
from labkit.analysis.reduce import (
    Statistic,
    groups,
    order_of,
    quantile_level,
    reduce_trials,
    require_columns,
    samples_needed,
    sort_trials,
    statistic_name,
    trial_statistic,
)
from labkit.errors import UsageError

#: The statistics of the tables in rohprimardho2015, and the mean beside them.
STATISTICS = ("min", "median", "mean", "p95", "p99", "std")
#: So many rows are looked at together where all of them would cost memory.
_PIECE = 2**20


@follows
def summarise(
    samples: pd.DataFrame,
    *,
    by: Sequence[str],
    value: str = "rtt_ns",
    statistics: Sequence[str] = STATISTICS,
) -> pd.DataFrame:
    """Summarise raw samples, a row a group (with the trial in `by`: a row a trial).

    Parameters
    ----------
    samples : DataFrame
        One row a sample, or what `labkit.analysis.reduce.sort_trials` made of them.
    by : sequence of str
        Columns that name a group.
    value : str
        Numeric column; statistics are in its unit.
    statistics : sequence of str
        See `labkit.analysis.compare.compare`.

    Returns
    -------
    DataFrame
        `by`, ``n`` (samples), the statistics, and ``note``: which quantiles were refused (NaN)
        because the group has fewer samples than `samples_needed` asks.

    Raises
    ------
    UsageError
        For missing columns, no rows, an unknown statistic or a partly missing trial.
    """
    table = reduce_trials(samples, value=value, by=by, statistics=statistics)
    needs = {
        name: samples_needed(level)
        for name in statistics
        if (level := quantile_level(name)) is not None
    }
    table["note"] = [
        "; ".join(f"{name} takes {need} samples" for name, need in needs.items() if n < need)
        for n in table["n"]
    ]
    return table


@follows
def combined(
    samples: pd.DataFrame,
    *,
    by: Sequence[str],
    value: str = "rtt_ns",
    trial: str = "trial",
    block: str = "block",
    statistics: Sequence[str] = STATISTICS,
) -> pd.DataFrame:
    """Summarise all trials of a condition pooled, as the papers' "combined" tables do.

    A description only: pooled samples are not replicates, so nothing is tested on them. `samples`
    as in `summarise`; each trial is sorted once, and trials are pooled without sorting again.

    Returns
    -------
    DataFrame
        As `summarise`, with ``n_trials`` and ``n_blocks`` after `by`.
    """
    trials = sort_trials(samples, value=value, by=list(dict.fromkeys([*by, trial, block])))
    table = summarise(trials, by=by, value=value, statistics=statistics)
    counts = trials.groupby(list(by), observed=True)[[trial, block]].nunique().reset_index()
    counts = counts.rename(columns={trial: "n_trials", block: "n_blocks"})
    table = table.merge(counts, on=list(by), how="left", validate="one_to_one")
    return table[[*by, "n_trials", "n_blocks", "n", *statistics, "note"]]


@follows
def factor_effect(
    frame: pd.DataFrame,
    factor: str,
    levels: Sequence[Hashable],
    within: Sequence[str],
    *,
    value: str,
    block: str = "block",
    statistic: Statistic | None = None,
    trial: str | None = None,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare levels of one factor inside every cell of the other factors, as one family.

    Parameters
    ----------
    frame : DataFrame
        As for `labkit.analysis.compare.compare`.
    factor : str
        Column of the factor.
    levels : sequence
        The baseline level first, then the levels compared with it.
    within : sequence of str
        Columns of the other factors; each combination that occurs is a cell.
    value, block, statistic, trial, margin, alpha
        As for `compare`.

    Returns
    -------
    DataFrame
        `within`, ``contrast`` (such as ``spin / block``), then the columns of `compare` from
        ``n_blocks`` on, with Holm's correction over all rows. A cell that lacks a level has a row
        with 0 blocks and says so: nothing is dropped in silence.

    Raises
    ------
    UsageError
        As `compare`, and for fewer than two levels.
    """
    require_columns(frame, [factor, value, block, *within])
    require_names(frame, [factor])
    if len(levels) < 2:
        raise UsageError("an effect needs at least two levels", remedy="the baseline level first")
    if statistic is not None and trial is not None:
        by = list(dict.fromkeys([trial, factor, block, *within]))
        frame = trial_statistic(frame, value=value, by=by, statistic=statistic)
        value = statistic_name(statistic)
    frame = frame[frame[factor].isin(list(levels))]
    rows: list[dict[str, Any]] = []
    for cell, index in groups(frame, within):
        logs = log_table(frame.iloc[index], value=value, condition=factor, block=block)
        for level, row in cell_effects(logs, levels, factor, margin, alpha).items():
            rows.append({**cell, "contrast": f"{level} / {levels[0]}", **row})
    return decide(rows, alpha=alpha, keys=[*within, "contrast"])


@follows
def cell_effects(
    table: LogTable, levels: Sequence[Hashable], factor: str, margin: float, alpha: float
) -> dict[Hashable, dict[str, Any]]:
    """Return the contrasts of one cell, the first level's with the others, before the correction.

    A level that was not run has a row that says so.
    """
    lacking = [level for level in levels if level not in table.logs.columns]
    logs = table.logs.copy()
    for level in lacking:
        logs[level] = math.nan
    rows = contrasts(LogTable(logs, table.notes), levels[0], margin=margin, alpha=alpha)
    for level in levels[1:]:
        absent = [name for name in (levels[0], level) if name in lacking]
        if absent:
            said = " or ".join(f"{factor}={name}" for name in absent)
            rows[level] = {**rows[level], "blocks_missing": (), "note": f"no trial with {said}"}
    return {level: rows[level] for level in levels[1:]}


@follows
def mechanisms(trials: pd.DataFrame, *, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Average mechanism counters over the trials of each condition.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, counters as stored (per message where `labkit.units` says so).
    by, columns : sequence of str
        Condition columns, and numeric counters; a counter that a rig does not have may be absent.

    Returns
    -------
    DataFrame
        `by`, ``n_trials``, and the mean of each counter, NaN where nothing was recorded.
    """
    require_columns(trials, by)
    known = [name for name in columns if name in trials.columns]
    # Categories have an order of their own, which sorting keeps; other names come as they appear.
    ordered = all(isinstance(trials[name].dtype, pd.CategoricalDtype) for name in by)
    cells = trials.groupby(list(by), observed=True, sort=ordered)
    table = cells.size().rename("n_trials").to_frame()
    for name in columns:
        counter = pd.to_numeric(trials[name], errors="coerce") if name in known else math.nan
        means = trials.assign(_counter=counter).groupby(list(by), observed=True, sort=ordered)
        table[name] = means["_counter"].mean()
    return table.reset_index()


def joint(
    frame: pd.DataFrame, columns: Sequence[str], *, separator: str = " + "
) -> pd.Categorical[Any]:
    """Return several factors as one, such as ``free + block``, a category a combination.

    Categories follow the order of the columns' own, the last varying fastest; only combinations
    that occur are among them. Works on codes, a piece of the rows at a time: no text is made a
    row, and a row costs no more than its code.
    """
    require_columns(frame, columns)
    for name in columns:
        if frame[name].isna().any():
            raise UsageError(f"column {name!r} has missing values", remedy="name every trial")
    parts = [_present(frame[name]) for name in columns]
    levels = [list(part.categories) for part in parts]
    total = math.prod(map(len, levels))
    code, used = np.empty(len(frame), dtype=np.min_scalar_type(-total)), np.zeros(total, np.bool_)
    pieces = [slice(start, start + _PIECE) for start in range(0, len(frame), _PIECE)]
    for rows in pieces:
        place = np.zeros(len(code[rows]), dtype=np.intp)
        for part in parts:
            place = place * len(part.categories) + part.codes[rows]
        code[rows], used[place] = place, True
    rank = np.cumsum(used) - 1
    for rows in pieces:
        code[rows] = rank[code[rows]]
    names = [separator.join(map(str, parts)) for parts in itertools.product(*levels)]
    kept = pd.Index([name for name, is_used in zip(names, used, strict=True) if is_used])
    return pd.Categorical.from_codes(code, kept)


def _present(column: pd.Series[Any]) -> pd.Categorical[Any]:
    """Return a column as a categorical of the levels that occur, in their order."""
    levels = order_of(column)
    known = column.array
    if isinstance(known, pd.Categorical):
        return known.set_categories(levels)
    return pd.Categorical(column, categories=levels)
