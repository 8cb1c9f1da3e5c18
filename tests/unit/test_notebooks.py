"""Notebooks are executed as asked; wrong parameters are refused, failures and interrupts kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from labkit.errors import LabkitError, RigError, UsageError
from labkit.notebooks import check, check_parameters, execute
from labkit.paths import project

DECLARED = """rig: str = "auto"
blocks: int = 5  # passes
margin: float = 0.02
sizes: list[int] = [
    1,
]
loads: dict[str, object] = {}
size: object = 64
new: bool = False
plain = 1
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a notebook of code cells below a parameters cell; return its path."""

    def written(*sources: str) -> Path:
        cells = [nbformat.v4.new_code_cell(DECLARED, metadata={"tags": ["parameters"]})]
        cells += [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "n.ipynb")
        return tmp_path / "n.ipynb"

    return written


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("rig", "dry", ""),
        ("blocks", 2, ""),
        ("sizes", [64], ""),
        ("loads", {"none": 1}, ""),
        ("size", [64, 1024], ""),
        ("plain", "any", ""),
        ("bloks", 2, "did you mean 'blocks'?"),
        ("blocks", True, "int"),
        ("rig", 1, "str"),
        ("margin", "wide", "float"),
        ("sizes", 64, "list[int]"),
        ("loads", ["none"], "dict"),
    ],
)
def test_parameters_are_those_that_a_notebook_declares(
    name: str, value: Any, remedy: str, write: Any
) -> None:
    notebook = write("1")
    cells = [DECLARED, f"# Parameters\n{name} = {value!r}\n", "check_parameters(In)"]
    if not remedy:
        check(notebook, {name: value})
        check_parameters(cells)
        return
    for refuse in (lambda: check(notebook, {name: value}), lambda: check_parameters(cells)):
        with pytest.raises(UsageError) as caught:
            refuse()
        assert repr(name) in caught.value.what or f"{value!r}" in caught.value.what
        assert remedy in caught.value.remedy


def test_a_wrong_parameter_is_refused_before_anything_runs(write: Any, tmp_path: Path) -> None:
    notebook = write("open('ran', 'w')")
    with pytest.raises(UsageError):
        execute(notebook, tmp_path / "out" / "page.ipynb", {"block": 5}, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["n.ipynb"]


@pytest.mark.parametrize("text", [None, "[]", "{", '{"cells": [1]}', '{"cells": [{}]}'])
def test_a_file_that_is_not_a_notebook_is_a_usage_error(text: str | None, tmp_path: Path) -> None:
    if text:
        (tmp_path / "x.ipynb").write_text(text)
    with pytest.raises(UsageError):
        check(tmp_path / "x.ipynb", {})


def test_every_profile_has_parameters_of_its_study() -> None:
    for profile in project("notebooks/profiles").glob("*.yaml"):
        study = project("notebooks/studies") / f"{profile.name.split('.')[0]}.ipynb"
        check(study, yaml.safe_load(profile.read_text()))


def test_a_notebook_runs_with_its_parameters_in_a_folder(write: Any, tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    notebook = write("print(rig, file=open(str(blocks), 'w'))")
    given = {"blocks": 7, "rig": "c=d"}
    execute(notebook, tmp_path / "out.ipynb", given, cwd=tmp_path / "cwd")
    assert (tmp_path / "cwd" / "7").read_text() == "c=d\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd", "n.ipynb", "out.ipynb"]


@pytest.mark.parametrize(
    ("source", "raised", "words"),
    [
        ("raise KeyError('on purpose')", LabkitError, "KeyError: 'on purpose'"),
        ("import labkit.errors\nraise labkit.errors.RigError('w', why='a\\nb')", RigError, "a\nb"),
        ("import labkit.errors\nraise labkit.errors.Interrupted", KeyboardInterrupt, ""),
        ("import os\nos.kill(os.getpid(), 2)\nwhile True: pass", KeyboardInterrupt, ""),
        ("while blocks: pass", LabkitError, "longer than"),
    ],
)
def test_a_notebook_that_fails_cleans_up_and_is_kept(
    source: str, raised: type[BaseException], words: str, write: Any, tmp_path: Path
) -> None:
    body = source.replace("\n", "\n    ")
    notebook = write(f"try:\n    {body}\nfinally:\n    open('down', 'w')", "open('on', 'w')")
    timeout = 4 if words == "longer than" else 60
    with pytest.raises(raised) as caught:
        execute(notebook, tmp_path / "out.ipynb", {}, cwd=tmp_path, timeout=timeout)
    assert words in getattr(caught.value, "why", "")
    names = ["down", "n.ipynb", "out.failed.ipynb"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    if isinstance(caught.value, LabkitError):
        assert "out.failed.ipynb, cell [2]" in caught.value.where
