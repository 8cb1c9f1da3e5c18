"""Several factors at once: effects and interactions, as ratios.

Logs of trials are fitted by least squares (statsmodels) on the factors, their interactions and the
block, all in sum coding, so that an effect is a deviation from the mean of its levels and does not
hang on which level comes first. Errors are heteroscedasticity-consistent (MacKinnon & White 1985).
One contrast of four cells, paired by block, is `labkit.analysis.ratios.interaction`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.blockwise import checked, joined
from labkit.analysis.intervals import holm
from labkit.analysis.origin import follows
from labkit.analysis.reduce import order_of, require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]

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
        (ratio to what the lower terms foresee, 1 is no effect), ``low``, ``high``, ``p_value``,
        ``p_adjusted`` (Holm over the rows; rows that mirror each other count once).
    n_blocks, n_trials : int
        Blocks, and cells of blocks, that the model was fitted to.
    note : str
        What to know about it.
    """

    terms: pd.DataFrame
    effects: pd.DataFrame
    n_blocks: int
    n_trials: int
    note: str = ""


@follows
def factorial(
    frame: pd.DataFrame,
    *,
    value: str,
    factors: Sequence[str],
    block: str,
    order: int | None = None,
    alpha: float = 0.05,
    errors: Literal["HC2", "HC3"] = "HC2",
) -> Factorial:
    """Fit log values on factors, their interactions and blocks.

    Parameters
    ----------
    frame : DataFrame
        One row a trial; several trials of a cell in a block are averaged on the log scale.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    factors : sequence of str
        Columns of the factors, each with two levels or more.
    block : str
        Column of the block, which enters without interactions.
    order : int, optional
        The highest order of interactions: 1 for none; all of them without it.
    alpha : float
        Intervals have level 1 - `alpha`.
    errors : {"HC2", "HC3"}
        HC2 is unbiased under equal variances and covered 94 to 96 % in simulations with 10 blocks;
        HC3, which nearly leaves each trial out, 97 to 98 %, as a block has few trials. Both take
        the trials of a block for independent, given its level: where an effect may itself vary
        from block to block, `labkit.analysis.ratios.interaction` and `compare` take the block for
        the unit.

    Raises
    ------
    UsageError
        For missing columns, values without a logarithm, a factor with one level, or combinations
        of levels that were never measured while a term needs them (they are named).
    """
    cells, note = _cells(frame, value, list(factors), block)
    names = [
        combination
        for size in range(1, min(order or len(factors), len(factors)) + 1)
        for combination in itertools.combinations(factors, size)
    ]
    levels = {name: _levels(cells[name]) for name in factors}
    coded = {name: _coding(cells[name], levels[name]) for name in factors}
    parts = [_product([coded[name] for name in term]) for term in names]
    blocks = _levels(cells["block"])
    blocking = _coding(cells["block"], blocks) if len(blocks) > 1 else np.empty((len(cells), 0))
    design = np.hstack([np.ones((len(cells), 1)), *parts, blocking])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise _unidentified(cells, levels, names)
    known = len(cells) > design.shape[1]
    if not known:
        note = joined(note, "no trials are left to show a spread: more blocks are needed")
    spots = np.cumsum([1, *(part.shape[1] for part in parts)])
    model = _Fit(cells["log"].to_numpy(), design, errors, alpha, known)
    terms = [
        {"term": ":".join(term), "order": len(term), **model.term(start, start + part.shape[1])}
        for term, start, part in zip(names, spots, parts, strict=False)
    ]
    effects = [
        row
        for term, start in zip(names, spots, strict=False)
        for row in model.effects(term, int(start), levels)
    ]
    return Factorial(_terms(terms), _effects(effects), len(blocks), len(cells), note)


def _cells(
    frame: pd.DataFrame, value: str, factors: list[str], block: str
) -> tuple[pd.DataFrame, str]:
    """Return mean logs by block and combination of levels, without failed trials."""
    require_columns(frame, [value, *factors, block])
    if not factors or block in factors or len(set(factors)) < len(factors):
        raise UsageError(f"factors={factors!r} are not different factors beside the block")
    if frame[[block, *factors]].isna().to_numpy().any():
        raise UsageError("a factor or the block is missing in some rows")
    logs = pd.Series(checked(frame, value, log=True), index=frame.index)
    known = logs.notna()
    note = (
        f"{int((~known).sum())} of {len(frame)} trials without a value" if not known.all() else ""
    )
    tidy = frame.loc[known, factors].assign(block=frame.loc[known, block], log=logs[known])
    means = tidy.groupby(["block", *factors], observed=True, sort=True)["log"].mean()
    for name in factors:
        if tidy[name].nunique() < 2:
            raise UsageError(f"the factor {name!r} has fewer than two levels with values")
    if len(means) < len(tidy):
        note = joined(note, "several trials a cell, averaged on the log scale")
    return means.reset_index(), note


