"""Estimates with intervals and tests, from one number per block.

Every estimate has an interval, and tests that it lies inside (two one-sided tests, Schuirmann 1987;
Lakens 2017) or outside of a region. `Estimate` is t distributed, `Quotient` is a ratio of two
uncertain means (Fieller 1954), and `Inverted` is defined by its tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

#: Spreads below this share of the numbers that they come from are rounding.
ROUNDING = 1e-12


@np.errstate(over="ignore", under="ignore")
def mean_and_error(
    x: Floats, y: Floats, paired: bool, *, size: float = 0.0
) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom of y - x; NaN where there is none.

    A spread below 1e-12 of the largest number, or of `size`, is rounding and counts as 0. For logs
    `size` is 1: the rounding of the values changes them by about as much, however near 0 they are.
    """
    if min(len(x), len(y)) == 0:
        return math.nan, math.nan, math.nan
    # By a power of two, which rounds nothing: squares stay in the floating-point range.
    _, power = math.frexp(max(size, float(np.abs(x).max()), float(np.abs(y).max())))
    mean, error, df = _scaled(np.ldexp(x, -power), np.ldexp(y, -power), paired)
    return float(np.ldexp(mean, power)), float(np.ldexp(error, power)), df


def _scaled(x: Floats, y: Floats, paired: bool) -> tuple[float, float, float]:
    """Return `mean_and_error` of numbers of at most 1."""
    n, m = len(x), len(y)
    mean = float(np.mean(y - x)) if paired else float(y.mean() - x.mean())
    if min(n, m) < 2:
        return mean, math.nan, math.nan
    # Constants must have no spread after a log or exp either.
    samples = [y - x] if paired else [x, y]
    spreads = [float(np.std(sample, ddof=1)) for sample in samples]
    errors = [
        0.0 if spread <= ROUNDING else spread / math.sqrt(len(sample))
        for spread, sample in zip(spreads, samples, strict=True)
    ]
    error = math.hypot(*errors)
    if error == 0:
        return 0.0 if abs(mean) <= ROUNDING else mean, 0.0, n - 1.0 if paired else n + m - 2.0
    if paired:
        return mean, error, n - 1.0
    share = (errors[0] / error) ** 2
    return mean, error, 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))


def holm(p_values: Floats, cap: float = 1.0) -> Floats:
    """Return Holm's adjusted p-values, at most `cap`; NaN stays NaN and is not counted.

    A p-value was tested at alpha times itself over its adjusted one without a cap.
    statsmodels' ``multipletests`` gives the same but collects garbage at each call, which takes
    four times as long as a complete comparison.
    """
    adjusted = np.full(len(p_values), np.nan)
    finite = np.flatnonzero(np.isfinite(p_values))
    order = finite[np.argsort(p_values[finite], kind="stable")]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), cap)
    return adjusted


def benjamini_hochberg(p_values: Floats) -> Floats:
    """Return p-values adjusted for the false discovery rate (Benjamini & Hochberg 1995).

    NaN stays NaN and is not counted.
    """
    # Imported where it is needed: it takes half a second.
    from scipy import stats

    adjusted, known = np.full(len(p_values), np.nan), np.isfinite(p_values)
    adjusted[known] = stats.false_discovery_control(p_values[known])
    return adjusted


def signed_rank(change: Floats) -> float:
    """Return the two-sided p of the signed-rank test that `change` lies around 0 (Wilcoxon 1945).

    Exact up to 50 values without ties; differences of 0 are dropped. 1 where all are 0.
    """
    # Imported where it is needed: it takes half a second.
    from scipy import stats

    change = change[change != 0]
    return float(stats.wilcoxon(change).pvalue) if len(change) else 1.0


