"""The state of campaigns: a real campaign in every state, and progress files of any content."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labkit import status
from labkit.paths import PROGRESS

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

    def look(self) -> status.Campaign:
        (found,) = status.find([self.folder])
        return found


@contextmanager
def scripted(folder: Path) -> Iterator[Scripted]:
    campaign = Scripted(folder)
    assert campaign.asked()
    try:
        yield campaign
    finally:
        campaign.process.kill()
        campaign.process.communicate()


def counts(one: status.Campaign) -> tuple[str, int, int, int, int]:
    return one.state, one.done, one.failed, one.whole, one.planned


def log_of(one: status.Campaign, number: int) -> str:
    return (one.path / "logs" / f"{number:02d}.log").read_text()


def test_every_state_of_a_campaign(tmp_path: Path) -> None:
    with scripted(tmp_path) as campaign:
        first = campaign.look()
        assert counts(first) == ("running", 0, 0, 0, 4) and first.good
        assert first.run is not None and first.left(0) is None
        assert first.run["pid"] == campaign.process.pid and first.run["trial"] == "b01-p01"
        campaign.say("ok", "ok", "fail")
        found = campaign.look()
        # The trial that failed is tried again, so nothing has failed for good.
        assert counts(found) == ("running", 2, 0, 1, 4) and found.good
        assert found.run is not None and found.run["attempt"] == 2
        assert found.left(found.run["trial_began_ns"]) == found.run["left_seconds"] > 0
        assert found.left(found.run["trial_began_ns"] + 10**15) == 0
        said = status.lines([found], found.run["trial_began_ns"])
        assert f"process {campaign.process.pid} for " in said[3] and "b02-p01, attempt 2" in said[3]
        campaign.process.kill()
        campaign.process.wait()
        found = campaign.look()
        assert counts(found) == ("dead", 2, 0, 1, 4) and not found.good
        assert "was killed in b02-p01" in status.lines([found], 0)[3]
        assert " b02-p01 attempt 2 begins: " in log_of(found, 1).splitlines()[-1]
    with scripted(tmp_path) as campaign:
        campaign.say("fail", "fail", "ok")
        assert campaign.process.wait() == 0
    found = campaign.look()
    assert counts(found) == ("failed", 3, 1, 1, 4) and not found.good and not found.problems
    assert found.run is None
    paths = found.path.rglob("trial.json")
    rows = [json.loads(path.read_text())["rows"][0] for path in paths]
    last = max(one["started_ns"] + round(one["seconds"] * 1e9) for one in rows)
    assert found.ended_ns == pytest.approx(last, abs=60e9)


def write(folder: Path, *, planned: int, done: int, failed: int = 0, **more: Any) -> Path:
    """Write the plan and the progress file of a campaign."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"study": folder.parent.name}))
    progress = {"study": folder.parent.name, "planned": planned, "done": done, "failed": failed}
    progress |= {"blocks": 1, "whole": int(done == planned), "run": None, "cpus": ""}
    progress |= {"ended_ns": 10_500_000_000} | more
    (folder / PROGRESS).write_text(json.dumps(progress))
    return folder


def run_of(**more: Any) -> dict[str, Any]:
    """Return what a run of this process says of itself."""
    said = {"log": "01.log", "began_ns": 0, "trial": "b01-p01", "attempt": 1, "condition": "c"}
    return status.process_identity() | said | {"trial_began_ns": 0, "left_seconds": 8.0} | more


