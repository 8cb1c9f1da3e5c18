"""The progress of campaigns: a real one while it runs, is killed, fails and is finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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

def scripted(trial):
    print("asks", flush=True)
    if sys.stdin.readline().strip() == "fail":
        raise ValueError("on purpose")
    return Measurement({"value_ns": np.array([trial.n], dtype=np.int64)}, {}, 1)

rig = Nowhere("nowhere", "virtual", {}, {}, {}, {"harness": "0"}, shared_kernel=False)
Study("scripted", scripted, {"n": [1, 2]}).plan(rig, blocks=2, seed=1).run(into=sys.argv[1])
"""


class Scripted:
    """A campaign in a process of its own."""

    def __init__(self, folder: Path) -> None:
        script = folder / "campaign.py"
        script.write_text(PROGRAM)
        self.folder = folder / "data"
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def asked(self) -> bool:
        """Wait until a trial asks; False where the campaign ends instead."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "asks\n"

    def say(self, *words: str) -> None:
        """Answer the trial that asks, and those after it, and wait for the next."""
        assert self.process.stdin is not None
        for word in words:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
            self.asked()

    def counts(self) -> tuple[str, int, int, int]:
        (one,) = status.find([self.folder])
        return one.state, one.done, one.failed, one.planned


@contextmanager
def scripted(folder: Path) -> Iterator[Scripted]:
    campaign = Scripted(folder)
    assert campaign.asked()
    try:
        yield campaign
    finally:
        campaign.process.kill()
        campaign.process.communicate()


def test_every_state_of_a_campaign(tmp_path: Path) -> None:
    with scripted(tmp_path) as campaign:
        assert campaign.counts() == ("running", 0, 0, 4)
        campaign.say("ok", "ok", "fail")
        assert campaign.counts() == ("running", 2, 1, 4)
        (found,) = status.find([campaign.folder])
        assert found.process.startswith(f"process {campaign.process.pid} on ")
        assert found.left_seconds is not None and found.ended_ns is not None
        campaign.process.kill()
        campaign.process.wait()
        assert campaign.counts() == ("stopped", 2, 1, 4)
    with scripted(tmp_path) as campaign:
        campaign.say("fail", "fail", "ok")
        assert campaign.process.wait() == 0
        assert campaign.counts() == ("failed", 3, 1, 4)
    with scripted(tmp_path) as campaign:
        campaign.say("ok")
        assert campaign.process.wait() == 0
        assert campaign.counts() == ("finished", 4, 0, 4)


def write(folder: Path, *outcomes: str, planned: int, process: str = "", **plan: Any) -> Path:
    """Write the plan, the lock and the trials of a campaign."""
    folder.mkdir(parents=True)
    plan |= {"study": folder.parent.name, "order": [list(range(planned))]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / status.LOCK).write_text(process)
    for number, outcome in enumerate(outcomes):
        trial = folder / "trials" / f"b01-p{number:02d}-a1"
        trial.mkdir(parents=True)
        (trial / "trial.json").write_text(json.dumps({"rows": [{"status": outcome}]}))
    return folder


def test_the_newest_and_the_running_campaigns_are_shown(tmp_path: Path) -> None:
    old, running, new = (tmp_path / "quick" / "s" / name for name in ("1", "2", "3"))
    # The process of the old one was killed; its number is that of another now.
    write(old, "ok", planned=2, process=f"process {os.getpid()} on {os.uname().nodename}")
    write(running, "ok", planned=2, process="process 7 on far")
    write(new, "ok", planned=1)
    assert [one.path for one in status.find([tmp_path])] == [running, new]
    assert [one.state for one in status.find([tmp_path])] == ["running", "finished"]
    assert status.find([new, new]) == status.find([new])
    assert status.find([tmp_path / "none"]) == []


def test_a_packed_campaign_is_finished(tmp_path: Path) -> None:
    (write(tmp_path / "s" / "1", planned=3) / "trials.parquet").touch()
    assert [(one.state, one.done) for one in status.find([tmp_path])] == [("finished", 3)]


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
    assert row[:4] == ["finished", "s", "2/2", "0"] and row[-1] == str(path)
    bad = write(tmp_path / "u" / "1", "failed", planned=1)
    assert command(tmp_path).returncode == command(bad.parent).returncode == 1


def test_the_command_imports_no_large_packages() -> None:
    code = (
        "import sys, labkit.cli, labkit.cli.campaigns\n"
        "print(*{'pandas', 'numpy', 'pyarrow', 'IPython', 'fabric', 'yaml'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []


@pytest.mark.parametrize(("seconds", "text"), [(12, "12 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_have_units(seconds: float, text: str) -> None:
    assert status.duration_text(seconds) == text
