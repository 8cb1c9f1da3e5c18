"""The command line, notebooks and the documentation's code, which bring up the rig themselves."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from processes import wait_for

from labkit import cli, load, project, studies
from labkit.notebooks import execute
from labkit.paths import SHIPPED
from labkit.process import holder
from labkit.rig import LOCK

pytestmark = pytest.mark.rig
#: Linpack alone, twice in each of three blocks: seconds.
SMALL = {"services": "[linpack]", "cases": "['1']", "blocks": "3"}
#: Seconds to wait for the first trial, and for other users of the machine's rig.
PATIENCE = 900.0


def test_a_run_without_a_terminal_is_shown_ended_and_resumed(tmp_path):
    given = [word for pair in SMALL.items() for word in ("-p", *pair)]
    run = [sys.executable, "-m", "labkit.cli", "run", "interference", "-P", "tiny", "--wait"]
    run += [*given, "-p", "data", str(tmp_path / "data")]
    folder, log, said = tmp_path / "data" / "interference", tmp_path / "log", tmp_path / "said"
    with log.open("a") as output:  # as `nohup labkit run ... >>log 2>&1 &`
        process = subprocess.Popen(
            ["nohup", *run], cwd=SHIPPED, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    wait_for(lambda: process.poll() is not None or [*folder.glob("*/trials/*")], PATIENCE)
    assert process.poll() is None, log.read_text()
    running = len(load(folder).trials)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 1
    text = log.read_text()
    assert "labkit: interrupted; what was measured is kept" in text and "Traceback" not in text
    stopped = len(load(folder).trials)
    planned = sum(map(len, load(folder).plan["order"]))
    assert running <= stopped < planned
    # The rig is down again, and a trial is stored before its line is written.
    assert not [*Path("/run/netns").glob("labkit-*")] and holder(LOCK) == ""
    assert stopped - text.count(" ok: ") in (0, 1)
    with said.open("w") as output:  # not to its end, as a shell's > opens it
        resumed = subprocess.run(run, cwd=SHIPPED, stdout=output, stderr=output, check=False)
    assert resumed.returncode == 0, said.read_text()
    assert "measuring interference (tiny)" in said.read_text()
    assert len(load(folder).trials) == len(load(folder).ok) == planned


def test_a_question_is_answered_by_measuring(tmp_path, monkeypatch):
    profile, fewer = studies._profile, {"blocks": 2, "calls": 200, "data": str(tmp_path)}
    monkeypatch.setattr(studies, "_profile", lambda *of: {**profile(*of), **fewer})

    def ask(*options):
        found = CliRunner().invoke(cli.app, ["ask", "network-isolation", *options])
        assert found.exit_code == 0, found.output
        return found.stdout

    answer, page = ask("--wait"), project("reports") / "25-network-isolation.html"
    campaign = load(tmp_path / "network-isolation")
    assert f"page: {page}\n" in answer and "docker nat" in answer
    assert "95 %" in page.read_text(encoding="utf-8")
    assert {"docker host", "docker bridge", "docker nat"} <= set(campaign.ok["placement"])
    assert ask() == answer, "it measured again"
    assert len(load(campaign.path).trials) == len(campaign.trials)


def test_the_first_notebook_measures_and_answers(tmp_path):
    given = {"rig": "virtual", "data": str(tmp_path), "networks": ["nat"], "blocks": 1}
    given, executed = {**given, "messages": 200}, tmp_path / "out.ipynb"
    execute(project("notebooks/00-start.ipynb"), executed, given, cwd=project())
    campaign = load(tmp_path / "start")
    assert set(campaign.ok["placement"]) == {"bare rules", "docker nat"}
    assert len(campaign.ok) == len(campaign.plan["conditions"]) == 4
    cells = nbformat.read(executed, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    answer, figure, validity = [output["data"] for output in outputs if "data" in output][-3:]
    said = answer["text/plain"]
    assert "cannot tell whether docker nat differs from bare rules" in said and "1 block" in said
    assert "image/svg+xml" in figure
    assert "ratio of repeats" in validity["text/plain"] and "nan" not in validity["text/plain"]


def cells(parameters, *sources):
    """Execute cells as a notebook in the project's folder, the first with the tag `parameters`."""
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[first, *map(nbformat.v4.new_code_cell, sources)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(project()))


def test_the_study_of_the_howto_measures_and_analyses(tmp_path):
    text = project("docs/extend.md").read_text(encoding="utf-8")
    fenced = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    parameters, protocol, where, analysis = fenced
    folder = tmp_path / "data"
    cells(parameters + f"data = {str(folder)!r}\nblocks = 1\n", protocol)
    assert len(load(folder / "prime-numbers").ok) == 4
    cells(where + f"data = {str(folder / 'prime-numbers')!r}\n", analysis)


@pytest.mark.slow
def test_a_campaign_that_is_killed_twice_loses_and_leaves_nothing():
    script = SHIPPED / "benchmarks" / "chaos.py"
    argv = [sys.executable, str(script), "--seed", "25", "--kills", "2"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith(" 0 lost, leaked, left or wrong\n")
