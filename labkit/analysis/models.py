"""Models over blocks: contrasts of cells, ratios of ratios, lines, steps between levels.

What involves several levels is first computed inside each block, where drift and the block's own
level cancel. The results of the blocks are independent, and their mean has a t interval whatever
the variances of the levels are (summary measures; Matthews, Altman, Campbell & Royston 1990).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.estimates import (
    Estimate,
    Inference,
    Quotient,
    join_notes,
    ratio_of_independent_means,
)
from labkit.analysis.robust import block_mean, block_ratio, unpaired_note, without_unchecked
from labkit.analysis.trials import numbers, order_of, require_columns
from labkit.errors import UsageError, suggestion
from labkit.units import plural

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Numbers by block and level, of the blocks that have every level."""

    cells: pd.DataFrame
    note: str

    @property
    def values(self) -> Floats:
        """The cells as an array, shape (blocks, levels)."""
        return np.asarray(self.cells.to_numpy(), dtype=np.float64)


def blocks_of(
    frame: pd.DataFrame,
    *,
    value: str,
    level: str,
    levels: Sequence[Hashable] | None = None,
    log: bool = False,
) -> Blocks:
    """Arrange trials by block and level."""
    require_columns(frame, [value, level, "block"])
    if frame[[level, "block"]].isna().to_numpy().any():
        raise UsageError(f"{level!r} or 'block' is missing in some rows")
    present = order_of(frame[level])
    if levels is None:
        levels = sorted_levels(frame[level])
    if absent := [name for name in levels if name not in present]:
        raise UsageError(
            f"{level!r} has no level {', '.join(map(repr, absent))}",
            remedy=suggestion(absent[0], present),
        )
    column = check_values(frame, value, log)
    kept = frame[level].isin(list(levels)).to_numpy()
    tidy = pd.DataFrame({"b": frame["block"], "l": frame[level], "v": column})[kept]
    cells = tidy.groupby(["b", "l"], observed=True, sort=False)["v"]
    table = cells.mean().unstack("l").reindex(columns=list(levels)).sort_index()
    complete = table.notna().all(axis=1)
    return Blocks(table[complete], _note(cells.size(), tidy["v"], int((~complete).sum())))


def sorted_levels(series: pd.Series[Any]) -> list[Hashable]:
    """Return the distinct values: numbers sorted, others in the order of `order_of`."""
    present = order_of(series)
    return sorted(present) if pd.api.types.is_numeric_dtype(series) else present


def check_values(frame: pd.DataFrame, value: str, log: bool = False) -> Floats:
    """Return a column, or its logs, and refuse numbers that a trial cannot have."""
    column = numbers(frame, value).astype(np.float64)
    if np.isinf(column).any():
        raise UsageError(f"{value!r} holds infinite values", remedy="a failed trial is NaN")
    if log and (column <= 0).any():
        raise UsageError(
            f"{value!r} holds zero or negative values: no logarithm, no ratio",
            remedy="a value of a failed trial is NaN",
        )
    return np.asarray(np.log(column) if log else column, dtype=np.float64)


def _note(sizes: pd.Series[int], values: pd.Series[float], missing: int) -> str:
    parts = []
    if len(sizes) and sizes.max() > 1:
        parts.append(f"up to {sizes.max()} trials a cell, averaged")
    if lost := int(values.isna().sum()):
        parts.append(f"{lost} of {len(values)} trials without a value")
    if missing:
        parts.append(f"left out: {plural(missing, 'block')} without every level")
    return "; ".join(parts)


def numeric_levels(frame: pd.DataFrame, over: str) -> pd.DataFrame:
    """Return the frame with a column of levels as numbers, however it was stored.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> sizes = pd.DataFrame({"size_b": ["1024", "0"]})
    >>> analysis.numeric_levels(sizes, "size_b")["size_b"].tolist()
    [1024, 0]
    """
    require_columns(frame, [over])
    plain = frame[over].astype(object)
    levels = pd.to_numeric(plain, errors="coerce")
    if levels.isna().any() or plain.map(lambda one: isinstance(one, bool)).any():
        raise UsageError(f"{over!r} is not a number in every row")
    return frame.assign(**{over: levels})


def common_levels(parts: Sequence[pd.DataFrame], over: str) -> list[float]:
    """Return the levels, sorted, that all parts have; at least two finite numbers."""
    shared = set.intersection(*(set(part[over]) for part in parts))
    if len(shared) < 2 or not np.isfinite(list(shared)).all():
        raise UsageError(
            f"{over!r} has {len(shared)} usable levels",
            remedy="a line needs two or more, finite",
        )
    return sorted(shared)


def line_functionals(levels: Floats, weights: Floats) -> Floats:
    """Return the two rows that turn values at the levels into intercept and slope.

    Weighted least squares on 1 and the level; shape (2, levels).
    """
    # The level is scaled for the solution, so that bytes in millions do not spoil it.
    scale = float(np.abs(levels).max())
    design = np.column_stack([np.ones(len(levels)), levels / scale])
    root = np.sqrt(weights / weights.max())[:, None]
    solved = np.linalg.pinv(design * root) * root.T
    return np.asarray(solved / np.array([[1.0], [scale]]), dtype=np.float64)


