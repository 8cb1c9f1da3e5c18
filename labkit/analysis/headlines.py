"""What a report's index shows of an analysis: plain JSON values, nothing that is not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd


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


def plain(value: Any) -> Any:
    """Return a value as JSON data; NaN, infinite and missing numbers become None.

    Numbers are rounded to 10 digits: what comes after depends on the processor, whose libraries add
    up in another order, and the same data are to give the same pages on every machine.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return float(f"{value:.10g}") if isinstance(value, float) else value
