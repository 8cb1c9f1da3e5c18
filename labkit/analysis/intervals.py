"""The t machinery below every comparison: means with errors, intervals and tests of logs.

Paired, or independent with Welch's degrees of freedom (Welch 1947); equivalence by two one-sided
tests (Schuirmann 1987); Holm's step-down correction (Holm 1979).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")
def mean_and_error(x: Floats, y: Floats, paired: bool) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom of y - x; NaN where there is none.

    The error is infinite, and no interval follows, where squares pass the floating-point range.
    """
    n, m = len(x), len(y)
    if min(n, m) == 0:
        return math.nan, math.nan, math.nan
    mean = float(np.mean(y - x)) if paired else float(y.mean() - x.mean())
    if min(n, m) < 2:
        return mean, math.nan, math.nan
    # Rounding must not pass for a spread: constants stay constant through log and exp.
    floor = 1e-12 * max(1.0, float(np.abs(x).max()), float(np.abs(y).max()))
    if paired:
        spread = float(np.std(y - x, ddof=1))
        mean = 0.0 if spread <= floor and abs(mean) <= floor else mean
        return mean, 0.0 if spread <= floor else spread / math.sqrt(n), n - 1.0
    spreads = [0.0 if s <= floor else s for s in (float(np.std(a, ddof=1)) for a in (x, y))]
    parts = [float(np.square(spread)) / size for spread, size in zip(spreads, (n, m), strict=True)]
    total = sum(parts)
    if total == 0:
        return 0.0 if abs(mean) <= floor else mean, 0.0, n + m - 2.0
    if not math.isfinite(total):
        return mean, math.inf, math.nan
    share = parts[0] / total
    df = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    return mean, math.sqrt(total), df


def interval(mean: float, error: float, df: float, alpha: float) -> tuple[float, float]:
    """Return the two-sided t interval at level 1 - `alpha`; NaN where no error is known."""
    if not math.isfinite(error):
        return math.nan, math.nan
    half = float(special.stdtrit(df, 1 - alpha / 2)) * error
    return mean - half, mean + half


def p_values(mean: float, error: float, df: float, bound: float) -> tuple[float, float]:
    """Return the two-sided p of no difference, and the TOST p of a difference beyond `bound`."""
    if not math.isfinite(error):
        return math.nan, math.nan
    if error == 0:
        return (1.0 if mean == 0 else 0.0), (0.0 if abs(mean) < bound else 1.0)
    p_value = 2 * float(special.stdtr(df, -abs(mean) / error))
    return p_value, float(special.stdtr(df, (abs(mean) - bound) / error))


def holm(p_values: Floats) -> Floats:
    """Return Holm's adjusted p-values; NaN stays NaN and counts for nothing.

    statsmodels' ``multipletests`` gives the same (a test compares them) but collects garbage at
    each call, which costs four times the whole comparison.
    """
    adjusted = np.full(len(p_values), np.nan)
    known = np.flatnonzero(np.isfinite(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
