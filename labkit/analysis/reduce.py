"""From samples to one number a trial, so that samples are never taken for replicates.

Each trial is sorted once; the order statistics then cost nothing, so time grows with the number of
samples (one sort a trial), never with the number of statistics asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import UsageError

Array = NDArray[Any]
#: A name (``mean``, ``median``, ``min``, ``max``, ``std``, ``p99``, ``q0.999``) or a function of
#: the sorted samples of a trial.
Statistic = str | Callable[[Array], float]

_PLAIN: dict[str, Callable[[Array], float]] = {
    "mean": lambda ordered: float(ordered.mean()),
    "min": lambda ordered: float(ordered[0]),
    "max": lambda ordered: float(ordered[-1]),
    "std": lambda ordered: float(ordered.std(ddof=1)) if len(ordered) > 1 else math.nan,
}


def require_columns(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise `UsageError` naming the columns that `frame` lacks, or that it has no rows."""
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise UsageError(
            f"the frame has no column {', '.join(map(repr, lacking))}",
            remedy=f"it has {', '.join(map(str, frame.columns))}",
        )
    if frame.empty:
        raise UsageError("the frame has no rows", remedy="was any trial measured?")


def numbers(frame: pd.DataFrame, column: str) -> Array:
    """Return a column as an array of integers or floats; raise `UsageError` when it is neither."""
    series = frame[column]
    if pd.api.types.is_bool_dtype(series) or not pd.api.types.is_numeric_dtype(series):
        raise UsageError(f"column {column!r} holds {series.dtype}, not numbers")
    if pd.api.types.is_extension_array_dtype(series.dtype):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy()


def _is_categorical(series: pd.Series[Any]) -> bool:
    return isinstance(series.dtype, pd.CategoricalDtype)


