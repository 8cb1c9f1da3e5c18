"""The progress of campaigns: their trials on disk, counted against their plans."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from labkit import status


def write(folder: Path, *outcomes: str, planned: int) -> Path:
    """Write the plan, the lock and the trials of a campaign; `failed ok` are two attempts."""
    folder.mkdir(parents=True)
    plan = {"study": folder.parent.name, "order": [list(range(planned))]}
    plan["rig"] = {"shared_kernel": True, "cpu_map": {"harness": "0"}}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / status.LOCK).write_text("process 7 on far")
    for number, attempts in enumerate(outcomes):
        for attempt, outcome in enumerate(attempts.split(), start=1):
            trial = folder / "trials" / f"b01-p{number:02d}-a{attempt}"
            trial.mkdir(parents=True)
            (trial / "trial.json").write_text(json.dumps({"rows": [{"status": outcome}]}))
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a campaign as the process does that measures it."""
    with (folder / status.LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    ("outcomes", "measures", "found"),
    [
        ([], True, ("running", 0, 0)),
        (["ok", "failed"], True, ("running", 1, 1)),
        (["ok", "failed"], False, ("stopped", 1, 1)),
        (["failed failed", "ok", "ok"], False, ("failed", 2, 1)),
        (["failed ok", "ok", "ok"], False, ("finished", 3, 0)),
    ],
)
def test_every_state_of_a_campaign(
    tmp_path: Path, outcomes: list[str], measures: bool, found: tuple[str, int, int]
) -> None:
    path = write(tmp_path / "s" / "1", *outcomes, planned=3)
    with held(path) if measures else nullcontext():
        (one,) = status.find([tmp_path])
    assert (one.state, one.done, one.failed) == found and one.planned == 3
    assert one.process == ("process 7 on far" if measures else "")
    assert (one.left_seconds is not None) == (len(outcomes) > 1)


def test_the_newest_and_the_running_campaigns_are_shown(tmp_path: Path) -> None:
    old, running, new = (tmp_path / "quick" / "s" / name for name in ("1", "2", "3"))
    write(old, "ok", planned=2)  # its process was killed
    write(running, "ok", planned=2)
    write(new, planned=3)
    (new / "trials.parquet").touch()  # packed, so complete
    with held(running):
        assert [one.path for one in status.find([tmp_path])] == [running, new]
        assert [one.state for one in status.find([tmp_path])] == ["running", "finished"]
    assert status.find([new, new]) == status.find([new])
    assert status.find([tmp_path / "none"]) == []


#: The command, and then its priority, CPUs and large imports.
COMMAND = """
import os, sys
from labkit import cli
try:
    cli.main(["status", sys.argv[1]])
except SystemExit as stop:
    large = {"pandas", "numpy", "pyarrow", "IPython", "fabric", "yaml"} & set(sys.modules)
    print(int(stop.code), os.nice(0), os.sched_getaffinity(0), large)
"""


def command(folder: Path) -> list[str]:
    """Run the command in a process of its own: it makes way for others, and stays so."""
    words = [sys.executable, "-c", COMMAND, str(folder)]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def test_the_command_shows_a_table_away_from_the_measurement(tmp_path: Path) -> None:
    assert command(tmp_path)[0] == "no campaign here"
    path = write(tmp_path / "s" / "1", "ok", planned=1)
    head, row, _ = command(tmp_path)
    assert head.split()[:4] == ["state", "study", "trials", "failed"]
    assert row.split()[:4] == ["finished", "s", "1/1", "0"]
    assert row.split()[-1] == os.path.relpath(path)
    failed = write(tmp_path / "u" / "1", "failed", planned=1)
    assert command(tmp_path)[-1].startswith("1 19 ")
    with held(failed):
        assert command(tmp_path)[-1] == "1 19 {0} set()"
