"""Say which rows of a table are meant, as an expression of pandas that gives just these."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

#: As many combinations of levels are written down before trials are named instead.
MOST = 16


def query_for(table: pd.DataFrame, trials: Collection[str], by: Sequence[str]) -> str:
    """Return what `DataFrame.query` takes to give the rows of some trials, and no other row.

    Parameters
    ----------
    table : DataFrame
        A row a trial: `Dataset.ok`, or `Dataset.trials`.
    trials : collection of str
        The names of the trials, in the column ``trial``.
    by : sequence of str
        Columns to tell them apart by: the factors. The shortest way that is exact is taken: levels
        of the columns, with combinations of two where it takes them, else the conditions one by
        one, else the trials by name.

    Returns
    -------
    str
        Empty where all rows are meant.
    """
    wanted = table["trial"].isin(trials)
    if wanted.all():
        return ""
    columns = [name for name in [*by, "copy", "block"] if name in table]
    factors = [name for name in by if name in table]
    found = (_levels(table, wanted, columns, pair) for pair in itertools.combinations(factors, 2))
    text = _levels(table, wanted, columns) or next(filter(None, found), "")
    text = text or _conditions(table, wanted, factors)
    return text or f"trial in {sorted(map(str, table.loc[wanted, 'trial']))}"


def _levels(
    table: pd.DataFrame,
    wanted: pd.Series[bool],
    columns: Sequence[str],
    pair: tuple[str, ...] = (),
) -> str:
    """Return a clause a column that together are exact, without those that change nothing.

    Of `pair`, the combinations that occur are a clause. Empty where that is not exact.
    """
    inside = {name: list(dict.fromkeys(table.loc[wanted, name].tolist())) for name in columns}
    masks = {name: table[name].isin(levels) for name, levels in inside.items()}
    clauses = {name: _clause(name, levels) for name, levels in inside.items()}
    if pair:
        joint = pd.Series(list(zip(*(table[name] for name in pair), strict=True)), table.index)
        both = list(dict.fromkeys(joint[wanted].tolist()))
        masks[""], clauses[""] = joint.isin(both), _any(pair, both)
        if len(both) > MOST:
            return ""
    kept = list(masks)
    if not (_all(masks, kept) == wanted).all():
        return ""
    for name in reversed(list(masks)):
        if name and (_all(masks, [one for one in kept if one != name]) == wanted).all():
            kept.remove(name)
    return " and ".join(clauses[name] for name in kept)


def _all(masks: Mapping[str, pd.Series[bool]], names: Sequence[str]) -> pd.Series[bool]:
    """Return where all of some masks hold."""
    found = pd.Series(data=True, index=next(iter(masks.values())).index)
    for name in names:
        found = found & masks[name]
    return found


def _any(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a clause that holds for any of some combinations of levels."""
    texts = [
        " and ".join(_clause(name, [level]) for name, level in zip(names, row, strict=True))
        for row in rows
    ]
    return "(" + " or ".join(f"({text})" for text in texts) + ")"


def _conditions(table: pd.DataFrame, wanted: pd.Series[bool], by: Sequence[str]) -> str:
    """Return the conditions one by one where they are few and whole; else an empty string."""
    if not by:
        return ""
    each = wanted.groupby([table[name].astype(str) for name in by], observed=True)
    if each.nunique().max() > 1:
        return ""
    known = [name for name in by if table[name].astype(str).nunique() > 1]
    levels = table.loc[wanted, known].drop_duplicates().to_numpy().tolist()
    return _any(known, levels) if len(levels) <= MOST else ""


def _clause(name: str, levels: Sequence[Any]) -> str:
    column = name if name.isidentifier() else f"`{name}`"
    one = len(levels) == 1
    return f"{column} == {levels[0]!r}" if one else f"{column} in {list(levels)!r}"
