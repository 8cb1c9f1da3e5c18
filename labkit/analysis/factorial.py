"""Several factors at once: effects and interactions, as ratios.

In each block the logs of its trials are fitted by least squares on the factors and their
interactions, in sum coding: an effect is a deviation from the mean of its levels. The coefficients
of the blocks are then tested over the blocks (two-stage analysis; Matthews, Altman, Campbell &
Royston 1990), because an effect may itself vary from block to block: tests against the residual of
all trials were wrong in 24 to 59 % of null experiments where it did. A term with several degrees of
freedom has the F test of repeated measures with the correction of Greenhouse & Geisser (1959).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import ROUNDING, holm, join_notes
from labkit.analysis.models import check_values, sorted_levels
from labkit.analysis.robust import block_mean, checked, unsure, without_unchecked
from labkit.analysis.trials import require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]
Levels = dict[str, list[Hashable]]

TERMS = ("term", "order", "df", "f_value", "p_value", "p_adjusted", "share")
EFFECTS = ("term", "levels", "estimate", "low", "high", "p_value", "p_adjusted")


@dataclass(frozen=True)
class Factorial:
    """A factorial model of logs.

    Parameters
    ----------
    terms : DataFrame
        A row a term: ``term`` ("placement", "placement:wait"), ``order`` (1 for a main effect),
        ``df``, ``f_value``, ``p_value``, ``p_adjusted`` (Holm over the terms), ``share`` (partial
        share of variance: of what the other terms leave, partial eta squared).
    effects : DataFrame
        A row a combination of levels of each term: ``term``, ``levels`` (tuple), ``estimate``
        (ratio to what the lower terms predict, 1 is no effect), ``low``, ``high``, ``p_value``,
        ``p_adjusted`` (Holm over the rows; rows that mirror each other count once).
    n_blocks, n_trials : int
        Blocks that were fitted, and cells (combinations in a block) in them.
    note : str
        What to know about it.
    """

    terms: pd.DataFrame
    effects: pd.DataFrame
    n_blocks: int
    n_trials: int
    note: str = ""


def fit_factorial(
    frame: pd.DataFrame,
    *,
    value: str,
    factors: Sequence[str],
    order: int | None = None,
    alpha: float = 0.05,
) -> Factorial:
    """Fit log values on factors and their interactions within blocks, and test them over blocks.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``; several trials of a cell in a block are
        averaged on the log scale. Blocks that lack a combination of the model are left out.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    factors : sequence of str
        Columns of the factors, each with two levels or more.
    order : int, optional
        The highest order of interactions: 1 for none; all of them without it.
    alpha : float
        Intervals have level 1 - `alpha`.

    Raises
    ------
    UsageError
        For missing columns, values without a logarithm, a factor with one level, combinations of
        levels that a term needs and that were never measured (they are named), or where no block
        holds all of them.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("capture == 'off' and placement == ['bare clean', 'docker host']")
    >>> names = {"factors": ["affinity", "wait"]}
    >>> model = analysis.fit_factorial(trials, value="rtt_ns_median", **names)
    >>> model.n_blocks
    16
    >>> list(model.terms["term"])
    ['affinity', 'wait', 'affinity:wait']
    """
    cells, note = _cells(frame, value, list(factors))
    if order is not None and order < 1:
        raise UsageError(f"order is {order}", remedy="give 1 for main effects only, or more")
    highest = min(order or len(factors), len(factors))
    terms = [
        term for size in range(1, highest + 1) for term in itertools.combinations(factors, size)
    ]
    levels = {name: sorted_levels(cells[name]) for name in factors}
    coded = {
        name: pd.Index(known).get_indexer(pd.Index(cells[name])) for name, known in levels.items()
    }
    columns = [_columns(term, levels, coded) for term in terms]
    design = np.column_stack([np.ones(len(cells)), *columns])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise _unidentified(cells, levels, terms)
    logs = cells["log"].to_numpy(dtype=np.float64)
    fitted, used = [], 0
    blocks = cells.groupby("block", observed=True).indices
    for rows in blocks.values():
        solution, _, rank, _ = np.linalg.lstsq(design[rows], logs[rows])
        if rank == design.shape[1]:
            fitted.append(solution)
            used += len(rows)
    if not fitted:
        raise UsageError(
            "no block holds all combinations that the model takes",
            why="effects are estimated within blocks",
            remedy="measure several levels of every factor in each block, or ask for a lower order",
        )
    if lacking := len(blocks) - len(fitted):
        note = join_notes(note, f"{lacking} of {len(blocks)} blocks lack combinations: left out")
    if len(fitted) == 1:
        note = join_notes(note, "one block shows no spread: more blocks are needed")
    ends = np.cumsum([1, *(part.shape[1] for part in columns)])
    scores = np.split(np.array(fitted), ends, axis=1)[1:-1]
    size = float(np.abs(logs).max())
    tests = _tests(terms, scores, size)
    effects = _effects(terms, scores, levels, alpha, size)
    for term, score in zip(terms, scores, strict=True):
        checks = [checked(column) for column in score.T if len(score) > 1 and column.std() > 0]
        if said := without_unchecked(*(one.note for one in checks)):
            note = join_notes(note, f"{':'.join(term)}: {said}")
    note = join_notes(note, unsure(len(fitted)))
    return Factorial(tests, effects, len(fitted), used, note)


def _columns(term: Sequence[str], levels: Levels, coded: dict[str, NDArray[Any]]) -> Floats:
    """Return the columns of a term: products of orthonormal contrasts of its factors' levels."""
    columns = np.ones((len(next(iter(coded.values()))), 1))
    for name in term:
        contrasts = _contrasts(len(levels[name]))[coded[name]]
        columns = (columns[:, :, None] * contrasts[:, None, :]).reshape(len(columns), -1)
    return columns


