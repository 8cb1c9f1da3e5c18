"""The cells of an executed notebook as HTML, and the summary that it displayed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from labkit.report.accessible import mend

SUMMARY_MIME = "application/vnd.labkit.summary+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
TEMPLATES = Path(__file__).parent / "templates"


def displayed_summary(notebook: Any) -> dict[str, Any]:
    """Return the last summary that a notebook displayed."""
    shown = [
        output["data"][SUMMARY_MIME]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if SUMMARY_MIME in output.get("data", {})
    ]
    return dict(shown[-1]) if shown else {}


def render_cells(document: Any, title: str) -> str:
    """Return the cells of a notebook as an HTML fragment below a heading with `title`."""
    from nbconvert import HTMLExporter  # slow to import

    document.metadata.pop("widgets", None)
    document.cells = [cell for cell in document.cells if not _is_banner(cell)]
    _lower_title(document.cells, title)
    for place, cell in enumerate(document.cells):
        # papermill draws a name for the cell that it puts in: no page would be like another.
        cell["id"] = f"cell-{place}"
        cell["outputs"] = [_shown(output) for output in cell.get("outputs", [])]
    exporter = HTMLExporter(
        template_name="notebook",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    body, _ = exporter.from_notebook_node(document)
    return mend(body)


def _is_banner(cell: Any) -> bool:
    """Tell whether papermill put a cell in to point at an error; the page does so itself."""
    return "papermill-error-cell-tag" in cell.get("metadata", {}).get("tags", [])


def _lower_title(cells: list[Any], title: str) -> None:
    """Leave the page one main heading: the notebook's own goes, or down where it says more."""
    for cell in cells[:3]:
        found = re.match(r"# +(.+)\n*", cell.source) if cell.cell_type == "markdown" else None
        if found:
            same = found[1].strip().casefold() == title.strip().casefold()
            cell.source = cell.source[found.end() :] if same else f"#{cell.source}"
            return


def _shown(output: Any) -> Any:
    """Return an output without live widgets and what only the index shows."""
    data = output.get("data", {})
    data.pop(WIDGET_MIME, None)
    if SUMMARY_MIME in data:
        # The index shows it; on the page it would be a line of Python.
        output["data"] = {"text/html": "<!-- the summary of this study -->"}
    return output


def code_colours() -> str:
    """Return the colours of source code, light and dark."""
    from pygments.formatters import HtmlFormatter

    # Of Pygments' styles this is the one whose every colour has a contrast of 4.5 on a light box.
    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    plain = ".highlight { background: none !important; }"
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}\n{plain}"
