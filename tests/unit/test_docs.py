"""The documentation builds without a warning, is complete, and has no broken link within it.

The build takes about 20 seconds, most of it for the pages whose cells it executes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from os.path import normpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from labkit import project
from labkit.cli import app

SPHINX = "installed by `make docs` and `make setup-test`"
PUBLIC = ("labkit", "labkit.analysis", "labkit.claims", "labkit.plots", "labkit.tools")
#: What loads something, and the attribute that says from where.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


@dataclass(frozen=True)
class Html:
    """A page of the site: what it links to, what it can be linked to by, what it loads."""

    soup: BeautifulSoup
    links: tuple[str, ...]
    ids: frozenset[str]
    loaded: tuple[str, ...]


def _read(path: Path) -> Html:
    soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    loaded = (one.get(LOADS[one.name]) for one in soup.find_all(list(LOADS)))
    return Html(
        soup,
        tuple(str(link["href"]) for link in soup.find_all("a", href=True)),
        frozenset(str(element["id"]) for element in soup.find_all(id=True)),
        tuple(str(where) for where in loaded if where),
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Html]:
    """Build the site; return its pages by their path in it."""
    for name in ("sphinx", "myst_nb", "sphinx_click", "furo"):
        pytest.importorskip(name, reason=SPHINX)
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning"]
    done = subprocess.run(
        [*command, "--keep-going", "--quiet", str(project("docs")), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(project())},
    )
    assert done.returncode == 0, done.stderr
    return {path.relative_to(folder).as_posix(): _read(path) for path in folder.rglob("*.html")}


def test_every_link_within_the_site_leads_somewhere(site: dict[str, Html]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = normpath(Path(path).parent / unquote(parts.path)) if parts.path else path
            ids = site[target].ids | {""} if target in site else frozenset()
            if unquote(parts.fragment) not in ids:
                broken.append((path, link))
    assert broken == []


def test_pages_load_nothing_from_elsewhere(site: dict[str, Html]) -> None:
    loaded = [where for page in site.values() for where in page.loaded]
    assert loaded
    assert [where for where in loaded if urlsplit(where).netloc] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_documented(site: dict[str, Html], module: str) -> None:
    public = import_module(module)
    names = [name for name in public.__all__ if callable(getattr(public, name))]
    assert names
    documented = site["reference/python.html"].ids
    assert [name for name in names if f"{module}.{name}" not in documented] == []


def test_every_command_is_documented(site: dict[str, Html]) -> None:
    page = site["reference/cli.html"].soup
    headings = {heading.get_text().rstrip("¶") for heading in page.find_all(["h2", "h3"])}
    assert set(app.commands) <= headings


def test_cells_of_the_tutorial_are_executed(site: dict[str, Html]) -> None:
    page = site["tutorial/first-answer.html"].soup
    outputs = page.select(".cell_output")
    assert any("bare cgroup" in output.get_text() for output in outputs)
    assert any(output.find(["img", "svg"]) for output in outputs)
