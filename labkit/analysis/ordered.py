"""Samples sorted once a trial, for every table, comparison and figure that follows.

A trial's samples are sorted once and kept with what was computed of them; trials are pooled without
copying or sorting anything again. So time grows with the samples (one sort a trial), and not with
the number of tables and figures. Values are integers in four bytes where they fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.dataset import in_threads
from labkit.errors import UsageError

Array = NDArray[Any]
Floats = NDArray[np.float64]

_SMALL = 2**31


class Part:
    """One sorted array that nobody writes to, and its moments once they were asked for."""

    def __init__(self, values: Array) -> None:
        self.values = values
        values.flags.writeable = False

    @cached_property
    def total(self) -> float:
        """The sum."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.values.sum(dtype=np.float64))

    @cached_property
    def std(self) -> float:
        """The standard deviation of a sample (n - 1)."""
        # NaN where a sample is infinite, infinite where squares pass the floating-point range.
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.values.std(ddof=1)) if len(self.values) > 1 else math.nan


class Ordered:
    """Sorted samples of one trial, or of several pooled; make them with `sort_all` and `pooled`.

    Parameters
    ----------
    parts : sequence of Part
        A part a trial; empty where a trial has no samples.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(part for part in parts if len(part.values))

    def __len__(self) -> int:
        return sum(len(part.values) for part in self.parts)

    def __repr__(self) -> str:
        span = f", {self.min:g} to {self.max:g}" if self.parts else ""
        return f"<{len(self):,} sorted samples{span}>"

    @property
    def values(self) -> Array:
        """All samples in one sorted array, int64 or float64: a copy where they are pooled."""
        arrays = [part.values for part in self.parts] or [np.empty(0)]
        whole = arrays[0] if len(arrays) == 1 else np.sort(np.concatenate(arrays))
        return whole.astype(np.int64 if whole.dtype.kind == "i" else np.float64, copy=False)

    @property
    def min(self) -> float:
        """The smallest sample; NaN without samples, as the other statistics."""
        return min((float(part.values[0]) for part in self.parts), default=math.nan)

    @property
    def max(self) -> float:
        """The largest sample."""
        return max((float(part.values[-1]) for part in self.parts), default=math.nan)

    @property
    def mean(self) -> float:
        """The mean."""
        return sum(part.total for part in self.parts) / len(self) if self.parts else math.nan

    @property
    def std(self) -> float:
        """The standard deviation (n - 1); pooled from the trials' moments (Chan et al. 1983)."""
        if len(self.parts) == 1:
            return self.parts[0].std
        if not self.parts:
            return math.nan
        sizes = np.array([len(part.values) for part in self.parts])
        spreads = np.array([part.std if len(part.values) > 1 else 0.0 for part in self.parts])
        with np.errstate(over="ignore", invalid="ignore"):
            away = np.array([part.total for part in self.parts]) / sizes - self.mean
            squares = float(((sizes - 1) * spreads**2 + sizes * away**2).sum())
        return math.sqrt(squares / (len(self) - 1))

    def quantiles(self, levels: Sequence[float] | Array) -> Floats:
        """Return quantiles, interpolated linearly (type 7 of Hyndman & Fan 1996)."""
        arrays = [part.values for part in self.parts]
        return _quantiles(arrays, np.asarray(levels, dtype=np.float64))


def pooled(several: Iterable[Ordered]) -> Ordered:
    """Return samples of several as one, without copying or sorting them."""
    return Ordered([part for one in several for part in one.parts])


def quantiles(ordered: Array, levels: Sequence[float] | Array) -> Floats:
    """Return quantiles of sorted values, interpolated linearly (type 7 of Hyndman & Fan 1996)."""
    return _quantiles([ordered], np.asarray(levels, dtype=np.float64))


