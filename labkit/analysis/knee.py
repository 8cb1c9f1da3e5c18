"""The knee of a quota curve: where a fall (or rise) ends and a plateau begins.

A hinge on logs: log value = level + exponent * min(log x - log knee, 0), with one level per block.
For a given knee the model is linear, so the sum of squares is profiled over the knee, and the
interval holds the knees that the profile does not reject (Hinkley 1969; Seber & Wild 1989, chapter
9). The excess is not divided by the pooled residual, but by the variance over blocks of the
contrast that a shift of the knee changes, with t over blocks: an ordinary profile F covers 87 to
91 % where the noise is unequal or knees differ between blocks, this one 95 % (97 % at a knee that
lies on a level). A smooth curve has a best hinge, too: `Knee.p_knee` says whether the hinge fits
better than curves without a knee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import Inverted, join_notes
from labkit.analysis.models import blocks_of, common_levels, numeric_levels
from labkit.analysis.robust import checked, without_unchecked
from labkit.errors import UsageError

Floats = NDArray[np.float64]


#: Candidates for the knee, evenly over the logs of the levels.
CANDIDATES = 801

#: Replicates of the bootstrap behind `Knee.p_knee`.
DRAWS = 2000


@dataclass(frozen=True)
class Knee:
    """A hinge on logs: a power of the number up to the knee, constant beyond it.

    Parameters
    ----------
    at : Inverted
        The knee in the unit of the number. An interval that is open has 0 or inf.
    exponent : float
        Slope on logs before the knee (-1 for a fall as 1/quota).
    plateau : float
        Geometric mean value beyond the knee, in the unit of the value.
    p_knee : float
        P-value of a hinge against curves without a knee, the largest of four: against a constant,
        a straight line and a parabola on logs, and curves that approach a level smoothly.
    p_lack_of_fit : float
        P-value of other curves against the hinge, from the spread between blocks (an F test that
        assumes equal variances): where it is small the curve is not a hinge.
    note : str
        What to know about it.
    """

    at: Inverted
    exponent: float
    plateau: float
    p_knee: float
    p_lack_of_fit: float
    note: str = ""


def fit_knee(
    frame: pd.DataFrame,
    *,
    value: str,
    over: str,
    exponent: float | None = None,
) -> Knee:
    """Fit a hinge to log values over the log of a number, with blocks centred.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``. Blocks that lack a level are left out
        and reported.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    over : str
        Column of the number, positive, with four levels or more.
    exponent : float, optional
        The slope before the knee where theory gives it; it is estimated otherwise.

    Raises
    ------
    UsageError
        For missing columns, values or levels without a logarithm, or fewer than four levels.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/cpu-quota").ok
    >>> trials = trials.query("placement == 'docker host' and quota_us != '0'")
    >>> names = {"over": "quota_us"}
    >>> knee = analysis.fit_knee(trials, value="latency_ns_median", **names)
    >>> knee.at.n_blocks
    60
    """
    frame = numeric_levels(frame, over)
    table = blocks_of(frame, value=value, level=over, log=True)
    x = np.array(common_levels([frame], over))
    if len(x) < 4 or x[0] <= 0:
        raise UsageError(
            f"{over!r} has {len(x)} levels, the smallest {x[0]:g}: too few for a knee",
            remedy="four levels or more, all positive",
        )
    logs = table.cells[list(x)].to_numpy(dtype=np.float64)
    if len(logs) < 2:
        note = join_notes(table.note, "a knee takes two complete blocks or more")
        nothing = Inverted(math.nan, np.empty(0), np.empty(0), len(logs), note)
        return Knee(nothing, math.nan, math.nan, math.nan, math.nan, note)
    return _fitted(np.log(x), logs, exponent, table.note)


def _fitted(x: Floats, logs: Floats, exponent: float | None, note: str) -> Knee:
    blocks = len(logs)
    grid = np.linspace(x[0], x[-1], CANDIDATES)
    means = logs.mean(axis=0)
    misfit, slopes = profile(means[None, :], x, grid, exponent)
    best = int(np.argmin(misfit[0]))
    excess = blocks * np.maximum(misfit[0] - misfit[0, best], 0.0)
    contrasts = knee_contrasts(logs, x, grid, exponent)
    noise = contrasts.var(axis=0, ddof=1)
    degrees = blocks - 1.0
    if noise.min() <= 1e-24 * max(1.0, float(np.square(logs).max())):
        note = join_notes(note, "no variance between blocks: the knee has no interval")
        tails = np.full(len(grid), np.nan)
    else:
        checks = checked(contrasts[:, best])
        degrees, note = checks.df, join_notes(note, checks.note)
        root = np.sign(grid - grid[best]) * np.sqrt(excess / noise) / checks.widening
        # A candidate is rejected only with all further out, so that the interval is one piece.
        root[best:] = np.minimum.accumulate(root[best:][::-1])[::-1]
        root[:best] = np.maximum.accumulate(root[:best])
        tails = special.stdtr(degrees, root)
    slope = float(slopes[0, best])
    plateau = float(np.exp(means.mean() - slope * np.minimum(x - grid[best], 0.0).mean()))
    at = Inverted(float(np.exp(grid[best])), np.exp(grid), tails, blocks, note)
    p_misfit = _lack_of_fit(logs, float(misfit[0, best]), exponent)
    p_knee = math.nan if math.isnan(p_misfit) else _p_knee(x, logs, exponent)
    return Knee(at, slope, plateau, p_knee, p_misfit, without_unchecked(note))


def profile(
    means: Floats, x: Floats, grid: Floats, exponent: float | None
) -> tuple[Floats, Floats]:
    """Return the sum of squares that a hinge at each candidate leaves, and its slope."""
    hinge = np.minimum(x[:, None] - grid[None, :], 0.0)
    hinge = hinge - hinge.mean(axis=0)
    centred = means - means.mean(axis=1, keepdims=True)
    length = np.square(hinge).sum(axis=0)
    product = centred @ hinge
    if exponent is None:
        slope = np.divide(product, length, out=np.zeros_like(product), where=length > 1e-12)
    else:
        slope = np.full_like(product, exponent)
    left = np.square(centred).sum(axis=1)[:, None] - 2 * slope * product + slope**2 * length
    return np.maximum(left, 0.0), slope


def knee_contrasts(logs: Floats, x: Floats, grid: Floats, exponent: float | None) -> Floats:
    """Return, for each block and candidate, the contrast that tests the candidate.

    The contrast is the hinge's derivative by the knee, a step, orthogonal to level and slope and of
    length 1. Where it vanishes (no level on one side) the nearest candidate's is used.
    """
    step = (x[:, None] < grid[None, :] - 1e-12).astype(np.float64)
    step -= step.mean(axis=0)
    if exponent is None:
        hinge = np.minimum(x[:, None] - grid[None, :], 0.0)
        hinge -= hinge.mean(axis=0)
        length = np.maximum(np.square(hinge).sum(axis=0), 1e-300)
        step -= hinge * ((hinge * step).sum(axis=0) / length)
    norm = np.sqrt(np.square(step).sum(axis=0))
    valid = np.flatnonzero(norm > 1e-6)
    nearest = np.interp(np.arange(len(grid)), valid, valid).round().astype(np.intp)
    return np.asarray(logs @ (step[:, nearest] / norm[nearest]), dtype=np.float64)


def _lack_of_fit(logs: Floats, misfit: float, exponent: float | None) -> float:
    """Return the p-value of the F test of a hinge against any curve, on the pure error."""
    blocks, levels = logs.shape
    within = float(np.square(_residuals(logs)).sum())
    if within <= 1e-20 * max(1.0, float(np.square(logs).sum())):
        return math.nan
    free = levels - (3 if exponent is None else 2)
    inner = (blocks - 1) * (levels - 1)
    return float(special.fdtrc(free, inner, blocks * misfit / free / (within / inner)))


def _p_knee(x: Floats, logs: Floats, exponent: float | None) -> float:
    """Return the largest p-value of a hinge against the curves without a knee (`_smooth`).

    The statistic is how much better the hinge fits the means. A hinge and a smooth curve are not
    nested, and without a knee even a nested F has no F distribution (Davies 1987), so what it is
    under each curve is simulated (Williams 1970): the curve's fit plus the blocks' residuals, with
    random weights for whole blocks (wild bootstrap, Liu 1988), which keeps unequal variances.
    """
    blocks = len(logs)
    residuals = _residuals(logs) * math.sqrt(blocks / (blocks - 1))
    weights = np.random.default_rng(20260101).standard_normal((DRAWS, blocks))
    noise = weights @ residuals / blocks
    squares = np.square(weights) @ np.square(residuals).sum(axis=1)
    within = squares - blocks * np.square(noise).sum(axis=1)
    means = logs.mean(axis=0, keepdims=True)
    means = means - means.mean()
    observed_within = np.array([np.square(_residuals(logs)).sum()])

    grid = np.linspace(x[0], x[-1], 101)

    def gain(points: Floats, curves: Floats, inner: Floats) -> Floats:
        hinge = inner + blocks * profile(points, x, grid, exponent)[0].min(axis=1)
        smooth = inner + blocks * np.square(points - curves).sum(axis=1)
        return np.asarray((smooth - hinge) / hinge, dtype=np.float64)

    p_values = []
    for fit in _smooth(x, exponent):
        curve = fit(means)
        observed = gain(means, curve, observed_within)[0]
        drawn = curve + noise
        null = gain(drawn, fit(drawn), within)
        p_values.append((1 + int((null >= observed).sum())) / (1 + DRAWS))
    return max(p_values)


def _residuals(logs: Floats) -> Floats:
    """Return logs without the levels of the blocks and the mean curve."""
    centred = logs - logs.mean(axis=1, keepdims=True)
    return np.asarray(centred - centred.mean(axis=0), dtype=np.float64)


def _smooth(x: Floats, exponent: float | None) -> list[Callable[[Floats], Floats]]:
    """Return the fits of curves without a knee to rows of centred means, by least squares.

    A constant, a straight line and a parabola on logs, and the nearest of the curves that approach
    a level smoothly: 1 + (a / x)^b and 1 + a exp(-x / b), and their reciprocals.
    """

    def linear(*columns: Floats) -> Callable[[Floats], Floats]:
        basis, _ = np.linalg.qr(np.column_stack(columns) - np.mean(columns, axis=1))
        return lambda means: np.asarray((means @ basis) @ basis.T)

    def nearest(means: Floats) -> Floats:
        products = means @ curves.T
        size = np.abs(products)
        # A factor of up to 10 % fills the space between the curves of the grid.
        factors = np.clip(size / lengths, 0.9, 1.1)
        best = ((lengths * factors - 2 * size) * factors).argmin(axis=1)
        row = np.arange(len(means))
        scale = np.copysign(factors[row, best], products[row, best])
        return np.asarray(scale[:, None] * curves[best], dtype=np.float64)

    def few_at_once(means: Floats) -> Floats:
        # A few rows times all curves stay in the CPU's cache.
        return np.concatenate([nearest(means[row : row + 25]) for row in range(0, len(means), 25)])

    curves = _saturations(tuple(x))
    lengths = np.maximum(np.square(curves).sum(axis=1), 1e-12)
    line = linear(x)
    if exponent is not None:
        slope = exponent * (x - x.mean())
        line = lambda means: np.broadcast_to(slope, means.shape)  # noqa: E731
    return [np.zeros_like, line, linear(x, x**2), few_at_once]


@lru_cache(maxsize=16)
def _saturations(x: tuple[float, ...]) -> Floats:
    """Return a grid of centred curves that approach a level smoothly, shape (curves, levels).

    Each stands for its mirror image, too.
    """
    logs = np.array(x)
    spots = np.linspace(logs[0] - 1, logs[-1] + 1, 41)[:, None, None]
    powers = np.geomspace(0.25, 8, 16)[:, None] * (spots - logs)
    sizes = np.log(np.geomspace(0.1, 1000, 16))[:, None]
    decays = sizes - np.exp(np.clip(logs - spots, -50, 50))
    curves = np.concatenate(
        [np.logaddexp(0, part).reshape(-1, len(x)) for part in (powers, decays)]
    )
    return np.asarray(curves - curves.mean(axis=1, keepdims=True))
