"""The command `ask`: the profile `ask` of a study is measured, and its answers are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labkit import data, studies
from labkit.analysis import publish
from labkit.cli import app
from labkit.paths import project


def test_a_study_is_measured_with_its_profile_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, Any]] = []

    def measure(run: studies.Run, **more: Any) -> Path:
        measured.append((run.notebook.stem, run.parameters))
        return run.notebook

    monkeypatch.setattr(studies, "measure", measure)
    row = {"verdict": "differs"}
    page = {"page": "p.html", "rows": [row, {"verdict": "not measured"}], "sentences": ["a", "b"]}
    monkeypatch.setattr(data, "load", lambda folder: folder)
    monkeypatch.setattr(publish, "study_pages", lambda folder, campaign: [page])
    found = CliRunner().invoke(app, ["ask", "cpu-quota", "--new"])
    assert found.stdout == f"a\npage: {project('reports/p.html')}\n"
    ((name, parameters),) = measured
    assert name == "20-cpu-quota" and parameters["cells"] == "quotas"
    assert (parameters["rig"], parameters["new"]) == ("auto", True)
