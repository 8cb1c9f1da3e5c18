"""The command line and a study notebook as programs, which bring up the rig themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import load
from labkit.paths import SHIPPED as ROOT
from labkit.rig import lock, netns

pytestmark = pytest.mark.rig
#: A part of the first study: one network, no capture. As found, as tests beside it use both CPUs,
#: which makes trials without a shared cache, failed attempts otherwise, likely.
SMALL = "{networks: [host], cells: {ladder: [spin], capture: []}, shared_cache: as found}"
#: Seconds to wait for other users of the machine's rig.
PATIENCE = 900.0


def start(folder: Path, *argv: str) -> subprocess.Popen[bytes]:
    """Start a program of the project when nobody uses the rig; it writes into a file `said`."""
    deadline = time.monotonic() + PATIENCE
    while lock.current_holder() and time.monotonic() < deadline:
        time.sleep(0.5)
    with (folder / "said").open("w") as said:
        command = [sys.executable, "-m", *argv]
        return subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)


def papermill(folder: Path, **parameters: str) -> list[str]:
    notebook = "notebooks/studies/10-affinity-spinning.ipynb"
    pairs = {"data": str(folder / "data"), "blocks": "1"} | parameters
    given = [text for name, value in pairs.items() for text in ("-p", name, value)]
    words = ["papermill", "--log-level", "ERROR", notebook, str(folder / "out.ipynb")]
    return [*words, "-y", SMALL, *given]


def snapshot(path: Path) -> dict[str, bytes]:
    files = (one for one in path.rglob("*") if one.is_file() and one.name != ".lock")
    return {str(one): one.read_bytes() for one in files}


def test_a_study_notebook_measures_resumes_and_begins_anew(tmp_path: Path) -> None:
    said = tmp_path / "said"
    first = start(tmp_path, *papermill(tmp_path, messages="500"))
    assert first.wait(600) == 0, said.read_text()[-3000:]
    campaign = load(tmp_path / "data" / "affinity-spinning")
    planned = len(campaign.plan["conditions"])
    assert planned == len(campaign.ok) == campaign.ok["trial"].nunique() > 12
    for path in campaign.path.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        assert record["verification"]["allowed CPUs"]
        assert {"context_switches", "server_last_cpu", "steal"} <= set(record["rows"][0])
    before = snapshot(campaign.path)
    assert start(tmp_path, *papermill(tmp_path, messages="600")).wait(600) != 0
    assert "settings.messages: 500 -> 600" in said.read_text()
    assert snapshot(tmp_path / "data") == before

    def finished() -> int:
        return len(list(tmp_path.glob("data/*/*/trials/b*/trial.json")))

    # Interrupted as by a terminal when a trial of another campaign is finished.
    before_anew = finished()
    anew = start(tmp_path, *papermill(tmp_path, messages="600", new="True"))
    while anew.poll() is None and finished() == before_anew:
        time.sleep(0.2)
    assert anew.poll() is None, said.read_text()[-3000:]
    os.killpg(anew.pid, signal.SIGINT)
    assert anew.wait(120) != 0
    assert snapshot(campaign.path) == before
    newest = load(tmp_path / "data" / "affinity-spinning")
    assert newest.path != campaign.path and newest.plan["settings"]["messages"] == 600
    assert 1 <= len(newest.ok) == len(newest.trials) < planned
    # papermill kills its kernel, so that the rig may still be there.
    assert start(tmp_path, "labkit.cli", "clean").wait(120) == 0
    assert netns.existing() == []


def test_a_question_is_answered_by_measuring() -> None:
    def ask(*options: str) -> str:
        argv = [sys.executable, "-m", "labkit.cli", "ask", "network-isolation", *options]
        found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return found.stdout

    answer = ask("--new", "--wait")
    campaign = load(ROOT / "data" / "local" / "ask" / "network-isolation")
    page = ROOT / "reports" / "25-network-isolation.html"
    assert f"page: {page}\n" in answer and page.is_file()
    assert "95 %" in page.read_text(encoding="utf-8")
    assert len(campaign.ok) > 0 and campaign.plan["blocks"] >= 6
    if campaign.complete_blocks == campaign.plan["blocks"]:  # else its minutes were over
        assert "docker nat" in answer
        assert {"docker host", "docker bridge", "docker nat"} <= set(campaign.ok["placement"])
        assert ask() == answer, "it measured again"
