"""What a condition adds to a baseline over a size: a fixed part and a part that grows.

Weighted least squares inside each block, averaged over the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.compare import adjust_family
from labkit.analysis.estimates import Estimate, Inference, join_notes
from labkit.analysis.models import (
    blocks_of,
    common_levels,
    line_functionals,
    numeric_levels,
)
from labkit.analysis.power import least_blocks
from labkit.analysis.robust import block_mean, block_ratio, without_unchecked
from labkit.analysis.trials import groups, require_columns
from labkit.errors import UsageError, suggestion

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Overhead:
    """What a condition adds to the baseline, as a line over the size.

    Parameters
    ----------
    intercept : Estimate
        Added at size 0, in the unit of the value.
    slope : Estimate
        Added per unit of the size.
    relative : Inference
        Growth of what is added, from the smallest to the largest size, as a share of the
        baseline's own mean value over the sizes: 0 is a fixed cost, 0.02 a growth of 2 % of the
        baseline. The margin of "fixed" applies to it. It is defined even where the baseline hardly
        grows.
    relative_intercept : Inference
        What is added at size 0, as a share of the same mean.
    ratio : Estimate
        Geometric mean over the sizes of condition / baseline (log scale).
    levels : tuple of float
        Sizes measured.
    missing : tuple
        Blocks left out because they lack a cell.
    n_blocks : int
        Blocks that were fitted.
    note : str
        What to know about it.
    """

    intercept: Estimate
    slope: Estimate
    relative: Inference
    relative_intercept: Inference
    ratio: Estimate
    levels: tuple[float, ...]
    missing: tuple[Hashable, ...]
    n_blocks: int
    note: str = ""


def fit_overhead(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    other: Hashable,
    over: str,
) -> Overhead:
    """Fit other - baseline, inside blocks, on 1 + `over`."""
    require_columns(frame, [value, condition, over, "block"])
    frame = numeric_levels(frame, over)
    parts = [_rows_of(frame, condition, name) for name in (baseline, other)]
    levels = common_levels(parts, over)
    base, with_it = (
        blocks_of(part, value=value, level=over, levels=levels, log=True) for part in parts
    )
    every = list(base.cells.index.intersection(with_it.cells.index))
    missing = tuple(name for name in pd.unique(frame["block"]) if name not in set(every))
    note = join_notes(
        "two sizes: a line fits whatever is there" if len(levels) == 2 else "",
        *(
            f"{name}: {part.note}"
            for name, part in ((baseline, base), (other, with_it))
            if part.note
        ),
    )
    logs = [part.cells.loc[every].to_numpy(dtype=np.float64) for part in (base, with_it)]
    return _fitted(logs[0], logs[1], np.array(levels), missing, note)


def _fitted(
    base: Floats, other: Floats, levels: Floats, missing: tuple[Hashable, ...], note: str
) -> Overhead:
    """Fit the added cost from logs of the values, shape (blocks, levels)."""
    own, added = np.exp(base), np.exp(other) - np.exp(base)
    typical = np.exp(base.mean(axis=0)) if len(own) else np.ones(len(levels))
    solve = line_functionals(levels, 1 / typical**2)
    line = added @ solve.T
    span = float(np.ptp(levels))
    size = float(own.max()) if own.size else 0.0
    growth = line[:, 1] * span
    intercept = block_mean(line[:, 0], note=note, size=size)
    slope = block_mean(line[:, 1], note=note, size=size / span)
    return Overhead(
        intercept=intercept,
        slope=slope,
        relative=block_ratio(growth, own.mean(axis=1), note=note),
        relative_intercept=block_ratio(line[:, 0], own.mean(axis=1), note=note),
        ratio=block_mean((other - base).mean(axis=1), scale="log", note=note),
        levels=tuple(map(float, levels)),
        missing=missing,
        n_blocks=len(own),
        note=without_unchecked(intercept.note, slope.note),
    )


def _rows_of(frame: pd.DataFrame, column: str, name: Hashable) -> pd.DataFrame:
    rows = frame[(frame[column] == name).to_numpy()]
    if rows.empty:
        raise UsageError(
            f"{column!r} has no level {name!r}",
            remedy=suggestion(name, pd.unique(frame[column])),
        )
    return rows


COST_COLUMNS = (
    *("n_blocks", "n_levels", "intercept", "intercept_low", "intercept_high"),
    *("slope", "slope_low", "slope_high", "growth", "growth_low", "growth_high"),
    *("ratio", "ratio_low", "ratio_high"),
    *("p_intercept", "p_growth", "p_fixed", "p_none", "verdict", "blocks_missing", "note"),
)


_ESTIMATES = {"intercept": "intercept", "slope": "slope", "growth": "relative", "ratio": "ratio"}


def overhead_table(
    frame: pd.DataFrame,
    factor: str,
    baseline: Hashable,
    others: Sequence[Hashable],
    within: Sequence[str],
    *,
    value: str,
    over: str,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Fit what each level of a factor adds to the baseline level, in every cell, as one family.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``.
    factor, baseline, others
        Column of the factor, its baseline level, and the levels compared with it.
    within : sequence of str
        Columns of other factors; each combination that occurs is a cell.
    value, over : str
        As for `labkit.analysis.overhead.fit_overhead`.
    margin : float
        Growth up to which a cost counts as fixed: from the smallest to the largest size, as a share
        of the baseline's mean over the sizes; also the cost at size 0 up to which there is none.
    alpha : float
        Level of the tests.

    Returns
    -------
    DataFrame
        `within` and ``contrast``; ``intercept`` (added at size 0), ``slope`` (per unit of the
        size), ``growth`` (the slope over all sizes, as a share of the baseline) and ``ratio``
        (geometric mean over the sizes), each with ``_low`` and ``_high``; ``p_intercept`` and
        ``p_growth``, that they are not 0, by Holm over the rows that have a variance;
        ``p_fixed``, that the growth lies within the margin, and ``p_none``, that what is added at
        size 0 does; ``verdict``: ``fixed`` (a cost at size 0, growth within the margin),
        ``growing`` or ``falling`` (growth alone, by the sign of the slope), ``fixed and growing``
        or ``fixed and falling``, ``none`` (both within the margin) or ``undecided``. A line rests
        on three sizes at least: with fewer the verdict is ``undecided``. All of it is said of the
        fitted line; single sizes may differ from it.

        Intervals are those that the verdict rests on: at the level of Holm's step, at 1 - 2
        `alpha` where an equivalence decides, at 1 - `alpha` for the ratio, which no verdict rests
        on; NaN on too few blocks for a verdict.

    Raises
    ------
    UsageError
        For missing columns, no rows, or an impossible margin.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/network-isolation").ok
    >>> trials = trials.query("sides == 'server' and direction == 'receive'")
    >>> options = {"value": "latency_ns_median", "over": "size_b"}
    >>> names = ["placement", "docker host", ["docker nat"], []]
    >>> table = analysis.overhead_table(trials, *names, **options)
    >>> table[["contrast", "n_blocks", "verdict"]]
                       contrast  n_blocks    verdict
    0  docker nat / docker host        20  undecided
    """
    require_columns(frame, [factor, value, over, "block", *within])
    if not (margin > 0 and math.isfinite(margin)):
        raise UsageError(f"invalid margin: {margin!r}", remedy="0.02 for 2 %")
    rows: list[dict[str, Any]] = []
    fits: list[Overhead | None] = []
    for cell, index in groups(frame, list(within)):
        part = frame.iloc[index]
        for other in others:
            row = {**cell, "contrast": f"{other} / {baseline}"}
            pair: dict[str, Any] = {"condition": factor, "baseline": baseline, "other": other}
            try:
                fit = fit_overhead(part, value=value, over=over, **pair)
            except UsageError as error:
                fits.append(None)
                rows.append({**row, **_not_fitted(error)})
            else:
                fits.append(fit)
                rows.append({**row, **_tests(fit, margin)})
    table = pd.DataFrame.from_records(rows, columns=[*within, "contrast", *COST_COLUMNS])
    levels = {}
    for name, attribute in (("intercept", "intercept"), ("growth", "slope")):
        p_values = table[f"p_{name}"].to_numpy(dtype=np.float64)
        constant = [fit is not None and getattr(fit, attribute).error == 0 for fit in fits]
        family = adjust_family(p_values, np.array(constant, dtype=bool), alpha)
        table[f"p_{name}"], levels[name] = family.adjusted, family.levels
    table["verdict"] = [_verdict(row, alpha) for row in table.to_dict("records")]
    for place, (fitted, verdict) in enumerate(zip(fits, table["verdict"], strict=True)):
        if fitted is not None and fitted.n_blocks >= least_blocks(alpha):
            growth = 2 * alpha if verdict in ("fixed", "none") else levels["growth"][place]
            at = {
                "intercept": 2 * alpha if verdict == "none" else levels["intercept"][place],
                "slope": growth,
                "growth": growth,
                "ratio": alpha,
            }
            for name, attribute in _ESTIMATES.items():
                low, high = getattr(fitted, attribute).interval(at[name])
                table.loc[place, [f"{name}_low", f"{name}_high"]] = low, high
    return table


