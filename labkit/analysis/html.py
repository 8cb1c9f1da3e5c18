"""Tables and verdicts as accessible HTML, with every text escaped."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

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
    return "" if value is None or value != value else escape(str(value))


@dataclass(frozen=True, repr=False)
class Table:
    """A table that displays itself, in a page in a box that scrolls by itself.

    Cells are texts, numbers in their final form, or `Html`; the first column names a row. An index
    called ``id`` gives anchors, and `classes` are those of the stylesheet.
    """

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


def noted(text: Any, *notes: Any) -> Html:
    """Show a text with notes in small print below."""
    small = [f"<br><small>{shown}</small>" for note in notes if (shown := html(note))]
    return Html(html(text) + "".join(small))


def verdict(word: str, *notes: Any) -> Html:
    """Show a verdict with its colour, and notes below."""
    return noted(Html(f'<span class="verdict {VERDICTS[word][0]}">{word}</span>'), *notes)
