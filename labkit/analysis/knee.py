"""The knee of a quota curve: where a fall (or rise) ends and a plateau begins.

A hinge on logs: log value = level + exponent * min(log x - log knee, 0), with a level a block. For
a knee that is given the model is linear, so the sum of squares is profiled over the knee, and the
interval holds the knees that the profile does not refuse (Hinkley 1969; Seber & Wild 1989, chapter
9). What the excess is measured by is not the pooled residual, but the variance over blocks of
the contrast that a shift of the knee shows in, with t over blocks: an ordinary profile F covers 87
to 91 % where the noise is unequal or each block has a knee of its own, this one 95 % (97 % at a
knee that lies on a level).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import Inverted, join_notes
from labkit.analysis.models import blocks_of, common_levels, numeric_levels
from labkit.errors import UsageError

Floats = NDArray[np.float64]


#: Candidates for the knee, evenly over the logs of the levels.
CANDIDATES = 801


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
        P-value that there is a knee: the larger of two, against a straight line on logs and
        against a constant; takes variances for equal.
    p_lack_of_fit : float
        P-value against the hinge, from the spread between blocks (an F test that takes variances
        for equal): where it is small the curve is another one, and so is its knee.
    levels : tuple of float
        Levels, rising.
    missing : tuple
        Blocks left out because they lack a level.
    n_blocks : int
        Blocks that were fitted.
    note : str
        What to know about it.
    """

    at: Inverted
    exponent: float
    plateau: float
    p_knee: float
    p_lack_of_fit: float
    levels: tuple[float, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""


def fit_knee(
    frame: pd.DataFrame,
    *,
    value: str,
    over: str,
    block: str,
    exponent: float | None = None,
    levels: Sequence[float] | None = None,
) -> Knee:
    """Fit a hinge to log values over the log of a number, with blocks centred.

    Parameters
    ----------
    frame : DataFrame
        One row a trial.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    over : str
        Column of the number, positive, with four levels or more.
    block : str
        Column of the block. Blocks that lack a level are left out and reported.
    exponent : float, optional
        The slope before the knee where theory gives it; it is estimated otherwise.
    levels : sequence of float, optional
        The levels to use; all of them without it.

    Raises
    ------
    UsageError
        For missing columns, values or levels without a logarithm, or fewer than four levels.
    """
    frame = numeric_levels(frame, over)
    table = blocks_of(frame, value=value, level=over, block=block, levels=levels, log=True)
    kept = frame[frame[over].isin(list(table.cells.columns))]
    x = np.array(common_levels([kept], over))
    if len(x) < 4 or x[0] <= 0:
        raise UsageError(
            f"{over!r} has {len(x)} levels, the smallest {x[0]:g}: too few for a knee",
            remedy="four levels or more, all positive",
        )
    logs = table.cells[list(x)].to_numpy(dtype=np.float64)
    facts = (tuple(map(float, x)), table.missing, len(logs))
    if len(logs) < 2:
        note = join_notes(table.note, "a knee takes two complete blocks or more")
        nothing = Inverted(math.nan, np.empty(0), np.empty(0), len(logs), note)
        return Knee(nothing, math.nan, math.nan, math.nan, math.nan, *facts, note)
    return _fitted(np.log(x), logs, exponent, facts, table.note)


def _fitted(
    x: Floats,
    logs: Floats,
    exponent: float | None,
    facts: tuple[tuple[float, ...], tuple[Hashable, ...], int],
    note: str,
) -> Knee:
    blocks = len(logs)
    grid = np.linspace(x[0], x[-1], CANDIDATES)
    means = logs.mean(axis=0)
    centred = logs - logs.mean(axis=1, keepdims=True)
    within = float(np.square(centred - centred.mean(axis=0)).sum())
    misfit, slopes = profile(means[None, :], x, grid, exponent)
    best = int(np.argmin(misfit[0]))
    excess = blocks * np.maximum(misfit[0] - misfit[0, best], 0.0)
    noise = contrast_variances(logs, x, grid, exponent)
    if noise.min() <= 1e-24 * max(1.0, float(np.square(logs).max())):
        note = join_notes(note, "no variance between blocks: the knee has no interval")
        tails = np.full(len(grid), np.nan)
    else:
        root = np.sign(grid - grid[best]) * np.sqrt(excess / noise)
        # A candidate is refused only with all that lie further out: the interval is one piece.
        root[best:] = np.minimum.accumulate(root[best:][::-1])[::-1]
        root[:best] = np.maximum.accumulate(root[:best])
        tails = special.stdtr(blocks - 1, root)
    slope = float(slopes[0, best])
    plateau = float(np.exp(means.mean() - slope * np.minimum(x - grid[best], 0.0).mean()))
    at = Inverted(float(np.exp(grid[best])), np.exp(grid), tails, blocks, note)
    p_knee, p_misfit = _tests(x, logs, within, float(misfit[0, best]), exponent)
    return Knee(at, slope, plateau, p_knee, p_misfit, *facts, note)


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


def contrast_variances(logs: Floats, x: Floats, grid: Floats, exponent: float | None) -> Floats:
    """Return, for each candidate, the variance over blocks of the contrast that speaks against it.

    What is left of the hinge's derivative by the knee, a step, beside level and slope; of length 1.
    Where nothing is left (no level lies on one side) the nearest candidate's variance stands.
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
    contrast = step[:, valid] / norm[valid]
    variance = (logs @ contrast).var(axis=0, ddof=1)
    return np.asarray(np.interp(grid, grid[valid], variance), dtype=np.float64)


def _tests(
    x: Floats, logs: Floats, within: float, misfit: float, exponent: float | None
) -> tuple[float, float]:
    """Return the p-values of a knee (against line and constant) and of lack of fit."""
    blocks, levels = logs.shape
    if within <= 1e-20 * max(1.0, float(np.square(logs).sum())):
        return math.nan, math.nan
    free = levels - (3 if exponent is None else 2)
    inner = (blocks - 1) * (levels - 1)
    ratio = blocks * misfit / free / (within / inner)
    p_misfit = float(special.fdtrc(free, inner, ratio))
    centred = logs.mean(axis=0, keepdims=True)
    gains = _gains(centred, np.array([within]), x, blocks, exponent)
    foreseen = _foreseen(tuple(map(float, x)), blocks, exponent)
    p_values = [
        (1 + int((null >= gain[0]).sum())) / (1 + len(null))
        for gain, null in zip(gains, foreseen, strict=True)
    ]
    return max(p_values), p_misfit


def _gains(
    means: Floats, within: Floats, x: Floats, blocks: int, exponent: float | None
) -> tuple[Floats, Floats]:
    """Return how much better than a line, and than a constant, the best hinge fits."""
    grid = np.linspace(x[0], x[-1], 101)
    misfit, _ = profile(means, x, grid, exponent)
    hinge = within + blocks * misfit.min(axis=1)
    line = within + blocks * misfit[:, -1]
    constant = within + blocks * np.square(means - means.mean(axis=1, keepdims=True)).sum(axis=1)
    return (line - hinge) / hinge, (constant - hinge) / hinge


@lru_cache(maxsize=64)
def _foreseen(
    x: tuple[float, ...], blocks: int, exponent: float | None, draws: int = 4000
) -> tuple[Floats, Floats]:
    """Return the two gains where there is no knee, drawn for normal noise.

    Under a line, or a constant, there is no knee to estimate and F has no F distribution (Davies
    1987); but it is free of level, slope and variance, so it can be drawn for the design at hand.
    """
    rng = np.random.default_rng(20260101)
    means = rng.standard_normal((draws, len(x))) / math.sqrt(blocks)
    within = rng.chisquare((blocks - 1) * (len(x) - 1), draws)
    level = np.array(x)
    over_line, _ = _gains(means + (exponent or 0.0) * level, within, level, blocks, exponent)
    _, over_constant = _gains(means, within, level, blocks, exponent)
    return over_line, over_constant
