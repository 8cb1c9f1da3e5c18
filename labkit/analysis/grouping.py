"""Which rows of a frame belong together, and what is asked of its columns.

Nothing is factorized or copied a row where rows of a group are adjacent, as a dataset stores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import UsageError

Array = NDArray[Any]


def require_columns(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise `UsageError` naming the columns that `frame` lacks, or that it has no rows."""
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise UsageError(
            f"the frame has no column {', '.join(map(repr, lacking))}",
            remedy=f"it has {', '.join(map(str, frame.columns))}",
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
    ranks = [first[name].cat.codes for name in by if is_categorical(first[name])]
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
        values = series.cat.codes.to_numpy() if is_categorical(series) else series.to_numpy()
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
