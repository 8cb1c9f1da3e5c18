"""Any pairs of levels compared inside blocks as one family, and the order that all pairs show.

`labkit.analysis.summary.factor_effect` compares with one baseline. A ladder compares each level
with the one below it, and an order rests on every pair: whoever looks for it first and then tests
only the neighbours that were found has chosen what to test, so the correction is over all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from labkit.analysis.compare import contrast, decide, log_table
from labkit.analysis.grouping import require_names
from labkit.analysis.origin import follows
from labkit.analysis.reduce import groups, require_columns
from labkit.analysis.summary import cell_effects

__all__ = ["in_words", "pair_effects", "ranking"]


@follows
def pair_effects(
    frame: pd.DataFrame,
    factor: str,
    pairs: Sequence[tuple[Hashable, Hashable]],
    within: Sequence[str],
    *,
    value: str,
    block: str = "block",
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare pairs of levels of one factor inside every cell of other factors, as one family.

    Parameters
    ----------
    frame : DataFrame
        As for `labkit.analysis.compare.compare`.
    factor : str
        Column of the factor.
    pairs : sequence of (level, baseline)
        What is compared with what; any level may be the baseline of others.
    within : sequence of str
        Columns of the other factors.
    value, block, margin, alpha
        As for `compare`.

    Returns
    -------
    DataFrame
        As of `labkit.analysis.summary.factor_effect`: `within`, ``contrast``, the columns of
        `compare`; a pair that a cell lacks has 0 blocks and says why.
    """
    require_columns(frame, [factor, value, block, *within])
    require_names(frame, [factor])
    frame = frame[frame[factor].isin([level for pair in pairs for level in pair])]
    others: dict[Hashable, list[Hashable]] = {}
    for level, base in pairs:
        others.setdefault(base, []).append(level)
    rows: list[dict[str, Any]] = []
    for cell, index in groups(frame, within):
        logs = log_table(frame.iloc[index], value=value, condition=factor, block=block)
        for base, levels in others.items():
            found = cell_effects(logs, [base, *levels], factor, margin, alpha)
            for level, row in found.items():
                rows.append({**cell, "contrast": f"{level} / {base}", **row})
    return decide(rows, alpha=alpha, keys=[*within, "contrast"])


@follows
def ranking(
    frame: pd.DataFrame,
    factor: str,
    within: Sequence[str],
    *,
    value: str,
    lowest_first: bool = True,
    block: str = "block",
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare every two levels of a factor in every cell, in the order of their means.

    Parameters
    ----------
    frame, factor, within, value, block, margin, alpha
        As for `pair_effects`.
    lowest_first : bool
        Whether the lowest geometric mean is the first of the order.

    Returns
    -------
    DataFrame
        `within`, ``contrast`` (the later of the order over the earlier), ``earlier``, ``later``,
        ``steps`` between them (1: neighbours), the columns of `compare`; Holm's correction is over
        all pairs of all cells. A cell with fewer than two levels has no row.
    """
    require_columns(frame, [factor, value, block, *within])
    require_names(frame, [factor])
    rows: list[dict[str, Any]] = []
    for cell, index in groups(frame, within):
        logs = log_table(frame.iloc[index], value=value, condition=factor, block=block).logs
        means = logs.mean().dropna().sort_values(ascending=lowest_first, kind="stable")
        order = list(means.index)
        for place, earlier in enumerate(order):
            for steps, later in enumerate(order[place + 1 :], start=1):
                names = {"earlier": earlier, "later": later, "steps": steps}
                found = contrast(logs[earlier], logs[later], margin, alpha, paired=True)
                rows.append({**cell, "contrast": f"{later} / {earlier}", **names, **found})
    return decide(rows, alpha=alpha, keys=[*within, "contrast", "earlier", "later", "steps"])


def in_words(table: pd.DataFrame, within: Sequence[str], sign: str = "<") -> pd.Series[str]:
    """Return the order of each cell of a `ranking`, such as ``a < b ~ c``.

    Parameters
    ----------
    table : DataFrame
        What `ranking` returned.
    within : sequence of str
        As it was asked for.
    sign : str
        Between neighbours that differ; ``~`` stands between those that were not told apart, or
        that differ by no more than the margin.
    """
    said: dict[Any, str] = {}
    for row in table[table["steps"] == 1].to_dict("records"):
        cell = tuple(str(row[name]) for name in within)
        mark = sign if row["verdict"] == "different" else "~"
        said[cell] = f"{said.get(cell, row['earlier'])} {mark} {row['later']}"
    names = pd.MultiIndex.from_tuples(list(said), names=list(within)) if said else None
    return pd.Series(list(said.values()), index=names, dtype="object")
