"""What breaks a t test over blocks: serial correlation, outlying blocks, skewed log ratios.

One number a block comes in, in the order of the blocks. Serial correlation is tested by the ratio
of von Neumann (1941) and, where found, allowed for by the effective sample size of an AR(1) series
(Bayley & Hammersley 1946) with a lag-1 correlation corrected for its bias (Kendall 1954). Outlying
blocks are tested by Grubbs (1969), skewness by D'Agostino (1970). The trimmed mean and its t test
are those of Tukey & McLaughlin (1963) and Yuen (1974), on the differences inside blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import (
    ROUNDING,
    Estimate,
    Quotient,
    join_notes,
    mean_over_blocks,
    ratio_of_means,
)

Floats = NDArray[np.float64]

#: With fewer blocks the tests below find too little to be worth running: at a lag-1 correlation of
#: 0.5 the one of von Neumann finds 24 % in 5 blocks, 46 % in 10, 83 % in 25.
CHECKED_BLOCKS = 10
#: With fewer blocks they run and miss much: at lag-1 correlations of 0.5 and 0.8 false differences
#: without a finding are 16 and 19 % with 10 blocks, 7 and 3 % with 20, 5 and 1 % with 25; what
#: slows one trial in ten is absent from 35 % of campaigns of 10 blocks, 7 % of 25.
SURE_BLOCKS = 25
#: Level of the test for serial correlation; a false alarm only widens the interval.
SERIAL_LEVEL = 0.1
#: Level of the tests for outliers and skewness, of which a false alarm is a note.
SHAPE_LEVEL = 0.01
#: No correlation is taken to be higher: beyond it a campaign is worth one block.
_HIGHEST = 0.95
#: Said where serial correlation was found, and errors are wider for it.
SERIAL = "blocks are serially correlated: errors allow for it"
#: Said of verdicts that rest on fewer than `CHECKED_BLOCKS`, and than `SURE_BLOCKS`.
UNCHECKED = "too few blocks to check for serial correlation or for outliers"
HALF_CHECKED = "too few blocks to be sure to find serial correlation and outliers"


def unsure(blocks: int) -> str:
    """Return what so few blocks leave open; empty from `SURE_BLOCKS` on."""
    if blocks < CHECKED_BLOCKS:
        return UNCHECKED
    return HALF_CHECKED if blocks < SURE_BLOCKS else ""


@dataclass(frozen=True)
class Serial:
    """Serial correlation of one number a block.

    Parameters
    ----------
    p_value : float
        One-sided p-value of the von Neumann ratio; NaN below `CHECKED_BLOCKS` and without spread.
    error, df : float
        Standard error of the mean, and degrees of freedom, that allow for it.
    """

    p_value: float
    error: float
    df: float


def serial_correlation(figures: Floats) -> Serial:
    """Return the serial correlation of one number a block, in the order of the blocks."""
    n = len(figures)
    centred = figures - figures.mean() if n else figures
    square = float(centred @ centred)
    if n < CHECKED_BLOCKS or not square > 0 or not math.isfinite(square):
        return Serial(math.nan, math.nan, math.nan)
    # The ratio lies between 0 and 4, with mean 2 and this variance: near enough a beta variable.
    ratio = float(np.sum(np.diff(figures) ** 2)) / square
    shape = ((n * n - 1) / (n - 2) - 1) / 2
    p_value = float(special.betainc(shape, shape, min(ratio / 4, 1.0)))
    raw = float(centred[1:] @ centred[:-1]) / square
    lag1 = float(np.clip(raw + (1 + 4 * max(raw, 0.0)) / n, 0.0, _HIGHEST))
    lags = np.arange(1, n)
    inflation = 1 + 2 * float(np.sum((1 - lags / n) * lag1**lags))
    # The sample variance of a correlated series is too small, too.
    variance = square / max(n - inflation, (n - 1) / n)
    error = math.sqrt(variance * inflation / n)
    return Serial(p_value, error, max(n / inflation - 1, 1.0))


@dataclass(frozen=True)
class Checks:
    """What the checks of one number a block found.

    Parameters
    ----------
    widening : float
        The standard error of the mean is so many times the plain one.
    df : float
        Degrees of freedom.
    note : str
        What was found, and what so few blocks leave open (`unsure`).
    """

    widening: float
    df: float
    note: str


def without_unchecked(*notes: str) -> str:
    """Return notes as one without those of `unsure`, which pages say once."""
    parts = join_notes(*notes).split("; ")
    return join_notes(*(part for part in parts if part not in (UNCHECKED, HALF_CHECKED)))


def checked(figures: Floats) -> Checks:
    """Check one number a block, in the order of the blocks, which must have a spread."""
    n, left_open = len(figures), unsure(len(figures))
    if n < CHECKED_BLOCKS:
        return Checks(1.0, n - 1.0, left_open)
    serial, note = serial_correlation(figures), join_notes(shape_note(figures), left_open)
    plain = float(figures.std(ddof=1)) / math.sqrt(n)
    if serial.p_value < SERIAL_LEVEL and serial.error > plain:
        return Checks(serial.error / plain, serial.df, join_notes(SERIAL, note))
    return Checks(1.0, n - 1.0, note)


def block_mean(
    figures: Floats,
    *,
    scale: Literal["linear", "log"] = "linear",
    note: str = "",
    size: float = 0.0,
) -> Estimate:
    """Return `mean_over_blocks` with the errors and the note of `checked`."""
    mean = mean_over_blocks(figures, scale=scale, note=note, size=size)
    if not mean.error > 0:
        return mean
    checks = checked(figures)
    note = join_notes(mean.note, checks.note)
    return replace(mean, error=mean.error * checks.widening, df=checks.df, note=note)


def block_ratio(above: Floats, below: Floats, *, note: str = "") -> Quotient:
    """Return `ratio_of_means` as `block_mean` returns a mean.

    What is checked is ``above - ratio * below``, whose mean the ratio makes 0.
    """
    ratio = ratio_of_means(above, below, note=note)
    rest = above - ratio.value * below
    if len(rest) < 2 or not np.isfinite(rest).all() or not rest.std() > 0:
        return ratio
    checks = checked(rest)
    upper, both, lower = (one * checks.widening**2 for one in ratio.covariance)
    note = join_notes(ratio.note, checks.note)
    return replace(ratio, covariance=(upper, both, lower), df=checks.df, note=note)


def shape_note(figures: Floats) -> str:
    """Return what an outlying block or skewness does to a mean over blocks; empty without."""
    n = len(figures)
    spread = float(figures.std(ddof=1)) if n > 1 else 0.0
    if n < CHECKED_BLOCKS or not spread > 0:
        return ""
    # Imported where it is needed: it takes half a second.
    from scipy import stats

    distance = np.abs(figures - figures.mean()) / spread
    # Grubbs: the largest distance as a t statistic, times the number of blocks.
    most = float(distance.max())
    rest = (n - 1) ** 2 - n * most**2
    t = most * math.sqrt(n * (n - 2) / rest) if rest > 0 else math.inf
    notes = []
    if 2 * n * float(special.stdtr(n - 2, -t)) < SHAPE_LEVEL:
        notes.append(f"block {int(distance.argmax()) + 1} of {n} is an outlier")
    elif float(stats.skewtest(figures).pvalue) < SHAPE_LEVEL:
        notes.append("skewed log ratios: the error rate is higher than stated")
    return join_notes(*notes)


def unpaired_note(figures: Floats) -> str:
    """Return why an interval that takes blocks as independent may be too short."""
    return join_notes(dependence_note(figures), shape_note(figures), unsure(len(figures)))


def dependence_note(figures: Floats) -> str:
    """Return that an interval which takes blocks as independent is too short, where it is."""
    depend = serial_correlation(figures).p_value < SERIAL_LEVEL
    return "blocks are serially correlated: the interval is too short" if depend else ""


def trimmed_mean(figures: Floats, trim: float) -> tuple[float, float, float]:
    """Return the trimmed mean of one number a block, its standard error and degrees of freedom.

    `trim` is the share that is cut off at each end (0.2 for 20 %). NaN where fewer than two
    numbers are left.
    """
    n = len(figures)
    cut = int(trim * n)
    kept = n - 2 * cut
    if kept < 1:
        return math.nan, math.nan, math.nan
    ordered = np.sort(figures)
    mean = float(ordered[cut : n - cut].mean())
    if kept < 2:
        return mean, math.nan, math.nan
    winsorised = np.clip(figures, ordered[cut], ordered[n - cut - 1])
    spread = float(winsorised.std(ddof=1)) * math.sqrt((n - 1) / (kept * (kept - 1)))
    # Numbers that are equal but for rounding have no spread.
    return mean, 0.0 if spread <= ROUNDING * max(1.0, abs(mean)) else spread, kept - 1.0