def _levels(series: pd.Series[Any]) -> list[Hashable]:
    present = order_of(series)
    return sorted(present) if pd.api.types.is_numeric_dtype(series) else present


def _coding(series: pd.Series[Any], levels: list[Hashable]) -> Floats:
    """Return sum coding: a column a level but the last, which is -1 in all of them."""
    place = pd.Index(levels).get_indexer(pd.Index(series))
    return np.asarray(_contrast(len(levels))[place], dtype=np.float64)


def _contrast(levels: int) -> Floats:
    return np.vstack([np.eye(levels - 1), -np.ones((1, levels - 1))])


def _product(parts: list[Floats]) -> Floats:
    """Return the columns of an interaction: all products of the factors' columns."""
    product = parts[0]
    for part in parts[1:]:
        product = (product[:, :, None] * part[:, None, :]).reshape(len(part), -1)
    return product


def _unidentified(
    cells: pd.DataFrame, levels: dict[str, list[Hashable]], names: list[tuple[str, ...]]
) -> UsageError:
    """Return the error that names which combinations some term lacks."""
    for term in names:
        seen = set(cells[list(term)].itertuples(index=False, name=None))
        lacking = [
            one for one in itertools.product(*(levels[name] for name in term)) if one not in seen
        ]
        if lacking:
            shown = ", ".join("/".join(map(str, one)) for one in lacking[:6])
            return UsageError(
                f"{len(lacking)} combinations of {' x '.join(term)} were never measured: {shown}",
                why="an interaction takes every combination of its levels",
                remedy=f"measure them, leave a level out, or ask for order={len(term) - 1}",
            )
    return UsageError(
        "the blocks and factors cannot be told apart",
        why="some level was measured in blocks of its own only",
        remedy="every block needs several of the combinations",
    )


class _Fit:
    """The fitted model, asked term by term."""

    def __init__(
        self, logs: Floats, design: Floats, errors: str, alpha: float, known: bool
    ) -> None:
        # Imported here: statsmodels takes longer to load than everything else together.
        from statsmodels.regression.linear_model import OLS

        plain = OLS(logs, design).fit()
        self.width = design.shape[1]
        self.alpha = alpha
        self.known = known and float(plain.ssr) > 1e-20 * max(1.0, float(logs @ logs))
        self.result = plain.get_robustcov_results(errors, use_t=True) if self.known else plain
        self.beta = np.asarray(plain.params, dtype=np.float64)
        self.rest = float(plain.ssr)
        self.scatter = np.asarray(plain.normalized_cov_params, dtype=np.float64)

    def term(self, start: int, stop: int) -> dict[str, float]:
        """Return the Wald F test of a block of coefficients, and its partial share."""
        beta = self.beta[start:stop]
        explained = float(beta @ np.linalg.solve(self.scatter[start:stop, start:stop], beta))
        total = explained + self.rest
        row = {"df": stop - start, "share": explained / total if total > 0 else math.nan}
        if not self.known:
            return {**row, "f_value": math.nan, "p_value": math.nan}
        test = self.result.f_test(np.eye(self.width)[start:stop])
        return {**row, "f_value": float(test.fvalue), "p_value": float(test.pvalue)}

    def effects(
        self, term: tuple[str, ...], start: int, levels: dict[str, list[Hashable]]
    ) -> list[dict[str, Any]]:
        """Return the effect of every combination of a term's levels."""
        # The rows of the Kronecker product run as itertools.product does: the last level fastest.
        contrast: Floats = np.ones((1, 1))
        for name in term:
            contrast = np.asarray(np.kron(contrast, _contrast(len(levels[name]))))
        rows = np.zeros((len(contrast), self.width))
        rows[:, start : start + contrast.shape[1]] = contrast
        estimate = np.exp(rows @ self.beta)
        bounds, p_values = np.full((len(rows), 2), np.nan), np.full(len(rows), np.nan)
        if self.known:
            test = self.result.t_test(rows)
            bounds, p_values = np.exp(test.conf_int(self.alpha)), np.atleast_1d(test.pvalue)
        single = contrast.shape[1] == 1
        return [
            {
                "term": ":".join(term),
                "levels": combination,
                "estimate": float(estimate[i]),
                "low": float(bounds[i, 0]),
                "high": float(bounds[i, 1]),
                "p_value": float(p_values[i]),
                "test": (term, () if single else combination),
            }
            for i, combination in enumerate(itertools.product(*(levels[name] for name in term)))
        ]


def _terms(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame.from_records(rows)
    table["p_adjusted"] = holm(table["p_value"].to_numpy(dtype=np.float64))
    return table[list(TERMS)]


def _effects(rows: list[dict[str, Any]]) -> pd.DataFrame:
    tests = {row["test"]: row["p_value"] for row in rows}
    adjusted = dict(zip(tests, holm(np.array(list(tests.values()), dtype=float)), strict=True))
    rows = [{**row, "p_adjusted": float(adjusted[row["test"]])} for row in rows]
    return pd.DataFrame.from_records(rows, columns=list(EFFECTS))
