"""The reproduction report: a page a paper, the ledger, one PDF, citations and digests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.citation import Entry, software, studies
from labkit.claims.ledger import counts_text
from labkit.claims.paper import Paper
from labkit.claims.schema import load_claims
from labkit.claims.stated import disagreements, recompute
from labkit.dataset import Dataset, load
from labkit.dataset.describe import read_description
from labkit.dataset.files import SUMS, campaigns_within, digest_of, read_sums, write_sums
from labkit.errors import LabkitError, UsageError
from labkit.paths import SHIPPED, project
from labkit.report import pdf
from labkit.report.html import render, write
from labkit.report.ledger_page import build_ledger
from labkit.report.pages import build_glossary, build_page

TITLE = "Five papers on container performance, measured again"
PDF = "reproduction.pdf"
Say = Callable[[str], None]


def build_release(output: Path, data: Path, *, say: Say) -> tuple[Path, list[str]]:
    """Write the report into a folder; return its index, and what is missing from it.

    Every page is made from the campaigns in `data`: nothing is measured. What an earlier report
    wrote is replaced; other files in the folder are an error, since the digests would not hold
    for them.
    """
    datasets = [load(path) for path in campaigns_within(data)]
    known = load_claims()
    datasets = [one for one in datasets if str(one.plan["study"]) in known.studies]
    if not datasets:
        raise UsageError(
            "there is nothing to report on", where=str(data), why="no claim is about its campaigns"
        )
    entries = {entry.key: entry for entry in studies()}
    cite = [software(), read_description(data).entry()]
    _refuse_others(output)
    say(f"evaluating {len(known)} claims")
    sources = [key for key in known.sources if notebook(key).is_file()]
    papers = {key: Paper(key, data) for key in known.sources}
    rows = pd.concat([paper.rows for paper in papers.values()], ignore_index=True)
    shutil.rmtree(output, ignore_errors=True)
    printed = PDF if pdf.browser() else ""
    shared = {"cite": [entry.apa() for entry in cite], "pdf": printed}
    pages, missing = [], []
    for key in sources:
        say(f"writing the page of {key}")
        own = set(rows.loc[rows["source"] == key, "study"])
        used = [one for one in datasets if one.plan["study"] in own]
        page = output / f"{key}.html"
        values = {**shared, "key": key, "citation": entries[key].apa()}
        try:
            build_page(
                notebook(key),
                page,
                parameters={"data": str(data)},
                title=entries[key].title,
                note="; ".join(map(_campaign_text, used)) or "nothing yet",
                cwd=project(),
                template="paper.html.j2",
                values=values,
            )
        except LabkitError as error:
            missing.append(f"{key}: {error}")
            say(f"{key} failed: {error}")
        pages.append(page)
    index = _index(output, rows, datasets, [entries[key] for key in sources], papers, shared)
    build_ledger(rows, recompute(), disagreements(), output / "ledger.html", home=shared)
    build_glossary(output / "glossary.html", home=shared)
    _citations(output, [*cite, *entries.values()])
    if printed:
        say("printing the PDF")
        _print([index, *pages], output / PDF)
    else:
        missing.append(
            f"no {PDF}: there is no {' or '.join(pdf.BROWSERS[:2])}; apt-get install chromium, and "
            "run this again. The HTML pages are complete."
        )
    files = sorted(path for path in output.iterdir() if path.name != SUMS)
    write_sums(output / SUMS, {path.name: digest_of(path) for path in files})
    return index, missing


def notebook(key: str) -> Path:
    """Return the notebook of a paper's page."""
    return project("notebooks/papers") / f"{key}.ipynb"


def _refuse_others(output: Path) -> None:
    """Raise unless a folder holds nothing but an earlier report."""
    found = {path.name for path in output.iterdir()} if output.is_dir() else set()
    own = {SUMS, "ledger.csv"} <= found
    written = {SUMS, *read_sums(output / SUMS)} if own else set()
    if others := sorted(found - written):
        raise UsageError(
            "the folder holds something else than a report",
            where=str(output),
            why=", ".join(others[:5]),
            remedy="name another folder with --output, or empty this one",
        )


def _campaign_text(one: Dataset) -> str:
    about = _about(one)
    return f"{about['study']} on {about['measured']}, {about['blocks']} blocks"


def _about(one: Dataset) -> dict[str, Any]:
    """Return what the index says of a campaign."""
    # Not the rows of `one.ok`: a trial has one for each condition that it measured.
    ok = [record for record in one.records if record["status"] == "ok"]
    started = min((record["started_ns"] for record in ok), default=0) // 10**9
    return {
        "study": str(one.plan["study"]),
        "measured": datetime.fromtimestamp(started, UTC).date().isoformat() if started else "",
        "blocks": len({record["block"] for record in ok}),
        "trials": len(ok),
        "rig": str(one.rig.get("name", "")),
    }


def _index(
    output: Path,
    rows: pd.DataFrame,
    datasets: Sequence[Dataset],
    entries: Sequence[Entry],
    papers: Mapping[str, Paper],
    shared: Mapping[str, Any],
) -> Path:
    """Write the index of the report."""
    shown = []
    for entry in entries:
        own = rows[rows["source"] == entry.key]
        first = own[own["tier"] == "headline"]
        shown.append(
            {
                "key": entry.key,
                "title": entry.title,
                "citation": entry.apa(),
                "headlines": counts_text(first) or "none",
                "others": counts_text(own[own["tier"] != "headline"]) or "none",
                "decided": papers[entry.key].decided(),
            }
        )
    headlines = rows[rows["tier"] == "headline"]
    sentence = (
        f"Of {len(headlines)} headlines of {len(shown)} papers: {counts_text(headlines)}. "
        f"Of all {len(rows)} claims: {counts_text(rows)}."
    )
    text = render(
        "release.html.j2",
        TITLE,
        {"page_title": TITLE},
        sentence=sentence,
        papers=shown,
        campaigns=[_about(one) for one in datasets],
        **shared,
    )
    write(output / "index.html", text)
    return output / "index.html"


def _citations(output: Path, entries: Sequence[Entry]) -> None:
    """Write how to cite labkit, the dataset and the papers."""
    shutil.copyfile(SHIPPED / "CITATION.cff", output / "CITATION.cff")
    bibtex = "\n\n".join(entry.bibtex() for entry in entries)
    (output / "CITATION.bib").write_text(f"{bibtex}\n", encoding="utf-8")


def _print(pages: Sequence[Path], output: Path) -> None:
    """Print pages as one PDF."""
    whole = output.with_name(".printed.html")
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages if page.is_file()}
    whole.write_text(pdf.joined(texts), encoding="utf-8")
    try:
        pdf.print_pdf(whole, output)
    finally:
        whole.unlink()