@pytest.mark.parametrize(
    ("done", "failed", "state"),
    [(2, 0, "finished"), (1, 1, "failed"), (1, 0, "stopped"), (0, 1, "stopped")],
)
def test_a_campaign_without_a_process(tmp_path: Path, done: int, failed: int, state: str) -> None:
    write(tmp_path / "s" / "1", planned=2, done=done, failed=failed)
    (found,) = status.find([tmp_path])
    assert counts(found) == (state, done, failed, done // 2, 2)
    assert found.good == (state == "finished") and found.problems == ()


def test_the_newest_and_the_running_campaigns_are_shown(tmp_path: Path) -> None:
    old, running, new = (tmp_path / "quick" / "s" / name for name in ("1", "2", "3"))
    # The process of the old one was killed, and another campaign was begun.
    write(old, planned=2, done=1, run=run_of(started=1.0))
    write(running, planned=2, done=1, run=run_of())
    write(new, planned=1, done=1)
    assert [one.path for one in status.find([tmp_path])] == [running, new]
    states = [one.state for one in status.find([tmp_path], every=True)]
    assert states == ["dead", "running", "finished"]
    assert status.find([new, new]) == status.find([new])
    assert status.find([tmp_path / "none"]) == []


def test_a_campaign_of_another_machine(tmp_path: Path) -> None:
    run = run_of(host="far", trial="b01-p02")
    write(tmp_path / "s" / "1", planned=2, done=1, run=run)
    (found,) = status.find([tmp_path])
    assert counts(found) == ("elsewhere", 1, 0, 0, 2) and found.good
    assert "process" in status.lines([found], 0)[3] and " on far " in status.lines([found], 0)[3]


@pytest.mark.parametrize("changed", [{"pid": 2**22 - 1}, {"started": 0.01}, {"boot": "another"}])
def test_a_process_that_ended_is_not_running(changed: dict[str, Any]) -> None:
    identity = status.process_identity()
    assert status.is_running(identity) is True
    assert status.is_running(identity | changed) is False
    assert status.is_running(identity | changed | {"host": "far"}) is None


def test_a_zombie_process_is_not_running() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        identity = status.process_identity() | {"pid": process.pid}
        assert status.is_running(identity) is False


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"study": "s", "run": 3}', "\0"])
def test_a_damaged_progress_file_is_shown(tmp_path: Path, text: str) -> None:
    write(tmp_path / "s" / "1", planned=1, done=1)
    broken = write(tmp_path / "t" / "1", planned=1, done=1)
    (broken / PROGRESS).write_text(text)
    good, bad = status.find([tmp_path])
    assert good.good and (bad.state, bad.study) == ("unreadable", "t") and not bad.good
    assert re.match(r"t: 1: ", status.lines([good, bad], 0)[-1])


def test_a_campaign_without_a_progress_file_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "s" / "1", planned=1, done=1)
    (path / PROGRESS).unlink()
    (found,) = status.find([tmp_path])
    assert (found.state, found.study, found.good) == ("unknown", "s", True)
    assert status.lines([found], 0)[1].split()[:5] == ["unknown", "s", "-", "0", "-"]
    (path / "plan.json").write_text("{")
    assert [one.state for one in status.find([tmp_path])] == ["unreadable"]


def command(*argv: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: it makes way for others, and stays so."""
    words = [sys.executable, "-m", "labkit.cli", "status", *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_has_exit_codes_and_json(tmp_path: Path) -> None:
    assert command(tmp_path).stdout.startswith("no campaign here\nrig: ")
    write(tmp_path / "s" / "1", planned=2, done=2)
    good = command(tmp_path)
    assert good.returncode == 0, good.stderr
    head, row, rig = good.stdout.splitlines()
    assert head.split() == [
        "state",
        "study",
        "trials",
        "failed",
        "blocks",
        "last",
        "trial",
        "ended",
        "campaign",
    ]
    assert row.split() == [
        *("finished", "s", "2/2", "0", "1/1", "1970-01-01T00:00:10Z", str(tmp_path / "s" / "1"))
    ]
    assert re.fullmatch(r"rig: .* used by (nobody|process \d+.*)", rig)
    write(tmp_path / "t" / "1", planned=2, done=1, run=run_of(trial="b01-p02"))
    bad = write(tmp_path / "u" / "1", planned=1, done=0, failed=1)
    found = command(tmp_path, "--json")
    assert found.returncode == 1
    record = json.loads(found.stdout)
    assert [one["state"] for one in record["campaigns"]] == ["finished", "running", "failed"]
    assert record["campaigns"][1]["run"]["pid"] == os.getpid()
    assert record["campaigns"][1]["left_seconds"] == 0 and set(record["rig"]) == {
        *("used_by", "user")
    }
    assert command(bad.parent).returncode == 1


def test_the_command_imports_no_large_packages() -> None:
    code = (
        "import sys, labkit.cli, labkit.cli.campaigns\n"
        "print(*{'pandas', 'numpy', 'pyarrow', 'IPython', 'fabric', 'yaml'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []
