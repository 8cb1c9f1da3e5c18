"""The shift function: by how much each quantile of one condition differs from the baseline's.

A median hides what happens in the tail; the shift function shows the whole distribution (Doksum
1974; Rousselet, Pernet & Wilcox 2017). Here quantiles are taken a trial and paired by block, so
that the intervals are over trials and not over samples.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pandas as pd

from labkit.analysis.compare import contrasts, decide, log_table
from labkit.analysis.origin import follows
from labkit.analysis.reduce import reduce_trials

#: Deciles, and the tail as far as 1,000 samples a trial carry.
QUANTILES = ("q0.1", "q0.2", "q0.3", "q0.4", "median", "q0.6", "q0.7", "q0.8", "q0.9")
TAIL = ("p95", "p99", "q0.999")


@follows
def shift(
    samples: pd.DataFrame,
    *,
    condition: str,
    baseline: Hashable,
    block: str = "block",
    trial: str = "trial",
    value: str = "rtt_ns",
    quantiles: Sequence[str] = (*QUANTILES, *TAIL),
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare every quantile of every condition with the baseline's, inside blocks.

    Parameters
    ----------
    samples : DataFrame
        One row a sample, or what `labkit.analysis.reduce.sort_trials` made of them.
    condition, baseline, block, trial, value, margin, alpha
        As for `labkit.analysis.compare.compare`.
    quantiles : sequence of str
        Names of quantiles, such as ``median``, ``p99``, ``q0.999``. One that some trial has too
        few samples for is left out as a whole; ``n`` samples in the figure say why.

    Returns
    -------
    DataFrame
        ``condition``, ``quantile`` (its name), then the columns of `compare` from ``n_blocks`` on;
        Holm's correction over all rows.
    """
    by = list(dict.fromkeys([trial, condition, block]))
    trials = reduce_trials(samples, value=value, by=by, statistics=list(quantiles))
    rows = []
    for name in quantiles:
        if trials.loc[trials["n"] > 0, name].isna().any():
            continue
        table = log_table(trials, value=name, condition=condition, block=block)
        for other, row in contrasts(table, baseline, margin=margin, alpha=alpha).items():
            rows.append({"condition": other, "quantile": name, **row})
    return decide(rows, alpha=alpha, keys=["condition", "quantile"])
