"""Intervals for a quantile of one series of samples, from its order statistics.

They bound the quantile of independent samples without any assumption on the distribution (Conover
1999, section 3.2; David & Nagaraja 2003, section 7.1), given enough of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from labkit.analysis.checks import effective_size
from labkit.analysis.reduce import quantiles, samples_needed
from labkit.errors import UsageError

Array = NDArray[Any]


class QuantileInterval(NamedTuple):
    """A quantile, or a ratio of two, with its interval.

    Parameters
    ----------
    value : float
        The estimate, NaN where there are too few samples for one.
    low, high : float
        The interval; NaN where it is refused.
    coverage : float
        What the interval covers: at least, for order statistics; nominally for other methods; NaN
        where it is refused.
    n : int
        Samples.
    needed : int
        Samples that an interval takes.
    note : str
        What to know about it.
    """

    value: float
    low: float
    high: float
    coverage: float
    n: int
    needed: int
    note: str


def needed_for_interval(level: float, alpha: float = 0.05) -> int:
    """Return the fewest independent samples whose order statistics bound a quantile.

    Between the smallest and the largest of n lies the quantile q with both sides' errors at most
    alpha/2 once max(q, 1 - q)**n is at most alpha/2: 368 samples for the 99 % quantile, 3,688 for
    99.9 %, at alpha = 0.05.
    """
    check_options(level, alpha)
    return max(1, math.ceil(math.log(alpha / 2) / math.log(max(level, 1 - level)) - 1e-9))


def quantile_interval(ordered: Array, level: float, *, alpha: float = 0.05) -> QuantileInterval:
    """Return the order-statistic interval for a quantile of independent samples.

    The count of samples below the quantile is binomial, so two order statistics enclose it with at
    least 1 - `alpha`, each side with at most `alpha` / 2 (as ``scipy.stats.quantile_test``, without
    its cost). Samples of one trial are dependent: see `dependent_quantile_interval`.

    Parameters
    ----------
    ordered : array, shape (samples,)
        Samples, rising.
    level : float
        Between 0 and 1: 0.99 for p99.
    alpha : float
        1 minus the confidence level.

    Returns
    -------
    QuantileInterval
        `low` and `high` are NaN, and the note says how many samples it takes, where there are
        fewer than `needed_for_interval`.

    Raises
    ------
    UsageError
        If the samples are not sorted or some are missing, or an option is out of range.
    """
    check_options(level, alpha)
    check_sorted(ordered)
    n, needed = len(ordered), needed_for_interval(level, alpha)
    if n < needed:
        return _refused(ordered, level, needed)
    low, high = _ranks(n, level, alpha)
    coverage = float(special.bdtr(high - 1, n, level) - special.bdtr(low - 1, n, level))
    value = float(quantiles(ordered, [level])[0])
    return QuantileInterval(
        value, float(ordered[low - 1]), float(ordered[high - 1]), coverage, n, needed, ""
    )


def dependent_quantile_interval(
    samples: Array, level: float, *, alpha: float = 0.05
) -> QuantileInterval:
    """Return an approximate interval for a quantile of one autocorrelated trial.

    What matters is the dependence of being beyond the quantile, so the effective size is that of
    the series of exceedances; the exact binomial limits of the share below, taken with that size,
    are turned into order statistics (Woodruff 1952; Korn & Graubard 1998). The stationary series
    of this trial is what it speaks of, not other trials.

    Parameters
    ----------
    samples : array, shape (samples,)
        Samples in the order in which they were taken.
    level, alpha
        As for `quantile_interval`.

    Returns
    -------
    QuantileInterval
        Refused where the effective size is below `needed_for_interval`.

    Raises
    ------
    UsageError
        As `quantile_interval`.
    """
    check_options(level, alpha)
    ordered = np.sort(samples)
    check_sorted(ordered)
    n, needed = len(ordered), needed_for_interval(level, alpha)
    if n < needed:
        return _refused(ordered, level, needed)
    value = float(quantiles(ordered, [level])[0])
    size = effective_size((np.asarray(samples) > value).astype(np.float64))
    needed = math.ceil(needed * n / size)
    if n < needed:
        return _refused(ordered, level, needed)
    below = level * size
    shares = (
        float(special.betaincinv(below, size - below + 1, alpha / 2)),
        float(special.betaincinv(below + 1, size - below, 1 - alpha / 2)),
    )
    low, high = (float(bound) for bound in quantiles(ordered, shares))
    note = f"approximate: {n} dependent samples are worth about {size:.0f} independent ones"
    return QuantileInterval(value, low, high, 1 - alpha, n, needed, note)


def check_sorted(ordered: Array) -> None:
    """Raise `UsageError` if samples are not one rising series of numbers."""
    if ordered.ndim != 1 or ordered.dtype.kind not in "iuf":
        raise UsageError(
            "samples are one series of numbers", where=f"{ordered.dtype} {ordered.shape}"
        )
    if len(ordered) and ordered.dtype.kind == "f" and np.isnan(ordered[-1]):
        raise UsageError("some samples are missing", remedy="is the trial whole?")
    if (ordered[1:] < ordered[:-1]).any():
        raise UsageError("the samples are not sorted", remedy="numpy.sort them first")


def _ranks(n: int, level: float, alpha: float) -> tuple[int, int]:
    """Return the two ranks, from 1, of the narrowest interval with equal tails.

    The largest rank whose sample lies above the quantile with at most alpha/2, and the smallest
    whose sample lies below it with at most alpha/2.
    """
    low, high = (float(stats.binom.ppf(share, n, level)) for share in (alpha / 2, 1 - alpha / 2))
    return max(1, int(low)), min(n, int(high) + 1)


def _refused(ordered: Array, level: float, needed: int) -> QuantileInterval:
    n = len(ordered)
    enough = n >= samples_needed(level)
    value = float(quantiles(ordered, [level])[0]) if enough else math.nan
    note = f"{n} samples; an interval for this quantile takes {needed}"
    return QuantileInterval(value, math.nan, math.nan, math.nan, n, needed, note)


def check_options(level: float, alpha: float) -> None:
    """Raise `UsageError` unless level and alpha lie between 0 and 1."""
    if not (0 < level < 1 and 0 < alpha < 1):
        raise UsageError(f"level={level!r} and alpha={alpha!r} must lie between 0 and 1")
