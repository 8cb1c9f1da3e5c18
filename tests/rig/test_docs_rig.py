"""The code of the documentation that measures, run on the rig as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from labkit import load, project

pytestmark = pytest.mark.rig
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _code(page: str) -> list[str]:
    return FENCED.findall(project(f"docs/{page}").read_text(encoding="utf-8"))


def test_the_study_of_the_howto_measures_and_analyses(tmp_path: Path) -> None:
    parameters, protocol, where, analysis = _code("extend.md")
    folder = tmp_path / "data"
    _execute(parameters + f"data = {str(folder)!r}\nblocks = 1\n", protocol)
    assert len(load(folder / "prime-numbers").ok) == 4
    _execute(where + f"data = {str(folder / 'prime-numbers')!r}\n", analysis)


def _execute(parameters: str, *cells: str) -> None:
    """Execute cells as a notebook in the project's folder, the first with the tag `parameters`."""
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, cells)])
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(project()))
