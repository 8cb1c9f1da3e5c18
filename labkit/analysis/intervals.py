"""The t machinery below every comparison: means with errors, intervals and tests of logs.

Paired, or independent with Welch's degrees of freedom (Welch 1947); equivalence by two one-sided
tests (Schuirmann 1987); Holm's step-down correction (Holm 1979); signed ranks (Wilcoxon 1945).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]
#: Spreads below this share of the numbers that they come from are rounding.
ROUNDING = 1e-12


@np.errstate(over="ignore", under="ignore")
def mean_and_error(
    x: Floats, y: Floats, paired: bool, *, size: float = 0.0
) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom of y - x; NaN where there is none.

    A spread below 1e-12 of the largest number, or of `size`, is rounding and counts as 0: logs have
    the size 1, since they are rounded as the values are, however near 0 they lie.
    """
    if min(len(x), len(y)) == 0:
        return math.nan, math.nan, math.nan
    # By a power of two, which rounds nothing: squares stay in the floating-point range.
    _, power = math.frexp(max(size, float(np.abs(x).max()), float(np.abs(y).max())))
    mean, error, df = _scaled(np.ldexp(x, -power), np.ldexp(y, -power), paired)
    return float(np.ldexp(mean, power)), float(np.ldexp(error, power)), df


def _scaled(x: Floats, y: Floats, paired: bool) -> tuple[float, float, float]:
    """Return the same of numbers the size of 1."""
    n, m = len(x), len(y)
    mean = float(np.mean(y - x)) if paired else float(y.mean() - x.mean())
    if min(n, m) < 2:
        return mean, math.nan, math.nan
    # Rounding must not pass for a spread: constants stay constant through log and exp.
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


def signed_rank(change: Floats) -> float:
    """Return the two-sided p of the signed-rank test that `change` lies around 0 (Wilcoxon 1945).

    Exact up to 50 values without ties, by scipy; differences of 0 count for nothing. 1 where all
    are 0.
    """
    change = change[change != 0]
    return float(stats.wilcoxon(change).pvalue) if len(change) else 1.0
