"""A campaign without a terminal: shown by status, ended by SIGTERM, resumed."""

from __future__ import annotations

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
from labkit.status import Campaign, find

#: Linpack alone, twice in each of three blocks: seconds.
SMALL = {"services": "[linpack]", "cases": "['1']", "blocks": "3"}
#: Seconds to wait for the first trial, and for other users of the machine's rig.
PATIENCE = 900.0


def seen(folder: Path) -> Campaign:
    (campaign,) = find([folder])
    return campaign


@pytest.mark.rig
def test_a_run_without_a_terminal_is_shown_ended_and_resumed(tmp_path: Path) -> None:
    given = [word for pair in SMALL.items() for word in ("-p", *pair)]
    run = [sys.executable, "-m", "labkit.cli", "run", "interference", "-P", "tiny", "--wait"]
    run += [*given, "-p", "data", str(tmp_path / "data")]
    folder, log = tmp_path / "data" / "interference", tmp_path / "log"
    with log.open("a") as output:  # as `nohup labkit run ... >>log 2>&1 &`
        process = subprocess.Popen(
            ["nohup", *run], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    deadline = time.monotonic() + PATIENCE
    while not sum(one.done for one in find([folder])) and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        time.sleep(0.3)
    running = seen(folder)
    os.kill(process.pid, signal.SIGTERM)
    assert (running.state, running.study) == ("running", "interference"), log.read_text()
    assert running.process.startswith("process ") and running.done >= 1
    assert process.wait(PATIENCE) == 1
    assert "labkit: interrupted; what was measured is kept" in log.read_text()
    assert "Traceback" not in log.read_text()
    stopped = seen(folder)
    assert stopped.state == "stopped" and stopped.done >= running.done
    # The rig is down again.
    assert netns.existing() == [] and lock.current_holder() is None
    assert log.read_text().count(" ok: ") == stopped.done
    with (tmp_path / "said").open("w") as said:  # not to its end, as a shell's > opens it
        resumed = subprocess.run(run, cwd=ROOT, stdout=said, stderr=said, check=False)
    text = (tmp_path / "said").read_text()
    assert resumed.returncode == 0, text
    assert "measuring interference (tiny)" in text and text.endswith(".ipynb\n")
    finished = seen(folder)
    assert finished.state == "finished"
    assert len(load(folder).trials) == len(load(folder).ok) == finished.planned
