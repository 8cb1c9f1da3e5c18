"""Comparisons as a person reads them: a number with its interval in one cell, verdicts in sight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.compare import COLUMNS
from labkit.analysis.origin import follows

#: Said once in the text of a page, not in every row.
_SAID = "averaged on the log scale"
#: A space at which a browser does not break the line.
_SOLID = "\N{NO-BREAK SPACE}"
_HEADINGS = {
    "blocks": "blocks",
    "ratio": "ratio{base} [95 %]",
    "verdict": "verdict",
    "difference": "difference, {unit} [95 %]",
    "p": "p",
    "equal": "p of equivalence",
    "needed": "needed",
    "note": "note",
}


@follows
def readable(table: pd.DataFrame, *, scale: float = 1e-3, unit: str = "µs") -> pd.DataFrame:
    """Return a comparison as text, indexed by what names its rows.

    Parameters
    ----------
    table : DataFrame
        What `compare`, `factor_effect` or `shift` returns.
    scale, unit : float, str
        From the stored unit of the differences to the one shown; nanoseconds to microseconds.

    Returns
    -------
    DataFrame
        Strings: ``blocks``, the ratio and the difference with their intervals, ``p`` (Holm),
        ``p of equivalence``, ``verdict``, ``needed`` blocks and ``note``.
    """
    keys = [name for name in table.columns if name not in COLUMNS or name == "condition"]
    names = {name: [str(value) for value in table[name]] for name in keys}
    base = ""
    if len({value.partition(" / ")[2] for value in names.get("contrast", [])}) == 1:
        # One baseline for all: it belongs in the heading, not in every row.
        base = f" to {names['contrast'][0].partition(' / ')[2]}"
        names["contrast"] = [value.partition(" / ")[0] for value in names["contrast"]]
    rows = [_row(row, scale) for row in table.to_dict("records")]
    shown = pd.DataFrame(rows, columns=list(_HEADINGS)).assign(**names)
    headings = {name: text.format(base=base, unit=unit) for name, text in _HEADINGS.items()}
    shown = shown.set_index(keys) if keys else shown
    solid = [name for name in _HEADINGS if name not in ("note", "verdict")]
    shown[solid] = shown[solid].map(lambda text: text.replace(" ", _SOLID))
    return shown.rename(columns=headings)


def absent(table: pd.DataFrame) -> str:
    """Return in words which rows have nothing to compare, and why; empty when there are none."""
    keys = [name for name in table.columns if name not in COLUMNS or name == "condition"]
    rows = table[table["n_blocks"] == 0].to_dict("records")
    said = [f"{', '.join(str(row[name]) for name in keys)} ({row['note']})" for row in rows]
    return "Not compared: " + "; ".join(said) + "." if said else ""


@follows
def blank(table: pd.DataFrame, digits: int = 2) -> pd.DataFrame:
    """Return numbers as text, with `digits` decimals unless a whole column has none; gaps empty."""

    def column(values: pd.Series[Any]) -> list[str]:
        known = [value for value in values if isinstance(value, int | float | np.number)]
        whole = all(math.isnan(value) or float(value).is_integer() for value in known)
        return [_number(value, 0 if whole else digits) for value in values]

    texts = [column(table.iloc[:, number]) for number in range(table.shape[1])]
    made = pd.DataFrame(dict(enumerate(texts)), index=table.index)
    return made.set_axis(table.columns, axis=1)


def _row(row: dict[Any, Any], scale: float) -> dict[str, str]:
    difference = [row[name] for name in ("difference", "difference_low", "difference_high")]
    notes = [note for note in str(row["note"]).split("; ") if note and _SAID not in note]
    if row["blocks_missing"]:
        notes.append("missing: " + ", ".join(map(str, row["blocks_missing"])))
    return {
        "blocks": str(row["n_blocks"]),
        "ratio": _with_interval([row["estimate"], row["low"], row["high"]], 3),
        "difference": _with_interval([scale * item for item in difference], 2),
        "p": _p_value(row["p_adjusted"]),
        "equal": _p_value(row["p_equivalence"]),
        "verdict": str(row["verdict"]),
        "needed": "" if pd.isna(row["needed_blocks"]) else str(row["needed_blocks"]),
        "note": "; ".join(notes),
    }


def _with_interval(values: Sequence[float], digits: int) -> str:
    middle, low, high = values
    if not math.isfinite(middle):
        return ""
    bounds = f" [{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) else ""
    return f"{middle:.{digits}f}{bounds}"


def _p_value(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _number(value: Any, digits: int) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    number = isinstance(value, int | float | np.number)
    return f"{value:,.{digits}f}" if number else str(value)
