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
from labkit.rig import netns

NOTEBOOK = "notebooks/studies/10-affinity-spinning.ipynb"
#: Seconds to wait for other users of the machine's rig.
PATIENCE = 900.0
IN_USE = "the rig is in use"


def once(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def program(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the project, and repeat it while another process uses the rig."""
    deadline = time.monotonic() + PATIENCE
    while IN_USE in (result := once(*argv)).stderr and time.monotonic() < deadline:
        time.sleep(1)
    return result


def labkit(*argv: str) -> subprocess.CompletedProcess[str]:
    return program("labkit.cli", *argv)


#: A part of the first study: one network, no capture. As found, as tests beside it use both CPUs,
#: which makes trials without a shared cache, failed attempts otherwise, likely.
SMALL = "{networks: [host], cells: {ladder: [spin], capture: []}, shared_cache: as found}"


def papermill(folder: Path, **parameters: str) -> list[str]:
    pairs = {"data": str(folder / "data")} | parameters
    given = ["-y", SMALL]
    given += [text for name, value in pairs.items() for text in ("-p", name, value)]
    return ["papermill", "--log-level", "ERROR", NOTEBOOK, str(folder / "out.ipynb"), *given]


def snapshot(path: Path) -> dict[str, bytes]:
    files = (one for one in path.rglob("*") if one.is_file() and one.name != ".lock")
    return {str(one): one.read_bytes() for one in files}


@pytest.mark.rig
def test_a_study_notebook_measures_resumes_and_begins_anew(tmp_path: Path) -> None:
    first = program(*papermill(tmp_path, blocks="1", messages="500"))
    assert first.returncode == 0, first.stderr[-3000:]
    campaign = load(tmp_path / "data" / "affinity-spinning")
    planned = len(campaign.plan["conditions"])
    assert planned == len(campaign.ok) == campaign.ok["trial"].nunique() > 12
    for path in campaign.path.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        assert record["verification"]["allowed CPUs"]
        assert {"context_switches", "server_last_cpu", "steal"} <= set(record["rows"][0])
    before = snapshot(campaign.path)
    refused = program(*papermill(tmp_path, blocks="1", messages="600"))
    assert refused.returncode != 0
    assert "settings.messages: 500 -> 600" in refused.stderr and "-p new True" in refused.stderr
    assert snapshot(tmp_path / "data") == before
    _begin_anew_and_interrupt(tmp_path)
    assert snapshot(campaign.path) == before
    newest = load(tmp_path / "data" / "affinity-spinning")
    assert newest.path != campaign.path and newest.plan["settings"]["messages"] == 600
    assert 1 <= len(newest.ok) == len(newest.trials) < planned
    # papermill kills its kernel, so that the rig may still be there.
    assert labkit("clean").returncode == 0
    assert netns.existing() == []


def _begin_anew_and_interrupt(folder: Path) -> None:
    """Run with ``new``, and send SIGINT as a terminal does when a trial is finished."""
    argv = [sys.executable, "-m", *papermill(folder, blocks="1", messages="600", new="True")]
    pattern = "data/*/*/trials/b*/trial.json"
    before = len(list(folder.glob(pattern)))
    deadline = time.monotonic() + PATIENCE
    said, ended = IN_USE, False
    while IN_USE in said and time.monotonic() < deadline:
        with (folder / "said").open("w+") as output:
            process = subprocess.Popen(
                argv, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )
            while not (ended := process.poll() is not None) and (
                len(list(folder.glob(pattern))) == before
            ):
                time.sleep(0.2)
            if not ended:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=120)
            said = (folder / "said").read_text()
    assert not ended and process.returncode != 0, said[-3000:]


@pytest.mark.rig
def test_a_question_is_answered_by_measuring() -> None:
    found = labkit("ask", "network-isolation", "--new")
    assert found.returncode == 0, found.stderr
    campaign = load(ROOT / "data" / "local" / "ask" / "network-isolation")
    page = ROOT / "reports" / "25-network-isolation.html"
    assert f"page: {page}\n" in found.stdout and page.is_file()
    assert "docker nat" in found.stdout and "95 %" in page.read_text(encoding="utf-8")
    assert {"docker host", "docker bridge", "docker nat"} <= set(campaign.ok["placement"])
    assert campaign.complete_blocks == campaign.plan["blocks"] >= 6
    again = labkit("ask", "network-isolation")
    assert again.returncode == 0 and again.stdout == found.stdout, "it measured again"
