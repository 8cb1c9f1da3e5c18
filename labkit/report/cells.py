"""The cells of an executed notebook as parts of a page.

A cell may carry one of the tags of `TAGS`: its output becomes part of the answer at the top of the
page. All other cells are the appendix, in the order of the notebook.
"""

from __future__ import annotations

import re
from typing import Any

from bs4 import BeautifulSoup

from labkit.report.html import SUMMARY_MIME, TEMPLATES, csv_link, picture, render_part

_WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
#: Tags in the order of the page, each with the id and the heading of its section.
TAGS = {
    "answer": ("answer", "Answer"),
    "figure-answer": ("answer", "Answer"),
    "figure-distribution": ("distribution", "Distribution"),
    "figure-why": ("why", "Why"),
    "paper": ("paper", "The paper against here"),
    "trust": ("trust", "Can I trust it?"),
}
#: The tag of cells that a page leaves out, such as a heading of tagged cells.
NOTEBOOK_ONLY = "notebook-only"
#: What begins an HTML tag in Markdown.
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
#: Sections may hold several tags; each is a list of the HTML of its cells.
Sections = dict[str, tuple[str, list[str]]]


def parts(document: Any, title: str, *, code: bool = True) -> tuple[Sections, str]:
    """Return the sections of a page by id, each with heading and cells, and the rest as HTML.

    Without `code` only outputs and texts are shown.
    """
    document.metadata.pop("widgets", None)
    # papermill inserts a cell that points at an error, as the page already does.
    document.cells = [
        cell for cell in document.cells if "papermill-error-cell-tag" not in _tags(cell)
    ]
    _drop_title(document.cells, title)
    for place, cell in enumerate(document.cells):
        # papermill gives the cell that it injects a random id: pages would not be reproducible.
        cell["id"] = f"cell-{place}"
        for output in cell.get("outputs", []):
            _keep_static(output)
    sections: Sections = {}
    for tag, (name, heading) in TAGS.items():
        tagged = [cell for cell in document.cells if tag in _tags(cell)]
        if tagged:
            sections.setdefault(name, (heading, []))[1].append(_render(document, tagged, code=code))
    rest = [cell for cell in document.cells if not _tags(cell) & {*TAGS, NOTEBOOK_ONLY}]
    shown = _render(document, rest, code=code)
    return sections, _lowered(shown) if sections else shown


def _tags(cell: Any) -> set[str]:
    return set(cell.get("metadata", {}).get("tags", []))


def _render(document: Any, cells: list[Any], *, code: bool) -> str:
    """Return some cells of a notebook as an HTML fragment."""
    import nbformat
    from nbconvert import HTMLExporter  # slow to import

    exporter = HTMLExporter(
        template_name="notebook",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_input=not code,
    )
    part = nbformat.v4.new_notebook(metadata=document.metadata, cells=cells)
    body, _ = exporter.from_notebook_node(part)
    return str(body)


def _lowered(body: str) -> str:
    """Return HTML with all headings one level lower, as the appendix has a heading of its own."""
    soup = BeautifulSoup(body, "html.parser")
    for tag in soup.find_all(re.compile("^h[2-5]$")):
        tag.name = f"h{int(tag.name[1]) + 1}"
    return str(soup)


def _drop_title(cells: list[Any], title: str) -> None:
    """Remove the notebook's main heading, or lower it if it differs from the page's."""
    for cell in cells[:3]:
        match = re.match(r"# +(.+)\n*", cell.source) if cell.cell_type == "markdown" else None
        if match:
            same = match[1].strip().casefold() == title.strip().casefold()
            cell.source = cell.source[match.end() :] if same else f"#{cell.source}"
            return


def _keep_static(output: Any) -> None:
    """Remove live widgets and the summary, which only the index shows; make figures HTML.

    Markdown that a cell printed may hold texts of the data, so HTML in it is shown as text.
    """
    data = output.get("data", {})
    data.pop(_WIDGET_MIME, None)
    if data.pop(SUMMARY_MIME, None) is not None:
        # Without HTML it would be shown as a line of Python.
        data.setdefault("text/html", "<!-- the summary of this study -->")
    if "text/markdown" in data:
        data["text/markdown"] = _HTML.sub("&lt;", "".join(data["text/markdown"]))
    described = output.get("metadata", {})
    for kind in ("image/svg+xml", "image/png"):
        if kind in data:
            text = data.pop(kind)
            source = picture(text) if kind.endswith("xml") else f"data:{kind};base64,{text.strip()}"
            alt = described.get(kind, {}).get("alt", "")
            data["text/html"] = render_part(
                "figure.html.j2", source=source, alt=alt, numbers=csv_link(data.pop("text/csv", ""))
            )
            return
