"""Synthetic trials and samples that tests of labkit.analysis share."""

import math

import numpy as np
import pandas as pd
from scipy import signal

from labkit.analysis.compare import compare
from labkit.analysis.trials import trial_statistic


def trials(rng, blocks=10, ratio=1.0, noise=0.01, others=("other",), drift=0.0, level=30_000.0):
    """A row a trial: a level a block, a ratio for the other conditions, log-normal noise."""
    rows = []
    for number in range(blocks):
        base = level * math.exp(rng.normal(0, 0.03) + drift * number)
        for name in ("base", *others):
            factor = 1.0 if name == "base" else ratio
            rows.append((number, name, base * factor * math.exp(rng.normal(0, noise))))
    return pd.DataFrame(rows, columns=["block", "condition", "value"])


def samples(rng, blocks=10, ratio=1.0, noise=0.02, n=300):
    """Raw samples: an effect a trial, and AR(1) dependence within it."""
    frames = []
    for row in trials(rng, blocks, ratio, noise).to_dict("records"):
        shocks = signal.lfilter([1], [1, -0.9], rng.normal(0, 0.05, n))
        values = (row["value"] * np.exp(shocks)).astype("int64")
        frames.append(pd.DataFrame({**row, "value": values}).assign(trial=len(frames)))
    return pd.concat(frames, ignore_index=True)


def reduced(frame, statistic, condition="condition"):
    """One number a trial, of samples."""
    names = ["trial", "block", condition]
    return trial_statistic(frame, value="value", by=names, statistic=statistic)


def run(frame, **options):
    given_options = {"value": "value", "condition": "condition", "baseline": "base"}
    return compare(frame, **{**given_options, **options})
