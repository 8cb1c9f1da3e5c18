"""The claims of the papers, the conclusions, and what the report's index shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.analysis import headlines
from labkit.analysis.origin import mark
from labkit.analysis.overview import readable_claims
from labkit.chapters import whence
from labkit.chapters.show import Headline, notebook, put, say, told
from labkit.claims.ledger import ledger, origin
from labkit.claims.verdicts import RESULTS
from labkit.report.cells import SUMMARY_MIME

if TYPE_CHECKING:
    from labkit.chapters.page import Page

_CLAIMS = """Every testable claim of the paper about this study, from the ledger of all papers \
(`data/claims.toml`), in our words: what the paper has, whether that follows from its own tables, \
and what was measured here, with an interval of 95 %.

`setting` is what a claim asks of a rig against what this one has: `same`, `analogue` (it can be \
decided, but the paper's rig had more), or `unsuitable`. `result` is what the measurement says: \
`replicated` and `contradicted` are each shown by a test of their own, corrected by Holm over the \
paper's claims that can be decided; `inconclusive` is neither, with the number of blocks that it \
would take; on an unsuitable rig the result is `not decidable on this rig`, whatever the numbers \
beside it are."""


#: Verdicts that do not come from what was measured: more blocks would not change them.
_UNMEASURED = ("not decidable on this rig", "not measured", "from its tables")


def claims(page: Page, source: str, study: str) -> pd.DataFrame:
    """Show the claims of a paper beside what was measured; return their rows of the ledger."""
    rows = ledger(page.campaign)
    rows = rows[(rows["source"] == source) & (rows["study"] == study)]
    if page.entries is None:
        say(_CLAIMS)
    page.entries = rows if page.entries is None else pd.concat([page.entries, rows])
    say(f"{len(rows)} claims: {_counted(rows)}." if len(rows) else f"No claim of {source}.")
    if len(rows):
        put(mark(readable_claims(rows), origin(rows)))
    return rows


def _counted(rows: pd.DataFrame) -> str:
    """Return how many claims have which result, in words."""
    results = rows["result"].value_counts()
    return ", ".join(f"{results[name]} {name}" for name in RESULTS if name in results)


def conclusions(page: Page, found: list[Mapping[str, Any]], title: str) -> None:
    """List headlines and what became of the claims, and hand both to the report's index."""
    found = [_marked(line, page.pilot) for line in [*found, *_decided(page.entries)]]
    say("\n".join(map(told, found)) or "Nothing was measured that could be concluded from.")
    summary = headlines.plain(
        {
            "study": page.plan["study"],
            "title": title,
            "headlines": found,
            "noise_floor": _noise(page),
            "decidable_margin": max(page.margins.values(), default="unknown (pilot)"),
            "refusals": page.plan["refusals"],
            "rig": page.rig,
            **_origin(page),
        }
    )
    text = f"summary of {summary['study']}"
    shown = {SUMMARY_MIME: summary, "text/plain": text}
    notebook.display(shown, raw=True, metadata=whence.concluded(page, found))


def _marked(line: Mapping[str, Any], pilot: bool) -> Mapping[str, Any]:
    """Return a headline whose verdict says that it is a pilot's, where it is one."""
    verdict = str(line["verdict"])
    if not pilot or verdict.endswith("(pilot)") or verdict in _UNMEASURED:
        return line
    # What it was made of stays with it.
    return Headline({**line, "verdict": f"{verdict} (pilot)"}, getattr(line, "origin", None))


def _decided(entries: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return a headline for each claim that was decided, and one a paper that counts them."""
    lines: list[dict[str, Any]] = []
    papers = [] if entries is None else list(dict.fromkeys(entries["source"]))
    for paper in papers:
        rows = entries[entries["source"] == paper] if entries is not None else pd.DataFrame()
        name = "the paper" if len(papers) == 1 else paper
        for claim in rows.to_dict("records"):
            if claim["result"] in ("replicated", "contradicted"):
                of = origin(rows[rows["id"] == claim["id"]])
                lines.append(Headline(_line(claim, name), of))
        lines.append(
            {
                "text": f"{name}, {len(rows)} claims: {_counted(rows)}",
                "verdict": rows["result"].value_counts().index[0],
                "estimate": None,
            }
        )
    return lines


def _line(claim: dict[Any, Any], name: str) -> dict[str, Any]:
    return {
        "text": f"{name}: {claim['statement'].rstrip('.')}",
        "verdict": f"{claim['result']} ({claim['setting']} setting)",
        **{number: headlines.plain(claim[number]) for number in ("estimate", "low", "high")},
        "unit": "times" if claim["unit"] == "1" else claim["unit"],
    }


def _noise(page: Page) -> list[dict[str, Any]]:
    """Return the noise floors; with several values, each line says whose it is."""
    lines = []
    for floor in page.floors:
        several = (
            ["of"] if len({str(name) for one in page.floors for name in one["of"]}) > 1 else []
        )
        lines += headlines.noise_lines(floor, [*several, *page.factors])
    return lines


def _origin(page: Page) -> dict[str, Any]:
    """Return what was measured, when, and where its data are."""
    parts, attempts = Path(page.data).parts, page.attempts
    started = ""
    if len(attempts):
        first = int(attempts["started_ns"].min()) // 10**9
        started = datetime.fromtimestamp(first, UTC).date().isoformat()
    return {
        "blocks": page.n_blocks,
        "trials": sum(one["status"] == "ok" for one in page.campaign.records),
        "failed": page.failed,
        "dataset": Path(page.data).name if Path(page.data).is_absolute() else page.data,
        "measured": started,
        "profile": parts[2] if parts[:2] == ("data", "local") and len(parts) > 3 else "",
        "reference": parts[:2] == ("data", "reference"),
    }
