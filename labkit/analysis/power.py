"""How much a number of blocks can decide, and how many blocks a decision takes.

Pure floats in and out, so that planning and analysis use the same formulas. Everywhere, ``sd`` is
the standard deviation, between blocks, of the log ratio of a pair (condition to baseline); for two
independent trials a block it is the square root of 2 times the standard deviation between trials
on the log scale. Margins and differences are relative: 0.02 stands for a ratio between 1/1.02 and
1.02, which is symmetric on the log scale.

The power of the paired t test and of two one-sided t tests (TOST; Schuirmann 1987) is exact for
normal log ratios: the normal probability given the estimated standard deviation is averaged over
that estimate's chi distribution, by Gauss-Legendre quadrature on its probability scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from labkit.errors import UsageError

_NODES = 200


#: Beyond this many blocks a plan is not a plan; `blocks_for` and `blocks_to_detect` give None.
MOST_BLOCKS = 100_000


#: No level, however generous, lets fewer blocks decide: below this a spread is hardly known.
LEAST_BLOCKS = 3


def least_blocks(alpha: float = 0.05) -> int:
    """Return the fewest blocks on which a verdict at this level may rest.

    So many that all of them falling on one given side of the baseline has by chance, as in a sign
    test, at most the probability `alpha`: 5 at 0.05, 7 at 0.01, 10 at 0.001. A t test reaches any
    level with fewer, but then on the strength of the normal distribution's far tail alone, which
    that few blocks cannot show.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"invalid alpha: {alpha!r}", remedy="0 < alpha < 1")
    return max(LEAST_BLOCKS, math.ceil(-math.log2(alpha)))


def decidable_margin(
    sd: float, blocks: int, *, alpha: float = 0.05, power: float = 0.8, true_ratio: float = 1.0
) -> float:
    """Return the smallest margin at which equal conditions are called equivalent."""
    _check(sd, alpha, power)
    if not (true_ratio > 0 and math.isfinite(true_ratio)):
        raise UsageError(f"invalid true_ratio: {true_ratio!r}", remedy="a positive number")
    if blocks < 2:
        return math.inf
    shift = abs(math.log(true_ratio))
    if sd == 0:
        return math.expm1(shift)
    scale = sd / math.sqrt(blocks)
    return _ratio(_tost_noncentrality(blocks - 1, alpha, power, shift / scale) * scale)


def detectable_difference(
    sd: float, blocks: int, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the smallest relative difference that a paired t test finds with this power.

    Parameters and errors are those of `decidable_margin`; 0.02 means that a ratio of 1.02, or of
    1/1.02, is called different with probability `power` by a two-sided test at `alpha`.
    """
    _check(sd, alpha, power)
    if blocks < 2:
        return math.inf
    return _ratio(_t_noncentrality(blocks - 1, alpha, power) * sd / math.sqrt(blocks))


def blocks_for(margin: float, sd: float, *, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Return how many blocks it takes to call equal conditions equivalent within `margin`."""
    return _fewest(lambda n: decidable_margin(sd, n, alpha=alpha, power=power), margin)


def blocks_to_detect(
    difference: float, sd: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many blocks it takes to find a relative difference; as `blocks_for` otherwise."""
    return _fewest(lambda n: detectable_difference(sd, n, alpha=alpha, power=power), difference)


def _fewest(reach: Callable[[int], float], wanted: float) -> int | None:
    """Return the fewest blocks whose `reach` is at most `wanted`; reach falls with blocks."""
    if not (wanted > 0 and math.isfinite(wanted)):
        raise UsageError(f"invalid margin or difference: {wanted!r}", remedy="give one above 0")
    high = 2
    while reach(high) > wanted:
        if high >= MOST_BLOCKS:
            return None
        high = min(2 * high, MOST_BLOCKS)
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reach(middle) <= wanted else (middle, high)
    return high


def _ratio(log_difference: float) -> float:
    """Return exp(x) - 1, infinite where it would overflow."""
    return math.expm1(log_difference) if log_difference < 700 else math.inf


def _check(sd: float, alpha: float, power: float) -> None:
    if not (sd >= 0 and math.isfinite(sd)):
        raise UsageError(f"invalid standard deviation: {sd!r}", remedy="finite and not negative")
    if not (0 < alpha < 0.5 and alpha < power < 1):
        raise UsageError(
            f"invalid alpha or power: alpha={alpha!r}, power={power!r}",
            remedy="0 < alpha < 0.5 and alpha < power < 1",
        )


@lru_cache(maxsize=1)
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights, which cost far more than what they are used for."""
    return np.polynomial.legendre.leggauss(_NODES)


@lru_cache(maxsize=4096)
def _estimated_sd(df: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values and weights of estimated over true standard deviation at `df` degrees."""
    nodes, weights = _quadrature()
    values = np.sqrt(stats.chi2.ppf((nodes + 1) / 2, df) / df)
    return np.asarray(values, dtype=np.float64), weights / 2


@lru_cache(maxsize=65536)
def _tost_noncentrality(df: int, alpha: float, power: float, shift: float) -> float:
    """Return the margin, in standard errors, at which TOST has this power."""
    values, weights = _estimated_sd(df)
    cut = float(stats.t.ppf(1 - alpha, df)) * values

    def short(margin: float) -> float:
        inside = special.ndtr(margin - cut - shift) - special.ndtr(cut - margin - shift)
        return float(weights @ np.maximum(inside, 0.0)) - power

    return _root(short, shift)


@lru_cache(maxsize=65536)
def _t_noncentrality(df: int, alpha: float, power: float) -> float:
    """Return the difference, in standard errors, that a two-sided t test finds with this power."""
    values, weights = _estimated_sd(df)
    cut = float(stats.t.ppf(1 - alpha / 2, df)) * values

    def short(difference: float) -> float:
        outside = special.ndtr(difference - cut) + special.ndtr(-difference - cut)
        return float(weights @ outside) - power

    return _root(short, 0.0)


def _root(short: Callable[[float], float], low: float) -> float:
    """Return where the increasing function `short` crosses 0, above `low`."""
    high = low + 1.0
    while short(high) < 0:
        high *= 2
    return float(optimize.brentq(short, low, high, xtol=1e-9))
