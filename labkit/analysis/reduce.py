"""From samples to one number a trial, so that samples are never taken for replicates.

Samples come as a row each (`Dataset.samples`), as an array a trial (`Dataset.series`), or sorted
already: whoever wants more than one table or figure of the same samples sorts them once with
`sort_trials` and hands that to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.grouping import (
    Array,
    groups,
    is_categorical,
    numbers,
    order_of,
    require_columns,
)
from labkit.analysis.ordered import Ordered, partly_missing, pooled, quantiles, sort_all
from labkit.analysis.origin import follows
from labkit.errors import UsageError

__all__ = ["Ordered", "Statistic", "groups", "numbers", "order_of", "ordered_groups", "pooled"]
__all__ += ["quantile_level", "quantiles", "reduce_trials", "require_columns", "samples_needed"]
__all__ += ["series_of", "sort_trials", "statistic_name", "statistic_of", "trial_statistic"]

#: A name (``mean``, ``median``, ``min``, ``max``, ``std``, ``p99``, ``q0.999``) or a function of
#: the sorted samples of a trial.
Statistic = str | Callable[[Array], float]

_PLAIN = ("mean", "min", "max", "std")


def quantile_level(name: str) -> float | None:
    """Return the level of ``median``, ``p99`` or ``q0.999``, or None for another statistic."""
    if name == "median":
        return 0.5
    if name[:1] not in ("p", "q"):
        return None
    try:
        level = round(float(name[1:]) / 100, 12) if name[0] == "p" else float(name[1:])
    except ValueError:
        return None
    return level if 0 < level < 1 else None


def samples_needed(level: float) -> int:
    """Return how many samples a quantile needs so that one of them is expected beyond it.

    With fewer, an empirical quantile is the extreme under another name: 20 samples for the 95 %
    quantile, 100 for 99 %, 1,000 for 99.9 %. For the median, which is no tail, one will do.
    """
    return 1 if level == 0.5 else math.ceil(round(1 / min(level, 1 - level), 6))


def statistic_name(statistic: Statistic) -> str:
    """Return how a statistic is called in a column or a figure."""
    return statistic if isinstance(statistic, str) else getattr(statistic, "__name__", "statistic")


def statistic_of(ordered: Ordered, statistic: Statistic) -> float:
    """Return one statistic of sorted samples; NaN when there are too few for that quantile."""
    if not isinstance(statistic, str):
        return float(statistic(ordered.values))
    level = quantile_level(statistic)
    if level is not None:
        enough = len(ordered) >= samples_needed(level)
        return float(ordered.quantiles([level])[0]) if enough else math.nan
    if statistic not in _PLAIN:
        raise UsageError(
            f"unknown statistic {statistic!r}",
            remedy="mean, median, min, max, std, p99 (any percentage), q0.999 or a function",
        )
    return float(getattr(ordered, statistic))


@follows
def sort_trials(
    samples: pd.DataFrame, *, value: str = "rtt_ns", by: Sequence[str] | None = None
) -> pd.DataFrame:
    """Sort each trial's samples, once for every table, comparison and figure of them.

    Parameters
    ----------
    samples : DataFrame
        `Dataset.series` (a row a trial), or one row a sample.
    value : str
        Numeric column of samples, or column of arrays.
    by : sequence of str, optional
        Columns that together name a trial; needed where there is a row a sample. Where there is a
        row a trial, rows that share them are pooled; every row stays by itself when omitted.

    Returns
    -------
    DataFrame
        One row a trial: `by` (all columns when omitted), and in `value` an `Ordered`, which knows
        its quantiles. It takes the place of samples wherever they are asked for, and is filtered
        and given further columns as any table of trials.

    Raises
    ------
    UsageError
        For unknown columns, values that are not numbers, or partly missing trials.
    """
    if by is not None:
        found = list(ordered_groups(samples, value=value, by=by))
        table = _table([key for key, _ in found], samples, by)
        cells = [ordered for _, ordered in found]
    elif _arrays(samples, value):
        table, cells = samples.copy(), _cells(samples, value)
    else:
        raise UsageError("sort_trials needs `by` here", remedy="name the columns of a trial")
    table[value] = _objects(cells)
    return table


def _objects(cells: Sequence[Any]) -> Array:
    """Return a column of objects; pandas would take arrays of equal length for rows of numbers."""
    column = np.empty(len(cells), dtype=object)
    for number, cell in enumerate(cells):
        column[number] = cell
    return column


def _arrays(frame: pd.DataFrame, value: str) -> bool:
    """Tell whether there is a row a trial, with an array or an `Ordered` in each cell."""
    require_columns(frame, [value])
    first = frame[value].iloc[0]
    return isinstance(first, Ordered) or (isinstance(first, np.ndarray) and first.ndim == 1)


def _cells(frame: pd.DataFrame, value: str) -> list[Ordered]:
    """Return the sorted samples of each row, sorting those that are not."""
    cells = list(frame[value])
    rough = [place for place, cell in enumerate(cells) if not isinstance(cell, Ordered)]
    if rough:
        for place in rough:
            if not isinstance(cells[place], np.ndarray) or cells[place].dtype.kind not in "iuf":
                raise UsageError(f"column {value!r} holds {cells[place]!r}, not arrays of numbers")
        names = [frame.drop(columns=value).iloc[place].to_dict() for place in rough]
        for place, ordered in zip(rough, sort_all([cells[n] for n in rough], names), strict=True):
            cells[place] = ordered
    return cells


def ordered_groups(
    frame: pd.DataFrame, *, value: str, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Ordered]]:
    """Yield each group of `by` as (its keys, its sorted samples); see `sort_trials`.

    Raises
    ------
    UsageError
        If some but not all values of a group are missing: a trial is whole or it failed. A group
        whose values are all missing has no samples.
    """
    require_columns(frame, [value, *by])
    if not _arrays(frame, value):
        values, found = numbers(frame, value), groups(frame, by)
        keys = [key for key, _ in found]
        yield from zip(keys, sort_all([values[index] for _, index in found], keys), strict=True)
        return
    cells = _objects(_cells(frame, value))
    for key, index in groups(frame, by):
        several = list(cells[index])
        if len({len(one) > 0 for one in several}) == 2:
            raise partly_missing(key)
        yield key, pooled(several)


def series_of(
    frame: pd.DataFrame, *, value: str, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Array]]:
    """Yield each group of `by` as (its keys, its samples in the order in which they were taken).

    Raises
    ------
    UsageError
        If they were sorted, which no order survives.
    """
    require_columns(frame, [value, *by])
    if not _arrays(frame, value):
        values = numbers(frame, value)
        yield from ((key, values[index]) for key, index in groups(frame, by))
        return
    cells = frame[value].to_numpy()
    for key, index in groups(frame, by):
        if any(isinstance(cell, Ordered) for cell in cells[index]):
            raise UsageError(
                "sorted samples have lost the order in which they were taken",
                remedy="give what `Dataset.series` returned",
            )
        yield key, np.concatenate(list(cells[index])) if len(cells[index]) > 1 else cells[index][0]


def _table(
    records: list[dict[str, Any]],
    frame: pd.DataFrame,
    by: Sequence[str],
    columns: Sequence[str] = (),
) -> pd.DataFrame:
    """Return records as a frame whose columns of `by` have the categories that they had."""
    table = pd.DataFrame.from_records(records, columns=[*by, *columns])
    return table.astype({name: frame[name].dtype for name in by if is_categorical(frame[name])})


def reduce_trials(
    frame: pd.DataFrame, *, value: str, by: Sequence[str], statistics: Sequence[Statistic]
) -> pd.DataFrame:
    """Reduce samples to statistics per group, such as a trial.

    Parameters
    ----------
    frame : DataFrame
        Samples, or what `sort_trials` made of them.
    value : str
        Column of samples.
    by : sequence of str
        Columns that together name a group (trial, condition and block).
    statistics : sequence of str or callable
        What to compute; see `Statistic`.

    Returns
    -------
    DataFrame
        One row a group: `by`, ``n`` (samples), and a column a statistic in the unit of `value`,
        NaN where the group is empty or has too few samples for a quantile (`samples_needed`).

    Raises
    ------
    UsageError
        For unknown columns or statistics, values that are not numbers, or partly missing groups.
    """
    names = [statistic_name(statistic) for statistic in statistics]
    made = ["n", *names]
    if twice := {name for name in made if name in by or made.count(name) > 1}:
        raise UsageError(
            f"two columns would be called {', '.join(map(repr, sorted(twice)))}",
            remedy="rename the column that names a group, or the function",
        )
    records = []
    for key, ordered in ordered_groups(frame, value=value, by=by):
        record = {**key, "n": len(ordered)}
        for name, statistic in zip(names, statistics, strict=True):
            record[name] = statistic_of(ordered, statistic) if len(ordered) else math.nan
        records.append(record)
    return _table(records, frame, by, ["n", *names])


def trial_statistic(
    frame: pd.DataFrame, *, value: str, by: Sequence[str], statistic: Statistic
) -> pd.DataFrame:
    """Reduce samples to one statistic a trial, as `reduce_trials`, and refuse undefined ones.

    Raises
    ------
    UsageError
        If a trial has samples but not the statistic: a quantile of too few, or infinite samples.
    """
    trials = reduce_trials(frame, value=value, by=by, statistics=[statistic])
    name = statistic_name(statistic)
    undefined = (trials["n"] > 0) & trials[name].isna()
    if undefined.any():
        raise UsageError(
            f"{int(undefined.sum())} trials have no {name}",
            where=f"first {trials[undefined].iloc[0].to_dict()}",
            why="too few samples for that statistic, or samples that are not finite",
        )
    return trials
