"""Pages of the report: notebooks that papermill executes, made self-contained by nbconvert."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.analysis.tables import LEAST_SHOWN, html
from labkit.data import Campaign, by_study
from labkit.errors import LabkitError
from labkit.notebooks import execute
from labkit.paths import project, relative
from labkit.process import say

#: Type of the output by which a notebook hands its answers to the index.
ANSWER = "application/vnd.labkit.answer+json"
#: Tags of cells that a page leaves out: defaults of parameters, and a cell's error repeated.
_HIDDEN = {"hide", "parameters", "papermill-error-cell-tag"}


def page(executed: Path, output: Path, note: str) -> str:
    """Write an executed notebook and a note as HTML that loads nothing, and return the title."""
    from nbconvert import HTMLExporter  # slow to import

    document = json.loads(executed.read_text(encoding="utf-8"))
    heading, *cells = [
        one
        for one in document["cells"]
        if not _HIDDEN & {*one["metadata"].get("tags", [])}
        and not any(ANSWER in output.get("data", {}) for output in one.get("outputs", []))
    ]
    title = "".join(heading["source"]).splitlines()[0].lstrip("# ")
    text = f'<p class="note">{html(note)}</p>' if note else ""
    small = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": text}
    document["cells"] = [heading, small, *cells]
    # Links to the other pages: only in a report, which has a ledger.
    reported = output.with_name("ledger.csv").exists()
    about = {"title": title, "page": output.name, "reported": reported, "version": __version__}
    templates = str(Path(__file__).parent / "templates")
    exporter = HTMLExporter(template_name="labkit", extra_template_basedirs=[templates])
    text, _ = exporter.from_file(io.StringIO(json.dumps(document)), about)
    output.write_text(text, encoding="utf-8")
    return title


def report(folder: Path, data: Path | None, *, done: Collection[Path] = ()) -> list[dict[str, Any]]:
    """Build the pages of all studies, the ledger and the index; return answers or error by page.

    Pages show the campaigns in `data`, by default those measured here, else the reference. The
    notebooks of those in `done` were executed before, and are not executed again.
    """
    from labkit.analysis import claims

    home, folder = project(), folder.absolute()
    folders = [home / "data/reference", home / "data/local"] if data is None else [data.absolute()]
    folder.mkdir(parents=True, exist_ok=True)
    ledger, handed = folder / "ledger.csv", folder / "answers.json"
    say("evaluating the claims")
    claims.ledger(*folders).to_csv(ledger, index=False, lineterminator="\n")
    given = {"ledger": str(relative(ledger, home))}
    # The last folder with a campaign of enough blocks counts, else the first with any.
    shown, *later = [by_study(one) for one in folders]
    for found in later:
        shown |= {n: one for n, one in found.items() if len(one.complete_blocks) >= LEAST_SHOWN}
    answers = _build(folder, home / "notebooks/90-ledger.ipynb", given)
    # One after another: the samples in two kernels would need more than 1 GB.
    for study in sorted(shown):
        say(f"analysing {study}")
        answers += study_pages(folder, shown[study], done=shown[study].path in done)
    answers.sort(key=lambda one: str(one["page"]))
    handed.write_text(json.dumps(answers, indent=1, sort_keys=True))
    given["answers"] = str(relative(handed, home))
    return answers + _build(folder, home / "notebooks/00-summary.ipynb", given, name="index.html")


def study_pages(folder: Path, campaign: Campaign, *, done: bool = False) -> list[dict[str, Any]]:
    """Build the page of a campaign's study, if it has one, and return its answers or error."""
    data = str(relative(campaign.path.absolute(), project()))
    here = not campaign.path.absolute().is_relative_to(project("data/reference"))
    rig = campaign.rig["name"]
    rig += ", one kernel" if campaign.rig.get("shared_kernel") else ""
    rig += ", in a container" if "own-machine" in campaign.rig["capabilities"] else ""
    about: dict[str, Any] = {"source": "here" if here else "reference"}
    about |= {"blocks": len(campaign.complete_blocks), "rig": rig}
    about["measured"] = campaign.sessions[0]["began"][:10] if campaign.sessions else ""
    about["note"] = f"{'Measured here' if here else 'The reference'}: {data}."
    notebooks = project("notebooks/analysis").glob(f"??-{campaign.study}.ipynb")
    given = {} if done else {"data": data}
    return [answer for one in notebooks for answer in _build(folder, one, given, **about)]


def _build(
    folder: Path, notebook: Path, parameters: Mapping[str, str], name: str = "", **about: Any
) -> list[dict[str, Any]]:
    """Execute a notebook if it has parameters, write its page, return what the index takes."""
    output = folder / (name or f"{notebook.stem}.html")
    executed, note = folder / "notebooks" / notebook.name, about.get("note", "")
    try:
        if parameters:
            execute(notebook, executed, parameters, cwd=project())
    except LabkitError as error:
        failed = executed.with_name(f"{executed.stem}.failed.ipynb")
        title = page(failed, output, note) if failed.exists() else notebook.stem
        return [{"page": output.name, "title": title, "error": str(error)}]
    title = page(executed, output, note)
    cells = json.loads(executed.read_text())["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    answers = [data[ANSWER] for data in outputs if ANSWER in data]
    return [{**answer, **about, "page": output.name, "title": title} for answer in answers]
