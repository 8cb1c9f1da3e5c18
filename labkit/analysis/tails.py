"""Rare tails: intervals for quantiles, and refusal where there are too few samples.

Samples of one trial depend on each other, and trials differ: an interval for what a condition does
takes the trials as units. `trial_quantile` speaks of the quantile that a trial has,
`pooled_quantile` and `pooled_ratio` of the quantile of all samples together, `quantile_interval`
and `dependent_quantile_interval` of one series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.blockwise import over_blocks
from labkit.analysis.estimates import Estimate
from labkit.analysis.orderstats import (
    QuantileInterval,
    check_options,
    check_sorted,
    dependent_quantile_interval,
    needed_for_interval,
    quantile_interval,
)
from labkit.analysis.pooled import pooled_quantile, pooled_ratio
from labkit.analysis.reduce import quantiles, samples_needed
from labkit.errors import UsageError

__all__ = [
    "QuantileInterval",
    "dependent_quantile_interval",
    "needed_for_interval",
    "pooled_quantile",
    "pooled_ratio",
    "quantile_interval",
    "trial_quantile",
]

Array = NDArray[Any]


def trial_quantile(trials: Sequence[Array], level: float) -> Estimate:
    """Return the geometric mean over blocks of a trial's quantile, with a t interval.

    Parameters
    ----------
    trials : sequence of array
        Sorted samples of one trial a block, positive.
    level : float
        Between 0 and 1.

    Returns
    -------
    Estimate
        On the log scale. It speaks of the quantile that a trial has, not of the quantile of all
        samples together, which trials in the tail dominate. NaN where some trial is too short.

    Raises
    ------
    UsageError
        As `quantile_interval`, and for quantiles that are not positive and finite.
    """
    check_options(level, 0.05)
    needed = samples_needed(level)
    shortest = min((len(trial) for trial in trials), default=0)
    if trials and shortest < needed:
        note = f"the shortest trial has {shortest} samples; this quantile takes {needed}"
        return Estimate(math.nan, math.nan, math.nan, "log", len(trials), note)
    for trial in trials:
        check_sorted(trial)
    found = np.array([float(quantiles(trial, [level])[0]) for trial in trials])
    if not ((found > 0) & np.isfinite(found)).all():
        raise UsageError("a trial's quantile is zero, negative or infinite: no logarithm")
    return over_blocks(np.log(found), scale="log")
