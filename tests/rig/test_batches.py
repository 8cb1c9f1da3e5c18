"""A campaign without a terminal: shown by status, ended by SIGTERM, resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit import load
from labkit.paths import SHIPPED as ROOT
from labkit.rig import lock, netns
from labkit.status import Campaign, find

pytestmark = pytest.mark.rig
#: Linpack alone, twice in each of three blocks: seconds.
SMALL = {"services": "[linpack]", "cases": "['1']", "blocks": "3"}
#: Seconds to wait for other users of the machine's rig, and for anything else.
PATIENCE = 900.0


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (fulfilled := condition()) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert fulfilled


@pytest.fixture
def run(tmp_path: Path) -> Iterator[list[str]]:
    """Return the command of a small campaign; remove its notebooks and logs afterwards."""
    local = ROOT / "data" / "local"
    kept = [f"{folder}/*interference*" for folder in ("notebooks", "logs")]
    before = {path for pattern in kept for path in local.glob(pattern)}
    given = [word for pair in SMALL.items() for word in ("-p", *pair)]
    wait_until(lambda: lock.current_holder() is None)
    yield ["run", "interference", "-P", "tiny", *given, "-p", "data", str(tmp_path / "data")]
    for path in {path for pattern in kept for path in local.glob(pattern)} - before:
        path.unlink()


def seen(folder: Path) -> Campaign:
    (campaign,) = find([folder])
    return campaign


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_run_without_a_terminal_is_shown_ended_and_resumed(
    run: list[str], tmp_path: Path
) -> None:
    namespaces = netns.existing()
    log = tmp_path / "log"
    with log.open("a") as output:  # as `nohup labkit run ... >>log 2>&1 &`
        words = ["nohup", sys.executable, "-m", "labkit.cli", *run]
        process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    pid = process.pid
    folder = tmp_path / "data" / "interference"
    wait_until(lambda: sum(one.done for one in find([folder])) or gone(pid))
    running = seen(folder)
    os.kill(pid, signal.SIGTERM)
    assert (running.state, running.study) == ("running", "interference"), log.read_text()
    assert running.process.startswith("process ") and running.done >= 1
    assert process.wait(PATIENCE) == 1
    assert "labkit: interrupted; what was measured is kept" in log.read_text()
    assert "Traceback" not in log.read_text()
    stopped = seen(folder)
    assert stopped.state == "stopped" and stopped.done >= running.done
    # The rig is down again.
    assert netns.existing() == namespaces and lock.current_holder() is None
    assert log.read_text().count(" ok: ") == stopped.done
    with (tmp_path / "said").open("w") as said:  # not to its end, as a shell's > opens it
        words = [sys.executable, "-m", "labkit.cli", *run]
        resumed = subprocess.run(words, cwd=ROOT, stdout=said, stderr=said, check=False)
    text = (tmp_path / "said").read_text()
    assert resumed.returncode == 0, text
    assert "measuring interference (tiny)" in text and text.endswith(".ipynb\n")
    finished = seen(folder)
    assert finished.state == "finished"
    assert len(load(folder).trials) == len(load(folder).ok) == finished.planned
