"""Notebooks are committed without what an editor, papermill or a run left in them."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat

MAIN = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "clean_notebooks.py"))


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=9)
    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=9, outputs=[output])
    cell.metadata = nbformat.from_dict({"tags": ["parameters"], "papermill": {"duration": 1.5}})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"papermill": {}}), path)
    return path


def test_studies_lose_outputs_and_analyses_keep_them(tmp_path: Path) -> None:
    study = _write(tmp_path / "studies" / "10-x.ipynb")
    analysis = _write(tmp_path / "analysis" / "10-x.ipynb")
    assert MAIN["main"]([str(study), str(analysis)]) == 1
    for path in (study, analysis):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        cell = notebook.cells[0]
        assert dict(cell.metadata) == {"tags": ["parameters"]}
        assert cell.execution_count == (1 if path is analysis else None)
        assert "papermill" not in path.read_text()
        assert bool(cell.outputs) == (path is analysis)
    assert MAIN["main"]([str(study), str(analysis)]) == 0
