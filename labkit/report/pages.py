"""Self-contained pages: one for each executed notebook, and the index of them."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from markupsafe import Markup

from labkit.analysis.power import least_blocks
from labkit.claims.ledger import RESULTS
from labkit.errors import LabkitError
from labkit.notebooks import execute
from labkit.paths import SHIPPED
from labkit.report import cells, forest
from labkit.report.accessible import make_accessible
from labkit.report.html import SUMMARY_MIME, paper_pages, render, render_part, write

#: A row of the glossary.
_TERM = re.compile(r"^\| (?!term \|)(?!---)(.+?) \| (.+?) \|$", re.MULTILINE)
#: How a result of a claim looks.
_TONES = {
    "replicated": "good",
    "contradicted": "bad",
    "undecided": "open",
    "not decidable on this rig": "unable",
    "not measured": "absent",
    "error": "bad",
}


def build_page(
    notebook: Path,
    output: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    title: str,
    note: str = "",
    cwd: Path | None = None,
    template: str = "page.html.j2",
    values: Mapping[str, Any] | None = None,
) -> Path:
    """Execute an analysis notebook and write it as one self-contained HTML page.

    `title` is the page's heading, and its name in the index where the summary has none; `note` says
    below it why this campaign is shown; the notebook runs in `cwd`, by default its own folder;
    another `template` takes `values`, and shows no code. If the notebook fails, the page shows its
    output up to the error, the executed notebook is kept in the same folder, and the error is
    raised.
    """
    parameters = dict(parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    frame: dict[str, Any] = {"template": template, "values": values}
    with tempfile.TemporaryDirectory(prefix="labkit-page-") as scratch:
        executed = Path(scratch) / f"{output.stem}.ipynb"
        try:
            execute(notebook, executed, parameters, cwd=cwd)
        except LabkitError as error:
            scratched = executed.with_name(f"{output.stem}.failed.ipynb")
            if not scratched.exists():
                raise
            failed.write_bytes(scratched.read_bytes())
            error.where = error.where.replace(str(scratched), str(failed))
            text = error.why or error.what
            write(output, _render_page(failed, parameters, title, note, error=text, **frame))
            raise
        failed.unlink(missing_ok=True)
        write(output, _render_page(executed, parameters, title, note, **frame))
    return output


def read_summary(page: Path) -> dict[str, Any]:
    """Return the summary that a page holds; empty where there is none.

    It is what the notebook displayed, with ``page_title``, and ``error`` if the notebook failed.
    """
    match = re.search(
        rf'<script type="{re.escape(SUMMARY_MIME)}">(.*?)</script>',
        page.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return dict(json.loads(match[1])) if match else {}


def build_index(
    pages: Sequence[Path],
    output: Path,
    *,
    failures: Mapping[str, str] | None = None,
    ledger: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """Write the index: one sentence, the headlines in one figure, the studies, the papers."""
    studies = [index_entry(page, output) for page in pages]
    studies += [
        {"title": name, "href": None, "summary": {}, "error": reason, "decided": 0, "open": 0}
        for name, reason in (failures or {}).items()
    ]
    summaries = [study["summary"] for study in studies if study["summary"]]
    rigs = [summary["rig"] for summary in summaries if summary.get("rig")]
    scale = forest.Scale([one["answer"] for one in summaries if one.get("answer")])
    own = paper_pages(ledger or {}, output.parent)
    papers = [
        {**_paper(source, counts), "page": own.get(source)}
        for source, counts in (ledger or {}).items()
    ]
    text = render(
        "index.html.j2",
        "What containers cost, measured",
        {},
        sentence=_sentence(studies, ledger or {}),
        banners=_banners(studies),
        studies=studies,
        axis=forest.axis(scale),
        rows=[_headline(study, scale) for study in studies if study["summary"].get("answer")],
        papers=papers,
        key=[(name, _TONES[name]) for name in RESULTS if any(name in one["has"] for one in papers)],
        rig_line=_rig_line(rigs[0] if rigs else {}, summaries),
    )
    write(output, text)
    return output


def build_glossary(output: Path, *, home: Mapping[str, Any] | None = None) -> Path:
    """Write the page of the terms that the pages use, from ``docs/glossary.md``.

    `home` is what the navigation of the reproduction report takes.
    """
    text = (SHIPPED / "docs" / "glossary.md").read_text(encoding="utf-8")
    groups = [
        (group.partition("\n")[0], [match.groups() for match in _TERM.finditer(group)])
        for group in text.split("\n## ")[1:]
    ]
    title = "Glossary"
    text = render("glossary.html.j2", title, {"page_title": title}, groups=groups, home=home)
    write(output, text)
    return output


def index_entry(page: Path, index: Path) -> dict[str, Any]:
    """Return what the index shows of one page."""
    summary = read_summary(page)
    return {
        "title": summary.get("title") or summary.get("page_title") or page.stem,
        "href": Path(os.path.relpath(page, index.parent)).as_posix(),
        "summary": summary,
        "error": summary.get("error"),
        "sentence": (summary.get("answer") or {}).get("sentence"),
        "decided": int(summary.get("decided") or 0),
        "open": int(summary.get("open") or 0),
    }


def _headline(study: Mapping[str, Any], scale: forest.Scale) -> dict[str, Any]:
    """Return a study's answer as a row of the figure of headlines."""
    answer = study["summary"]["answer"]
    compared = f"{answer['condition']} against {answer['baseline']}"
    label = f"{compared}: {answer['cells']['ratio'] or 'no ratio'}, {answer['word']}"
    return {
        "href": study["href"],
        "compared": compared,
        "metric": answer["quantity"],
        "drawing": forest.row(answer, scale, label),
        "word": answer["word"],
        **{name: answer["cells"][name] for name in ("value", "difference", "ratio")},
    }


