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
from markupsafe import Markup

from labkit.analysis.power import least_blocks
from labkit.claims.ledger import RESULTS
from labkit.errors import LabkitError
from labkit.report import topology
from labkit.report.accessible import make_accessible
from labkit.report.execution import TIMEOUT, execute
from labkit.report.html import SUMMARY_MIME, TEMPLATES, render, write

_WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


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

    `title` is the page's heading, and its name in the index where the summary has none; `timeout`
    and `cwd` are passed to `execute`. If the notebook fails, the page shows its output up to the
    error, the executed notebook is kept in the same folder, and the error is raised.
    """
    parameters = dict(parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    with tempfile.TemporaryDirectory(prefix="labkit-page-") as scratch:
        executed = Path(scratch) / f"{output.stem}.ipynb"
        try:
            execute(notebook, executed, parameters, timeout=timeout, cwd=cwd)
        except LabkitError as error:
            if not error.evidence.get("notebook"):
                raise
            failed.write_bytes(Path(error.evidence["notebook"]).read_bytes())
            error.evidence["notebook"] = str(failed)
            error.remedy = f"{failed} and {output} show it with the error"
            write(output, _render_page(failed, parameters, title, error=error.why))
            raise
        failed.unlink(missing_ok=True)
        write(output, _render_page(executed, parameters, title))
    return output


def read_summary(path: Path) -> dict[str, Any]:
    """Return the summary that a notebook displayed, from the notebook or from its page.

    It is empty where there is none. A page adds ``page_title``, and ``error`` if the notebook
    failed.
    """
    if path.suffix == ".ipynb":
        return _displayed_summary(nbformat.read(path, as_version=4))
    match = re.search(
        rf'<script type="{re.escape(SUMMARY_MIME)}">(.*?)</script>',
        path.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return dict(json.loads(match[1])) if match else {}


def build_index(
    pages: Sequence[Path],
    output: Path,
    *,
    title: str = "Container performance, measured",
    rig: Mapping[str, Any] | None = None,
    failures: Mapping[str, str] | None = None,
    ledger: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """Write the index, whose first screen shows the rig, the findings and what is infeasible."""
    studies = [_study(page, output) for page in pages]
    studies += [
        {"title": name, "href": None, "summary": {}, "error": reason}
        for name, reason in (failures or {}).items()
    ]
    summaries = [study["summary"] for study in studies if study["summary"]]
    rigs = [summary["rig"] for summary in summaries if summary.get("rig")]
    shown: dict[str, Any] = dict(rig or (rigs[0] if rigs else {}))
    for part in ("hosts", "cpu_map"):
        shown[part] = topology.in_order(shown.get(part) or {})
    profiles = dict.fromkeys(
        str(summary["profile"]) for summary in summaries if summary.get("profile")
    )
    counts = ledger or {}
    text = render(
        "index.html.j2",
        title,
        {},
        rig=shown,
        studies=studies,
        first=summaries[0] if summaries else {},
        profile=", ".join(profiles),
        topology=topology.draw(shown),
        counts=counts,
        enough=least_blocks(),
        results=[name for name in RESULTS if any(name in row for row in counts.values())],
    )
    write(output, text)
    return output


def _study(page: Path, index: Path) -> dict[str, Any]:
    """Return what the index shows of one page."""
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
    summary = _displayed_summary(document)
    carried = {**summary, "page_title": title, **({"error": error} if error else {})}
    return render(
        "page.html.j2",
        title,
        carried,
        code_style=Markup(_code_style()),
        summary=summary,
        parameters=parameters,
        error=error,
        body=_render_cells(document, title),
    )


def _displayed_summary(document: Any) -> dict[str, Any]:
    """Return the last summary that a notebook displayed."""
    summaries = [
        output["data"][SUMMARY_MIME]
        for cell in document.cells
        for output in cell.get("outputs", [])
        if SUMMARY_MIME in output.get("data", {})
    ]
    return dict(summaries[-1]) if summaries else {}


def _render_cells(document: Any, title: str) -> str:
    """Return the cells of a notebook as an HTML fragment for a page with the heading `title`."""
    from nbconvert import HTMLExporter  # slow to import

    document.metadata.pop("widgets", None)
    # papermill inserts a cell that points at an error, as the page already does.
    document.cells = [
        cell
        for cell in document.cells
        if "papermill-error-cell-tag" not in cell.get("metadata", {}).get("tags", [])
    ]
    _lower_title(document.cells, title)
    for place, cell in enumerate(document.cells):
        # papermill gives the cell that it injects a random id: pages would not be reproducible.
        cell["id"] = f"cell-{place}"
        for output in cell.get("outputs", []):
            _keep_static(output)
    exporter = HTMLExporter(
        template_name="notebook",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    body, _ = exporter.from_notebook_node(document)
    return make_accessible(body)


def _lower_title(cells: list[Any], title: str) -> None:
    """Remove the notebook's main heading, or lower it if it differs from the page's."""
    for cell in cells[:3]:
        match = re.match(r"# +(.+)\n*", cell.source) if cell.cell_type == "markdown" else None
        if match:
            same = match[1].strip().casefold() == title.strip().casefold()
            cell.source = cell.source[match.end() :] if same else f"#{cell.source}"
            return


def _keep_static(output: Any) -> None:
    """Remove live widgets from an output, and the summary, which only the index shows."""
    data = output.get("data", {})
    data.pop(_WIDGET_MIME, None)
    if data.pop(SUMMARY_MIME, None) is not None:
        # Without HTML it would be shown as a line of Python.
        data.setdefault("text/html", "<!-- the summary of this study -->")


def _code_style() -> str:
    """Return the colours of source code, light and dark."""
    from pygments.formatters import HtmlFormatter

    # Every colour of this style has a contrast of 4.5 on a light box.
    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    plain = ".highlight { background: none !important; }"
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}\n{plain}"
