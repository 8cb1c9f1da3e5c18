"""The progress of campaigns: their trials on disk, counted against their plans."""

import fcntl
import subprocess
import sys
from contextlib import nullcontext

import pytest
from made_up import RIG, write

from labkit import status

SHARED = {**RIG, "shared_kernel": True, "cpu_map": {"harness": "0"}}


def campaign(folder, *outcomes):
    """Write a campaign of three trials; `failed ok` are two attempts at one."""
    made = [[{"ns": 1} if word == "ok" else None for word in one.split()] for one in outcomes]
    made += [[]] * (3 - len(made))
    number = {"number": [0, 1, 2]}
    write(folder, number, lambda at, _: made[at["number"]], blocks=1, study="made", rig=SHARED)
    (folder / status.LOCK).write_text("process 7 on far")
    return folder


def measuring(folder):
    """Lock a campaign as the process does that measures it, until the file is closed."""
    file = (folder / status.LOCK).open("a")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


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
def test_every_state_of_a_campaign(tmp_path, outcomes, measures, found):
    path = campaign(tmp_path / "made" / "1", *outcomes)
    with measuring(path) if measures else nullcontext():
        (one,) = status.find([tmp_path])
    assert (one.state, one.done, one.failed) == found and one.planned == 3
    assert one.process == ("process 7 on far" if measures else "")
    assert (one.left_seconds is not None) == (len(outcomes) > 1)


def test_the_newest_and_the_running_campaigns_are_shown(tmp_path):
    _, running, new = (campaign(tmp_path / "quick" / "made" / name, "ok") for name in "123")
    (new / "trials.parquet").touch()  # packed, so complete
    with measuring(running):
        found = status.find([tmp_path])
    assert [(one.path, one.state) for one in found] == [(running, "running"), (new, "finished")]
    assert status.find([new, new]) == status.find([new]) and not status.find([tmp_path / "none"])


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


def test_the_command_shows_a_table_away_from_the_measurement(tmp_path):
    path = campaign(tmp_path / "made" / "1", "failed")
    with measuring(path):
        argv = [sys.executable, "-c", COMMAND, str(tmp_path)]
        found = subprocess.run(argv, capture_output=True, text=True, check=True)
    head, row, last = found.stdout.splitlines()
    assert head.split()[:4] == ["state", "study", "trials", "failed"]
    assert row.startswith("running (process 7 on far)  made   0/3     1")
    assert last == "1 19 {0} set()"
