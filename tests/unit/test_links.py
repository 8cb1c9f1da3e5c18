"""Links and file names in the project's texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from labkit.paths import project

ROOT = project(".")
NAMED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "reports/README.md")
TEXTS = sorted(
    {
        *(ROOT / name for name in NAMED),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").rglob("*.md"),
        *(ROOT / "notebooks").rglob("*.ipynb"),
    }
)
#: [words](where), ![words](where), <https://where>, and [words]: where
LINK = re.compile(r"\]\(\s*([^)\s]+)[^)]*\)|<(\w+://[^>]*)>|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|^(?: {4}|\t)[^\n]*$", re.MULTILINE | re.DOTALL)


def _prose(path: Path) -> str:
    """Return the Markdown of a text or a notebook, without its code."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    return CODE.sub("", text)


def _anchors(path: Path) -> set[str]:
    """Return the anchors of headings, as GitHub and as Jupyter name them."""
    words = re.findall(r"^#+ +(.+?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    github = {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}
    return github | {word.replace(" ", "-") for word in words} | {""}


def _broken(path: Path, text: str) -> Iterator[str]:
    for link in (next(filter(None, found)) for found in LINK.findall(text)):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if parts.scheme != "https" or "." not in parts.netloc:
                yield link
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        exists = target.exists() and target.is_relative_to(ROOT)
        if not exists or (parts.fragment and unquote(parts.fragment) not in _anchors(target)):
            yield link


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links(path: Path) -> None:
    assert list(_broken(path, _prose(path))) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](README.md) and [b](README.md#findings), ![c](docs/report.png)", 0),
        ("[a](NONE.md) [b](README.md#no-such-heading) [c](../elsewhere)", 3),
        ("[a](http://example.org/) <ftp://example.org> [b]( https://nowhere )", 3),
        ("`[a](NONE.md)`\n\n    [b](NONE.md)\n", 0),
        ("    code\n\n[b](NONE.md)\n", 1),
        ("[a]: NONE.md", 1),
    ],
)
def test_broken_links_are_found(text: str, broken: int) -> None:
    assert len(list(_broken(ROOT / "CONTRIBUTING.md", CODE.sub("", text)))) == broken


def test_files_named_in_texts_exist() -> None:
    named = {
        name
        for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
        for name in re.findall(
            r"`((?:data|docs|labkit|notebooks|scripts|tests)/[\w./-]+)`", path.read_text("utf-8")
        )
    }
    # Names of a user's own campaigns, and of what is made, are examples; so are those in capitals.
    made = re.compile(r"local|_build|NAME|KEY|SHA256|prime-numbers")
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists() and not made.search(name)] == []