def order_of(series: pd.Series[Any]) -> list[Any]:
    """Return the distinct values: in the order of a categorical, or else of appearance."""
    present = list(pd.unique(series))
    if not _is_categorical(series):
        return present
    return [name for name in series.cat.categories if name in set(present)]


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
    quantile, 100 for 99 %, 1,000 for 99.9 %; two for the median, where one value is allowed.
    """
    return 1 if level == 0.5 else math.ceil(round(1 / min(level, 1 - level), 6))


def quantiles(ordered: Array, levels: Sequence[float] | Array) -> NDArray[np.float64]:
    """Return quantiles of sorted values, interpolated linearly (type 7 of Hyndman & Fan 1996)."""
    position = np.asarray(levels, dtype=np.float64) * (len(ordered) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    low, high = ordered[below].astype(np.float64), ordered[above].astype(np.float64)
    # Where both are infinite their difference has no value, and none is needed.
    step = np.zeros_like(low)
    np.subtract(high, low, out=step, where=high != low)
    weight = position - below
    return low + np.multiply(weight, step, out=np.zeros_like(low), where=weight > 0)


def statistic_name(statistic: Statistic) -> str:
    """Return how a statistic is called in a column or a figure."""
    return statistic if isinstance(statistic, str) else getattr(statistic, "__name__", "statistic")


def statistic_of(ordered: Array, statistic: Statistic) -> float:
    """Return one statistic of sorted samples; NaN when there are too few for that quantile."""
    if not isinstance(statistic, str):
        return float(statistic(ordered))
    level = quantile_level(statistic)
    if level is not None:
        enough = len(ordered) >= samples_needed(level)
        return float(quantiles(ordered, [level])[0]) if enough else math.nan
    if statistic not in _PLAIN:
        raise UsageError(
            f"unknown statistic {statistic!r}",
            remedy="mean, median, min, max, std, p99 (any percentage), q0.999 or a function",
        )
    return _PLAIN[statistic](ordered)


def groups(frame: pd.DataFrame, by: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    """Return the distinct combinations of `by` and the rows of each.

    In order of appearance, categorical columns first in the order of their categories.

    Returns
    -------
    list of (dict, array or slice)
        The group's values of `by`, and its positions in `frame`: a slice (no copy) where its rows
        are adjacent, as they are stored. Without `by`, one group of everything.

    Raises
    ------
    UsageError
        If one of the columns has missing values: such rows would belong to no group.
    """
    require_columns(frame, list(by))
    if not by:
        return [({}, slice(None))]
    starts = _run_starts(frame, by)
    ends = np.r_[starts[1:], len(frame)]
    code = np.zeros(len(starts), dtype=np.int64)
    for name in by:
        part, unique = pd.factorize(frame[name].iloc[starts])
        if (part < 0).any():
            raise UsageError(f"column {name!r} has missing values", remedy="name every trial")
        code = code * len(unique) + part
    if len(np.unique(code)) == len(starts):
        rows: list[Any] = [slice(a, b) for a, b in zip(starts, ends, strict=True)]
    else:
        order = np.argsort(code, kind="stable")
        edges = np.flatnonzero(np.diff(code[order])) + 1
        runs = [(starts[part], ends[part]) for part in np.split(order, edges)]
        rows = sorted((_positions(*run) for run in runs), key=lambda part: int(part[0]))
        starts = np.array([part[0] for part in rows])
    first = frame[list(by)].iloc[starts]
    keys = [{str(name): item for name, item in key.items()} for key in first.to_dict("records")]
    ranks = [first[name].cat.codes for name in by if _is_categorical(first[name])]
    if ranks:
        order = np.lexsort([rank.to_numpy() for rank in reversed(ranks)])
        return [(keys[number], rows[number]) for number in order]
    return list(zip(keys, rows, strict=True))


def _run_starts(frame: pd.DataFrame, by: Sequence[str]) -> Array:
    """Return where a run of rows with equal `by` starts: a byte a row, nothing is factorized."""
    new = np.zeros(len(frame), dtype=np.bool_)
    new[0] = True
    for name in by:
        series = frame[name]
        values = series.cat.codes.to_numpy() if _is_categorical(series) else series.to_numpy()
        new[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(new)


def _positions(starts: Array, ends: Array) -> Array:
    """Return the positions in runs of rows, run after run, four bytes each if they fit."""
    lengths = ends - starts
    kind = np.int32 if int(ends[-1]) < 2**31 else np.int64
    skipped = (starts - (np.cumsum(lengths) - lengths)).astype(kind)
    positions: Array = np.repeat(skipped, lengths)
    positions += np.arange(len(positions), dtype=kind)
    return positions


def ordered_groups(
    frame: pd.DataFrame, *, value: str, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], Array]]:
    """Yield each group of `by` as (its keys, its sorted values).

    Raises
    ------
    UsageError
        If some but not all values of a group are missing: a trial is whole or it failed. A group
        whose values are all missing has an empty array.
    """
    require_columns(frame, [value, *by])
    values = numbers(frame, value)
    for key, index in groups(frame, by):
        ordered = np.sort(values[index])
        # NaN sorts last: looking at both ends finds it without another pass.
        if ordered.dtype.kind == "f" and np.isnan(ordered[-1]):
            if not np.isnan(ordered[0]):
                raise UsageError(f"samples are missing in {key}", remedy="is the trial whole?")
            ordered = ordered[:0]
        yield key, ordered


def reduce_trials(
    frame: pd.DataFrame, *, value: str, by: Sequence[str], statistics: Sequence[Statistic]
) -> pd.DataFrame:
    """Reduce samples to statistics per group, such as a trial.

    Parameters
    ----------
    frame : DataFrame
        One row a sample.
    value : str
        Numeric column of samples.
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
    records = []
    for key, ordered in ordered_groups(frame, value=value, by=by):
        record = {**key, "n": len(ordered)}
        for name, statistic in zip(names, statistics, strict=True):
            record[name] = statistic_of(ordered, statistic) if len(ordered) else math.nan
        records.append(record)
    table = pd.DataFrame.from_records(records, columns=[*by, "n", *names])
    return table.astype({name: frame[name].dtype for name in by if _is_categorical(frame[name])})


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
