"""The first notebook on the real rig: measured once, and shown again without measuring."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit import load
from labkit.errors import RigInUse
from labkit.notebooks import execute
from labkit.paths import project

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0


def run_all(folder: Path) -> list[dict[str, Any]]:
    """Execute the notebook, again where somebody else holds the rig, and return what it showed."""
    output = folder / "out.ipynb"
    given = {"rig": "virtual", "data": str(folder), "networks": ["nat"], "blocks": 1}
    given |= {"messages": 200}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            execute(project("notebooks/00-start.ipynb"), output, given, cwd=project())
            break
        except RigInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
    cells = nbformat.read(output, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [output["data"] for output in outputs if "data" in output]


@pytest.mark.rig
def test_it_measures_answers_and_does_not_measure_again(tmp_path: Path) -> None:
    shown = run_all(tmp_path)
    campaign = load(tmp_path / "start")
    assert set(campaign.ok["placement"]) == {"bare rules", "docker nat"}
    assert len(campaign.ok) == len(campaign.plan["conditions"]) == 4
    answer, figure, validity = shown[-3:]
    said = answer["text/plain"]
    assert "cannot tell whether docker nat differs from bare rules" in said and "1 block" in said
    assert "image/svg+xml" in figure
    assert "ratio of repeats" in validity["text/plain"] and "nan" not in validity["text/plain"]
    logs = sorted(campaign.path.glob("logs/*"))
    again = run_all(tmp_path)
    assert again[-3:] == shown[-3:]
    assert sorted(campaign.path.glob("logs/*")) == logs, "it measured again"
