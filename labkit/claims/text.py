"""The ledger as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.claims.stated import recompute, with_unit
from labkit.claims.verdicts import RESULTS
from labkit.errors import UsageError

_HEAD = ("claim", "published", "measured [interval]", "setting", "result")


def chosen(rows: pd.DataFrame, sources: Sequence[str], results: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some sources and results; all where none is named.

    Raises
    ------
    UsageError
        For a source that has no claim, or words that are no result.
    """
    known = {"source": list(dict.fromkeys(rows["source"])), "result": list(RESULTS)}
    for name, asked in (("source", sources), ("result", results)):
        if unknown := [one for one in asked if one not in known[name]]:
            raise UsageError(
                f"no {name} called {', '.join(unknown)}", remedy=f"one of {', '.join(known[name])}"
            )
        rows = rows[rows[name].isin(asked)] if asked else rows
    return rows


def lines(rows: pd.DataFrame) -> list[str]:
    """Return a line a claim, errors with their message, and how often there is each result."""
    records = rows.to_dict("records")
    cells = [_HEAD, *(_cells(row) for row in records)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    found = [
        "  ".join(cell.ljust(width) for cell, width in zip(one, widths, strict=True)).rstrip()
        for one in cells
    ]
    found += [f"{row['id']}: {row['why']}" for row in records if row["result"] == "error"]
    counts = rows["result"].value_counts()
    said = [f"{counts[name]} {name}" for name in RESULTS if name in counts]
    return [*found, "", f"{len(rows)} claims: {', '.join(said) or 'none'}"]


def wrong_arithmetic(sources: Iterable[str]) -> list[str]:
    """Return what the papers' words state and their own tables do not give, with both numbers."""
    found = [""]
    for source in sources:
        table = recompute(source)
        wrong = table[~table["follows"]]
        found.append(f"{source}: {len(wrong)} of {len(table)} statements do not follow")
        for row in wrong.to_dict("records"):
            stated = row["stated"]
            said = "stated" if stated is True else f"stated {with_unit(stated, row['unit'])}"
            shown = with_unit(row["shown"], row["unit"])
            found.append(f"  {row['place']}: {row['says']} ({said}; its tables give {shown})")
    return found


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    published = _number(row["published_value"]) or ("stated" if row["published"] else "")
    measured = _number(row["estimate"])
    if measured:
        unit = "" if row["unit"] in ("", "1") else f" {row['unit']}"
        low, high = _number(row["low"]), _number(row["high"])
        measured += f" [{low}, {high}]{unit}" if low and high else unit
    return str(row["id"]), published, measured, str(row["setting"]), str(row["result"])


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
