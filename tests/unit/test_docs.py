"""The documentation builds without a warning and loads nothing; examples in docstrings run."""

import doctest
import importlib
import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from bs4 import BeautifulSoup

from labkit.paths import SHIPPED, project

#: Elements that load something, and the attribute with its address.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
EXAMPLES = [path for path in sorted(SHIPPED.glob("labkit/**/*.py")) if ">>> " in path.read_text()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; return its pages."""
    for name in ("sphinx", "myst_nb", "sphinx_click", "furo"):
        pytest.importorskip(name, reason="installed by `make docs` and `make setup-test`")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning"]
    command += ["--keep-going", "--quiet", str(project("docs")), str(folder)]
    env = os.environ | {"PYTHONPATH": str(project())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return [BeautifulSoup(path.read_text(), "html.parser") for path in folder.rglob("*.html")]


def test_pages_load_nothing_from_elsewhere(site):
    elements = [one for page in site for one in page.find_all(list(LOADS))]
    loaded = [str(one.get(LOADS[one.name], "")) for one in elements]
    assert loaded and [where for where in loaded if urlsplit(where).netloc] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path, monkeypatch):
    monkeypatch.chdir(project())
    module = importlib.import_module(".".join(path.relative_to(SHIPPED).with_suffix("").parts))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, attempted = doctest.testmod(module, optionflags=options)
    assert attempted and not failed