class Inference:
    """An estimate: its interval, and tests of whether it lies in a region.

    Subclasses give the one-sided p-values of a bound; the tests of regions are the same for all.
    """

    n_blocks: int
    note: str

    @property
    def value(self) -> float:
        """The estimate on the natural scale; NaN where there is none."""
        raise NotImplementedError

    @property
    def least(self) -> float:
        """The smallest possible value; bounds at or below it are not tested."""
        return -math.inf

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the two-sided interval at level 1 - `alpha`; NaN where there is none."""
        raise NotImplementedError

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie below a finite bound."""
        raise NotImplementedError

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows it to lie above a finite bound."""
        raise NotImplementedError

    def p_within(self, low: float, high: float) -> float:
        """Return the p-value that shows it to lie between two bounds.

        Two one-sided tests (Schuirmann 1987). With one infinite bound (or 0 on the log scale) there
        is a single test, and its two-sided p-value is returned, so that stating a direction
        beforehand does not make it easier to show.
        """
        tests = self._sides(self.p_above, low) + self._sides(self.p_below, high)
        if len(tests) == 2:
            return max(tests) if not any(map(math.isnan, tests)) else math.nan
        # The order matters: min(1.0, nan) would be 1.0.
        return min(2 * tests[0], 1.0) if tests else math.nan

    def p_outside(self, low: float, high: float) -> float:
        """Return the two-sided p-value that shows it to lie beyond one of two bounds."""
        tests = self._sides(self.p_below, low) + self._sides(self.p_above, high)
        if not tests or any(map(math.isnan, tests)):
            return math.nan
        return min(1.0, 2 * min(tests))

    def _sides(self, test: Callable[[float], float], bound: float) -> list[float]:
        return [test(bound)] if self.least < bound < math.inf else []


@dataclass(frozen=True)
class Quotient(Inference):
    """A ratio of two means that are both uncertain (Fieller 1954).

    Parameters
    ----------
    above, below : float
        The means in the numerator and the denominator.
    covariance : tuple of float
        Variance of `above`, covariance of both, variance of `below`.
    df : float
        Degrees of freedom.
    n_blocks : int
        Blocks that were used.
    note : str
        Warnings.
    """

    above: float
    below: float
    covariance: tuple[float, float, float]
    df: float
    n_blocks: int = 0
    note: str = ""

    @property
    def value(self) -> float:
        """The ratio; NaN where the denominator is 0."""
        return self.above / self.below if self.below else math.nan

    @np.errstate(over="ignore", invalid="ignore")
    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return Fieller's interval: the whole line where the denominator may be 0."""
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
        """Return the one-sided p-value that it is below a bound and the denominator is not 0."""
        return self._p(bound, 1.0)

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that it is above a bound and the denominator is not 0."""
        return self._p(bound, -1.0)

    @np.errstate(over="ignore", invalid="ignore")
    def _p(self, bound: float, sign: float) -> float:
        # The ratio is below r when above - r * below is negative and below is positive (or the
        # reverse): both have to be shown, so the larger p-value counts (Berger 1982).
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
class Inverted(Inference):
    """A positive estimate with an interval that inverts its tests.

    Parameters
    ----------
    estimate : float
        NaN where there is none.
    bounds : array of float
        Candidates, rising.
    tails : array of float
        For each candidate the one-sided p-value of lying above it; rises from 0 to 1.
    n_blocks : int
        Blocks that were used.
    note : str
        Warnings.
    """

    estimate: float
    bounds: Floats
    tails: Floats
    n_blocks: int = 0
    note: str = ""

    @property
    def value(self) -> float:
        """The estimate."""
        return self.estimate

    @property
    def least(self) -> float:
        """0: the estimate is positive."""
        return 0.0

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the bounds that a two-sided test does not reject; 0 or inf where it is open."""
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


@dataclass(frozen=True)
class Estimate(Inference):
    """A number with its standard error, on the scale on which it is t distributed.

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
    unit : {"block", "campaign"}
        What was averaged.
    """

    centre: float
    error: float
    df: float
    scale: Literal["linear", "log"] = "linear"
    n_blocks: int = 0
    note: str = ""
    unit: Literal["block", "campaign"] = "block"

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
        return exp_or_inf(number) if self.scale == "log" else number

    def _cut(self, bound: float) -> float:
        return math.log(bound) if self.scale == "log" else bound

    def _tail(self, distance: float) -> float:
        if not math.isfinite(self.error):
            return math.nan
        if self.error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(special.stdtr(self.df, distance / self.error))


