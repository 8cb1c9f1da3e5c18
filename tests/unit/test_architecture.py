"""The shape of the package: who may import whom, how long things are, what is public.

Change `ALLOWED` when a module or package is added; everything else follows from the files.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "labkit"

BASE = {
    *("errors", "units", "power", "placement", "paths", "parameters", "version", "citation"),
    "process",
}
PURE = BASE | {"dataset", "design"}
ACTING = PURE | {"hosts"}
EXECUTING = ACTING | {"benchmarks", "runtimes", "rig"}
#: What each module or package directly under labkit may import; downwards only.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "paths": set(),
    "version": set(),
    "process": set(),
    # whether the rig stands, for who only looks
    "standing": {"process"},
    "units": {"errors"},
    "power": {"errors", "units"},
    "parameters": {"errors"},
    "citation": {"errors", "paths"},
    "capture": {"errors"},
    "placement": {"errors", "units", "power"},
    "dataset": BASE,
    "design": BASE,
    "hosts": BASE,
    # arrays and frames only: nothing here executes anything
    "analysis": PURE,
    # what was published, and what measurements say of it
    "claims": PURE | {"analysis"},
    # one tool, one engine a file; they meet only in hosts
    "benchmarks": ACTING,
    "runtimes": ACTING,
    # the table of the README
    "pairs": ACTING | {"runtimes"},
    # a rig makes the images that its runtimes start
    "rig": ACTING | {"runtimes", "standing"},
    # executes trials
    "campaign": EXECUTING,
    # executes notebooks
    "report": PURE | {"analysis", "claims"},
    # what the pages of all studies have in common
    "chapters": PURE | {"analysis", "claims", "report"},
    # looking into datasets with widgets
    "explore": PURE | {"analysis", "report"},
    # what the command line is made of
    "doctor": EXECUTING | {"campaign"},
    "studies": EXECUTING | {"analysis", "campaign", "claims", "report"},
    # what the first notebook says of the machine
    "start": EXECUTING | {"doctor", "studies"},
    # what campaigns there are, told by small files: it imports nothing that is heavy
    "status": {"paths", "process"},
    "batches": BASE | {"report", "status", "studies"},
    "cli_dataset": PURE | {"analysis"},
    "cli_batch": BASE | {"batches", "standing", "status", "studies"},
    "cli_lab": {"errors", "paths"},
    "cli": EXECUTING
    | {"analysis", "campaign", "claims", "report", "doctor", "studies"}
    | {"cli_batch", "cli_dataset", "cli_lab"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [
    path
    for folder in ("labkit", "tests", "benchmarks", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _unit(path: Path) -> str:
    """Return the entry of `ALLOWED` that a file belongs to ('' for labkit/__init__.py)."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def _imports(path: Path) -> set[str]:
    """Return the modules and packages directly under labkit that a file imports, wherever."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{a.name}" if base == "labkit" else base for a in node.names}
    return {name.split(".")[1] for name in found if name.startswith("labkit.")}


def test_the_table_is_acyclic_and_complete() -> None:
    assert {_unit(path) for path in MODULES} - {""} <= set(ALLOWED), "add the module to ALLOWED"
    order: list[str] = []
    while len(order) < len(ALLOWED):
        ready = [u for u, below in ALLOWED.items() if u not in order and below <= set(order)]
        assert ready, f"ALLOWED has a cycle or names nothing: {set(ALLOWED) - set(order)}"
        order += ready


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_down_only(path: Path) -> None:
    unit = _unit(path)
    if unit == "":
        return  # the public names may come from anywhere
    assert _imports(path) - {unit} <= ALLOWED[unit]


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has from `def` to its end, its docstring not counted."""
    first = function.body[0]
    docstring = ast.get_docstring(function) is not None
    documented = (first.end_lineno or 0) - first.lineno + 1 if docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - documented


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_modules_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert text.count("\n") <= 320, "about 300 lines: look again above"
    long = {
        node.name: _body_lines(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions) and _body_lines(node) > 40
    }
    assert not long


def test_public_names_are_few_and_documented() -> None:
    labkit = importlib.import_module("labkit")
    names = [name for name in labkit.__all__ if name != "__version__"]
    assert len(names) == len(set(names)) <= 20
    undocumented = [name for name in names if not (getattr(labkit, name).__doc__ or "").strip()]
    assert not undocumented


@pytest.mark.parametrize("path", NOTEBOOKS, ids=_name)
def test_notebooks_are_kept_as_agreed(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1, "one cell is tagged parameters"
    long = [cell["source"] for cell in code if len("".join(cell["source"]).splitlines()) > 15]
    assert not long, "code cells have at most 15 lines"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]


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