def _not_fitted(error: UsageError) -> dict[str, Any]:
    """Return the row of what was not measured, or not at two sizes."""
    numbers = [name for name in COST_COLUMNS if name not in ("verdict", "blocks_missing", "note")]
    row: dict[str, Any] = dict.fromkeys(numbers, math.nan) | {"n_blocks": 0, "n_levels": 0}
    return row | {"blocks_missing": (), "note": error.what}


def _tests(fit: Overhead, margin: float) -> dict[str, Any]:
    """Return the estimates and p-values of a row, not adjusted and without intervals."""
    row: dict[str, Any] = dict.fromkeys(COST_COLUMNS, math.nan)
    row |= {"n_blocks": fit.n_blocks, "n_levels": len(fit.levels)}
    row |= {name: getattr(fit, attribute).value for name, attribute in _ESTIMATES.items()}
    return row | {
        "p_intercept": fit.intercept.p_outside(0, 0),
        "p_growth": fit.slope.p_outside(0, 0),
        "p_fixed": fit.relative.p_within(-margin, margin),
        "p_none": fit.relative_intercept.p_within(-margin, margin),
        "blocks_missing": fit.missing,
        "note": fit.note,
    }


def _verdict(row: Mapping[Any, Any], alpha: float) -> str:
    if row["n_blocks"] < least_blocks(alpha) or row["n_levels"] < 3:
        return "undecided"
    begins = row["p_intercept"] < alpha and row["intercept"] > 0
    if row["p_fixed"] < alpha:
        return "fixed" if begins else "none" if row["p_none"] < alpha else "undecided"
    if row["p_growth"] < alpha:
        grows = "growing" if row["slope"] > 0 else "falling"
        return f"fixed and {grows}" if begins else grows
    return "undecided"
