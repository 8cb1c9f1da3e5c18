"""Accessible HTML of a notebook's cells, for screen readers, keyboards and print.

nbconvert gives tables without captions and scopes, boxes that scroll but cannot be focused, images
without alternative text, and the same id to headings of the same text.
"""

from __future__ import annotations

import re
from itertools import count

from bs4 import BeautifulSoup, Tag

#: A table or figure is named after the heading and the paragraph above it.
_NAMING = ("h1", "h2", "h3", "h4", "h5", "h6", "p")
_NAMED = ("table", "img", "pre")
#: How a cell of numbers begins; words may follow the number only as its unit.
_NUMBER = re.compile(
    r"[-+<~]?[0-9][0-9.,]*(e-?[0-9]+)?x?( ?\[.*\]| ?(%|us|µs|ms|s|ns|[kMG]?bit/s|/s))?$"
)
#: The alternative text that nbconvert gives to an image without any.
_NO_DESCRIPTION = "No description has been provided for this image"


def make_accessible(body: str) -> str:
    """Return the cells' HTML with named tables, described images and focusable boxes.

    Each table gets a caption for screen readers, scopes on its headings, one row of headings where
    pandas has two, and a scrolling box that can be focused. The alternative text of an image names
    the heading above it. Ids become unique. The styles that pandas repeats with each table are
    removed.
    """
    soup = BeautifulSoup(body, "html.parser")
    for style in soup.select(".output_html style"):
        if ".dataframe" in style.get_text():
            style.decompose()
    _make_ids_unique(soup)
    heading, lead, seen = "", "", {name: count(1) for name in _NAMED}
    for tag in soup.find_all([*_NAMING, *_NAMED]):
        if tag.name == "p":
            lead = _words(tag) if tag.find_parent("table") is None else lead
        elif tag.name in _NAMING:
            heading, lead, seen = _words(tag), "", {name: count(1) for name in _NAMED}
        elif tag.name == "table":
            _table(soup, tag, _name("Table", next(seen["table"]), heading, lead))
        elif tag.name == "img":
            _image(tag, _name("Figure", next(seen["img"]), heading, lead))
        else:
            _focusable(tag, "Code" if tag.find_parent(class_="source") else f"Text: {heading}")
    return str(soup)


def _words(tag: Tag) -> str:
    """Return the text of an element, without the link sign of a heading."""
    return " ".join(tag.get_text().removesuffix("¶").split())


def _name(kind: str, number: int, heading: str, lead: str) -> str:
    """Return the name of a table or figure: its heading, and a lead that ends in ":"."""
    where = f"{kind} {number}" + (f" of {heading}" if heading else "")
    return f"{where}: {lead.removesuffix(':')}" if lead.endswith(":") else where


def _make_ids_unique(soup: BeautifulSoup) -> None:
    """Number repeated ids: headings of a page may have the same text."""
    known: set[str] = set()
    for tag in soup.find_all(id=True):
        name = first = str(tag["id"])
        for number in count(2):
            if name not in known:
                break
            name = f"{first}-{number}"
        known.add(name)
        if name != first:
            tag["id"] = name
            for link in tag.find_all("a", href=f"#{first}"):
                link["href"] = f"#{name}"


def _table(soup: BeautifulSoup, table: Tag, name: str) -> None:
    """Name a table, give its headings scopes, and put it into a box that scrolls."""
    head, body = table.find("thead"), table.find("tbody")
    if isinstance(head, Tag):
        _one_row(head)
        for cell in head.find_all("th"):
            cell["scope"] = "colgroup" if cell.has_attr("colspan") else "col"
            if not _words(cell):  # an empty cell is not a heading
                cell.name = "td"
                del cell["scope"]
    for cell in body.find_all("th") if isinstance(body, Tag) else []:
        cell["scope"] = "rowgroup" if cell.has_attr("rowspan") else "row"
    for attribute in ("border", "align", "valign", "halign"):
        for tag in [table, *table.select(f"[{attribute}]")]:
            del tag[attribute]
    for cell in table.find_all("th"):
        _breakable(soup, cell)
    _align(table)
    if table.find("caption") is None:
        caption = soup.new_tag("caption", attrs={"class": "unseen"})
        caption.string = name
        table.insert(0, caption)
    box = soup.new_tag("div", attrs={"class": "wide"})
    table.wrap(box)
    _focusable(box, name)


def _align(table: Tag) -> None:
    """Mark the cells of numbers, column by column; everything else is text."""
    body = table.find("tbody")
    rows = [row.find_all("td") for row in body.find_all("tr")] if isinstance(body, Tag) else []
    width = max(map(len, rows), default=0)
    head = table.select("thead tr:last-of-type > *")[-width:] if width else []
    for place in range(width):
        column = [row[place] for row in rows if len(row) == width]
        texts = [text for cell in column if (text := _words(cell))]
        if texts and all(_NUMBER.match(text) for text in texts):
            for cell in [*column, *head[place : place + 1]]:
                cell["class"] = "number"


def _one_row(head: Tag) -> None:
    """Join the two rows in which pandas names columns and indices, where no cell has both."""
    rows = head.find_all("tr")[-2:]
    cells = [row.find_all("th") for row in rows]
    spans = any(cell.has_attr("colspan") for row in cells for cell in row)
    if len(rows) < 2 or len(cells[0]) != len(cells[1]) or spans:
        return
    pairs = list(zip(*cells, strict=True))
    if all(not (_words(above) and _words(below)) for above, below in pairs):
        for above, below in pairs:
            if _words(below):
                above.replace_with(below)
        rows[1].decompose()


def _breakable(soup: BeautifulSoup, cell: Tag) -> None:
    """Allow line breaks after the underscores of a heading, so that tables fit on paper."""
    for text in list(cell.find_all(string=True)):
        first, *others = str(text).split("_")
        if others:
            parts = [part for other in others for part in ("_", soup.new_tag("wbr"), other)]
            text.replace_with(first, *parts)


def _image(image: Tag, name: str) -> None:
    """Put the name of an image before its description, and let a wide image scroll."""
    description = str(image.get("alt") or "")
    described = description not in ("", _NO_DESCRIPTION)
    image["alt"] = f"{name}. {description}" if described else name
    box = image.find_parent(class_="output_figure")
    if box is not None:
        box["class"] = "wide output_figure"
        _focusable(box, name)


def _focusable(tag: Tag, name: str) -> None:
    """Make a scrolling box reachable by keyboard, with a name."""
    tag["tabindex"], tag["role"], tag["aria-label"] = "0", "group", name
