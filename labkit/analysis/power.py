"""How much a number of blocks can decide, and how many blocks a decision takes.

Pure floats in and out, so that planning and analysis use the same formulas. Everywhere, ``sd`` is
the standard deviation, between blocks, of the log ratio of a pair (condition to baseline); for two
independent trials a block it is the square root of 2 times the standard deviation between trials
on the log scale. Margins and differences are relative: 0.02 stands for a ratio between 1/1.02 and
1.02, which is symmetric on the log scale.

The power of the paired t test and of two one-sided t tests (TOST; Schuirmann 1987) is exact for
normal log ratios: the normal probability given the estimated standard deviation is averaged over
that estimate's chi distribution, by Gauss-Legendre quadrature on its probability scale.

A standard deviation that a pilot of few blocks estimated is itself uncertain, and a plan that takes
it as known is underpowered: after pilots of 5, 10 and 25 blocks a power of 0.8 was 0.63, 0.70 and
0.77. With `pilot` the number of blocks gives the wanted power on average over the true standard
deviations that the pilot leaves possible (assurance: O'Hagan, Stevens & Campbell 2005; the same
correction of the t test's sample size: Julious & Owen 2006).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from labkit.errors import UsageError

#: Nodes of the average over the estimated standard deviation of a test.
_NODES = 200
#: The same where a pilot's estimate is averaged over, too: both averages have so many.
_PILOT_NODES = 48
#: The most blocks that are planned: beyond it `blocks_for` and `blocks_to_detect` return None.
MOST_BLOCKS = 100_000
#: Power of every plan.
POWER = 0.8
#: The fewest blocks for a verdict at any level: with fewer the spread is hardly known.
LEAST_BLOCKS = 3


def least_blocks(alpha: float = 0.05) -> int:
    """Return the fewest blocks on which a verdict at this level may rest.

    The smallest number, at least `LEAST_BLOCKS`, of which all lie on one given side of the baseline
    by chance with a probability of at most `alpha`, as in a sign test: 5 at 0.05, 7 at 0.01, 10 at
    0.001. `alpha` is the level of a whole family of tests. At the smaller level of one of them a
    verdict on so few blocks relies on the tail of the normal distribution.

    Examples
    --------
    >>> from labkit import analysis
    >>> analysis.least_blocks(), analysis.least_blocks(0.01)
    (5, 7)
    """
    if not 0 < alpha < 1:
        raise UsageError(f"invalid alpha: {alpha!r}", remedy="0 < alpha < 1")
    return max(LEAST_BLOCKS, math.ceil(-math.log2(alpha)))


def decidable_margin(sd: float, blocks: int, *, alpha: float = 0.05) -> float:
    """Return the smallest margin at which equal conditions are called equivalent.

    Parameters
    ----------
    sd : float
        Standard deviation of the log ratio between blocks.
    blocks : int
        The number of blocks; the margin is infinite below 2.
    alpha : float
        Level of the test.

    Raises
    ------
    UsageError
        For a negative or infinite `sd`, or `alpha` out of range.
    """
    return _smallest(sd, blocks, alpha, _tost_power)


def detectable_difference(sd: float, blocks: int, *, alpha: float = 0.05) -> float:
    """Return the smallest relative difference that a paired t test finds with the power `POWER`.

    Parameters and errors are those of `decidable_margin`; 0.02 means that a ratio of 1.02, or of
    1/1.02, is called different with probability `POWER` by a two-sided test at `alpha`.
    """
    return _smallest(sd, blocks, alpha, _t_power)


def _smallest(sd: float, blocks: int, alpha: float, power_of: Callable[..., float]) -> float:
    """Return the smallest relative difference that is decided."""
    _check(sd, alpha)
    if blocks < 2:
        return math.inf
    size = _size_of(lambda size: power_of(size, blocks - 1, alpha))
    return _ratio(size * sd / math.sqrt(blocks))


def blocks_for(
    margin: float, sd: float, *, alpha: float = 0.05, pilot: int | None = None
) -> int | None:
    """Return how many blocks it takes to call equal conditions equivalent within `margin`.

    Parameters
    ----------
    margin, sd, alpha : float
        As for `decidable_margin`.
    pilot : int, optional
        Blocks from which `sd` was estimated (at least 2); without it `sd` counts as known.

    Returns
    -------
    int or None
        None beyond `MOST_BLOCKS`.
    """
    return _fewest(margin, sd, alpha, pilot, _tost_power)


def blocks_to_detect(
    difference: float,
    sd: float,
    *,
    alpha: float = 0.05,
    pilot: int | None = None,
    power: float = POWER,
) -> int | None:
    """Return how many blocks it takes to find a relative difference; as `blocks_for` otherwise."""
    return _fewest(difference, sd, alpha, pilot, _t_power, power)


@lru_cache(maxsize=4096)
def _fewest(
    target: float,
    sd: float,
    alpha: float,
    pilot: int | None,
    power_of: Callable[..., float],
    power: float = POWER,
) -> int | None:
    """Return the fewest blocks that decide a relative difference `target`."""
    _check(sd, alpha)
    if not (target > 0 and math.isfinite(target)):
        raise UsageError(f"invalid margin or difference: {target!r}", remedy="give one above 0")
    if pilot is not None and pilot < 2:
        raise UsageError(
            f"invalid pilot: {pilot!r} blocks", remedy="2 blocks or more show a spread"
        )
    pilot_df = 0 if pilot is None else pilot - 1
    size = math.log1p(target) / sd if sd else math.inf

    def short(n: int) -> bool:
        return power_of(size * math.sqrt(n), n - 1, alpha, pilot_df=pilot_df) < power

    high = 2
    while short(high):
        if high >= MOST_BLOCKS:
            return None
        high = min(2 * high, MOST_BLOCKS)
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return high


def _ratio(log_difference: float) -> float:
    """Return exp(x) - 1, infinite where it would overflow."""
    return math.expm1(log_difference) if log_difference < 700 else math.inf


def _check(sd: float, alpha: float) -> None:
    if not (sd >= 0 and math.isfinite(sd)):
        raise UsageError(f"invalid standard deviation: {sd!r}", remedy="finite and not negative")
    if not 0 < alpha < 0.5:
        raise UsageError(f"invalid alpha: {alpha!r}", remedy="0 < alpha < 0.5")


@lru_cache(maxsize=8)
def _quadrature(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights, which cost far more than what they are used for."""
    return np.polynomial.legendre.leggauss(nodes)


