"""Say which rows of a table are meant, as an expression of pandas that gives just these."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd


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
        of the columns, else the conditions one by one, else the trials by name.

    Returns
    -------
    str
        Empty where all rows are meant.
    """
    wanted = table["trial"].isin(trials)
    if wanted.all():
        return ""
    columns = [name for name in [*by, "copy", "block"] if name in table]
    clauses = _levels(table, wanted, columns)
    if clauses is not None:
        return " and ".join(clauses.values())
    conditions = _conditions(table, wanted, [name for name in by if name in table])
    return conditions or f"trial in {sorted(map(str, table.loc[wanted, 'trial']))}"


def _levels(
    table: pd.DataFrame, wanted: pd.Series[bool], columns: Sequence[str]
) -> Mapping[str, str] | None:
    """Return a clause a column that together are exact, without those that change nothing."""
    inside = {name: _unique(table.loc[wanted, name]) for name in columns}
    masks = {name: table[name].isin(levels) for name, levels in inside.items()}

    def exact(names: Sequence[str]) -> bool:
        found = pd.Series(data=True, index=table.index)
        for name in names:
            found &= masks[name]
        return bool((found == wanted).all())

    kept = list(columns)
    if not exact(kept):
        return None
    for name in reversed(columns):
        if exact([one for one in kept if one != name]):
            kept.remove(name)
    return {name: _clause(name, inside[name]) for name in kept}


def _conditions(table: pd.DataFrame, wanted: pd.Series[bool], by: Sequence[str]) -> str:
    """Return the conditions one by one where they are few and whole; else an empty string."""
    if not by:
        return ""
    each = wanted.groupby([table[name].astype(str) for name in by], observed=True)
    if each.nunique().max() > 1:
        return ""
    levels = table.loc[wanted, list(by)].drop_duplicates().to_dict("records")
    known = [name for name in by if table[name].astype(str).nunique() > 1]
    texts = [" and ".join(_clause(name, [row[name]]) for name in known) for row in levels]
    return " or ".join(f"({text})" for text in texts) if len(texts) <= 8 else ""


def _unique(column: pd.Series[Any]) -> list[Any]:
    return list(dict.fromkeys(column.tolist()))


def _clause(name: str, levels: Sequence[Any]) -> str:
    column = name if name.isidentifier() else f"`{name}`"
    one = len(levels) == 1
    return f"{column} == {levels[0]!r}" if one else f"{column} in {list(levels)!r}"
