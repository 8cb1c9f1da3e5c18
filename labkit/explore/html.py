"""What a tab shows as HTML: text first, then the figure with that text as its alternative."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.errors import LabkitError

#: Names and numbers stay on one line, sentences do not; a table that is wider scrolls in its place.
_STYLE = """<style>.labkit-explorer .widget-html-content { min-width: 0 }
.labkit-view tbody th, .labkit-view td { white-space: nowrap }
.labkit-view td.labkit-long { white-space: normal; min-width: 16em }</style>"""
#: A cell with more characters holds a sentence.
_LONG = 30
#: Dots an inch: about twice as many as inches of the page, so that print and zoom stay sharp.
_DPI = 110


def shown(
    text: str, figure: Figure | None = None, tables: Iterable[tuple[str, pd.DataFrame]] = ()
) -> str:
    """Return sentences, a figure and tables as HTML; everything that is text is escaped."""
    parts = [f"<p>{escape(text)}</p>"]
    if figure is not None:
        parts.append(_image(figure, text))
    parts += [_table(title, table) for title, table in tables]
    return f'<div class="jp-RenderedHTMLCommon labkit-view">{_STYLE}{"".join(parts)}</div>'


def alert(error: LabkitError | str) -> str:
    """Return what went wrong as HTML that a screen reader says at once."""
    return f'<div role="alert" class="labkit-alert"><pre>{escape(str(error))}</pre></div>'


def status(text: str) -> str:
    """Return a line of progress, or of nothing, as HTML that a screen reader says in its turn."""
    return f'<div role="status" class="labkit-status">{escape(text)}</div>'


def _image(figure: Figure, text: str) -> str:
    """Return a figure as an image within the page."""
    made = io.BytesIO()
    figure.set_dpi(_DPI)
    # `savefig` would draw twice, and compress well what goes no further than to the browser.
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(made, pil_kwargs={"compress_level": 1})
    data = base64.b64encode(made.getvalue()).decode()
    style = "max-width:100%;background:white"
    return f'<img alt="{escape(text)}" style="{style}" src="data:image/png;base64,{data}">'


def _table(title: str, table: pd.DataFrame) -> str:
    """Return a table of text with its title, in a region that scrolls by keyboard too."""
    corner = escape(str(table.index.name or ""))
    names = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in table.columns)
    rows = [
        f'<tr><th scope="row">{escape(str(key))}</th>'
        + "".join(map(_cell, map(str, cells)))
        + "</tr>"
        for key, cells in zip(table.index, table.to_numpy(dtype=object).tolist(), strict=True)
    ]
    return (
        f'<div tabindex="0" role="region" aria-label="{escape(title)}" '
        'style="max-height:26em;overflow:auto">'
        f'<table><caption style="text-align:left">{escape(title)}</caption>'
        f'<thead><tr><th scope="col">{corner}</th>{names}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    start = '<td class="labkit-long">' if len(text) > _LONG else "<td>"
    return f"{start}{escape(text)}</td>"