def _contrasts(count: int) -> Floats:
    """Return an orthonormal basis of the deviations of so many levels, shape (levels, levels-1)."""
    return np.asarray(np.linalg.svd(np.eye(count) - 1 / count)[0][:, : count - 1])


def _cells(frame: pd.DataFrame, value: str, factors: list[str]) -> tuple[pd.DataFrame, str]:
    """Return mean logs by block and combination of levels, without failed trials."""
    require_columns(frame, [value, *factors, "block"])
    if not factors or "block" in factors or len(set(factors)) < len(factors):
        raise UsageError(
            f"invalid factors: {factors!r}", remedy="different factors, without the block"
        )
    if frame[["block", *factors]].isna().to_numpy().any():
        raise UsageError("a factor or the block is missing in some rows")
    logs = pd.Series(check_values(frame, value, log=True), index=frame.index)
    known = logs.notna()
    note = (
        f"{int((~known).sum())} of {len(frame)} trials without a value" if not known.all() else ""
    )
    tidy = frame.loc[known, factors].assign(block=frame.loc[known, "block"], log=logs[known])
    means = tidy.groupby(["block", *factors], observed=True, sort=True)["log"].mean()
    for name in factors:
        if tidy[name].nunique() < 2:
            raise UsageError(f"the factor {name!r} has fewer than two levels with values")
    if len(means) < len(tidy):
        note = join_notes(note, "several trials a cell, averaged on the log scale")
    return means.reset_index(), note


def _unidentified(cells: pd.DataFrame, levels: Levels, terms: list[tuple[str, ...]]) -> UsageError:
    """Return the error that names which combinations some term lacks."""
    for term in terms:
        seen = set(cells[list(term)].itertuples(index=False, name=None))
        every = itertools.product(*(levels[name] for name in term))
        lacking = [combination for combination in every if combination not in seen]
        if lacking:
            shown = ", ".join("/".join(map(str, combination)) for combination in lacking[:6])
            return UsageError(
                f"{len(lacking)} combinations of {' x '.join(term)} were never measured: {shown}",
                why="an interaction takes every combination of its levels",
                remedy=f"measure them, leave a level out, or ask for order={len(term) - 1}",
            )
    return UsageError(
        "the factors are confounded with each other",
        why="the levels of some change together",
        remedy="measure other combinations, or leave a factor out",
    )


def _tests(terms: Sequence[tuple[str, ...]], scores: list[Floats], size: float) -> pd.DataFrame:
    """Return the F test of every term over blocks, and its partial share of variance."""
    rows = []
    for term, blocks in zip(terms, scores, strict=True):
        n, df = blocks.shape
        row = {"term": ":".join(term), "order": len(term), "df": df}
        row |= dict.fromkeys(("f_value", "p_value", "share"), math.nan)
        covariance = np.atleast_2d(np.cov(blocks.T)) if n > 1 else np.zeros((df, df))
        error = float(np.trace(covariance))
        if error > (ROUNDING * max(1.0, size)) ** 2:
            effect = n * float(np.square(blocks.mean(axis=0)).sum())
            # 1 where all contrasts of the term vary alike and independently, down to 1 / df.
            epsilon = error**2 / (df * float(np.square(covariance).sum()))
            checks = [checked(column) for column in blocks.T if column.std() > 0]
            wider = max(one.widening for one in checks)
            rest = min(one.df for one in checks) * df * epsilon
            f_value = effect / error / wider**2
            row["f_value"], row["share"] = f_value, effect / (effect + (n - 1) * error)
            row["p_value"] = float(special.fdtrc(df * epsilon, rest, f_value))
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.assign(p_adjusted=holm(table["p_value"].to_numpy(dtype=float)))[list(TERMS)]


def _effects(
    terms: Sequence[tuple[str, ...]],
    scores: list[Floats],
    levels: Levels,
    alpha: float,
    size: float,
) -> pd.DataFrame:
    """Return the effect of every combination of each term's levels."""
    rows: list[dict[str, Any]] = []
    for term, blocks in zip(terms, scores, strict=True):
        places = np.array(list(itertools.product(*(range(len(levels[name])) for name in term))))
        contrasts = _columns(term, levels, dict(zip(term, places.T, strict=True)))
        combinations = itertools.product(*(levels[name] for name in term))
        for combination, logs in zip(combinations, contrasts @ blocks.T, strict=True):
            effect = block_mean(logs, scale="log", size=size)
            low, high = effect.interval(alpha)
            rows.append(
                {
                    "term": ":".join(term),
                    "levels": combination,
                    "estimate": effect.value,
                    "low": low,
                    "high": high,
                    "p_value": effect.p_outside(1, 1),
                    # Rows of a term with one degree of freedom mirror each other: one test.
                    "test": (term, () if blocks.shape[1] == 1 else combination),
                }
            )
    tests = {row["test"]: row["p_value"] for row in rows}
    adjusted = dict(zip(tests, holm(np.array(list(tests.values()), dtype=float)), strict=True))
    rows = [{**row, "p_adjusted": float(adjusted[row["test"]])} for row in rows]
    return pd.DataFrame.from_records(rows, columns=list(EFFECTS))
