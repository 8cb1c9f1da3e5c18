"""The progress of campaigns: a real one while it runs, is killed, fails and is finished."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit import status

#: A campaign without hosts, whose trials read their outcomes from standard input.
PROGRAM = """
import sys
import numpy as np
from labkit.tools.base import Measurement
from labkit.campaign.study import Study
from labkit.rig.base import Rig

class Nowhere(Rig):
    def facts(self):
        return {"sut": {"stable": {}, "volatile": {"boot_id": "a"}}}

def scripted(trial, n):
    print("asks", flush=True)
    if sys.stdin.readline().strip() == "fail":
        raise ValueError("on purpose")
    return Measurement({"value_ns": np.array([n], dtype=np.int64)}, {}, 1)

rig = Nowhere("nowhere", "virtual", {}, {}, {}, {"harness": "0"}, shared_kernel=False)
Study("scripted", scripted, {"n": [1, 2]}).plan(rig, blocks=2, seed=1).run(into=sys.argv[1])
"""


@contextmanager
def scripted(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the campaign in a process of its own, up to its first trial."""
    script = folder / "campaign.py"
    script.write_text(PROGRAM)  # a protocol needs a source
    pipe = subprocess.PIPE
    argv = [sys.executable, str(script), str(folder)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=quiet, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "asks\n"
        yield process
        process.kill()


def say(process: subprocess.Popen[str], *words: str) -> None:
    """Answer the trial that asks, and those after it, and wait for the next."""
    assert process.stdin is not None and process.stdout is not None
    for word in words:
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        process.stdout.readline()


def counts(folder: Path) -> tuple[str, int, int, int]:
    (one,) = status.find([folder])
    return one.state, one.done, one.failed, one.planned


def test_every_state_of_a_campaign(tmp_path: Path) -> None:
    with scripted(tmp_path) as process:
        assert counts(tmp_path) == ("running", 0, 0, 4)
        say(process, "ok", "ok", "fail")
        assert counts(tmp_path) == ("running", 2, 1, 4)
        (found,) = status.find([tmp_path])
        assert found.process.startswith(f"process {process.pid} on ")
        assert found.left_seconds is not None and found.ended_ns is not None
        process.kill()
        process.wait()
        assert counts(tmp_path) == ("stopped", 2, 1, 4)
    with scripted(tmp_path) as process:
        say(process, "fail", "fail", "ok")
        assert process.wait() == 0
        assert counts(tmp_path) == ("failed", 3, 1, 4)
    with scripted(tmp_path) as process:
        say(process, "ok")
        assert process.wait() == 0
        assert counts(tmp_path) == ("finished", 4, 0, 4)


def write(folder: Path, *outcomes: str, planned: int) -> Path:
    """Write the plan, the lock and the trials of a campaign."""
    folder.mkdir(parents=True)
    plan = {"study": folder.parent.name, "order": [list(range(planned))]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / status.LOCK).write_text("process 7 on far")
    for number, outcome in enumerate(outcomes):
        trial = folder / "trials" / f"b01-p{number:02d}-a1"
        trial.mkdir(parents=True)
        (trial / "trial.json").write_text(json.dumps({"rows": [{"status": outcome}]}))
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a campaign as the process does that measures it."""
    with (folder / status.LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


def command(*argv: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: it makes way for others, and stays so."""
    words = [sys.executable, "-m", "labkit.cli", "status", *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_shows_a_table_and_has_exit_codes(tmp_path: Path) -> None:
    assert command(tmp_path).stdout == "no campaign here\n"
    path = write(tmp_path / "s" / "1", "ok", "ok", planned=2)
    good = command(tmp_path)
    assert good.returncode == 0, good.stderr
    head, row = (line.split() for line in good.stdout.splitlines())
    assert head[:4] == ["state", "study", "trials", "failed"]
    assert row[:4] == ["finished", "s", "2/2", "0"] and row[-1] == os.path.relpath(path)
    write(tmp_path / "u" / "1", "failed", planned=1)
    assert command(tmp_path).returncode == 1


def test_the_command_reads_with_few_imports_away_from_the_measurement(tmp_path: Path) -> None:
    code = (
        "import sys, labkit.cli\n"
        "print(*{'pandas', 'numpy', 'pyarrow', 'IPython', 'fabric', 'yaml'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []
    path = write(tmp_path / "s" / "1", planned=2)
    plan = json.loads((path / "plan.json").read_text())
    plan["rig"] = {"shared_kernel": True, "cpu_map": {"harness": "0"}}
    (path / "plan.json").write_text(json.dumps(plan))
    moved = (
        "import os, sys\nfrom labkit import cli\n"
        "sys.exit = lambda code: print(os.nice(0), os.sched_getaffinity(0))\n"
        f"cli.main(['status', {str(tmp_path)!r}])"
    )
    with held(path):
        shown = subprocess.run([sys.executable, "-c", moved], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == "19 {0}", shown.stderr
