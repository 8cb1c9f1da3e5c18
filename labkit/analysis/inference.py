"""What can be asked of every estimate: intervals, and whether it lies in a region.

`labkit.analysis.estimates.Estimate` is the plain case, t distributed. A ratio of two uncertain
means (`Quotient`) and an estimate that is known by its tests alone (`Inverted`) answer the same
questions (`Inference`) by the same rules (`OneSided`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


class Inference(Protocol):
    """What can be asked of every estimate; `Estimate`, `Quotient` and `Inverted` are such."""

    @property
    def value(self) -> float:
        """The estimate on the natural scale; NaN where there is none."""

    @property
    def n_blocks(self) -> int:
        """Blocks that it rests on."""

    @property
    def note(self) -> str:
        """What to know about it."""

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the two-sided interval at level 1 - `alpha`; NaN where there is none."""

    def p_within(self, low: float, high: float) -> float:
        """Return the p-value that shows it to lie between two bounds."""

    def p_outside(self, low: float, high: float) -> float:
        """Return the two-sided p-value that shows it to lie beyond one of two bounds."""


class OneSided:
    """Regions from the one-sided p-values of a bound: the rules that all estimates share."""

    @property
    def least(self) -> float:
        """What no value lies below: a bound at or below it is no bound."""
        return -math.inf

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie below a finite bound."""
        raise NotImplementedError

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie above a finite bound."""
        raise NotImplementedError

    def p_within(self, low: float, high: float) -> float:
        """Return the p-value that shows it to lie between two bounds.

        Two one-sided tests (Schuirmann 1987). A bound may be infinite (on the log scale 0 or
        infinite); then there is a single test, and its p-value is the two-sided one, so that a
        direction is not found more easily by being stated beforehand.
        """
        found = self._sides(self.p_above, low) + self._sides(self.p_below, high)
        if len(found) == 2:
            return max(found) if not any(map(math.isnan, found)) else math.nan
        # The order matters: min(1.0, nan) would be 1.0.
        return min(2 * found[0], 1.0) if found else math.nan

    def p_outside(self, low: float, high: float) -> float:
        """Return the two-sided p-value that shows it to lie beyond one of two bounds."""
        found = self._sides(self.p_below, low) + self._sides(self.p_above, high)
        if not found or any(map(math.isnan, found)):
            return math.nan
        return min(1.0, 2 * min(found))

    def _sides(self, test: Callable[[float], float], bound: float) -> list[float]:
        return [test(bound)] if self.least < bound < math.inf else []


@dataclass(frozen=True)
class Quotient(OneSided):
    """A ratio of two means that are both uncertain (Fieller 1954).

    Parameters
    ----------
    above, below : float
        The two means.
    covariance : tuple of float
        Variance of the upper mean, covariance of both, variance of the lower mean.
    df : float
        Degrees of freedom.
    n_blocks : int
        Blocks that it rests on.
    note : str
        What to know about it.
    """

    above: float
    below: float
    covariance: tuple[float, float, float]
    df: float
    n_blocks: int = 0
    note: str = ""

    @property
    def value(self) -> float:
        """The ratio; NaN where the lower mean is 0."""
        return self.above / self.below if self.below else math.nan

    @np.errstate(over="ignore", invalid="ignore")
    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return Fieller's interval: all of the line where the lower mean may be 0."""
        upper, both, lower = self.covariance
        if not all(map(math.isfinite, (self.above, self.below, *self.covariance))):
            return math.nan, math.nan
        square = float(special.stdtrit(self.df, 1 - alpha / 2)) ** 2
        lead = self.below * self.below - square * lower
        if lead <= 0:
            return -math.inf, math.inf
        middle = self.above * self.below - square * both
        rest = max(0.0, middle * middle - lead * (self.above * self.above - square * upper))
        return (middle - math.sqrt(rest)) / lead, (middle + math.sqrt(rest)) / lead

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows it below a bound, and the lower mean not 0."""
        return self._p(bound, 1.0)

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows it above a bound, and the lower mean not 0."""
        return self._p(bound, -1.0)

    @np.errstate(over="ignore", invalid="ignore")
    def _p(self, bound: float, sign: float) -> float:
        # The ratio lies below r when above - r * below is negative and below is positive (or the
        # other way round): both have to be shown, so the larger p-value counts (Berger 1982).
        upper, both, lower = self.covariance
        side = math.copysign(1.0, self.below)
        distance = side * sign * (self.above - bound * self.below)
        variance = upper - 2 * bound * both + bound * bound * lower
        return max(self._tail(distance, variance), self._tail(-abs(self.below), lower))

    def _tail(self, distance: float, variance: float) -> float:
        if not math.isfinite(variance):
            return math.nan
        if variance <= 0:
            return 0.0 if distance < 0 else 1.0
        return float(special.stdtr(self.df, distance / math.sqrt(variance)))


@dataclass(frozen=True)
class Inverted(OneSided):
    """A positive estimate whose tests are known and whose interval inverts them.

    Parameters
    ----------
    value : float
        The estimate, NaN where there is none.
    bounds : array of float
        Candidates, rising.
    tails : array of float
        For each candidate the one-sided p-value of lying above it; rises from 0 to 1.
    n_blocks : int
        Blocks that it rests on.
    note : str
        What to know about it.
    """

    value: float
    bounds: Floats
    tails: Floats
    n_blocks: int = 0
    note: str = ""

    @property
    def least(self) -> float:
        """0: the estimate is positive."""
        return 0.0

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the bounds that a two-sided test does not refuse; 0 or inf where it is open."""
        if not math.isfinite(self.value) or not np.isfinite(self.tails).all():
            return math.nan, math.nan
        low = high = math.nan
        if (below := np.flatnonzero(self.tails < alpha / 2)).size:
            low = self._between(int(below[-1]), alpha / 2)
        if (above := np.flatnonzero(self.tails > 1 - alpha / 2)).size:
            high = self._between(int(above[0]) - 1, 1 - alpha / 2)
        return 0.0 if math.isnan(low) else low, math.inf if math.isnan(high) else high

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie above a bound."""
        if not len(self.bounds):
            return math.nan
        return float(np.interp(bound, self.bounds, self.tails))

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie below a bound."""
        return 1.0 - self.p_above(bound)

    def _between(self, left: int, level: float) -> float:
        """Return where the tail passes `level`, between candidates `left` and `left` + 1."""
        left = max(left, 0)
        right = min(left + 1, len(self.bounds) - 1)
        rise = self.tails[right] - self.tails[left]
        share = (level - self.tails[left]) / rise if rise > 0 else 0.0
        return float(self.bounds[left] + share * (self.bounds[right] - self.bounds[left]))
