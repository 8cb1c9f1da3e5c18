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

from labkit.analysis.inference import OneSided


@dataclass(frozen=True)
class Estimate(OneSided):
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

    @property
    def least(self) -> float:
        """What no value lies below: 0 on the log scale."""
        return 0.0 if self.scale == "log" else -math.inf

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie below a bound of the natural scale."""
        return self._tail(self.centre - self._cut(bound))

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie above a bound of the natural scale."""
        return self._tail(self._cut(bound) - self.centre)

    def _natural(self, number: float) -> float:
        if self.scale == "linear":
            return number
        return math.inf if number > 700 else math.exp(number)

    def _cut(self, bound: float) -> float:
        return math.log(bound) if self.scale == "log" else bound

    def _tail(self, distance: float) -> float:
        if not math.isfinite(self.error):
            return math.nan
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(special.stdtr(self.df, distance / self.error))
