"""The documentation builds without a warning, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from bs4 import BeautifulSoup

from labkit import project
from labkit.cli import app

#: Elements that load something, and the attribute with its address.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BeautifulSoup]:
    """Build the site; return its pages by their path in it."""
    for name in ("sphinx", "myst_nb", "sphinx_click", "furo"):
        pytest.importorskip(name, reason="installed by `make docs` and `make setup-test`")
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
    pages = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    return {name: BeautifulSoup(path.read_text(), "html.parser") for name, path in pages.items()}


def test_pages_load_nothing_from_elsewhere(site: dict[str, BeautifulSoup]) -> None:
    elements = [one for page in site.values() for one in page.find_all(list(LOADS))]
    loaded = [str(one.get(LOADS[one.name], "")) for one in elements]
    assert loaded and [where for where in loaded if urlsplit(where).netloc] == []


def test_every_command_is_documented(site: dict[str, BeautifulSoup]) -> None:
    headings = site["reference.html"].find_all(["h2", "h3", "h4"])
    assert set(app.commands) <= {heading.get_text().rstrip("¶") for heading in headings}
