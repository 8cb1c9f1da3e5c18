"""Validity checks: blocks over several sessions, drift, dependence, trials unlike their own kind.

They flag and report; nothing is removed because of its outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import fft, stats

from labkit.analysis.estimates import holm, mean_and_error, p_values
from labkit.analysis.models import check_values
from labkit.analysis.trials import groups, require_columns, require_names, unsorted_groups

Floats = NDArray[np.float64]

#: Modified z-scores beyond this are outliers (Iglewicz & Hoaglin 1993).
OUTLIER_Z = 3.5


#: Most batches that a trial is cut into, and how many independent samples one is worth at least.
MOST_BATCHES = 20


BATCH_WORTH = 10


def drift(
    trials: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    block: str = "block",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Regress the log of each condition's value on the order of the blocks.

    Trials of one condition in a block (A/A replicates) share the block's level, so they are
    averaged: taken as independent, two a block would seem to drift in 20 % of null experiments.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, block, *names])
    require_names(trials, [block, *names])
    order = pd.factorize(trials[block], sort=True)[0].astype(np.float64)
    logs = check_values(trials, value, log=True)
    span = float(order.max() - order.min())
    rows = [
        {**key, **_slope(order[index], logs[index], span, alpha)}
        for key, index in groups(trials, names)
    ]
    table = pd.DataFrame.from_records(rows)
    table["p_adjusted"] = holm(table["p_value"].to_numpy(dtype=np.float64))
    table["drifts"] = table["p_adjusted"] < alpha
    return table


def _slope(order: Floats, logs: Floats, span: float, alpha: float) -> dict[str, Any]:
    known = np.isfinite(logs)
    x, place = np.unique(order[known], return_inverse=True)
    y = np.bincount(place, logs[known]) / np.bincount(place)
    row: dict[str, Any] = {"n": len(y)}
    if len(y) < 3:
        return {**row, **dict.fromkeys(("slope", "total", "low", "high", "p_value"), math.nan)}
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(1 - alpha / 2, len(y) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    with np.errstate(over="ignore"):
        ends = np.expm1([slope, slope * span, slope - half, slope + half])
    shown = dict(zip(("slope", "total", "low", "high"), map(float, ends), strict=True))
    return {**row, **shown, "p_value": float(fit.pvalue)}


def autocorrelation(values: NDArray[Any]) -> float:
    """Return the lag-1 autocorrelation of a series.

    NaN below 3 values, without variance, and where a value is not finite.
    """
    if len(values) < 3 or not np.isfinite(values).all():
        return math.nan
    centred = _centred(values)
    # A sum of products by einsum: a dot product wakes the threads of BLAS, which are in the way.
    total = float(np.einsum("i,i->", centred, centred))
    lagged = float(np.einsum("i,i->", centred[:-1], centred[1:]))
    return lagged / total if total > 0 else math.nan


def _centred(values: NDArray[Any]) -> Floats:
    """Return values without their mean, and the size of 1: their squares stay in range."""
    floats = np.asarray(values, dtype=np.float64)
    _, power = math.frexp(float(np.abs(floats).max()))
    scaled = np.ldexp(floats, -power)
    return np.asarray(scaled - float(scaled.mean()), dtype=np.float64)


def effective_size(values: NDArray[Any]) -> float:
    """Return how many independent samples a dependent series is worth.

    n divided by the integrated autocorrelation time, whose window is chosen as Sokal (1997) does:
    the first lag that is at least five times the time so far. Between 1 and n; n where the series
    is constant or too short to tell, NaN where a value is not finite.
    """
    n = len(values)
    if not np.isfinite(values).all():
        return math.nan
    if n < 3:
        return float(n)
    centred = _centred(values)
    length = fft.next_fast_len(2 * n, real=True)
    spectrum = fft.rfft(centred, length)
    covariance = fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[: n // 2]
    if covariance[0] <= 0:
        return float(n)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    wide = np.arange(len(times)) >= 5 * times
    time = float(times[np.argmax(wide)] if wide.any() else times[-1])
    return min(float(n), max(1.0, n / max(time, 1e-9)))


def dependence(
    samples: pd.DataFrame, *, by: Sequence[str], value: str = "rtt_ns", most: int = 100_000
) -> pd.DataFrame:
    """Return lag-1 autocorrelation and effective sample size of every trial."""
    rows = []
    for key, series in unsorted_groups(samples, value=value, by=by):
        head = series[:most]
        scale = len(series) / max(len(head), 1)
        rows.append(
            {
                **key,
                "n": len(series),
                "lag1": autocorrelation(head),
                "effective": effective_size(head) * scale,
            }
        )
    return pd.DataFrame.from_records(rows)


def stationarity(
    samples: pd.DataFrame,
    *,
    by: Sequence[str],
    value: str = "rtt_ns",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Test whether the second half of each trial is like the first.

    Medians of batches (batch means, Schmeiser 1982, with medians against the heavy tail) of the
    two halves are compared by Welch's t test, as Geweke (1992) compares two parts of a chain. The
    batches are so long that neighbouring ones hardly depend on each other: at most `MOST_BATCHES`,
    each worth `BATCH_WORTH` independent samples or more. A change that is over by the middle and
    undone by the end passes unseen.
    """
    rows = [
        {**key, **_halves(series)} for key, series in unsorted_groups(samples, value=value, by=by)
    ]
    table = pd.DataFrame.from_records(rows)
    p_value = table["p_value"].to_numpy(dtype=np.float64)
    table["p_adjusted"] = holm(p_value)
    table["stationary"] = (
        (table["p_adjusted"] >= alpha).astype("boolean").mask(np.isnan(p_value), pd.NA)
    )
    return table


