"""An estimate with its t distribution: what every decision of the ledger comes down to.

A statement about a number is a region in which it lies. That it lies inside is shown by two
one-sided tests (Schuirmann 1987; Lakens 2017), that it lies outside by the one test of the two
that goes against the statement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special


@dataclass(frozen=True)
class Estimate:
    """A number with the error of it, on the scale on which it is t distributed.

    Parameters
    ----------
    centre, error : float
        Estimate and standard error on that scale: natural logarithms for ``log``. NaN where there
        is none.
    df : float
        Degrees of freedom; infinite for a normal error.
    scale : {"linear", "log"}
        ``log`` where `value`, `low` and `high` are the exponentials.
    n_blocks : int
        Blocks that it rests on.
    note : str
        What to know about it.
    """

    centre: float
    error: float
    df: float
    scale: Literal["linear", "log"] = "linear"
    n_blocks: int = 0
    note: str = ""

    @property
    def value(self) -> float:
        """The estimate on the natural scale."""
        return self._natural(self.centre)

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the two-sided interval at level 1 - `alpha`, on the natural scale."""
        if not math.isfinite(self.error):
            return math.nan, math.nan
        half = float(special.stdtrit(self.df, 1 - alpha / 2)) * self.error
        return self._natural(self.centre - half), self._natural(self.centre + half)

    def p_within(self, low: float, high: float) -> float:
        """Return the p-value that shows it to lie between two bounds of the natural scale.

        A bound may be infinite (on the log scale 0 or infinite); then there is a single test, and
        its p-value is the two-sided one, so that a direction is not found more easily by being
        stated beforehand.
        """
        below, above = self._p_above(low), self._p_below(high)
        if below is None or above is None:
            return _doubled(above if below is None else below)
        return max(below, above)

    def p_outside(self, low: float, high: float) -> float:
        """Return the two-sided p-value that shows it to lie beyond one of two bounds."""
        found = [p for p in (self._p_below(low), self._p_above(high)) if p is not None]
        return _doubled(min(found)) if found else math.nan

    def _natural(self, number: float) -> float:
        if self.scale == "linear":
            return number
        return math.inf if number > 700 else math.exp(number)

    def _p_above(self, bound: float) -> float | None:
        """Return the one-sided p of lying above a bound; None where there is no bound."""
        return None if (cut := self._cut(bound)) is None else self._tail(cut - self.centre)

    def _p_below(self, bound: float) -> float | None:
        return None if (cut := self._cut(bound)) is None else self._tail(self.centre - cut)

    def _cut(self, bound: float) -> float | None:
        if self.scale == "log":
            bound = math.log(bound) if bound > 0 else -math.inf
        return bound if math.isfinite(bound) else None

    def _tail(self, distance: float) -> float:
        if not math.isfinite(self.error):
            return math.nan
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(special.stdtr(self.df, distance / self.error))


def _doubled(p_value: float | None) -> float:
    # The order matters: min(1.0, nan) would be 1.0.
    return math.nan if p_value is None else min(2 * p_value, 1.0)
