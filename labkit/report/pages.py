"""Pages that are complete in themselves: one for each notebook, and the index of them."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from markupsafe import Markup

from labkit.claims.verdicts import RESULTS
from labkit.errors import LabkitError
from labkit.power import least_blocks
from labkit.report import origin, topology
from labkit.report.cells import SUMMARY_MIME, code_colours, displayed_summary, render_cells
from labkit.report.html import environment, frame, write
from labkit.report.running import TIMEOUT, execute


def build_page(
    notebook: Path,
    output: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    title: str,
    timeout: float = TIMEOUT,
    cwd: Path | None = None,
) -> Path:
    """Execute an analysis notebook and write it as one self-contained HTML page.

    Parameters
    ----------
    notebook, output : Path
        The notebook, and the page; the executed notebook is kept beside the page only if it fails.
    parameters : mapping, optional
        Values for names that the notebook's parameters cell declares.
    title : str
        Heading of the page, and its name in the index where the summary has none.
    timeout, cwd
        As in `execute`.

    Returns
    -------
    Path
        `output`.

    Raises
    ------
    UsageError
        A parameter that the notebook does not declare; nothing has run then.
    LabkitError
        The notebook failed (the page then shows how far it came, and the error), or something in it
        would make the page load from elsewhere.
    """
    parameters = dict(parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="labkit-page-") as scratch:
        executed = Path(scratch) / f"{output.stem}.ipynb"
        try:
            execute(notebook, executed, parameters, timeout=timeout, cwd=cwd)
        except LabkitError as error:
            if not error.evidence.get("notebook"):
                raise
            kept = output.with_name(f"{output.stem}.failed.ipynb")
            kept.write_bytes(Path(error.evidence["notebook"]).read_bytes())
            error.evidence["notebook"] = str(kept)
            error.remedy = f"{kept} and {output} show it with the error"
            write(output, _render_page(kept, parameters, title, error=error.why))
            raise
        output.with_name(f"{output.stem}.failed.ipynb").unlink(missing_ok=True)
        write(output, _render_page(executed, parameters, title))
    return output


def read_summary(path: Path) -> dict[str, Any]:
    """Return the summary that a notebook displayed, from the notebook or from its page.

    It is empty where there is none. A page adds ``page_title`` and, of a notebook that failed,
    ``error``.
    """
    if path.suffix == ".ipynb":
        return displayed_summary(nbformat.read(path, as_version=4))
    found = re.search(
        rf'<script type="{re.escape(SUMMARY_MIME)}">(.*?)</script>',
        path.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return dict(json.loads(found[1])) if found else {}


def build_index(
    pages: Sequence[Path],
    output: Path,
    *,
    title: str = "Container performance, measured",
    rig: Mapping[str, Any] | None = None,
    failures: Mapping[str, str] | None = None,
    ledger: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """Write the index whose first screen shows the rig, and what was found and refused.

    Parameters
    ----------
    pages : sequence of Path
        Pages that `build_page` wrote, beside or below `output`, in the order of the report.
    output : Path
        The index, ``reports/index.html``.
    title : str
        Its heading.
    rig : mapping, optional
        What `Rig.describe` gives; by default the rig of the first study that states one.
    failures : mapping of str to str, optional
        Studies that have no page at all, each with the reason.
    ledger : mapping, optional
        How many claims of each source have which result, where ``ledger.html`` stands beside.

    Returns
    -------
    Path
        `output`.
    """
    studies = [_study(page, output) for page in pages]
    studies += [
        {"title": name, "href": None, "summary": {}, "error": reason}
        for name, reason in (failures or {}).items()
    ]
    summaries = [study["summary"] for study in studies if study["summary"]]
    shown: dict[str, Any] = dict(
        rig or next((one["rig"] for one in summaries if one.get("rig")), {})
    )
    for part in ("hosts", "cpu_map"):
        shown[part] = topology.in_order(shown.get(part) or {})
    profiles = dict.fromkeys(str(one["profile"]) for one in summaries if one.get("profile"))
    output.parent.mkdir(parents=True, exist_ok=True)
    text = (
        environment()
        .get_template("index.html.j2")
        .render(
            **frame(title, {}),
            rig=shown,
            studies=studies,
            first=summaries[0] if summaries else {},
            profile=", ".join(profiles),
            topology=topology.draw(shown),
            counts=ledger or {},
            enough=least_blocks(),
            results=_occurring(ledger or {}),
        )
    )
    write(output, text)
    return output


def _occurring(ledger: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the results that a claim of any source has, in their order."""
    return [name for name in RESULTS if any(name in row for row in ledger.values())]


def _study(page: Path, index: Path) -> dict[str, Any]:
    """Return what the index needs to know of one page."""
    summary = read_summary(page)
    return {
        "title": summary.get("title") or summary.get("page_title") or page.stem,
        "href": Path(os.path.relpath(page, index.parent)).as_posix(),
        "summary": summary,
        "error": summary.get("error"),
    }


def _render_page(
    notebook: Path, parameters: Mapping[str, Any], title: str, *, error: str = ""
) -> str:
    """Return an executed notebook as the text of its page."""
    document = nbformat.read(notebook, as_version=4)
    summary = displayed_summary(document)
    carried = {**summary, "page_title": title, **({"error": error} if error else {})}
    shown = frame(title, carried)
    shown["style"] += Markup(code_colours())
    rows = origin.attach(document)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            **shown,
            summary=summary,
            parameters=parameters,
            error=error,
            body=render_cells(document, title),
            rows=rows,
        )
    )
