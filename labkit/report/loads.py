"""Find what a browser would fetch on opening a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

#: Elements that load what their attribute names as soon as a page is opened.
LOADING = {
    **dict.fromkeys(("img", "script", "iframe", "embed", "source", "video", "audio"), "src"),
    "link": "href",
    "object": "data",
    "image": "href",
    "use": "href",
}


def loads(text: str) -> list[str]:
    """Return whatever a page of HTML would load from elsewhere, as it stands in the page."""
    finder = _Loads()
    finder.feed(text)
    return finder.found


class _Loads(HTMLParser):
    """Finds whatever a browser would fetch on opening a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a loading element, and styles written on an element."""
        self._in_style = tag == "style"
        values = dict(attrs)
        names = {LOADING.get(tag, ""), "srcset", "poster", "xlink:href" if tag != "a" else ""}
        for name in names & values.keys():
            target = values[name] or ""
            if target and not target.startswith(("data:", "#")):
                self.found.append(f"<{tag} {name}={target[:80]}>")
        self._styles(values.get("style") or "")

    def handle_data(self, data: str) -> None:
        """Note what a style sheet loads."""
        if self._in_style:
            self._styles(data)

    def handle_endtag(self, tag: str) -> None:
        """Leave a style sheet."""
        self._in_style = False

    def _styles(self, css: str) -> None:
        loads = re.findall(r"""@import[^;]*|url\(\s*['"]?(?!data:|#)[^)]*\)""", css)
        self.found += [f"style {one[:80]}" for one in loads]