def _quantiles(parts: Sequence[Array], levels: Floats) -> Floats:
    total = sum(map(len, parts))
    position = levels * (total - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, total - 1)
    if len(parts) == 1:
        low, high = (parts[0][rank].astype(np.float64) for rank in (below, above))
    else:
        ranks, place = np.unique(np.concatenate([below, above]), return_inverse=True)
        low, high = np.split(select(parts, ranks)[place].astype(np.float64), 2)
    # Where both are infinite their difference has no value, and none is needed.
    step = np.zeros_like(low)
    weight = position - below
    with np.errstate(over="ignore"):
        np.subtract(high, low, out=step, where=high != low)
    step = np.multiply(weight, step, out=np.zeros_like(low), where=weight > 0)
    found = np.add(low, step, out=low.copy(), where=np.isfinite(low))
    # Ends so far apart that their distance passes the floating-point range.
    far = np.isinf(step) & np.isfinite(low) & np.isfinite(high)
    found[far] = (1 - weight[far]) * low[far] + weight[far] * high[far]
    return found


def select(parts: Sequence[Array], ranks: NDArray[np.int64]) -> Array:
    """Return the values at `ranks` (from 0) of the union of sorted arrays, which is never made.

    Bisection on the value, between bounds from the same share of every array: each step counts by
    binary search, so the cost is that of ranks, arrays and bits of the values that differ, and
    hardly that of samples.
    """
    kind = np.result_type(*parts)
    # A search casts the whole array where types differ, so that is done once and here.
    parts = [part.astype(kind, copy=False) for part in parts]
    total = sum(map(len, parts))
    # Of r values below, some array has no more than its share; up to r + 1, some has no less.
    low = np.min([part[ranks * len(part) // total] for part in parts], axis=0)
    high = np.max([part[-(-(ranks + 1) * len(part) // total) - 1] for part in parts], axis=0)
    low, high = _keys(low), _keys(high)
    while (still := np.flatnonzero(low < high)).size:
        a, b = low[still], high[still]
        middle = (a & b) + ((a ^ b) >> 1)  # their mean, which cannot overflow
        value = _from_keys(middle, kind)
        count = sum(np.searchsorted(part, value, side="right") for part in parts)
        enough = count > ranks[still]
        high[still], low[still] = np.where(enough, middle, b), np.where(enough, a, middle + 1)
    return _from_keys(low, kind)


def _keys(values: Array) -> NDArray[np.int64]:
    """Return integers in the order of the values: of floats, their bits (IEEE 754)."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.astype(np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _from_keys(keys: NDArray[np.int64], kind: np.dtype[Any]) -> Array:
    if kind.kind != "f":
        return keys.astype(kind)
    return np.where(keys < 0, keys ^ np.int64(2**63 - 1), keys).view(np.float64).astype(kind)


def sort_all(arrays: Sequence[Array], names: Sequence[Any]) -> list[Ordered]:
    """Return each array sorted, in threads; the arrays themselves stay as they are.

    Raises
    ------
    UsageError
        If some but not all values of an array are NaN: a trial is whole or it failed. `names` says
        which. All NaN count as no samples.
    """
    kind = _kind(arrays)
    ends = np.cumsum([0, *map(len, arrays)])
    # One piece of memory for all: fresh memory costs more than sorting where pages are small.
    whole = np.empty(ends[-1], dtype=kind)

    def sort(number: int) -> Ordered:
        values = whole[ends[number] : ends[number + 1]]
        values[:] = arrays[number]
        values.sort()
        # NaN sorts last: looking at both ends finds it without another pass.
        if kind is np.float64 and len(values) and np.isnan(values[-1]):
            if not np.isnan(values[0]):
                raise partly_missing(names[number])
            values = values[:0]
        return Ordered([Part(values)])

    return in_threads(sort, range(len(arrays)))


def partly_missing(name: Any) -> UsageError:
    """Return the error of a trial that has lost some of its samples."""
    return UsageError(f"samples are missing in {name}", remedy="is the trial whole?")


def _kind(arrays: Sequence[Array]) -> type[Any]:
    """Return the smallest of int32, int64 and float64 that holds every value."""
    if any(array.dtype.kind == "f" for array in arrays):
        return np.float64
    ends = in_threads(_ends, arrays)
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    if low >= -_SMALL and high < _SMALL:
        return np.int32
    return np.int64 if high < 2**63 else np.float64


def _ends(array: Array) -> tuple[int, int]:
    return (int(array.min()), int(array.max())) if len(array) else (0, 0)
