"""A campaign without a terminal: shown by status, ended by SIGTERM, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labkit import load
from labkit.cli import app
from labkit.paths import PROGRESS
from labkit.paths import SHIPPED as ROOT
from labkit.rig import lock, netns

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


def status(folder: Path) -> tuple[int, dict[str, Any]]:
    # In this process: on a busy machine a campaign may end before another has begun.
    found = CliRunner().invoke(app, ["status", str(folder), "--json"])
    return found.exit_code, json.loads(found.stdout)


def done(folder: Path) -> int:
    return sum(json.loads(path.read_text())["done"] for path in folder.rglob(PROGRESS))


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
    wait_until(lambda: done(folder) or gone(pid))
    code, seen = status(tmp_path)
    os.kill(pid, signal.SIGTERM)
    (one,) = seen["campaigns"]
    assert (code, one["state"], one["study"]) == (0, "running", "interference"), log.read_text()
    assert one["run"]["pid"] == seen["rig"]["used_by"] and one["done"] >= 1
    assert one["left_seconds"] > 0
    assert process.wait(PATIENCE) == 1
    assert "labkit: interrupted; what was measured is kept" in log.read_text()
    assert "Traceback" not in log.read_text()
    code, seen = status(tmp_path)
    (stopped,) = seen["campaigns"]
    assert (code, stopped["state"]) == (1, "stopped") and stopped["done"] >= one["done"]
    # The rig is down again.
    assert netns.existing() == namespaces and lock.current_holder() is None
    first = (folder / Path(stopped["path"]).name / "logs" / "01.log").read_text()
    assert "WARNING interrupted in b0" in first
    assert first in log.read_text()
    with (tmp_path / "said").open("w") as said:  # not to its end, as a shell's > opens it
        words = [sys.executable, "-m", "labkit.cli", *run]
        resumed = subprocess.run(words, cwd=ROOT, stdout=said, stderr=said, check=False)
    text = (tmp_path / "said").read_text()
    assert resumed.returncode == 0, text
    second = (folder / Path(stopped["path"]).name / "logs" / "02.log").read_text()
    assert "measuring interference (tiny)" in text and second in text and text.endswith(".ipynb\n")
    code, seen = status(tmp_path)
    assert (code, seen["campaigns"][0]["state"]) == (0, "finished")
    assert len(load(folder).trials) == len(load(folder).ok) == seen["campaigns"][0]["planned"]
