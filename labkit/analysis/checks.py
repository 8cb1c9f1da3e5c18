"""Validity checks: drift, dependence and changes inside trials, outliers, blocks over sessions.

They flag and report; nothing is removed because of its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.estimates import holm
from labkit.analysis.models import check_values
from labkit.analysis.trials import groups, require_columns, require_names

Floats = NDArray[np.float64]

#: Modified z-scores beyond this are outliers (Iglewicz & Hoaglin 1993).
OUTLIER_Z = 3.5

#: A trial is cut into so many batches, each worth so many independent samples or more: means of
#: batches of 10 still depended on each other (AR(1) .5 was flagged in 1.8 % of trials, not 1 %).
LEAST_BATCHES, MOST_BATCHES, BATCH_WORTH = 10, 60, 15

#: Pieces of a trial in which dependence is estimated, each by so many samples at most; a step falls
#: into one of them.
PIECES, MOST_OF_PIECE = 10, 50_000
#: The most samples of a trial that are used to say how much they depend on each other.
MOST_OF_TRIAL = 100_000

#: Level of the test of `inside`, and the states that it returns.
CHANGE_ALPHA = 0.01
STATES = ("steady", "changing", "cannot tell")


def drift(
    trials: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Regress the log of each condition's value on the order of the blocks.

    Trials of one condition in a block (A/A replicates) share the block's level and are averaged:
    taken as independent, two per block would seem to drift in 20 % of null experiments.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, "block", *names])
    require_names(trials, ["block", *names])
    order = pd.factorize(trials["block"], sort=True)[0].astype(np.float64)
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
    finite = np.isfinite(logs)
    x, position = np.unique(order[finite], return_inverse=True)
    y = np.bincount(position, logs[finite]) / np.bincount(position)
    row: dict[str, Any] = {"n": len(y)}
    if len(y) < 3:
        return {**row, **dict.fromkeys(("slope", "total", "low", "high", "p_value"), math.nan)}
    from scipy import stats

    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(1 - alpha / 2, len(y) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    with np.errstate(over="ignore"):
        ends = np.expm1([slope, slope * span, slope - half, slope + half])
    row |= dict(zip(("slope", "total", "low", "high"), map(float, ends), strict=True))
    return {**row, "p_value": float(fit.pvalue)}


def autocorrelation(values: NDArray[Any]) -> float:
    """Return the lag-1 autocorrelation of a series.

    NaN below 3 values, without variance, and where a value is not finite.
    """
    if len(values) < 3 or not np.isfinite(values).all():
        return math.nan
    centred = _centred(values)
    # By einsum, because a dot product starts the threads of BLAS, which disturb measurements.
    total = float(np.einsum("i,i->", centred, centred))
    lagged = float(np.einsum("i,i->", centred[:-1], centred[1:]))
    return lagged / total if total > 0 else math.nan


def _centred(values: NDArray[Any]) -> Floats:
    """Return values minus their mean, scaled to at most 1 so that squares stay in range."""
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
    time = _integrated_time(_autocovariance(_centred(values)))
    return min(float(n), max(1.0, n / max(time, 1e-9)))


def _autocovariance(centred: Floats) -> Floats:
    """Return autocovariances, times n, at lags up to half of the series."""
    from scipy import fft

    n = len(centred)
    length = fft.next_fast_len(2 * n, real=True)
    spectrum = fft.rfft(centred, length)
    return np.asarray(fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[: n // 2])


def _integrated_time(covariance: Floats) -> float:
    """Return the integrated autocorrelation time by the window of Sokal (1997); 1 of constants."""
    if covariance[0] <= 0:
        return 1.0
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    wide = np.arange(len(times)) >= 5 * times
    return float(times[np.argmax(wide)] if wide.any() else times.max())


def inside(series: NDArray[Any]) -> dict[str, Any]:
    """Test whether a trial keeps one level, and find the stretch that differs from the rest.

    Samples are replaced by their ranks, so heavy tails and several modes do no harm, and averaged
    in batches long enough to be independent. The statistic is the largest difference between any
    stretch of at least 5 % of the trial and the rest (Levin & Kline 1985; Olshen et al. 2004, as
    circular binary segmentation), divided by the spread of differences between neighbouring
    batches; its distribution is simulated. A stretch at either end is a step or a warm-up (Barrett
    et al. 2017 look for the same). Both the spread and the dependence are estimated locally: over
    the complete trial a step looks like dependence, and would hide itself.

    Parameters
    ----------
    series : array
        The samples of one trial in the order in which they were taken (`Dataset.series`).

    Returns
    -------
    dict
        ``n`` samples; ``lag1``, the lag-1 autocorrelation, and ``effective``, the independent
        samples that they are worth, by the first `MOST_OF_TRIAL`; ``start`` and
        ``stop`` of the stretch that differs most (shares of the trial), its ``change`` (ratio of
        medians, minus 1), ``p_value``, and ``state``: "steady", "changing" (p below `CHANGE_ALPHA`,
        for each trial by itself), or "cannot tell" where the trial is worth fewer than
        `LEAST_BATCHES` batches of `BATCH_WORTH` independent samples, or a sample is not finite.
        "Cannot tell" is a warning too: nothing shows that the trial reached a steady state.
    """
    head = series[:MOST_OF_TRIAL]
    effective = effective_size(head) * len(series) / max(len(head), 1)
    row = {"lag1": autocorrelation(head), "effective": effective, **_stretch(series)}
    if math.isnan(row["p_value"]):
        return row | {"state": "cannot tell"}
    return row | {"state": "changing" if row["p_value"] < CHANGE_ALPHA else "steady"}


def _stretch(series: NDArray[Any]) -> dict[str, Any]:
    """Return the stretch of a trial that differs most from the rest, and its p-value."""
    n = len(series)
    row: dict[str, Any] = {"n": n}
    row |= dict.fromkeys(("start", "stop", "change", "p_value"), math.nan)
    if n < LEAST_BATCHES * BATCH_WORTH or not np.isfinite(series).all():
        return row
    if (series == series[0]).all():
        return row | {"change": 0.0, "p_value": 1.0}
    ranks = _ranks(series) / n
    count = int(min(MOST_BATCHES, n / _local_time(ranks) / BATCH_WORTH))
    # Multiples of 20, so that 5 % of the trial are whole batches.
    count = count if count < 20 else count // 20 * 20
    if count < LEAST_BATCHES:
        return row
    length = n // count
    means = ranks[: count * length].reshape(1, count, length).mean(axis=2)
    statistic, start, stop = (found[0] for found in _scan(means))
    # What begins or ends the trial and the rest of it differ equally: the shorter is the change.
    if start == 0 and stop > count / 2:
        start, stop = stop, count
    elif stop == count and start < count / 2:
        start, stop = 0, start
    inside = np.zeros(n, dtype=bool)
    inside[start * length : n if stop == count else stop * length] = True
    base = float(np.median(series[~inside]))
    change = float(np.median(series[inside])) / base - 1 if base else math.nan
    null = _null_scan(count)
    exceeding = len(null) - np.searchsorted(null, statistic)
    return row | {
        "start": start / count,
        "stop": stop / count,
        "change": change,
        "p_value": float((1 + exceeding) / (1 + len(null))),
    }


def _ranks(series: NDArray[Any]) -> Floats:
    """Return the rank of each sample, from 1 on; equal samples have their mean rank."""
    if series.dtype.kind == "i" and int(series.max()) - int(series.min()) < len(series):
        # Times in nanoseconds have few values: counting them takes a tenth of sorting.
        places = series.astype(np.int64, copy=False) - int(series.min())
        counts = np.bincount(places)
        return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)
    from scipy import stats

    return np.asarray(stats.rankdata(series), dtype=np.float64)


def _local_time(values: Floats) -> float:
    """Return the integrated autocorrelation time, as the median over pieces of the series."""
    length = len(values) // PIECES
    pieces = values[: length * PIECES].reshape(PIECES, length)[:, :MOST_OF_PIECE]
    times = [_integrated_time(_autocovariance(piece - piece.mean())) for piece in pieces]
    return max(1.0, float(np.median(times)))


def _scan(values: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return, for each row, the largest difference of a stretch to the rest, and its two ends."""
    rows, n = values.shape
    least = max(1, n // 20)
    sums = np.zeros((rows, n + 1))
    np.cumsum(values - values.mean(axis=1, keepdims=True), axis=1, out=sums[:, 1:])
    largest, start, stop = np.zeros(rows), np.zeros(rows, np.intp), np.zeros(rows, np.intp)
    for length in range(least, n - least + 1):
        distance = np.abs(sums[:, length:] - sums[:, :-length])
        distance /= math.sqrt(length * (1 - length / n))
        first = distance.argmax(axis=1)
        found = distance[np.arange(rows), first]
        better = found > largest
        largest[better], start[better] = found[better], first[better]
        stop[better] = first[better] + length
    spread = np.sqrt(np.square(np.diff(values, axis=1)).sum(axis=1) / (2 * (n - 1)))
    return largest / np.maximum(spread, 1e-300), start, stop


@lru_cache(maxsize=MOST_BATCHES)
def _null_scan(batches: int, draws: int = 4000) -> Floats:
    """Return sorted statistics of independent normal batches."""
    return np.sort(_scan(np.random.default_rng(1).standard_normal((draws, batches)))[0])


def outliers(
    trials: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
) -> pd.DataFrame:
    """Flag trials that are unlike the others of their condition, with the block's level removed.

    Residuals of the log value (minus the condition's median, minus the block's median of these)
    over their median absolute deviation (Iglewicz & Hoaglin 1993).
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, "block", *names])
    require_names(trials, ["block"])
    code = np.zeros(len(trials), dtype=np.int64)
    for number, (_, index) in enumerate(groups(trials, names)):
        code[index] = number
    rest = pd.Series(check_values(trials, value, log=True))
    rest = rest - rest.groupby(code).transform("median")
    rest = rest - rest.groupby(pd.factorize(trials["block"])[0]).transform("median")
    centred = rest - rest.groupby(code).transform("median")
    mad = centred.abs().groupby(code).transform("median")
    enough = centred.groupby(code).transform("count") >= 3
    # 0.6745 makes the median absolute deviation estimate a normal standard deviation.
    z = (0.6745 * centred / mad.where(mad > 1e-12)).where(enough)
    return trials.assign(outlier=(z.abs() > OUTLIER_Z).to_numpy())


def blocks_across_sessions(trials: pd.DataFrame) -> list[Any]:
    """Return the blocks whose trials ran in more than one session, in order.

    A session is one life of the rig: new or rebooted hosts, other caches and addresses. Inside such
    a block a difference between conditions may be one between sessions. Pass only the trials whose
    values are compared: a failed attempt in another session does no harm.
    """
    require_columns(trials, ["block", "session"])
    # A ledger asks this for hundreds of claims: pairs of codes, and no groupby.
    codes, names = pd.factorize(trials["block"], sort=True)
    pairs = np.unique(np.column_stack([codes, pd.factorize(trials["session"])[0]]), axis=0)
    several = names[np.bincount(pairs[:, 0], minlength=len(names)) > 1]
    return [int(name) if isinstance(name, np.integer) else name for name in several]


def spanned_note(blocks: Sequence[Any]) -> str:
    """Return that `blocks_across_sessions` are left out; empty without any."""
    names = ", ".join(map(str, blocks))
    if len(blocks) == 1:
        return f"block {names} spans sessions and is left out"
    return f"blocks {names} span sessions and are left out" if names else ""
