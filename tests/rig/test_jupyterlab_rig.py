"""A study in a real JupyterLab on the real rig: Run All, interrupted in its midst, and again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium
from jupyter_browser import Notebook, copied, opened
from lab_server import jupyterlab

from labkit import load
from labkit.paths import SHIPPED as ROOT
from labkit.rig import lock, netns

pytestmark = [pytest.mark.rig, pytest.mark.browser]
STUDY = "studies/40-interference.ipynb"
#: Linpack alone, twice in each of four blocks: two seconds a trial. As found, since a trial that
#: fails for CPUs without a shared cache is a complaint.
SMALL: dict[str, Any] = {"services": ["linpack"], "cases": ["1"], "blocks": 4}
SMALL |= {"shared_cache": "as found"}
#: Seconds to wait for a few trials.
PATIENCE = 300.0


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    copied(STUDY, tmp_path / "notebooks", data=str(tmp_path / "data"), **SMALL)
    with (
        jupyterlab(tmp_path) as server,
        chromium() as browser,
        opened(server, browser, STUDY) as found,
    ):
        found.until(lambda: lock.current_holder() is None, seconds=900)
        yield found


def measured(folder: Path) -> dict[str, bytes]:
    found = folder.glob("*/*/trials/b*/trial.json")
    return {path.parent.name: path.read_bytes() for path in found}


def status(folder: Path) -> str:
    words = [sys.executable, "-m", "labkit.cli", "status", str(folder)]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout


def test_a_study_is_interrupted_takes_down_and_resumes(notebook: Notebook, tmp_path: Path) -> None:
    folder, said = tmp_path / "data", list[str]()

    def some() -> bool:
        """Tell whether trials are measured; keep what the progress bar said meanwhile."""
        if (text := notebook.progress()) and text not in said:
            said.append(text)
        return len(measured(folder)) >= 3 or notebook.is_over()

    notebook.run_all()
    notebook.until(some, PATIENCE)
    assert len(said) > 2 and any("/8 [" in one and "<00:" in one for one in said), said
    assert netns.existing()
    notebook.interrupt()
    notebook.until(notebook.is_over, PATIENCE)
    first = measured(folder)
    kept = f"Interrupted: interrupted; {len(first)} of 8 trials are measured and kept"
    assert notebook.errors() == [f"{kept}; run the same again to measure the rest"]
    assert 3 <= len(first) < 8
    assert netns.existing() == [] and not lock.STATE.exists() and lock.current_holder() is None
    shown = status(folder)
    assert f"{len(first)}/8" in shown and "stopped" in shown
    assert "the virtual rig is down, used by nobody" in shown

    notebook.run_all()
    notebook.until(notebook.is_over, PATIENCE)
    assert notebook.errors() == [] and notebook.complaints() == "" and notebook.whole()
    again = measured(folder)
    assert len(again) == 8 and {name: again[name] for name in first} == first
    assert len(load(folder / "interference").ok) == 8
    assert notebook.tables() >= 2
    assert netns.existing() == [] and "finished" in status(folder)
