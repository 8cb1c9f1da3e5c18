"""Quantiles of all trials' samples together: a hierarchical bootstrap that costs milliseconds.

Trials are resampled, then samples within trials (Davison & Hinkley 1997, section 3.8), and every
replicate is studentized by its own spread between trials. Resampling both levels counts the spread
within trials twice, which makes percentile intervals wrong; in a studentized replicate it is in the
numerator and in the error alike, so it cancels (in simulations two-level percentile intervals err
in 7 to 9 % of null experiments with 10 trials, studentized ones in about 5 %).

Nothing is sorted or drawn sample by sample: what a resample of n sorted samples does to a quantile
is one binomial draw, the number of samples below it (its dual, the order statistic, is a Beta
draw), so a replicate costs one number a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.orderstats import QuantileInterval, check_sorted, needed_for_interval
from labkit.analysis.reduce import quantiles
from labkit.errors import UsageError

Array = NDArray[Any]
Floats = NDArray[np.float64]
#: Fewer trials than this have too few different resamples for an interval.
LEAST_TRIALS = 5
#: Candidates a trial for the ends of an interval.
_CANDIDATES = 64


def pooled_quantile(
    trials: Sequence[Array],
    level: float,
    *,
    alpha: float = 0.05,
    resamples: int = 2000,
    seed: int = 0,
) -> QuantileInterval:
    """Return the quantile of all trials' samples together, with a hierarchical interval.

    A candidate q is refused when the share of samples below it is too far from `level`, measured
    by its spread between trials; how far is too far comes from the bootstrap (bootstrap-t, Efron
    1981; inverted at the candidate, as Woodruff 1952 does for surveys).

    Parameters
    ----------
    trials : sequence of array
        Sorted samples of each trial; trials are the units that are independent.
    level : float
        Between 0 and 1.
    alpha : float
        1 minus the confidence level.
    resamples : int
        Replicates of the bootstrap.
    seed : int
        The same seed gives the same interval.

    Returns
    -------
    QuantileInterval
        Refused below `LEAST_TRIALS` trials, or below `tails.needed_for_interval` samples in all.
        An end beyond the outermost samples is the outermost sample. Where few trials make the
        tail (a note says so) no resampling can know of the ones that were not drawn: with 10
        trials whose levels differ by 10 % (standard deviation) the interval of p99 covered 95 %,
        at 15 % 93 %; `tails.trial_quantile` is the safer question then.

    Raises
    ------
    UsageError
        For samples that are not sorted or are missing, and options out of range.
    """
    pool = _Pool(trials, level, alpha)
    if pool.refusal:
        return pool.refused()
    value = pool.value()
    below = pool.below(np.array([value]))[:, 0]
    rng = np.random.default_rng(seed)
    slots = rng.integers(len(trials), size=(resamples, len(trials)))
    drawn = pool.redrawn(below, slots, rng)
    # Where the trials stand at the estimate is subtracted: it is 0 but for the steps of the data.
    centre = float((below - level * pool.sizes).sum() / pool.sizes.sum())
    critical = _critical(drawn - centre * pool.sizes[slots], alpha)
    grid = pool.candidates()
    scores = _studentized((pool.below(grid) - level * pool.sizes[:, None]).T)
    low, high = _crossings(grid, scores, value, critical)
    return QuantileInterval(value, low, high, 1 - alpha, pool.n, pool.needed, _few(pool, below))


def pooled_ratio(
    trials: Sequence[Array],
    baseline: Sequence[Array],
    level: float,
    *,
    alpha: float = 0.05,
    resamples: int = 2000,
    seed: int = 0,
) -> QuantileInterval:
    """Return the ratio of two pooled quantiles, trials paired by their place (their block).

    Bootstrap-t on the log ratio: each block's part in it is linear in the share of its samples
    below the two quantiles (Bahadur 1966), blocks are resampled, and samples within their trials.

    Parameters
    ----------
    trials, baseline : sequence of array
        Sorted, positive samples of the condition and of the baseline, a trial a block each, in the
        same order of blocks.
    level, alpha, resamples, seed
        As for `pooled_quantile`.

    Returns
    -------
    QuantileInterval
        The ratio; refused as `pooled_quantile` does.

    Raises
    ------
    UsageError
        As `pooled_quantile`, for unequal numbers of trials, and for quantiles without a logarithm.
    """
    if len(trials) != len(baseline):
        raise UsageError(
            f"{len(trials)} trials and {len(baseline)} of the baseline are no pairs",
            remedy="one of each a block",
        )
    pools = [_Pool(part, level, alpha) for part in (trials, baseline)]
    for pool in pools:
        if pool.refusal:
            return pool.refused()
    values = [pool.value() for pool in pools]
    if not all(value > 0 and math.isfinite(value) for value in values):
        raise UsageError("a pooled quantile is zero, negative or infinite: no ratio")
    rng = np.random.default_rng(seed)
    count = len(trials)
    slots = rng.integers(count, size=(resamples, count))
    seen, drawn = np.zeros(count), np.zeros((resamples, count))
    for pool, value, sign in zip(pools, values, (-1.0, 1.0), strict=True):
        below = pool.below(np.array([value]))[:, 0]
        weight = sign / (pool.slope(value) * float(pool.sizes.mean()))
        scores = below - level * pool.sizes
        seen += weight * scores
        drawn += weight * pool.redrawn(below, slots, rng)
    error = float(seen.std(ddof=1)) / math.sqrt(count)
    critical = _critical(drawn - seen.mean(), alpha)
    ratio = math.log(values[0] / values[1])
    low, high = (math.exp(ratio - end * error) for end in (critical[1], critical[0]))
    n, needed = min(pool.n for pool in pools), max(pool.needed for pool in pools)
    return QuantileInterval(math.exp(ratio), low, high, 1 - alpha, n, needed, "")


class _Pool:
    """The trials of one condition and where their samples lie."""

    def __init__(self, trials: Sequence[Array], level: float, alpha: float) -> None:
        self.needed = needed_for_interval(level, alpha)
        for trial in trials:
            check_sorted(trial)
        self.trials, self.level = trials, level
        self.sizes = np.array([len(trial) for trial in trials], dtype=np.float64)
        self.n = int(self.sizes.sum())
        self.refusal = ""
        if len(trials) < LEAST_TRIALS or not self.sizes.all():
            self.refusal = (
                f"{int((self.sizes > 0).sum())} trials with samples; a hierarchical interval takes "
                f"{LEAST_TRIALS}, and none may be empty"
            )
        elif self.n < self.needed:
            self.refusal = f"{self.n} samples; an interval for this quantile takes {self.needed}"

    def refused(self) -> QuantileInterval:
        """Return the answer that is none."""
        nothing = (math.nan, math.nan, math.nan, math.nan)
        return QuantileInterval(*nothing, self.n, self.needed, self.refusal)

    def below(self, points: Floats) -> Floats:
        """Return how many samples of each trial are at most each point: (trials, points)."""
        counts = [
            # Of integers those up to the floor: searching for floats would convert every sample.
            np.searchsorted(trial, np.floor(points).astype(trial.dtype), side="right")
            if trial.dtype.kind == "i"
            else np.searchsorted(trial, points, side="right")
            for trial in self.trials
        ]
        return np.array(counts, dtype=np.float64)

    def value(self) -> float:
        """Return the quantile of all samples together, exactly, without sorting them together.

        Candidates enclose it; only the samples between two of them are looked at.
        """
        grid = self.candidates()
        first = math.floor(self.level * (self.n - 1))
        counts = self.below(grid).sum(axis=0)
        left = int(np.searchsorted(counts, first, side="right")) - 1
        right = int(np.searchsorted(counts, first + 2, side="left"))
        spans = []
        skipped = 0
        for trial in self.trials:
            start = int(np.searchsorted(trial, grid[left], side="right")) if left >= 0 else 0
            stop = len(trial)
            if right < len(grid):
                stop = int(np.searchsorted(trial, grid[right], side="right"))
            spans.append(trial[start:stop])
            skipped += start
        inner = np.sort(np.concatenate(spans))
        place = self.level * (self.n - 1) - skipped
        return float(quantiles(inner, [place / max(len(inner) - 1, 1)])[0])

    def candidates(self) -> Floats:
        """Return samples of all trials around the quantile, rising, and the outermost ones."""
        centre = math.log(self.level / (1 - self.level))
        levels = 1 / (1 + np.exp(-(centre + np.linspace(-4, 4, _CANDIDATES))))
        ends = [0.0, *levels, 1.0]
        found = [quantiles(trial, ends) for trial in self.trials]
        return np.unique(np.concatenate(found))

    def redrawn(self, below: Floats, slots: Array, rng: np.random.Generator) -> Floats:
        """Return the score of resampled trials: samples at most the quantile, less the expected."""
        sizes = self.sizes[slots]
        drawn = rng.binomial(sizes.astype(np.int64), (below / self.sizes)[slots])
        return np.asarray(drawn - self.level * sizes, dtype=np.float64)

    def slope(self, value: float) -> float:
        """Return how much the share below rises with the log of the quantile, around it."""
        shares = self.below(np.array([value]))[:, 0] / self.sizes
        spread = float(shares.std(ddof=1)) / math.sqrt(len(shares))
        room = 0.9 * min(self.level, 1 - self.level)
        step = min(room, max(2 * spread, 2 / self.n))
        ordered = [self._quantile(self.level + side * step) for side in (-1, 1)]
        rise = math.log(ordered[1] / ordered[0]) if ordered[0] > 0 else 0.0
        return 2 * step / rise if rise > 0 else math.inf

    def _quantile(self, level: float) -> float:
        grid = self.candidates()
        shares = self.below(grid).sum(axis=0) / self.n
        return float(np.interp(level, shares, grid))


def _studentized(scores: Floats) -> Floats:
    """Return mean over error of the last axis; infinite, with the mean's sign, without spread."""
    count = scores.shape[-1]
    mean, spread = scores.mean(axis=-1), scores.std(axis=-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = mean / (spread / math.sqrt(count))
    return np.where(spread > 0, found, np.where(mean == 0, 0.0, np.copysign(np.inf, mean)))


def _few(pool: _Pool, below: Floats) -> str:
    """Return a warning if what lies beyond the quantile comes from less than half of the trials.

    Their effective number is that of Kish (1965): the squared sum over the sum of squares.
    """
    beyond = pool.sizes - below if pool.level >= 0.5 else below
    number = float(beyond.sum() ** 2 / max(float(np.square(beyond).sum()), 1e-300))
    if number >= len(beyond) / 2:
        return ""
    return (
        f"the tail is made by the equivalent of {number:.1f} of {len(beyond)} trials: the interval "
        "may be too short"
    )


def _crossings(
    grid: Floats, scores: Floats, value: float, critical: tuple[float, float]
) -> tuple[float, float]:
    """Return where the scores, from the estimate outwards, first pass the critical ones."""
    start = int(np.searchsorted(grid, value))
    low, high = float(grid[0]), float(grid[-1])
    if (refused := np.flatnonzero(scores[:start] < critical[0])).size:
        low = float(grid[min(int(refused[-1]) + 1, len(grid) - 1)])
    if (refused := np.flatnonzero(scores[start:] > critical[1])).size:
        high = float(grid[start + int(refused[0])])
    return min(low, value), max(high, value)


def _critical(scores: Floats, alpha: float) -> tuple[float, float]:
    """Return the two ends of the middle 1 - alpha of studentized replicates.

    Widened by the square root of n / (n - 1): resamples of n trials spread that much less than
    trials do (the narrowness bias of Hesterberg 2015), of which studentizing takes care only where
    all trials have equal parts in the quantile.
    """
    replicates = np.sort(_studentized(scores))
    places = [round(share * (len(replicates) - 1)) for share in (alpha / 2, 1 - alpha / 2)]
    wider = math.sqrt(scores.shape[1] / (scores.shape[1] - 1))
    return wider * float(replicates[places[0]]), wider * float(replicates[places[1]])