def _paper(source: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a paper's claims as the parts of a bar."""
    known = [name for name in RESULTS if counts.get(name)]
    parts = [{"result": name, "count": counts[name], "tone": _TONES[name]} for name in known]
    return {"source": source, "parts": parts, "has": set(known), "total": sum(counts.values())}


def _sentence(studies: Sequence[Mapping[str, Any]], ledger: Mapping[str, Mapping[str, int]]) -> str:
    """Return what the report holds in one sentence."""
    decided, opened = (sum(study[name] for study in studies) for name in ("decided", "open"))
    # A study that could not be measured anew may have a page of earlier data as well.
    names = {study["summary"].get("study") or study["title"] for study in studies} - {"ledger"}
    text = f"{len(names)} studies decide {decided} of {decided + opened} questions"
    totals = {name: sum(row.get(name, 0) for row in ledger.values()) for name in RESULTS}
    if claims := sum(totals.values()):
        found = " and ".join(f"{totals[name]} are {name}" for name in RESULTS[:2])
        text += f"; of {claims} published claims {found}"
    return f"{text}."


def _banners(studies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader has to know first: numbers of elsewhere, pilots."""

    def named(some: Sequence[Mapping[str, Any]]) -> str:
        if len(some) == len(studies):
            return "all studies"
        return ", ".join(one["summary"].get("study") or one["title"] for one in some)

    reference = [one for one in studies if one["summary"].get("reference")]
    pilots = [
        one
        for one in studies
        if isinstance(blocks := one["summary"].get("blocks"), int) and blocks < least_blocks()
    ]
    banners = []
    for why in dict.fromkeys(one["summary"].get("unmeasured", "") for one in studies):
        some = [one for one in studies if one["summary"].get("unmeasured", "") == why]
        banners += [f"No measurements ({named(some)}): {why}."] if why else []
    if reference:
        banners.append(
            f"Not measured on this machine ({named(reference)}): these numbers are those of the "
            "reference campaign that labkit comes with."
        )
    if pilots:
        banners.append(
            f"Pilots, too few blocks for any verdict ({named(pilots)}): "
            "labkit run STUDY --profile quick measures enough."
        )
    return banners


def _rig_line(rig: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the rig, the dates and the profiles in one line."""
    if not rig:
        return "The rig is not stated."
    name, kind = str(rig.get("name", "")), str(rig.get("kind", ""))
    parts = [name if name == kind else f"{name} ({kind})", f"{len(rig.get('hosts') or {})} hosts"]
    if rig.get("shared_kernel"):
        parts.append("one kernel")
    parts += [f"CPUs {cpus}" for role, cpus in (rig.get("cpu_map") or {}).items() if role == "all"]
    dates = sorted({str(one["measured"]) for one in summaries if one.get("measured")})
    parts += [f"measured {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}"] if dates else []
    profiles = dict.fromkeys(str(one["profile"]) for one in summaries if one.get("profile"))
    parts += [f"profile {', '.join(profiles)}"] if profiles else []
    return f"Rig: {', '.join(parts)}."


def _render_page(
    notebook: Path,
    parameters: Mapping[str, Any],
    title: str,
    note: str,
    *,
    error: str = "",
    template: str = "page.html.j2",
    values: Mapping[str, Any] | None = None,
) -> str:
    """Return an executed notebook as the text of its page."""
    document = nbformat.read(notebook, as_version=4)
    summary = _displayed_summary(document)
    carried = {**summary, "page_title": title, **({"error": error} if error else {})}
    title = str(summary.get("title") or title)
    sections, rest = cells.parts(document, title, code=values is None)
    body = render_part(
        "sections.html.j2",
        sections=sections,
        answer=summary.get("answer"),
        rest=rest,
        # Of a notebook that has no tags, or failed, everything is worth seeing at once.
        folded=bool(sections) and not error,
    )
    body = make_accessible(body)
    return render(
        template,
        title,
        carried,
        code_style=Markup(_code_style()),
        summary=summary,
        parameters=parameters,
        note=note,
        error=error,
        contents=_contents(body),
        body=body,
        **(values or {}),
    )


def _contents(body: str) -> list[tuple[str, str]]:
    """Return id and text of the main headings of a page."""
    soup = BeautifulSoup(body, "html.parser")
    found = [(str(one["id"]), one.get_text().removesuffix("¶")) for one in soup.select("h2[id]")]
    return [*found, ("appendix", "Appendix")] if soup.find(id="appendix") else found


def _displayed_summary(document: Any) -> dict[str, Any]:
    """Return the last summary that a notebook displayed."""
    summaries = [
        output["data"][SUMMARY_MIME]
        for cell in document.cells
        for output in cell.get("outputs", [])
        if SUMMARY_MIME in output.get("data", {})
    ]
    return dict(summaries[-1]) if summaries else {}


def _code_style() -> str:
    """Return the colours of source code, light and dark."""
    from pygments.formatters import HtmlFormatter

    # Every colour of this style has a contrast of 4.5 on a light box.
    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    plain = ".highlight { background: none !important; }"
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}\n{plain}"
