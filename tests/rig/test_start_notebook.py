"""The first notebook on the real rig: measured once, and shown again without measuring."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit import load
from labkit.cli.lab import START
from labkit.errors import LabkitError
from labkit.notebooks import execute
from labkit.paths import project

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0


def run_all(folder: Path, **parameters: Any) -> str:
    """Execute the notebook, again where somebody else holds the rig, and return what it said."""
    given = {"rig": "virtual", "data": str(folder), "networks": ["nat"], "blocks": 1} | parameters
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            done = execute(project(START), folder / "out.ipynb", given)
            break
        except LabkitError as error:
            if "the rig is in use" not in error.what or time.monotonic() > deadline:
                raise
            time.sleep(1)
    cells = nbformat.read(done, as_version=4).cells
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    assert "image/svg+xml" in shown[-1]["data"]
    return "\n".join(one.get("data", {}).get("text/markdown", "") for one in shown)


@pytest.mark.rig
def test_it_measures_answers_and_does_not_measure_again(tmp_path: Path, standing: None) -> None:
    said = run_all(tmp_path, messages=200)
    campaign = load(tmp_path / "start")
    assert set(campaign.ok["placement"]) == {"bare rules", "docker nat"}
    assert len(campaign.ok) == len(campaign.plan["conditions"]) == 4
    assert "The rig is `virtual`." in said
    assert f"From `{campaign.path}`; trials: 4, blocks: 1, failed attempts: 0." in said
    answer = [line for line in said.splitlines() if "`docker nat`, to that of `bare rules`" in line]
    assert len(answer) == 1 and "cannot tell yet (pilot)" in answer[0]
    logs = sorted(campaign.path.glob("logs/*"))
    again = run_all(tmp_path, messages=200, one_trial=False)
    assert again.splitlines()[-3:] == said.splitlines()[-3:]
    assert sorted(campaign.path.glob("logs/*")) == logs, "it measured again"
