"""Notebooks are committed without what an editor, papermill or a run left in them."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat

MAIN = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "clean_notebooks.py"))


def _write(path: Path) -> Path:
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=9)
    cells = []
    for tag in ("parameters", "nbval-check-output"):
        cell = nbformat.v4.new_code_cell("1 + 1", execution_count=9, outputs=[output])
        cell.metadata = nbformat.from_dict({"tags": [tag], "papermill": {"duration": 1.5}})
        cells.append(cell)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"papermill": {}}), path)
    return path


def test_only_cells_that_are_compared_keep_their_outputs(tmp_path: Path) -> None:
    path = _write(tmp_path / "10-x.ipynb")
    assert MAIN["main"]([str(path)]) == 1
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    plain, compared = notebook.cells
    assert not plain.outputs
    assert compared.outputs[0].data == {"text/plain": "2"}
    assert dict(plain.metadata) == {"tags": ["parameters"]}
    assert plain.execution_count is None and compared.execution_count == 1
    assert "papermill" not in path.read_text()
    assert MAIN["main"]([str(path)]) == 0
