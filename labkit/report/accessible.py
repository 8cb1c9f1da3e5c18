"""Mends the HTML of a notebook's cells for those who hear a page, or have no mouse, or print it.

Notebooks give tables without names or scopes, boxes that scroll but cannot be reached by keyboard,
images without words, and the same identity for headings of the same text.
"""

from __future__ import annotations

from itertools import count

from bs4 import BeautifulSoup, Tag

#: What names a table or a figure: the heading above it, and a paragraph that leads to it.
_NAMING = ("h1", "h2", "h3", "h4", "h5", "h6", "p")
_SHOWN = ("table", "img", "pre")
#: What nbconvert says of an image that says nothing of itself.
_NO_WORDS = "No description has been provided for this image"


def mend(body: str) -> str:
    """Return a fragment of HTML whose tables, figures and scrolling boxes have names.

    Parameters
    ----------
    body : str
        The cells of a notebook, as nbconvert renders them.

    Returns
    -------
    str
        The same, and: each table has a caption that only a screen reader tells, scopes on its
        headings, one row of headings where pandas gives two, and a box that scrolls and can be
        focused; each image a text that says under which heading it stands; each identity is there
        once. The styles that pandas repeats with each table are left out.
    """
    soup = BeautifulSoup(body, "html.parser")
    for style in soup.select(".output_html style"):
        if ".dataframe" in style.get_text():
            style.decompose()
    _once(soup)
    heading, lead, seen = "", "", {name: count(1) for name in _SHOWN}
    for tag in soup.find_all([*_NAMING, *_SHOWN]):
        if tag.name == "p":
            lead = _words(tag) if tag.find_parent("table") is None else lead
        elif tag.name in _NAMING:
            heading, lead, seen = _words(tag), "", {name: count(1) for name in _SHOWN}
        elif tag.name == "table":
            _table(soup, tag, _name("Table", next(seen["table"]), heading, lead))
        elif tag.name == "img":
            _image(tag, _name("Figure", next(seen["img"]), heading, lead))
        else:
            _focusable(tag, "Code" if tag.find_parent(class_="source") else f"Text: {heading}")
    return str(soup)


def _words(tag: Tag) -> str:
    """Return the text of an element, without the mark of a heading's own link."""
    return " ".join(tag.get_text().removesuffix("¶").split())


def _name(kind: str, number: int, heading: str, lead: str) -> str:
    """Return what a table or figure is called: where it stands, and what led to it."""
    where = f"{kind} {number}" + (f" of {heading}" if heading else "")
    return f"{where}: {lead.removesuffix(':')}" if lead.endswith(":") else where


def _once(soup: BeautifulSoup) -> None:
    """Give each element an identity of its own: chapters of one page share their headings."""
    known: set[str] = set()
    for tag in soup.find_all(id=True):
        identity = first = str(tag["id"])
        for number in count(2):
            if identity not in known:
                break
            identity = f"{first}-{number}"
        known.add(identity)
        if identity != first:
            tag["id"] = identity
            for link in tag.find_all("a", href=f"#{first}"):
                link["href"] = f"#{identity}"


def _table(soup: BeautifulSoup, table: Tag, name: str) -> None:
    """Name a table, say what its headings head, and put it into a box that scrolls."""
    head, body = table.find("thead"), table.find("tbody")
    if isinstance(head, Tag):
        _one_row(head)
        for cell in head.find_all("th"):
            cell["scope"] = "colgroup" if cell.has_attr("colspan") else "col"
            if not _words(cell):
                # What heads nothing is no heading.
                cell.name = "td"
                del cell["scope"]
    for cell in body.find_all("th") if isinstance(body, Tag) else []:
        cell["scope"] = "rowgroup" if cell.has_attr("rowspan") else "row"
    for attribute in ("border", "align", "valign", "halign"):
        for tag in [table, *table.select(f"[{attribute}]")]:
            del tag[attribute]
    for cell in table.find_all("th"):
        _breakable(soup, cell)
    if table.find("caption") is None:
        caption = soup.new_tag("caption", attrs={"class": "unseen"})
        caption.string = name
        table.insert(0, caption)
    box = soup.new_tag("div", attrs={"class": "wide"})
    table.wrap(box)
    _focusable(box, name)


def _one_row(head: Tag) -> None:
    """Join the last two rows, in which pandas names columns and indices, where none says both."""
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
    """Let the name of a column break after its underscores: a narrow table fits on paper."""
    for text in list(cell.find_all(string=True)):
        first, *others = str(text).split("_")
        if others:
            parts = [part for other in others for part in ("_", soup.new_tag("wbr"), other)]
            text.replace_with(first, *parts)


def _image(image: Tag, name: str) -> None:
    """Say what an image shows after where it stands, and let it scroll where it is wide."""
    said = str(image.get("alt") or "")
    image["alt"] = name if said in ("", _NO_WORDS) else f"{name}. {said}"
    box = image.find_parent(class_="output_png")
    if box is not None:
        box["class"] = "wide output_png"
        _focusable(box, name)


def _focusable(tag: Tag, name: str) -> None:
    """Let a box that may scroll be reached by keyboard, under a name."""
    tag["tabindex"], tag["role"], tag["aria-label"] = "0", "group", name