def _halves(series: NDArray[Any], most: int = 100_000) -> dict[str, Any]:
    """Compare the batch medians of the two halves of a series."""
    n = len(series)
    finite = n > 0 and bool(np.isfinite(series).all())
    worth = effective_size(series[:most]) * n / max(min(n, most), 1) if finite else 0.0
    half = int(min(MOST_BATCHES, worth / BATCH_WORTH)) // 2
    row: dict[str, Any] = {"n": n, "batches": 2 * half}
    if half < 4:
        return {**row, "change": math.nan, "p_value": math.nan}
    length = n // (2 * half)
    batches = np.asarray(series[: 2 * half * length]).reshape(2 * half, length)
    medians = np.median(batches, axis=1).astype(np.float64)
    first, second = medians[:half], medians[half:]
    base = float(first.mean())
    change = float(second.mean()) / base - 1 if base else math.nan
    _, error, df = mean_and_error(first, second, paired=False)
    p_value, _ = p_values(float(second.mean()) - base, error, df, 1.0)
    return {**row, "change": change, "p_value": p_value}


def outliers(
    trials: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    block: str = "block",
) -> pd.DataFrame:
    """Flag trials that are unlike the others of their condition, after their block's own level.

    Robust residuals of the log value (minus the condition's median, minus the block's median of
    what is left) over their median absolute deviation (Iglewicz & Hoaglin 1993). Flags only.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, block, *names])
    require_names(trials, [block])
    code = np.zeros(len(trials), dtype=np.int64)
    for number, (_, index) in enumerate(groups(trials, names)):
        code[index] = number
    rest = pd.Series(check_values(trials, value, log=True))
    rest = rest - rest.groupby(code).transform("median")
    rest = rest - rest.groupby(pd.factorize(trials[block])[0]).transform("median")
    centred = rest - rest.groupby(code).transform("median")
    mad = centred.abs().groupby(code).transform("median")
    enough = centred.groupby(code).transform("count") >= 3
    # 0.6745 makes the median absolute deviation estimate a normal standard deviation.
    z = (0.6745 * centred / mad.where(mad > 1e-12)).where(enough)
    return trials.assign(robust_z=z.to_numpy(), outlier=(z.abs() > OUTLIER_Z).to_numpy())


def blocks_across_sessions(
    trials: pd.DataFrame, block: str = "block", session: str = "session"
) -> list[Any]:
    """Return the blocks whose trials ran in more than one session, in order.

    A session is one life of the rig: hosts made anew or booted again, other caches and addresses.
    Inside such a block a difference between conditions may be one between sessions, so it is no
    pair. A trial that was repeated in its block's session is none of these. Give the trials whose
    values are compared: a failed attempt of an earlier session is in no pair.
    """
    require_columns(trials, [block, session])
    sessions = trials.groupby(block)[session].nunique(dropna=False)
    names = sessions.index[sessions > 1]
    return [int(name) if isinstance(name, np.integer) else name for name in names]
