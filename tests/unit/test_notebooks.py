"""Notebooks are executed as asked; wrong parameters are refused, failures and interrupts kept."""

import math
import re
import runpy

import nbformat
import pytest

from labkit.errors import LabkitError, RigError, UsageError
from labkit.notebooks import check, execute, values
from labkit.paths import SHIPPED

DECLARED = """rig: str = "auto"
blocks: int = 5  # passes
margin: float = 0.02
sizes: list[int] = [
    1,
]
loads: dict[str, object] = {}
size: object = 64
share: "float | None" = None
plain = 1
"""


@pytest.fixture
def write(tmp_path):
    """Write a notebook of code cells below a parameters cell; return its path."""

    def written(*sources):
        cells = [nbformat.v4.new_code_cell(DECLARED, metadata={"tags": ["parameters"]})]
        cells += [nbformat.v4.new_code_cell(source) for source in sources]
        metadata = {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
        nbformat.write(notebook, tmp_path / "n.ipynb")
        return tmp_path / "n.ipynb"

    return written


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("bloks", 2, "did you mean 'blocks'?"),
        ("blocks", True, "int"),
        ("rig", 1, "str"),
        ("margin", "wide", "float"),
        ("sizes", 64, "list[int]"),
        ("loads", ["none"], "dict"),
        ("margin", math.inf, "finite and not negative"),
        ("margin", -0.1, "finite and not negative"),
        ("size", values("2015-01-01"), "object"),
    ],
)
def test_parameters_are_those_that_a_notebook_declares(name, value, remedy, write):
    notebook, given = write("1"), {"rig": "dry", "blocks": 2, "sizes": [64], "loads": {"none": 1}}
    check(notebook, {**given, "size": [64, 1024], "plain": "any", "margin": 1, "share": 0.5})
    with pytest.raises(UsageError, match=re.escape(remedy)):
        check(notebook, {name: value})


def test_values_are_those_of_yaml_1_2():
    text = "[010, 064, 1e-2, 0o10, 12:30, yes, {a: [host, 5]}]"
    assert values(text) == [10, 64, 0.01, 8, "12:30", "yes", {"a": ["host", 5]}]
    for text in ("blocks: 5\nsize: 1\nblocks: 50", "{kind: none, kind: stress}"):
        with pytest.raises(ValueError, match=r'duplicate key "(blocks|kind)".*line [13], column'):
            values(text)
    for text in ("[", "\0", "!!python/name:os.system", "!!bool x", "[" * 9999, "9" * 9999):
        with pytest.raises(ValueError, match="not YAML"):
            values(text)


def test_a_notebook_with_a_conflict_is_a_usage_error(tmp_path):
    (tmp_path / "x.ipynb").write_text("<<<<<<<")
    with pytest.raises(UsageError, match="cannot read the notebook"):
        check(tmp_path / "x.ipynb", {})


def test_a_notebook_runs_with_its_parameters_in_a_folder(write, tmp_path):
    (tmp_path / "cwd").mkdir()
    notebook = write("print(rig, file=open(str(blocks), 'w'))")
    output, folder = tmp_path / "out.ipynb", tmp_path / "cwd"
    execute(notebook, output, {"blocks": 7, "rig": "c=d"}, cwd=folder)
    assert (folder / "7").read_text() == "c=d\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd", "n.ipynb", "out.ipynb"]


@pytest.mark.parametrize(
    ("source", "raised", "words"),
    [
        ("raise KeyError('on purpose')", LabkitError, "KeyError: 'on purpose'"),
        ("import labkit.errors\nraise labkit.errors.RigError('w', why='a\\nb')", RigError, "a\nb"),
        ("import labkit.errors\nraise labkit.errors.Interrupted", KeyboardInterrupt, ""),
        ("import os\nos.kill(os.getpid(), 2)\nwhile True: pass", KeyboardInterrupt, ""),
    ],
)
def test_a_notebook_that_fails_cleans_up_and_is_kept(source, raised, words, write, tmp_path):
    body = source.replace("\n", "\n    ")
    notebook = write(f"try:\n    {body}\nfinally:\n    open('down', 'w')", "open('on', 'w')")
    with pytest.raises(raised) as caught:
        execute(notebook, tmp_path / "out.ipynb", {}, cwd=tmp_path)
    assert words in getattr(caught.value, "why", "")
    names = ["down", "n.ipynb", "out.failed.ipynb"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    if isinstance(caught.value, LabkitError):
        assert "out.failed.ipynb, cell [2]" in caught.value.where


def test_only_cells_that_are_compared_are_committed_with_outputs(tmp_path):
    clean = runpy.run_path(str(SHIPPED / "scripts/clean_notebooks.py"))["main"]
    output = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=9)
    cells = []
    for tag in ("parameters", "nbval-check-output"):
        cell = nbformat.v4.new_code_cell("1 + 1", execution_count=9, outputs=[output])
        cell.metadata = nbformat.from_dict({"tags": [tag], "papermill": {"duration": 1.5}})
        cells.append(cell)
    path = tmp_path / "10-x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"papermill": {}}), path)
    assert (clean([str(path)]), clean([str(path)])) == (1, 0)
    plain, compared = nbformat.read(path, as_version=4).cells
    assert not plain.outputs and compared.outputs[0].data == {"text/plain": "2"}
    assert plain.execution_count is None and compared.execution_count == 1
    assert dict(plain.metadata) == {"tags": ["parameters"]} and "papermill" not in path.read_text()
