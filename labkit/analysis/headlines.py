"""What a report's index shows of an analysis: plain JSON values, nothing that is not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import UsageError

#: What a published statement expects of a ratio to the baseline.
EXPECTATIONS = ("equal", "lower", "higher")


def headline(row: Mapping[str, Any] | pd.Series[Any], text: str) -> dict[str, Any]:
    """Return a row of `compare` as a headline: ``text, verdict, estimate, low, high, unit``."""
    numbers = {name: plain(row[name]) for name in ("estimate", "low", "high")}
    pilot = str(row["note"]).startswith("pilot")
    verdict = f"{row['verdict']} (pilot)" if pilot else str(row["verdict"])
    return {"text": text, "verdict": verdict, **numbers, "unit": "times"}


def noise_lines(floor: pd.DataFrame, condition: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of `noise_floor` as an index shows them; ``sd`` is that of a pair's log ratio."""
    return [
        {
            "condition": ", ".join(str(row[name]) for name in condition),
            **{name: plain(row[name]) for name in ("sd", "low", "high")},
        }
        for row in floor.to_dict("records")
    ]


def answer(row: Mapping[str, Any] | pd.Series[Any], expected: str, margin: float) -> str:
    """Return in words what a comparison says to a statement about its ratio.

    Parameters
    ----------
    row : mapping
        A row of `compare`.
    expected : {"equal", "lower", "higher"}
        ``equal`` is affirmed by equivalence only, never by the lack of a difference, and denied
        only by an interval wholly outside the margin. A direction is affirmed or denied by a
        difference after correction only: equality within the margin leaves room for a small one.
    margin : float
        The margin of the comparison.

    Returns
    -------
    str
        ``agrees``, ``disagrees``, ``inconclusive``, or for an expected difference where there is
        equality ``inconclusive: no larger than the margin``.
    """
    if expected not in EXPECTATIONS:
        raise UsageError(f"unknown expectation {expected!r}", remedy=f"one of {EXPECTATIONS}")
    if expected == "equal":
        outside = row["low"] > 1 + margin or row["high"] < 1 / (1 + margin)
        # The interval is not adjusted, so that the corrected test must find a difference, too.
        no = "disagrees" if row["differs"] and outside else "inconclusive"
        return "agrees" if row["equivalent"] else no
    if row["differs"]:
        right = row["estimate"] < 1 if expected == "lower" else row["estimate"] > 1
        return "agrees" if right else "disagrees"
    return "inconclusive: no larger than the margin" if row["equivalent"] else "inconclusive"


def plain(value: Any) -> Any:
    """Return a value as JSON data; NaN, infinite and missing numbers become None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value
