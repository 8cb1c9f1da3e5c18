"""Notebooks are executed as asked, failures are kept, and interrupts are passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from small_notebooks import write_notebook

from labkit.errors import LabkitError, RigError, UsageError
from labkit.report.execution import check_parameters, execute
from labkit.report.pages import build_page


@pytest.mark.parametrize("parameters", ["blocks = 1", "name, blocks = 'x', 1", "blocks: int = 1"])
def test_every_way_to_assign_declares_a_parameter(tmp_path: Path, parameters: str) -> None:
    notebook = write_notebook(tmp_path, "other = 1", parameters=parameters)
    check_parameters(notebook, {"blocks": 2})
    with pytest.raises(UsageError, match="'other'"):
        check_parameters(notebook, {"other": 2})


@pytest.mark.parametrize("build", [execute, build_page])
def test_an_unknown_parameter_is_an_error_before_anything_runs(tmp_path: Path, build: Any) -> None:
    notebook = write_notebook(tmp_path, "import pathlib; pathlib.Path('ran').touch()")
    more = {"title": "t"} if build is build_page else {}
    with pytest.raises(UsageError, match="'block'") as caught:
        build(notebook, tmp_path / "out" / "page.html", parameters={"block": 5}, **more)
    assert "blocks, name, rates" in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) in (
        ["notebook.ipynb"],
        ["notebook.ipynb", "out"],
    )


def test_a_file_that_is_not_a_notebook_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("[]")
    with pytest.raises(UsageError, match="cannot read"):
        check_parameters(tmp_path / "x.ipynb", {})
    with pytest.raises(UsageError, match="cannot read"):
        check_parameters(tmp_path / "none.ipynb", {})


def test_execute_injects_parameters_and_runs_in_the_working_directory(tmp_path: Path) -> None:
    notebook = write_notebook(
        tmp_path, "import pathlib; pathlib.Path('ran').write_text(f'{blocks}{name}')"
    )
    (tmp_path / "cwd").mkdir()
    output = execute(
        notebook, tmp_path / "out.ipynb", {"blocks": 7, "name": "c=d"}, cwd=tmp_path / "cwd"
    )
    assert output == tmp_path / "out.ipynb"
    assert (tmp_path / "cwd" / "ran").read_text() == "7c=d"
    assert not list(tmp_path.glob(".*"))


def test_a_failing_notebook_is_kept_with_its_error(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path, "raise KeyError('on purpose')")
    with pytest.raises(LabkitError, match="failed in cell") as caught:
        execute(notebook, tmp_path / "out.ipynb")
    kept = tmp_path / "out.failed.ipynb"
    assert caught.value.evidence["notebook"] == str(kept)
    assert "KeyError: 'on purpose'" in caught.value.why
    assert "on purpose" in kept.read_text()
    assert not (tmp_path / "out.ipynb").exists()


def test_an_error_of_labkit_is_raised_as_it_is(tmp_path: Path) -> None:
    source = "from labkit.errors import RigError\n"
    source += "raise RigError('no rig', where='here', why='a\\nb', remedy='do it')"
    with pytest.raises(RigError) as caught:
        execute(write_notebook(tmp_path, source), tmp_path / "out.ipynb")
    error, kept = caught.value, tmp_path / "out.failed.ipynb"
    assert (error.what, error.why, error.remedy) == ("no rig", "a\nb", "do it")
    assert error.where == f"here; {kept}, cell [2]" and str(error).count("why:") == 1
    cells = nbformat.read(kept, as_version=4).cells
    (shown,) = [one for cell in cells for one in cell.get("outputs", []) if "traceback" in one]
    assert shown["traceback"][0] == "RigError: no rig" and "Traceback" not in str(shown)


def test_a_timeout_interrupts_the_cell_which_can_still_clean_up(tmp_path: Path) -> None:
    forever = (
        "import pathlib, time\ntry:\n    while True:\n        time.sleep(0.05)\n"
        "finally:\n    pathlib.Path('down').touch()"
    )
    notebook = write_notebook(tmp_path, forever, "pathlib.Path('went-on').touch()")
    with pytest.raises(LabkitError, match="failed"):
        execute(notebook, tmp_path / "out.ipynb", timeout=3)
    assert (tmp_path / "down").exists()
    assert not (tmp_path / "went-on").exists()


def test_an_interrupt_of_the_kernel_is_raised_by_execute(tmp_path: Path) -> None:
    source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        execute(write_notebook(tmp_path, source), tmp_path / "out.ipynb")
    assert "KeyboardInterrupt" in (tmp_path / "out.failed.ipynb").read_text()


def test_an_interrupt_with_a_rig_is_shown_as_one_sentence(tmp_path: Path) -> None:
    source = "from labkit.errors import Interrupted\nraise Interrupted from KeyboardInterrupt()"
    with pytest.raises(KeyboardInterrupt):
        execute(write_notebook(tmp_path, source), tmp_path / "out.ipynb")
    cells = nbformat.read(tmp_path / "out.failed.ipynb", as_version=4).cells
    (shown,) = [one for cell in cells for one in cell.get("outputs", []) if "traceback" in one]
    sentence = "interrupted; what was measured is kept, and the same command goes on"
    assert shown["traceback"] == [sentence]
