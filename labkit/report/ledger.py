"""The ledger as a page that is filtered, sorted and linked to, and as files for a spreadsheet."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from labkit.analysis.overview import ledger_overview
from labkit.claims.verdicts import RESULTS
from labkit.report.cells import TEMPLATES
from labkit.report.html import environment, frame, picture, write
from labkit.report.origin import claimed
from labkit.report.text import number

#: What a reader picks rows by, with the words above each choice.
FILTERS = {
    "source": "Source",
    "study": "Study",
    "setting": "Setting",
    "result": "Result",
    "arithmetic": "The paper's own arithmetic",
}
#: The columns of the table of claims, with the words above each.
COLUMNS = {
    "claim": "Claim",
    "published": "Published",
    "arithmetic": "Its own arithmetic",
    "measured": "Measured",
    "setting": "Setting",
    "result": "Result",
}


def build_ledger(
    rows: pd.DataFrame,
    arithmetic: pd.DataFrame,
    output: Path,
    *,
    title: str = "The ledger: every claim, published and measured",
) -> Path:
    """Write the ledger's page, and its rows as CSV beside it.

    Parameters
    ----------
    rows : DataFrame
        What `labkit.ledger` returns.
    arithmetic : DataFrame
        What `labkit.ledger.stated.recompute` returns: the papers' words against their own tables.
    output : Path
        The page, ``reports/ledger.html``; ``ledger.csv`` and ``arithmetic.csv`` go beside it.
    title : str
        Its heading.

    Returns
    -------
    Path
        `output`.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(output.with_suffix(".csv"), index=False, lineterminator="\n")
    arithmetic.to_csv(output.with_name("arithmetic.csv"), index=False, lineterminator="\n")
    whence = claimed(rows, output.parent)
    script = (TEMPLATES / "ledger.js").read_text(encoding="utf-8")
    text = (
        environment()
        .get_template("ledger.html.j2")
        .render(
            **frame(title, {"page_title": title}),
            script=Markup(script),
            # Only this script may run: its digest stands in the page's security policy.
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            claims=[_shown(row) | {"whence": whence(row)} for row in rows.to_dict("records")],
            choices={
                name: (words, list(dict.fromkeys(filter(None, map(str, rows[name])))))
                for name, words in FILTERS.items()
            },
            columns=COLUMNS,
            counts=counted(rows),
            results=[name for name in RESULTS if (rows["result"] == name).any()],
            figure=picture(ledger_overview(rows)),
            stated=[_statement(row) for row in arithmetic.to_dict("records")],
        )
    )
    write(output, text)
    return output


def counted(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return how many claims of each source have which result, in the order of `RESULTS`."""
    return {
        str(source): {name: int((part == name).sum()) for name in RESULTS if (part == name).any()}
        for source, part in rows.groupby("source", sort=False)["result"]
    }


def _shown(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row with its numbers as a person writes them."""
    estimate = _number(row["estimate"])
    if estimate:
        unit = "" if row["unit"] in ("", "1") else f" {row['unit']}"
        low, high = _number(row["low"]), _number(row["high"])
        estimate += unit + (f" [{low} to {high}]" if low and high else ", no interval")
    return {**row, "measured": estimate or "none"}


def _statement(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        **row,
        "stated": row["stated"] if isinstance(row["stated"], bool) else _number(row["stated"]),
        "computed": _number(row["computed"]) or _number(row["shown"]),
        "shown": _number(row["shown"]),
    }


def _number(value: Any) -> str:
    """Return a number as text, and nothing where there is none."""
    if value is None or isinstance(value, bool | str):
        return "" if value is None else str(value)
    return number(float(value)) if math.isfinite(float(value)) else ""
