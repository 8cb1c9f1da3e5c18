"""The page of the ledger, with filters, sorting and a link to each claim, and its rows as CSV."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from labkit.answers import confidence_text, interval_text, quantity
from labkit.claims.ledger import RESULTS, TIERS, totals
from labkit.dataset import load
from labkit.paths import project
from labkit.plots import ledger_overview
from labkit.report.html import TEMPLATES, number, paper_pages, picture, render, write
from labkit.report.provenance import provenance, provenance_html

#: Columns to filter by, each with its label.
FILTERS = {
    "tier": "Kind",
    "source": "Source",
    "study": "Study",
    "setting": "Setting",
    "result": "Result",
    "arithmetic": "The paper's own arithmetic",
}
#: Columns of the table of claims, each with its heading.
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
    disagreements: pd.DataFrame,
    output: Path,
    *,
    campaigns: Sequence[str] = (),
    home: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of the ledger, with its three tables as CSV files in its folder.

    `rows` is the result of `labkit.ledger`; `arithmetic` and `disagreements` are those of the
    functions `recompute` and `disagreements` of `labkit.claims.stated`; `campaigns` says which
    campaign counts of each study, and why; `home` is what the navigation of the reproduction
    report takes.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(output.with_suffix(".csv"), index=False, lineterminator="\n")
    arithmetic.to_csv(output.with_name("arithmetic.csv"), index=False, lineterminator="\n")
    disagreements.to_csv(output.with_name("disagreements.csv"), index=False, lineterminator="\n")
    datasets = _provenance_of(rows)
    title = "The ledger: every claim, published and measured"
    script = (TEMPLATES / "ledger.js").read_text(encoding="utf-8")
    text = render(
        "ledger.html.j2",
        title,
        {"page_title": title},
        campaigns=campaigns,
        home=home,
        papers=paper_pages(rows["source"], output.parent),
        script=Markup(script),
        # The page's security policy allows only the script with this digest.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        claims=[
            _claim(row, datasets, output.parent)
            for tier in TIERS
            for row in rows[rows["tier"] == tier].to_dict("records")
        ],
        choices={
            name: (label, list(dict.fromkeys(filter(None, map(str, rows[name])))))
            for name, label in FILTERS.items()
        },
        columns=COLUMNS,
        answer=" ".join(f"{line}." for line in totals(rows)),
        counts=counted(rows),
        headline_counts=counted(rows[rows["tier"] == "headline"]),
        results=[name for name in RESULTS if (rows["result"] == name).any()],
        figure=picture(ledger_overview(rows)),
        statements=[_statement(row) for row in arithmetic.to_dict("records")],
        disagreements=disagreements.to_dict("records"),
    )
    write(output, text)
    return output


def counted(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return how many claims of each source have which result, in the order of `RESULTS`."""
    return {
        str(source): {name: int((part == name).sum()) for name in RESULTS if (part == name).any()}
        for source, part in rows.groupby("source", sort=False)["result"]
    }


def _provenance_of(rows: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the provenance of each dataset that a claim was evaluated on, by its path."""
    paths = dict.fromkeys(rows.loc[rows["estimate"].notna(), "dataset"])
    # Of a campaign outside of the project only the name is known here.
    return {
        path: provenance(load(project(path))) for path in paths if path and project(path).is_dir()
    }


def _claim(
    row: Mapping[Any, Any], datasets: Mapping[str, Mapping[str, str]], folder: Path
) -> dict[str, Any]:
    """Return a row as the page shows it, with numbers as text and its provenance."""
    estimate = interval_text(row["estimate"], row["low"], row["high"], row["unit"])
    if estimate and "[" not in estimate:
        estimate += ", no interval"
    elif estimate and math.isfinite(row["confidence"]):
        estimate += f", {confidence_text(row['confidence'])}"
    about = quantity(row["metric"], row["statistic"])
    shown = {**row, "about": about, "measured": estimate or "none", "provenance": "", "page": ""}
    if estimate and row["dataset"] in datasets:
        again = f"labkit ledger {row['dataset']} --source {row['source']}"
        lines = {**datasets[row["dataset"]], "Evaluated again by": again}
        del lines["Dataset"]  # which is in the line that opens them
        pages = sorted(folder.glob(f"[0-9]*-{row['study']}.html"))
        shown |= {"provenance": provenance_html(lines), "page": pages[0].name if pages else ""}
    return shown


def _statement(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a statement with its numbers as text; what is stated may be a truth, which stays."""
    stated = row["stated"] if isinstance(row["stated"], bool) else _number(row["stated"])
    numbers = {name: _number(row[name]) for name in ("computed", "shown")}
    return {**row, **numbers, "stated": stated}


def _number(value: float) -> str:
    """Return a number as text; an empty text where there is none."""
    return number(float(value)) if math.isfinite(value) else ""