def exp_or_inf(log: float) -> float:
    """Return the exponential; infinite where it would overflow."""
    return math.inf if log > 700 else math.exp(log)


def join_notes(*notes: str) -> str:
    """Return notes as one, each once."""
    parts = (part for note in notes for part in note.split("; "))
    return "; ".join(dict.fromkeys(filter(None, parts)))


def mean_over_blocks(
    figures: Floats,
    *,
    scale: Literal["linear", "log"] = "linear",
    note: str = "",
    size: float = 0.0,
) -> Estimate:
    """Return the mean of one number a block with its t distribution.

    Parameters
    ----------
    figures : array of float, shape (blocks,)
        One number a block: logs for the scale ``log``.
    scale, note
        As for `Estimate`.
    size : float
        Magnitude of the numbers that the figures were computed from: a spread that is rounding
        beside it counts as none.

    Returns
    -------
    Estimate
        Its error is NaN below two blocks; it is all NaN without blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from labkit import analysis
    >>> found = analysis.mean_over_blocks(np.array([1.0, 2.0, 3.0]))
    >>> found.value, found.n_blocks
    (2.0, 3)
    >>> [round(end, 2) for end in found.interval()]
    [-0.48, 4.48]
    """
    n = len(figures)
    if n == 0:
        return Estimate(
            math.nan, math.nan, math.nan, scale, 0, join_notes(note, "no complete block")
        )
    mean = float(np.mean(figures))
    if n == 1:
        return Estimate(
            mean, math.nan, math.nan, scale, 1, join_notes(note, "one block: no spread")
        )
    floor = ROUNDING * max(size, float(np.abs(figures).max()), 1.0 if scale == "log" else 0.0)
    spread = float(np.std(figures, ddof=1))
    if spread <= floor:
        note = join_notes(note, "no variance between blocks")
        return Estimate(0.0 if abs(mean) <= floor else mean, 0.0, n - 1.0, scale, n, note)
    return Estimate(mean, spread / math.sqrt(n), n - 1.0, scale, n, note)


@np.errstate(over="ignore", invalid="ignore")
def ratio_of_means(above: Floats, below: Floats, *, note: str = "") -> Quotient:
    """Return the ratio of two means of numbers paired by block (Fieller 1954, paired form).

    A bound r is tested by the t test of ``above - r * below`` over the blocks, which is exact for
    normal numbers. Where the lower mean is not told from 0 the interval is the whole line.
    """
    n = len(above)
    means = (float(np.mean(above)), float(np.mean(below))) if n else (math.nan, math.nan)
    if n < 2:
        note = join_notes(note, "no complete block" if n == 0 else "one block: no spread")
        return Quotient(*means, (math.nan, math.nan, math.nan), math.nan, n, note)
    spread = np.cov(above, below) / n
    return Quotient(*means, (spread[0, 0], spread[0, 1], spread[1, 1]), n - 1.0, n, note)


def ratio_of_independent_means(above: Floats, below: Floats, *, note: str = "") -> Quotient:
    """Return the ratio of the means of two independent samples (Fieller 1954)."""
    n = min(len(above), len(below))
    if n == 0:
        return Quotient(np.nan, np.nan, (np.nan,) * 3, np.nan, 0, join_notes(note, "no value"))
    top, bottom = float(above.mean()), float(below.mean())
    if n == 1:
        note = join_notes(note, "one block: no spread")
        return Quotient(top, bottom, (np.nan,) * 3, np.nan, 1, note)
    ratio = top / bottom if bottom else np.nan
    # Welch's degrees of freedom belong to above - r below, at the ratio that was found.
    _, _, df = mean_and_error(ratio * below, above, paired=False)
    spread = (float(above.var(ddof=1)) / len(above), 0.0, float(below.var(ddof=1)) / len(below))
    return Quotient(top, bottom, spread, df, n, note)
