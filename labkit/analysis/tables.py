"""Tables as accessible HTML with every text escaped: of any frame, of answers, findings, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from labkit.analysis.claims import LOCAL_BLOCKS
from labkit.analysis.stats import LEAST_BLOCKS

#: Complete blocks from which on a campaign measured here is shown instead of the reference.
LEAST_SHOWN = 6
#: Answers and errors of pages, as ``answers.json`` has them.
Answers = Sequence[Mapping[str, Any]]
#: Characters from which on a column of text has a width of its own.
_LONG = 30
#: Verdicts in the order of bars: the class in the stylesheet, and what is said of their number.
VERDICTS = {
    "holds": ("holds", "hold here"),
    "holds, other size": ("other-size", "hold with another size"),
    "does not hold here": ("not", "do not hold here"),
    "cannot tell": ("cannot", "cannot be told yet"),
    "needs": ("needs", "need what this rig or setting does not have"),
}


@dataclass(frozen=True)
class Html:
    """HTML that a notebook displays, and that a table does not escape."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def html(value: Any) -> str:
    """Return a value as HTML: its text, escaped, unless it is `Html`; nothing for NaN."""
    if isinstance(value, Html):
        return value.text
    return "" if pd.isna(value) else escape(str(value))


@dataclass(frozen=True, repr=False)
class Table:
    """A table that displays itself, in a page in a box that scrolls by itself."""

    #: Texts, numbers in their final form, or `Html`; the first column names a row, and an index
    #: called ``id`` gives anchors.
    frame: pd.DataFrame
    caption: str
    classes: str = ""

    def __repr__(self) -> str:
        return f"{self.caption}\n{self.frame.to_string(index=False)}"

    def _repr_html_(self) -> str:
        frame, head, columns = self.frame, "", list[list[str]]()
        for name in frame:
            texts, kind = frame[name].map(html), ""
            if pd.api.types.is_numeric_dtype(frame[name]):
                kind = ' class="number"'
            elif texts.str.replace("<[^>]*>", "", regex=True).str.len().max() > _LONG:
                kind = ' class="text"'
            head += f'<th scope="col"{kind}>{html(name)}</th>' if name else "<td></td>"
            tag, scope = ("td", "") if columns else ("th", ' scope="row"')
            columns.append([f"<{tag}{scope}{kind}>{text}</{tag}>" for text in texts])
        keys = [f' id="{html(key)}"' if frame.index.name == "id" else "" for key in frame.index]
        rows = [f"<tr{key}>{''.join(row)}</tr>\n" for key, *row in zip(keys, *columns, strict=True)]
        name = html(self.caption)
        return (
            f'<div class="wide" tabindex="0" role="group" aria-label="{name}">'
            f'<table class="{self.classes}">'
            f"<caption><span>{name}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{''.join(rows)}</tbody></table></div>"
        )


def _noted(text: Any, *notes: Any) -> Html:
    """Show a text, a verdict in its colour, with notes in small print below."""
    shown = html(text)
    if text in VERDICTS:
        shown = f'<span class="verdict {VERDICTS[text][0]}">{text}</span>'
    small = [f"<br><small>{note}</small>" for note in map(html, notes) if note]
    return Html(shown + "".join(small))


def opening(findings: pd.DataFrame, answers: Answers) -> Html:
    """Count the findings by verdict; warn of numbers of another machine, pilots, failed pages."""
    counts = findings["verdict"].value_counts()
    parts = [f"{counts[word]} {text}" for word, (_, text) in VERDICTS.items() if word in counts]
    papers = f"{len(findings)} findings of {findings['source'].nunique()} papers"
    lines = [f'<p class="lead">Of {papers}, {", ".join(parts)}.</p>']
    ours = (~findings["dataset"].str.startswith("data/reference")).sum()
    judged = f"{len(findings) - ours} are judged by reference data, {ours} by data measured here"
    needs = f"{LOCAL_BLOCKS} blocks of all their claims: make report PROFILE=decide"
    lines.append(f'<p class="note">{judged}, which takes {needs}.</p>')
    known = [one for one in answers if "error" not in one]
    alarms = [f"{one['page']} failed: {one['error']}" for one in answers if "error" in one]
    elsewhere = [one["study"] for one in known if one["source"] != "here"]
    pilots = [one["study"] for one in known if one["blocks"] < LEAST_BLOCKS]
    less = f"Measured here in fewer than {LEAST_SHOWN} blocks or not at all"
    for text, concerned in {
        f"{less}, and shown by the reference": elsewhere,
        f"Pilots of fewer than {LEAST_BLOCKS} blocks, which decide nothing": pilots,
    }.items():
        studies = "all studies" if len(concerned) == len(known) else ", ".join(concerned)
        alarms += [f"{text}: {studies}."] if concerned else []
    lines += [f'<p class="alarm">{html(text)}</p>' for text in alarms]
    rigs = "; ".join(dict.fromkeys(one["rig"] for one in known))
    dates = sorted(one["measured"] for one in known) or [""]
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    lines.append(f'<p class="note">Rig: {html(rigs)}; measured {html(period)}.</p>')
    return Html("\n".join(lines))


def answers_table(answers: Answers) -> Table:
    """Show each study with its first answer and a link to its page."""
    rows = []
    for one in answers:
        failed = "this page failed" if "error" in one else "none of its conditions was measured"
        answer = one["rows"][0]["sentence"] if one.get("rows") else failed
        question = Html(f'<a href="{html(one["page"])}">{html(one["title"])}</a>')
        rows.append([question, answer, one.get("source", "")])
    frame = pd.DataFrame(rows, columns=["Question", "Answer", "Measured"])
    return Table(frame, "The studies and their first answers", "stacked")


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
        bar = Html(f'<div class="bar">{"".join(parts)}</div>')
        rows.append({"Paper": paper, "Verdicts": bar, "Claims": len(own)})
    key = "".join(f'<span class="{kind}">{word}</span>' for word, (kind, _) in VERDICTS.items())
    shown = Table(pd.DataFrame(rows), "The papers' claims by verdict", "bars")
    return Html(f'<p class="key">{key}</p>\n{shown._repr_html_()}')


def findings_table(findings: pd.DataFrame) -> Table:
    """Show findings with their verdicts and the reasons."""
    rows = []
    for one in findings.to_dict("records"):
        finding = _noted(one["says"], f"{one['source']}, {one['place']}")
        why = _noted(one["why"], f"rests on {one['claims']}; {one['dataset']}")
        verdict = _noted(one["verdict"], one["needs"])
        rows.append({"Finding": finding, "Verdict": verdict, "Why": why})
    return Table(pd.DataFrame(rows), "Findings that the papers are cited for", "stacked")


def paper(ledger: pd.DataFrame, source: str) -> Html:
    """Show the section of a paper: its claims, whose identifiers are the anchors of the rows."""
    own = ledger[ledger["source"] == source]
    rows = []
    for one in own.to_dict("records"):
        claim = _noted(one["says"], f"{one['place']}; {one['id']}", one["sentence"])
        measured = _noted(one["why"], f"{one['n_blocks']:.0f} blocks; {one['dataset']}")
        row = {"Claim": claim, "Published": one["published"], "Measured": measured}
        rows.append(row | {"Verdict": _noted(one["verdict"], one["marks"], one["needs"])})
    claims = Table(pd.DataFrame(rows, own["id"]), f"Claims of {source}", "stacked")
    return Html(f'<h2 id="{html(source)}">{html(source)}</h2>\n{claims._repr_html_()}')
