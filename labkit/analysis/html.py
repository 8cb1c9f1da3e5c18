"""Tables as accessible HTML."""

from __future__ import annotations

from html import escape

import pandas as pd


def html_table(frame: pd.DataFrame, caption: str) -> str:
    """Return a table of texts as HTML: escaped, with a caption, in a container that scrolls."""
    table = frame.to_html(index=False, border=0, na_rep="", justify="left")
    label = escape(caption, quote=True)
    body = table.replace(">\n", f">\n<caption>{label}</caption>\n", 1)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{body}</div>'
