"""Comparison of two campaigns of one study: another rig, another day, another version."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import words
from labkit.analysis.stats import LEAST_BLOCKS, BlockTable, Mean, holm, ratio
from labkit.data import Campaign
from labkit.errors import UsageError


def compare_datasets(
    first: Campaign, second: Campaign, *, value: str = "", margin: float = 0.02
) -> pd.DataFrame:
    """Compare the conditions of two campaigns of one study, whose blocks are independent.

    Returns
    -------
    DataFrame
        A row a condition that both have: its ratio to the plan's baseline, or the value of a
        baseline, in ``first``, ``second`` and, with random effects, ``both``; ``ratio`` of second
        to first with its 95 % interval ``low, high`` (Welch); ``differs``: shown to lie beyond the
        margin, corrected by Holm. The value is by default the plan's first outcome.

    Raises
    ------
    UsageError
        They are of different studies, lack the value, or have no condition in common.
    """
    from statsmodels.stats.meta_analysis import combine_effects

    if first.study != second.study:
        raise UsageError(f"campaigns of different studies: {first.study}, {second.study}")
    value = value or first.plan["outcomes"][0]
    tables = [BlockTable(one.trials, list(one.factors)) for one in (first, second)]
    others: Any = tables[1].conditions.to_dict("records")
    cells: Any = [cell for cell in tables[0].conditions.to_dict("records") if cell in others]
    baseline = first.plan["baseline"].items()
    rows = []
    for cell in cells:
        to = {**cell, **{name: type(cell[name])(level) for name, level in baseline}}
        if to in cells and to != cell:
            one, other = (ratio(table.cells(value, cell, to)) for table in tables)
        else:
            one, other = (table.cells(value, cell).contrast([1.0]) for table in tables)
        if min(one.n, other.n) < LEAST_BLOCKS or not (one.log and other.log):
            continue
        variances = np.maximum([one.error, other.error], 1e-9) ** 2
        df = variances.sum() ** 2 / (variances**2 / [one.df, other.df]).sum()
        error = math.sqrt(variances.sum())
        change = Mean(min(one.n, other.n), other.centre - one.centre, error, df)
        with np.errstate(divide="ignore"):  # of equal effects
            both = combine_effects(np.array([one.centre, other.centre]), variances)
        label = words.level([*cell], [*cell.values()])
        p_value = 2 * min(change.p_above(1 + margin), change.p_below(1 / (1 + margin)))
        values = [one.value, other.value, math.exp(both.mean_effect_re), change.value]
        rows.append([label, *values, *change.interval(), p_value])
    if not rows:
        raise UsageError(f"no condition of {first.study} with {value} in five blocks of both")
    columns = ["condition", "first", "second", "both", "ratio", "low", "high", "p"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(differs=holm(table.pop("p")) < 0.05)
