"""A small notebook for tests, with a parameters cell."""

from __future__ import annotations

from pathlib import Path

import nbformat

PARAMETERS = 'blocks = 2\nname: str = "a=b"\nrates = [1, 2]  # per second'


def write_notebook(folder: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    """Write a notebook of code cells; return its path."""
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path