def interaction(
    frame: pd.DataFrame,
    *,
    value: str,
    by: str,
    condition: Hashable,
    baseline: Hashable,
    condition2: Hashable,
    baseline2: Hashable,
) -> Estimate:
    """Return (condition / baseline) / (condition2 / baseline2), paired by block.

    The contrast of a two by two design, whose t interval over the blocks asks nothing of the four
    variances (Matthews et al. 1990).
    """
    cells = (condition, baseline, condition2, baseline2)
    table = blocks_of(frame, value=value, level=by, levels=list(dict.fromkeys(cells)), log=True)
    a, b, c, d = (table.cells[cell].to_numpy(dtype=np.float64) for cell in cells)
    return block_mean((a - b) - (c - d), scale="log", note=table.note)


def unpaired_ratio(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    other: Hashable,
) -> Quotient:
    """Return the ratio of two arithmetic means of independent blocks, other over baseline.

    By the interval of Fieller (1954) with the degrees of freedom of Welch (1947), taken at the
    estimate. For blocks that have nothing in common; `compare` pairs by block.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``; several trials of a condition in a block
        are averaged.
    value : str
        Column of finite numbers; NaN stands for a trial that failed.
    condition : str
        Column in which `baseline` and `other` are values.
    baseline, other : hashable
        The two conditions.

    Raises
    ------
    UsageError
        For missing columns, conditions that are not there, or values that are not finite.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "docker host", "other": "docker bridge"}
    >>> found = analysis.unpaired_ratio(trials, value="rtt_ns_median", **names)
    >>> bool(found.interval()[0] < found.value < found.interval()[1])
    True
    """
    require_columns(frame, [value, condition, "block"])
    means: list[Floats] = []
    for name in (other, baseline):
        rows = frame[(frame[condition] == name).to_numpy()]
        if rows.empty:
            raise UsageError(f"{condition!r} has no level {name!r}")
        blocks = pd.Series(check_values(rows, value)).groupby(rows["block"].to_numpy()).mean()
        means.append(np.asarray(blocks.dropna(), dtype=np.float64))
    note = join_notes(*map(unpaired_note, means))
    return ratio_of_independent_means(*means, note=note)


def group_contrast(
    trials: pd.DataFrame,
    *,
    value: str,
    by: str,
    above: Sequence[Hashable],
    below: Sequence[Hashable],
) -> Estimate:
    """Return the geometric mean of some cells over that of others, paired by block.

    Cells may be in different units where each unit has the same share of both groups: it cancels.

    Parameters
    ----------
    trials : DataFrame
        One row a trial, its block in the column ``block``.
    value, by : str
        Columns: positive numbers, the cell.
    above, below : sequence of hashable
        The cells of each group.

    Raises
    ------
    UsageError
        A group has no cell, or a cell is not there.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> pairs = {"block": [1, 1, 2, 2], "pair": ["equal", "other"] * 2}
    >>> rates = pd.DataFrame({**pairs, "rate": [8.0, 10.0, 16.0, 20.0]})
    >>> sides = {"above": ["equal"], "below": ["other"]}
    >>> found = analysis.group_contrast(rates, value="rate", by="pair", **sides)
    >>> round(found.value, 3)
    0.8
    """
    if not above or not below:
        raise UsageError("empty group: a contrast needs a cell in each")
    cells = list(dict.fromkeys([*above, *below]))
    table = blocks_of(trials, value=value, level=by, levels=cells, log=True)
    logs = table.cells
    figures = logs[list(above)].mean(axis=1) - logs[list(below)].mean(axis=1)
    return block_mean(figures.to_numpy(dtype=np.float64), scale="log", note=table.note)


@dataclass(frozen=True)
class Line:
    """A line over a number, and how straight it is.

    Parameters
    ----------
    intercept, slope : Estimate
        In the unit of the value, and per unit of the number.
    growth : Estimate
        Ratio of the last level's value to the first's (log scale); NaN with a note where values
        are not positive.
    curvature : Inference
        Largest deviation, at the levels, of the best parabola from the best line, as a share of
        the line's rise over them: 0 is straight. Positive where the parabola opens upwards and
        the line rises, or opens downwards and the line falls. NaN below three levels; its interval
        is unbounded where the slope is not shown to differ from 0.
    deviations : tuple of Inference
        Deviation of each level's mean from the line, as a share of the line's rise: all of them
        are small where a line describes the levels, which no single shape of curve can say. NaN
        below three levels.
    levels : tuple of float
        Levels, rising.
    n_blocks : int
        Blocks that were fitted.
    note : str
        What to know about it.
    """

    intercept: Estimate
    slope: Estimate
    growth: Estimate
    curvature: Inference
    deviations: tuple[Inference, ...]
    levels: tuple[float, ...]
    n_blocks: int
    note: str = ""


