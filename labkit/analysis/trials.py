"""Trials and their samples: grouping rows, sorting samples once a trial, statistics of a trial.

The trial is the unit of replication, so samples are reduced to one number per trial. They come one
per row (`Dataset.samples`), as one array per trial (`Dataset.series`), or sorted: code that makes
several tables or figures of the same samples sorts them once with `sort_trials`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import UsageError, suggestion
from labkit.process import in_threads

Array = NDArray[Any]
Floats = NDArray[np.float64]


def require_columns(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise `UsageError` naming the columns that `frame` lacks, or that it has no rows."""
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise UsageError(
            f"the frame has no column {', '.join(map(repr, lacking))}",
            remedy=suggestion(lacking[0], frame.columns),
        )
    if twice := [name for name in columns if isinstance(frame[name], pd.DataFrame)]:
        raise UsageError(
            f"the frame has two columns {', '.join(map(repr, twice))}", remedy="keep one of them"
        )
    if frame.empty:
        raise UsageError("the frame has no rows", remedy="was any trial measured?")


def require_names(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise `UsageError` where a column that names something has missing values."""
    for name in columns:
        if frame[name].isna().any():
            raise UsageError(f"column {name!r} has missing values", remedy="name every trial")


def numbers(frame: pd.DataFrame, column: str) -> Array:
    """Return a column as an array of integers or floats; raise `UsageError` when it is neither."""
    require_columns(frame, [column])
    series = frame[column]
    is_number = pd.api.types.is_integer_dtype(series) or pd.api.types.is_float_dtype(series)
    if pd.api.types.is_bool_dtype(series) or not is_number:
        raise UsageError(f"column {column!r} holds {series.dtype}, not numbers")
    if pd.api.types.is_extension_array_dtype(series.dtype):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy()


def is_categorical(series: pd.Series[Any]) -> bool:
    """Tell whether a column has categories, whose order tables and figures follow."""
    return isinstance(series.dtype, pd.CategoricalDtype)


def order_of(series: pd.Series[Any]) -> list[Any]:
    """Return the distinct values: in the order of a categorical, or else of appearance."""
    present = list(pd.unique(series))
    if not is_categorical(series):
        return present
    return [name for name in series.cat.categories if name in set(present)]


def levels_of(series: pd.Series[Any]) -> list[Any]:
    """Return all categories of a categorical, also unused ones, or the values in order."""
    return list(series.cat.categories) if is_categorical(series) else order_of(series)


def groups(frame: pd.DataFrame, by: Sequence[str]) -> list[tuple[dict[str, Any], Any]]:
    """Return the distinct combinations of `by` as (values of `by`, positions of the rows).

    In order of appearance, categorical columns first in the order of their categories; without
    `by`, one group of everything. A missing value is an error: its rows would be in no group.
    """
    require_columns(frame, list(by))
    if not by:
        return [({}, slice(None))]
    require_names(frame, by)
    code = frame.groupby(list(by), observed=True, sort=False).ngroup().to_numpy()
    order = np.argsort(code, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    rows.sort(key=lambda part: int(part[0]))
    first = frame[list(by)].iloc[[part[0] for part in rows]]
    keys = [{str(name): item for name, item in key.items()} for key in first.to_dict("records")]
    pairs = list(zip(keys, rows, strict=True))
    ranks = [
        first[name].cat.codes.to_numpy() for name in reversed(by) if is_categorical(first[name])
    ]
    return [pairs[place] for place in np.lexsort(ranks)] if ranks else pairs


class SortedSamples:
    """Sorted samples of one trial, or of several pooled; read-only, with cached moments.

    Where many samples have few values, as in a long trial with times in nanoseconds, each value is
    kept once with the number of samples up to it: exact, and a hundredth of the memory.

    Parameters
    ----------
    values : array
        The samples, sorted; with `ends` the distinct ones.
    ends : array of int, optional
        For each value, how many samples are at most that.
    """

    def __init__(self, values: Array, ends: NDArray[np.int64] | None = None) -> None:
        self._values, self._ends = values, ends
        values.flags.writeable = False

    def __len__(self) -> int:
        return len(self._values) if self._ends is None else int(self._ends[-1])

    def __repr__(self) -> str:
        span = f", {self.min:g} to {self.max:g}" if len(self) else ""
        return f"<{len(self):,} sorted samples{span}>"

    def counted(self) -> tuple[Array, NDArray[np.int64]]:
        """Return values, rising, and the number of samples of each; a value may occur twice."""
        if self._ends is None:
            return self._values, np.ones(len(self._values), dtype=np.int64)
        return self._values, np.diff(self._ends, prepend=0)

    @property
    def min(self) -> float:
        """The smallest sample; NaN without samples, as the other statistics."""
        return float(self._values[0]) if len(self) else math.nan

    @property
    def max(self) -> float:
        """The largest sample."""
        return float(self._values[-1]) if len(self) else math.nan

    @cached_property
    def mean(self) -> float:
        """The mean."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self._ends is None:
                return float(self._values.mean()) if len(self) else math.nan
            return float(np.average(self._values, weights=self.counted()[1]))

    @cached_property
    def std(self) -> float:
        """The standard deviation of a sample (n - 1)."""
        # NaN where a sample is infinite, infinite where squares overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            if self._ends is None:
                return float(self._values.std(ddof=1)) if len(self) > 1 else math.nan
            if len(self) < 2:
                return math.nan
            squares = np.square(self._values - self.mean) * self.counted()[1]
            return math.sqrt(float(squares.sum()) / (len(self) - 1))

    def at(self, ranks: NDArray[np.int64]) -> Array:
        """Return the samples of these ranks, of which the first is 0."""
        if self._ends is None:
            return self._values[ranks]
        return self._values[np.searchsorted(self._ends, ranks, side="right")]

    def below(self, points: Floats) -> NDArray[np.int64]:
        """Return how many samples are at most each point."""
        if self._values.dtype.kind == "i":
            # Up to the floor: searching for floats would convert every sample.
            points = np.floor(points).astype(self._values.dtype)
        places = np.searchsorted(self._values, points, side="right")
        return places if self._ends is None else np.append(0, self._ends)[places]

    def quantiles(self, levels: Sequence[float] | Array) -> Floats:
        """Return quantiles, interpolated linearly (type 7 of Hyndman & Fan 1996).

        `numpy.quantile` partitions a copy of the samples at each call and gives NaN next to
        infinities.
        """
        position = np.asarray(levels, dtype=np.float64) * (len(self) - 1)
        below = np.floor(position).astype(np.int64)
        above = np.minimum(below + 1, len(self) - 1)
        low, high = (self.at(rank).astype(np.float64) for rank in (below, above))
        # Two equal infinities have no difference, and need none.
        step = np.zeros_like(low)
        weight = position - below
        with np.errstate(over="ignore"):
            np.subtract(high, low, out=step, where=high != low)
        step = np.multiply(weight, step, out=np.zeros_like(low), where=weight > 0)
        values = np.add(low, step, out=low.copy(), where=np.isfinite(low))
        # Values so far apart that their difference overflows.
        far = np.isinf(step) & np.isfinite(low) & np.isfinite(high)
        values[far] = (1 - weight[far]) * low[far] + weight[far] * high[far]
        return values


#: From so many samples on, and where they have so many times fewer values, values are counted.
_MANY, _FEWER = 2**17, 4


def _compact(values: Array) -> SortedSamples:
    """Return sorted samples, with counts where that is smaller."""
    if len(values) < _MANY:
        return SortedSamples(values)
    last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    if _FEWER * len(last) > len(values):
        return SortedSamples(values)
    return SortedSamples(values[last], last + 1)


def pool(several: Iterable[SortedSamples]) -> SortedSamples:
    """Return samples of several trials as one."""
    nonempty = [samples for samples in several if len(samples)]
    if len(nonempty) == 1:
        return nonempty[0]
    pairs = [samples.counted() for samples in nonempty] or [(np.empty(0), np.empty(0, np.int64))]
    values, counts = (np.concatenate(each) for each in zip(*pairs, strict=True))
    if len(values) == counts.sum():
        # The stable sort merges sorted runs.
        return SortedSamples(np.sort(values, kind="stable"))
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    last = np.append(np.flatnonzero(values[1:] != values[:-1]), len(values) - 1)
    return SortedSamples(values[last], ends[last])


def sort_samples(samples: Array, name: Any = "a trial") -> SortedSamples:
    """Return one trial's samples, sorted; only NaN means no samples, some NaN are an error.

    For `Dataset.series`, which keeps what this returns in place of the samples.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/rps").series("latency_ns", reduce=analysis.sort_samples)
    >>> trials["latency_ns"].map(len).equals(trials["n"])
    True
    """
    fits = samples.dtype.kind == "i" or (
        samples.dtype.kind == "u" and (not len(samples) or samples.max() < 2**63)
    )
    values = samples.astype(np.int64 if fits else np.float64)
    values.sort()
    # NaN sorts last, so the two ends show it without another pass.
    if not fits and len(values) and np.isnan(values[-1]):
        if not np.isnan(values[0]):
            raise partly_missing(name)
        values = values[:0]
    return _compact(values)


def sort_all(arrays: Sequence[Array], names: Sequence[Any]) -> list[SortedSamples]:
    """Return sorted copies of the samples of each trial, in threads; errors show its name."""
    return in_threads(lambda place: sort_samples(arrays[place], names[place]), range(len(arrays)))


def partly_missing(name: Any) -> UsageError:
    """Return the error of a trial with some of its samples missing."""
    return UsageError(f"samples are missing in {name}", remedy="check that the trial is complete")


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

    With fewer an empirical quantile is just the extreme: 20 samples for the 95 % quantile, 100 for
    99 %, 1,000 for 99.9 %. The median needs one.
    """
    return 1 if level == 0.5 else math.ceil(round(1 / min(level, 1 - level), 6))


def statistic_of(ordered: SortedSamples, statistic: str) -> float:
    """Return one statistic of sorted samples; NaN when there are too few for that quantile."""
    level = quantile_level(statistic)
    if level is not None:
        enough = len(ordered) >= samples_needed(level)
        return float(ordered.quantiles([level])[0]) if enough else math.nan
    if statistic not in _PLAIN:
        raise UsageError(
            f"unknown statistic {statistic!r}",
            remedy="mean, median, min, max, std, p99 (any percentage) or q0.999",
        )
    return float(getattr(ordered, statistic))


def statistics_of(samples: Array | SortedSamples, statistics: Sequence[str]) -> dict[str, float]:
    """Return statistics of one trial's samples by name.

    NaN where there are no samples, or too few for a quantile (`samples_needed`).
    """
    ordered = samples if isinstance(samples, SortedSamples) else sort_samples(samples)
    return {
        statistic: statistic_of(ordered, statistic) if len(ordered) else math.nan
        for statistic in statistics
    }


def sort_trials(
    samples: pd.DataFrame, *, value: str = "rtt_ns", by: Sequence[str] | None = None
) -> pd.DataFrame:
    """Sort each trial's samples once, for all tables, comparisons and figures.

    Parameters
    ----------
    samples : DataFrame
        `Dataset.series` (one row per trial), or one row per sample.
    value : str
        Numeric column of samples, or column of arrays.
    by : sequence of str, optional
        Columns that together name a trial; needed where there is one row per sample. With one row
        per trial, rows that share them are pooled; without `by` no rows are pooled.

    Returns
    -------
    DataFrame
        One row per trial: `by` (all columns when omitted), and `SortedSamples` in `value`. It is
        accepted wherever samples are, and can be filtered and extended as any table of trials.

    Raises
    ------
    UsageError
        For unknown columns, values that are not numbers, or partly missing trials.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> samples = pd.DataFrame({"trial": [*"aaab"], "block": 1, "rtt_ns": [9, 7, 8, 6]})
    >>> table = analysis.sort_trials(samples, by=["trial"])
    >>> table["trial"].tolist()
    ['a', 'b']
    """
    if by is not None:
        pairs = list(sorted_groups(samples, value=value, by=by))
        table = _table([key for key, _ in pairs], samples, by)
        cells = [ordered for _, ordered in pairs]
    elif _arrays(samples, value):
        table, cells = samples.copy(), _cells(samples, value)
    else:
        raise UsageError("sort_trials needs `by` here", remedy="name the columns of a trial")
    table[value] = object_column(cells)
    return table


def object_column(cells: Sequence[Any]) -> Array:
    """Return a column of objects, where pandas would make rows of arrays of equal length."""
    column = np.empty(len(cells), dtype=object)
    for number, cell in enumerate(cells):
        column[number] = cell
    return column


def _arrays(frame: pd.DataFrame, value: str) -> bool:
    """Tell whether there is one row per trial, with an array or `SortedSamples` in each cell."""
    require_columns(frame, [value])
    first = frame[value].iloc[0]
    return isinstance(first, SortedSamples) or (isinstance(first, np.ndarray) and first.ndim == 1)


def _cells(frame: pd.DataFrame, value: str) -> list[SortedSamples]:
    """Return the sorted samples of each row, sorting those that are not."""
    cells = list(frame[value])
    unsorted = [row for row, cell in enumerate(cells) if not isinstance(cell, SortedSamples)]
    if unsorted:
        for row in unsorted:
            if not isinstance(cells[row], np.ndarray) or cells[row].dtype.kind not in "iuf":
                raise UsageError(f"column {value!r} holds {cells[row]!r}, not arrays of numbers")
        names = frame.drop(columns=value).iloc[unsorted].to_dict("records")
        made = sort_all([cells[row] for row in unsorted], names)
        for row, ordered in zip(unsorted, made, strict=True):
            cells[row] = ordered
    return cells


def sorted_groups(
    frame: pd.DataFrame, *, value: str, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], SortedSamples]]:
    """Yield each group of `by` as (its keys, its sorted samples); see `sort_trials`."""
    require_columns(frame, [value, *by])
    if not _arrays(frame, value):
        values, pairs = numbers(frame, value), groups(frame, by)
        keys = [key for key, _ in pairs]
        yield from zip(keys, sort_all([values[index] for _, index in pairs], keys), strict=True)
        return
    cells = object_column(_cells(frame, value))
    for key, index in groups(frame, by):
        members = list(cells[index])
        if len({len(samples) > 0 for samples in members}) == 2:
            raise partly_missing(key)
        yield key, pool(members)


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
    frame: pd.DataFrame, *, value: str, by: Sequence[str], statistics: Sequence[str]
) -> pd.DataFrame:
    """Reduce samples to statistics per group, such as a trial."""
    columns = ["n", *statistics]
    if twice := {name for name in columns if name in by or columns.count(name) > 1}:
        raise UsageError(
            f"duplicate columns: {', '.join(map(repr, sorted(twice)))}",
            remedy="rename the column that names a group",
        )
    records = [
        {**key, "n": len(ordered), **statistics_of(ordered, statistics)}
        for key, ordered in sorted_groups(frame, value=value, by=by)
    ]
    return _table(records, frame, by, columns)


def trial_statistic(
    frame: pd.DataFrame, *, value: str, by: Sequence[str], statistic: str
) -> pd.DataFrame:
    """Reduce samples to one statistic a trial, as `reduce_trials`, and refuse undefined ones."""
    trials = reduce_trials(frame, value=value, by=by, statistics=[statistic])
    undefined = (trials["n"] > 0) & trials[statistic].isna()
    if undefined.any():
        raise UsageError(
            f"{int(undefined.sum())} trials have no {statistic}",
            where=f"first {trials[undefined].iloc[0].to_dict()}",
            why="too few samples for that statistic, or samples that are not finite",
        )
    return trials


def join_factors(frame: pd.DataFrame, columns: Sequence[str]) -> pd.Categorical[Any]:
    """Return several factors as one, with a category such as ``free + block`` per combination.

    Only combinations that occur, in the order of the columns' levels, the last varying fastest.
    """
    require_columns(frame, columns)
    require_names(frame, columns)
    parts = [_present(frame[name]) for name in columns]
    place = np.zeros(len(frame), dtype=np.intp)
    for part in parts:
        place = place * len(part.categories) + part.codes
    used, codes = np.unique(place, return_inverse=True)
    combinations = itertools.product(*(part.categories for part in parts))
    names = [" + ".join(map(str, combination)) for combination in combinations]
    return pd.Categorical.from_codes(codes, pd.Index([names[number] for number in used]))


def _present(column: pd.Series[Any]) -> pd.Categorical[Any]:
    """Return a column as a categorical of the levels that occur, in their order."""
    levels, known = order_of(column), column.array
    if isinstance(known, pd.Categorical):
        return known.set_categories(levels)
    return pd.Categorical(column, categories=levels)
