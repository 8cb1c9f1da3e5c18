"""Imports go down only and without cycles, the public API is small, notebooks use nothing else.

`pyproject.toml`, ``[tool.importlinter]``, holds the layers.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
#: What a notebook may import of labkit.
PUBLIC = {"labkit", "labkit.analysis", "labkit.plots", "labkit.tools"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_go_down_only_and_have_no_cycles() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_package_says_what_lives_there() -> None:
    packages = sorted((ROOT / "labkit").rglob("__init__.py"))
    silent = [
        _name(path) for path in packages if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_public_names_are_few_and_documented() -> None:
    labkit = importlib.import_module("labkit")
    names = [name for name in labkit.__all__ if name != "__version__"]
    assert len(names) == len(set(names)) <= 20
    undocumented = [name for name in names if not (getattr(labkit, name).__doc__ or "").strip()]
    assert not undocumented


def _code_cells(path: Path) -> list[dict[str, object]]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _takes_a_level(call: ast.Call) -> bool:
    """Tell whether a call compares conditions: it could be given a margin and a level."""
    analysis = importlib.import_module("labkit.analysis")
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    function = getattr(analysis, name, None) if name in analysis.__all__ else None
    parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
    return {"margin", "alpha"} <= set(parameters)


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.parent.name == "analysis"], ids=_name
)
def test_comparisons_of_a_page_have_its_level(path: Path) -> None:
    """Looks at which a campaign could stop count: `Page.tests` has the level."""
    sources = ["".join(cell["source"]) for cell in _code_cells(path)]
    trees = [ast.parse(source) for source in sources]
    calls = [one for tree in trees for one in ast.walk(tree) if isinstance(one, ast.Call)]
    without = [
        ast.unparse(call)
        for call in calls
        if _takes_a_level(call) and not {None, "alpha"} & {keyword.arg for keyword in call.keywords}
    ]
    assert not without
    assert "page.tests" in "\n".join(sources) or not any(map(_takes_a_level, calls))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_name)
def test_a_notebook_has_one_parameters_cell_and_no_error(path: Path) -> None:
    code = _code_cells(path)
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1, "one cell is tagged parameters"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_name)
def test_a_notebook_imports_only_the_public_api(path: Path) -> None:
    imported: set[str] = set()
    for cell in _code_cells(path):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    assert {name for name in imported if name.startswith("labkit")} <= PUBLIC


#: Put together so that this file does not name them itself.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("conda", "anaconda", "org"),
        ("registry-1", "docker", "io"),
        ("index", "docker", "io"),
        ("registry", "npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("repo", "maven", "apache", "org"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|home)/[\w.]|" + "/opt/" + "wheels")


def _committed() -> list[Path]:
    """Return the files that are, or would be, committed; nothing outside a git clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_committed_file_names_a_registry_or_this_machine() -> None:
    found = []
    for path in _committed():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{_name(path)}: {host}" for host in REGISTRIES if host in text]
        found += [f"{_name(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert not found
