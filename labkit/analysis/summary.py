"""Tables of summary statistics of trials and conditions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis.trials import (
    is_categorical,
    quantile_level,
    reduce_trials,
    require_columns,
    samples_needed,
    sort_trials,
)

#: The statistics of the tables in rohprimardho2015, and the mean beside them.
STATISTICS = ("min", "median", "mean", "p95", "p99", "std")


def summarise(
    samples: pd.DataFrame,
    *,
    by: Sequence[str],
    value: str = "rtt_ns",
    statistics: Sequence[str] = STATISTICS,
) -> pd.DataFrame:
    """Summarise raw samples, a row a group (with the trial in `by`: a row a trial).

    Parameters
    ----------
    samples : DataFrame
        One row a sample, or what `labkit.analysis.trials.sort_trials` made of them.
    by : sequence of str
        Columns that name a group.
    value : str
        Numeric column; statistics are in its unit.
    statistics : sequence of str
        ``mean``, ``median``, ``min``, ``max``, ``std``, ``p95`` (any percentage), ``q0.999``.

    Returns
    -------
    DataFrame
        `by`, ``n`` (samples), the statistics, and ``note``: which quantiles were refused (NaN)
        because the group has fewer samples than `samples_needed` asks.

    Raises
    ------
    UsageError
        For missing columns, no rows, an unknown statistic or a partly missing trial.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> samples = pd.DataFrame({"trial": [*"aaab"], "block": 1, "rtt_ns": [9, 7, 8, 6]})
    >>> analysis.summarise(samples, by=["trial"], statistics=["median", "max"])
      trial  n  median  max note
    0     a  3     8.0  9.0
    1     b  1     6.0  6.0
    """
    table = reduce_trials(samples, value=value, by=by, statistics=statistics)
    needs = {
        name: samples_needed(level)
        for name in statistics
        if (level := quantile_level(name)) is not None
    }
    table["note"] = [
        "; ".join(f"{name} takes {need} samples" for name, need in needs.items() if n < need)
        for n in table["n"]
    ]
    return table


def combined(
    samples: pd.DataFrame,
    *,
    by: Sequence[str],
    value: str = "rtt_ns",
    statistics: Sequence[str] = STATISTICS,
) -> pd.DataFrame:
    """Summarise all trials of a condition pooled, as the papers' "combined" tables do.

    A description only: pooled samples are not replicates, so nothing is tested on them. `samples`
    as in `summarise`; each trial is sorted once, and trials are pooled without sorting again.

    Returns
    -------
    DataFrame
        As `summarise`, with ``n_trials`` and ``n_blocks`` after `by`.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> samples = pd.DataFrame({"trial": [*"aaab"], "block": 1, "rtt_ns": [9, 7, 8, 6]})
    >>> samples = samples.assign(wait="spin")
    >>> analysis.combined(samples, by=["wait"], statistics=["median", "max"])
       wait  n_trials  n_blocks  n  median  max note
    0  spin         2         1  4     7.5  9.0
    """
    trials = sort_trials(samples, value=value, by=list(dict.fromkeys([*by, "trial", "block"])))
    table = summarise(trials, by=by, value=value, statistics=statistics)
    counts = trials.groupby(list(by), observed=True)[["trial", "block"]].nunique().reset_index()
    counts = counts.rename(columns={"trial": "n_trials", "block": "n_blocks"})
    table = table.merge(counts, on=list(by), how="left", validate="one_to_one")
    return table[[*by, "n_trials", "n_blocks", "n", *statistics, "note"]]


def mechanisms(trials: pd.DataFrame, *, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Average mechanism counters over the trials of each condition.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, counters as stored (per operation where `labkit.units` says so).
    by, columns : sequence of str
        Condition columns, and numeric counters; a counter that a rig does not have may be absent.

    Returns
    -------
    DataFrame
        `by`, ``n_trials``, and the mean of each counter, NaN where nothing was recorded.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"by": ["placement"], "columns": ["context_switches", "softirqs"]}
    >>> analysis.mechanisms(trials, **names).round(2)
           placement  n_trials  context_switches  softirqs
    0    docker host        32              0.01       2.0
    1    bare cgroup        16              0.01       2.0
    2  docker bridge        16              0.01       2.0
    3    bare chroot        16              0.01       2.0
    4     bare clean        32              0.01       2.0
    5     bare rules        16              0.01       2.0
    """
    require_columns(trials, by)
    # Categories have an order of their own, which sorting keeps; other names come as they appear.
    ordered = all(is_categorical(trials[name]) for name in by)
    keys = [trials[name] for name in by]
    counters = trials.reindex(columns=list(columns)).apply(pd.to_numeric, errors="coerce")
    cells = counters.astype(float).groupby(keys, observed=True, sort=ordered)
    means: pd.DataFrame = cells.mean()
    means.insert(0, "n_trials", cells.size())
    return means.reset_index()
