"""Tables of the index and of the ledger: answers, findings, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.analysis.html import VERDICTS, Html, Table, html, noted, verdict
from labkit.analysis.stats import LEAST_BLOCKS

Answers = Sequence[Mapping[str, Any]]


def opening(findings: pd.DataFrame, answers: Answers) -> Html:
    """Count the findings by verdict; warn of numbers of another machine, pilots, failed pages."""
    counts = findings["verdict"].value_counts()
    parts = [f"{counts[word]} {text}" for word, (_, text) in VERDICTS.items() if word in counts]
    papers = f"{len(findings)} findings of {findings['source'].nunique()} papers"
    lines = [f'<p class="lead">Of {papers}, {", ".join(parts)}.</p>']
    known = [one for one in answers if "error" not in one]
    texts = [f"{one['page']} failed: {one['error']}" for one in answers if "error" in one]
    elsewhere = [one["study"] for one in known if one["source"] != "here"]
    pilots = [one["study"] for one in known if one["blocks"] < LEAST_BLOCKS]
    for text, concerned in (
        ("Not measured on this machine, but by the reference campaign", elsewhere),
        (f"Pilots of fewer than {LEAST_BLOCKS} blocks, which decide nothing", pilots),
    ):
        studies = "all studies" if len(concerned) == len(known) else ", ".join(concerned)
        texts += [f"{text}: {studies}."] if concerned else []
    lines += [f'<p class="alarm">{html(text)}</p>' for text in texts]
    rigs = "; ".join(dict.fromkeys(one["rig"] for one in known))
    dates = sorted(one["measured"] for one in known) or [""]
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    lines.append(f'<p class="note">Rig: {html(rigs)}; measured {html(period)}.</p>')
    return Html("\n".join(lines))


def answers_table(answers: Answers) -> Table:
    """Show each study with its first answer and a link to its page."""
    rows = []
    for one in answers:
        question = Html(f'<a href="{html(one["page"])}">{html(one["title"])}</a>')
        if "error" in one or not one["rows"]:
            what = "this page failed" if "error" in one else "none of its conditions was measured"
            rows.append((question, what, "", ""))
            continue
        first = one["rows"][0]
        measured = f"{one['source']}, {first['n_blocks']:.0f} blocks"
        rows.append((question, one["sentences"][0], first["ratio"], measured))
    columns = ["Question", "Answer", "Ratio [95 % interval]", "Measured"]
    table = pd.DataFrame(rows, columns=columns)
    return Table(table, "The studies and their first answers", classes="stacked")


def verdict_bars(claims: pd.DataFrame) -> Html:
    """Show the numbers of each paper's claims by verdict, as a bar; `claims` has a row a claim."""
    rows = []
    for source, own in claims.groupby("source", sort=False):
        counts = own["verdict"].value_counts()
        parts = [
            f'<span class="{kind}" style="flex-grow:{counts[word]}" title="{word}">{counts[word]}'
            f'<span class="unseen"> {word}</span></span> '
            for word, (kind, _) in VERDICTS.items()
            if word in counts
        ]
        paper = Html(f'<a href="90-ledger.html#{html(source)}">{html(source)}</a>')
        rows.append((paper, Html(f'<div class="bar">{"".join(parts)}</div>'), len(own)))
    table = pd.DataFrame(rows, columns=["Paper", "Verdicts", "Claims"])
    key = "".join(f'<span class="{kind}">{word}</span>' for word, (kind, _) in VERDICTS.items())
    shown = Table(table, "The papers' claims by verdict", classes="bars")
    return Html(f'<p class="key">{key}</p>\n{shown._repr_html_()}')


def findings_table(findings: pd.DataFrame) -> Table:
    """Show findings with their verdicts and the reasons."""
    rows = [
        (
            noted(one["says"], f"{one['source']}, {one['place']}"),
            verdict(one["verdict"], one["needs"]),
            noted(one["why"], f"rests on {one['claims']}; {one['dataset']}"),
        )
        for one in findings.to_dict("records")
    ]
    table = pd.DataFrame(rows, columns=["Finding", "Verdict", "Why"])
    return Table(table, "Findings that the papers are cited for", classes="stacked")


def paper(ledger: pd.DataFrame, source: str) -> Html:
    """Show the section of a paper: its claims, whose identifiers are the anchors of the rows."""
    own = ledger[ledger["source"] == source]
    rows = [
        (
            noted(one["says"], f"{one['place']}; {one['id']}", one["sentence"]),
            one["published"],
            noted(one["why"], f"{one['n_blocks']:.0f} blocks; {one['dataset']}"),
            verdict(one["verdict"], one["marks"], one["needs"]),
        )
        for one in own.to_dict("records")
    ]
    table = pd.DataFrame(rows, own["id"], ["Claim", "Published", "Measured", "Verdict"])
    claims = Table(table, f"Claims of {source}", classes="stacked")
    return Html(f'<h2 id="{html(source)}">{html(source)}</h2>\n{claims._repr_html_()}')
