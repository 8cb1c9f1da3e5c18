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
from scipy import stats

from labkit.analysis.intervals import holm
from labkit.analysis.reduce import groups, numbers, require_columns
from labkit.errors import UsageError

#: Modified z-scores beyond this are outliers (Iglewicz & Hoaglin 1993).
OUTLIER_Z = 3.5
Floats = NDArray[np.float64]


def drift(
    trials: pd.DataFrame,
    *,
    value: str,
    condition: str | Sequence[str],
    block: str = "block",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Regress the log of each condition's value on the order of the blocks.

    Parameters
    ----------
    trials : DataFrame
        One row a trial; `value` positive, NaN for a failed trial.
    value, block : str
        The trial's summary; its block, in order of execution.
    condition : str or sequence of str
        Columns that name the condition.
    alpha : float
        Level of ``drifts``, after Holm's correction over the conditions.

    Returns
    -------
    DataFrame
        The condition's columns; ``n`` trials; ``slope``, relative change a block (0.01 is 1 %);
        ``total``, over the campaign; ``low, high`` of the slope; ``p_value``; ``p_adjusted``;
        ``drifts``. Pairing by block removes what drift all conditions share.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, block, *names])
    order = pd.factorize(trials[block], sort=True)[0].astype(np.float64)
    logs = positive_logs(trials, value)
    span = float(order.max() - order.min())
    rows = [
        {**key, **_slope(order[index], logs[index], span, alpha)}
        for key, index in groups(trials, names)
    ]
    table = pd.DataFrame.from_records(rows)
    table["p_adjusted"] = holm(table["p_value"].to_numpy(dtype=np.float64))
    table["drifts"] = table["p_adjusted"] < alpha
    return table


def positive_logs(trials: pd.DataFrame, value: str) -> Floats:
    """Return logs of a column; NaN stays, other values without a logarithm are an error."""
    values = numbers(trials, value).astype(np.float64)
    if (~np.isnan(values) & ~((values > 0) & np.isfinite(values))).any():
        raise UsageError(f"{value!r} holds zero, negative or infinite values: no logarithm")
    return np.asarray(np.log(values), dtype=np.float64)


def _slope(order: Floats, logs: Floats, span: float, alpha: float) -> dict[str, Any]:
    known = np.isfinite(logs)
    x, y = order[known], logs[known]
    row: dict[str, Any] = {"n": len(y)}
    if len(y) < 3 or len(np.unique(x)) < 2:
        return {**row, **dict.fromkeys(("slope", "total", "low", "high", "p_value"), math.nan)}
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(1 - alpha / 2, len(y) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return {
        **row,
        "slope": math.expm1(slope),
        "total": math.expm1(slope * span),
        "low": math.expm1(slope - half),
        "high": math.expm1(slope + half),
        "p_value": float(fit.pvalue),
    }


def autocorrelation(values: NDArray[Any]) -> float:
    """Return the lag-1 autocorrelation of a series; NaN below 3 values or without variance."""
    if len(values) < 3:
        return math.nan
    centred = np.asarray(values, dtype=np.float64) - float(np.mean(values))
    total = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / total if total > 0 else math.nan


def effective_size(values: NDArray[Any]) -> float:
    """Return how many independent samples a dependent series is worth.

    n divided by the integrated autocorrelation time, whose window is chosen as Sokal (1997) does:
    the first lag that is at least five times the time so far. Between 1 and n; n where the series
    is constant or too short to tell.
    """
    n = len(values)
    if n < 3:
        return float(n)
    centred = np.asarray(values, dtype=np.float64) - float(np.mean(values))
    spectrum = np.fft.rfft(centred, 2 ** math.ceil(math.log2(2 * n)))
    covariance = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[: n // 2]
    if covariance[0] <= 0:
        return float(n)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    wide = np.arange(len(times)) >= 5 * times
    time = float(times[np.argmax(wide)] if wide.any() else times[-1])
    return min(float(n), max(1.0, n / max(time, 1e-9)))


def dependence(
    samples: pd.DataFrame, *, by: Sequence[str], value: str = "rtt_ns", most: int = 100_000
) -> pd.DataFrame:
    """Return lag-1 autocorrelation and effective sample size of every trial.

    Parameters
    ----------
    samples : DataFrame
        One row a sample, in the order in which they were taken.
    by : sequence of str
        Columns that name a trial and what is to be kept beside it.
    value : str
        Numeric column.
    most : int
        At most this many samples of a trial are looked at, from its start, and the effective size
        is scaled up: dependence is a property of neighbours.

    Returns
    -------
    DataFrame
        `by`, ``n``, ``lag1``, ``effective`` (independent samples that the trial is worth).
    """
    values = numbers(samples, value)
    rows = []
    for key, index in groups(samples, by):
        series = values[index]
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

    Returns
    -------
    DataFrame
        `trials` with ``robust_z`` and ``outlier``; NaN and False for failed trials, and where the
        spread is zero or the condition has fewer than 3 trials.
    """
    names = [condition] if isinstance(condition, str) else list(condition)
    require_columns(trials, [value, block, *names])
    code = np.zeros(len(trials), dtype=np.int64)
    for number, (_, index) in enumerate(groups(trials, names)):
        code[index] = number
    rest = pd.Series(positive_logs(trials, value))
    rest = rest - rest.groupby(code).transform("median")
    rest = rest - rest.groupby(pd.factorize(trials[block])[0]).transform("median")
    centred = rest - rest.groupby(code).transform("median")
    mad = centred.abs().groupby(code).transform("median")
    enough = centred.groupby(code).transform("count") >= 3
    # 0.6745 makes the median absolute deviation estimate a normal standard deviation.
    z = (0.6745 * centred / mad.where(mad > 1e-12)).where(enough)
    return trials.assign(robust_z=z.to_numpy(), outlier=(z.abs() > OUTLIER_Z).to_numpy())


def spanning(trials: pd.DataFrame, block: str = "block", session: str = "session") -> list[Any]:
    """Return the blocks whose trials ran in more than one session, in order.

    A session is one life of the rig: hosts made anew or booted again, other caches and addresses.
    Inside such a block a difference between conditions may be one between sessions, so it is no
    pair. A trial that was repeated in its block's session is none of these. Give the trials whose
    values are compared: a failed attempt of an earlier session is in no pair.
    """
    require_columns(trials, [block, session])
    sessions = trials.groupby(block)[session].nunique(dropna=False)
    return [
        int(one) if isinstance(one, np.integer) else one for one in sessions.index[sessions > 1]
    ]