def fit_line(frame: pd.DataFrame, *, value: str, over: str) -> Line:
    """Fit a line and a parabola over a number in every block, and average over the blocks.

    Least squares without weights, as the deviation from the line is judged in the unit of the
    value. The curvature is a ratio of two means that are paired by block (Fieller 1954).

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``. Blocks that lack a level are left out
        and reported.
    value : str
        Column of finite numbers; NaN stands for a trial that failed.
    over : str
        Column of the number, with two levels or more (three for the curvature).

    Raises
    ------
    UsageError
        For missing columns, fewer than two levels, or values that are not finite.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> chains = {"block": [1, 1, 2, 2], "chain": [1, 5, 1, 5], "us": [10.0, 30.0, 11.0, 31.0]}
    >>> hops = pd.DataFrame(chains)
    >>> line = analysis.fit_line(hops, value="us", over="chain")
    >>> round(line.slope.value, 3), round(line.intercept.value, 3)
    (5.0, 5.5)
    """
    require_columns(frame, [value, over, "block"])
    frame = numeric_levels(frame, over)
    levels = np.array(common_levels([frame], over))
    table = blocks_of(frame, value=value, level=over)
    values = table.values
    line = values @ line_functionals(levels, np.ones(len(levels))).T
    span, note = float(np.ptp(levels)), table.note
    rise = line[:, 1] * span
    size = float(np.abs(values).max()) if values.size else 0.0
    slope = block_mean(line[:, 1], note=note, size=size / span)
    return Line(
        intercept=block_mean(line[:, 0], note=note, size=size),
        slope=slope,
        growth=_growth(values[:, 0], values[:, -1], note),
        curvature=_curvature(values, levels, rise, note),
        deviations=_deviations(values, levels, rise, note),
        levels=tuple(map(float, levels)),
        n_blocks=len(values),
        note=without_unchecked(slope.note),
    )


def _growth(first: Floats, last: Floats, note: str) -> Estimate:
    if (first <= 0).any() or (last <= 0).any():
        note = join_notes(note, "values that are not positive have no ratio")
        return Estimate(math.nan, math.nan, math.nan, "log", len(first), note)
    return block_mean(np.log(last) - np.log(first), scale="log", note=note)


def _curvature(values: Floats, levels: Floats, rise: Floats, note: str) -> Inference:
    if len(levels) < 3:
        return _shapeless(len(values), note)
    # The part of the square that is no line: a parabola is a line plus a multiple of it, so its
    # deviation from the line is that multiple times this one's largest.
    centred = (levels - levels.mean()) / float(np.ptp(levels))
    bow = _residuals_of_line(levels) @ centred**2
    deviation = values @ bow / float(bow @ bow) * float(np.abs(bow).max())
    return block_ratio(deviation, rise, note=note)


def _deviations(values: Floats, levels: Floats, rise: Floats, note: str) -> tuple[Inference, ...]:
    if len(levels) < 3:
        return (_shapeless(len(values), note),)
    left = values @ _residuals_of_line(levels)
    return tuple(block_ratio(column, rise, note=note) for column in left.T)


def _residuals_of_line(levels: Floats) -> Floats:
    """Return the matrix that gives the residuals from a line: I - H, with the hat matrix H."""
    centred = (levels - levels.mean()) / float(np.ptp(levels))
    design = np.column_stack([np.ones(len(levels)), centred])
    return np.asarray(np.eye(len(levels)) - design @ np.linalg.pinv(design))


def _shapeless(n_blocks: int, note: str) -> Estimate:
    note = join_notes(note, "two levels have no curvature")
    return Estimate(math.nan, math.nan, math.nan, "linear", n_blocks, note)


def successive_ratios(
    frame: pd.DataFrame,
    *,
    value: str,
    over: str,
) -> tuple[Estimate, ...]:
    """Return the ratio of each level to the one before it, paired by block (log scale).

    To show an order every ratio has to be shown; no correction is due for that (Berger 1982).

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``. Blocks that lack a level are left out
        and reported.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    over : str
        Column of the level. Numbers are sorted; other levels are in the order of a categorical or
        of appearance.

    Raises
    ------
    UsageError
        For missing columns, fewer than two levels, or values without a logarithm.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> sizes = {"block": [1, 1, 2, 2], "size_b": [1, 2, 1, 2], "ns": [10.0, 20.0, 30.0, 60.0]}
    >>> calls = pd.DataFrame(sizes)
    >>> found = analysis.successive_ratios(calls, value="ns", over="size_b")
    >>> len(found)
    1
    """
    table = blocks_of(frame, value=value, level=over, log=True)
    if table.values.shape[1] < 2:
        raise UsageError(f"{over!r} has fewer than two levels")
    changes = np.diff(table.values, axis=1).T
    return tuple(block_mean(change, scale="log", note=table.note) for change in changes)