@lru_cache(maxsize=4096)
def _estimated_sd(df: float, nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values and weights of estimated over true standard deviation at `df` degrees."""
    places, weights = _quadrature(nodes)
    values = np.sqrt(2 * special.gammaincinv(df / 2, (places + 1) / 2) / df)
    return np.asarray(values, dtype=np.float64), weights / 2


def _spreads(
    df: int, pilot_df: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return estimated over true standard deviations and their weights: of a test, of its pilot.

    The pilot's estimate differs from the true standard deviation by a chi factor, too.
    """
    if not pilot_df:
        return *_estimated_sd(df, _NODES), np.ones(1), np.ones(1)
    return *_estimated_sd(df, _PILOT_NODES), *_estimated_sd(pilot_df, _PILOT_NODES)


def _tost_power(margin: float, df: int, alpha: float, *, pilot_df: int = 0) -> float:
    """Return the power of TOST at a margin in standard errors, as the pilot estimated them."""
    values, weights, factors, pilot_weights = _spreads(df, pilot_df)
    size = margin * factors[:, None]
    cut = special.stdtrit(df, 1 - alpha) * values
    inside = special.ndtr(size - cut) - special.ndtr(cut - size)
    return float(pilot_weights @ np.maximum(inside, 0.0) @ weights)


def _t_power(difference: float, df: int, alpha: float, *, pilot_df: int = 0) -> float:
    """Return the power of a two-sided t test at a difference in such standard errors."""
    values, weights, factors, pilot_weights = _spreads(df, pilot_df)
    size = difference * factors[:, None]
    cut = special.stdtrit(df, 1 - alpha / 2) * values
    outside = special.ndtr(size - cut) + special.ndtr(-size - cut)
    return float(pilot_weights @ outside @ weights)


def _size_of(power_of: Callable[[float], float]) -> float:
    """Return the size at which `POWER` is reached."""
    # Imported here: it takes 0.2 s.
    from scipy import optimize

    high = 1.0
    while power_of(high) < POWER:
        high *= 2
    return float(
        optimize.brentq(lambda size: power_of(size) - POWER, 0.0, high, xtol=1e-9, rtol=1e-9)
    )
