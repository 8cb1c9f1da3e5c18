"""How far campaigns are: a real one through every state it can be in, and folders of any shape."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import process, status
from labkit.paths import RUNNING

#: A campaign without hosts, whose trials wait to be told what comes of them.
PROGRAM = """
import sys
import numpy as np
from labkit.benchmarks.base import Reading
from labkit.campaign.study import Study
from labkit.rig.base import Rig

class Nowhere(Rig):
    def facts(self):
        return {"sut": {"stable": {}, "volatile": {"boot_id": "a"}}}

def told(trial):
    print("asks", flush=True)
    if sys.stdin.readline().strip() == "fail":
        raise ValueError("on purpose")
    return Reading({"value_ns": np.array([trial.n], dtype=np.int64)}, {}, 1)

rig = Nowhere("nowhere", "virtual", {}, {}, {}, {"harness": "0"}, shared_kernel=False)
Study("told", told, {"n": [1, 2]}).plan(rig, blocks=2, seed=1).run(into=sys.argv[1])
"""


class Told:
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
        (found,) = status.look([self.folder])
        return found


@contextmanager
def told(folder: Path) -> Iterator[Told]:
    campaign = Told(folder)
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


def test_a_campaign_is_seen_through_all_of_its_life(tmp_path: Path) -> None:
    with told(tmp_path) as campaign:
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
        assert counts(found) == ("dead", 2, 1, 1, 4) and not found.good
        assert "was killed in b02-p01" in status.lines([found], 0)[3]
        assert " b02-p01 attempt 2 begins: " in log_of(found, 1).splitlines()[-1]
    with told(tmp_path) as campaign:
        campaign.say("fail", "fail", "ok")
        assert campaign.process.wait() == 0
    found = campaign.look()
    assert counts(found) == ("failed", 3, 1, 1, 4) and not found.good and not found.problems
    assert not (found.path / RUNNING).exists()
    records = [json.loads(path.read_text()) for path in found.path.rglob("trial.json")]
    ends = [one["started_ns"] + round(one["seconds"] * 1e9) for one in records]
    assert found.ended_ns == max(ends)


def write(folder: Path, outcomes: Sequence[Sequence[Sequence[str]]], **plan: Any) -> Path:
    """Write the files of a campaign: of each trial of each block the status of its attempts."""
    whole = {"study": "s", "order": [[0] * len(block) for block in outcomes]}
    whole |= {"rig": {"cpu_map": {}, "shared_kernel": False}} | plan
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"format": 1} | whole))
    for b, block in enumerate(outcomes, start=1):
        for p, attempts in enumerate(block, start=1):
            for number, outcome in enumerate(attempts, start=1):
                name = f"b{b:02d}-p{p:02d}"
                attempt = folder / "trials" / f"{name}-a{number}"
                attempt.mkdir(parents=True)
                record = {"trial": name, "started_ns": b * 10**10, "seconds": 0.5}
                record |= {"status": outcome, "error": None, "metrics": {"x": 1.0}}
                (attempt / "trial.json").write_text(json.dumps(record, indent=1))
    return folder


def mark(folder: Path, **more: Any) -> None:
    said = {"log": "01.log", "began_ns": 0, "trial": "b01-p01", "attempt": 1, "condition": "c"}
    said |= {"trial_began_ns": 0, "left_seconds": 8.0}
    (folder / RUNNING).write_text(json.dumps(process.identity() | said | more))


ATTEMPTS = st.sampled_from([[], ["ok"], ["failed"], ["failed", "ok"], ["failed", "failed"]])


@given(st.lists(st.lists(ATTEMPTS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_what_is_counted_is_what_is_there(outcomes: list[list[list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        (found,) = status.look([write(Path(name) / "s" / "c", outcomes).parent])
    trials = [attempts for block in outcomes for attempts in block]
    done = sum("ok" in attempts for attempts in trials)
    failed = sum("failed" in attempts and "ok" not in attempts for attempts in trials)
    whole = sum(all("ok" in attempts for attempts in block) for block in outcomes)
    state = "finished" if done == len(trials) else "stopped"
    state = "failed" if failed and done + failed == len(trials) else state
    assert counts(found) == (state, done, failed, whole, len(trials))
    assert found.good == (state == "finished") and found.problems == ()
    assert (found.ended_ns is None) == (not any(trials))


def test_of_a_study_the_newest_is_shown_and_what_runs(tmp_path: Path) -> None:
    old, running, new = (tmp_path / "quick" / "s" / name for name in ("1", "2", "3"))
    for path in (old, running, new):
        write(path, [[["ok"]]])
    mark(running)
    mark(old, started=1)  # its process was killed, and another campaign was begun
    assert [one.path for one in status.look([tmp_path])] == [running, new]
    assert [one.state for one in status.look([tmp_path], every=True)] == [
        *("finished", "running", "finished")
    ]
    assert status.look([new, new]) == status.look([new])
    assert status.look([tmp_path / "none"]) == []


def test_of_another_machine_it_is_only_known_what_it_said(tmp_path: Path) -> None:
    write(tmp_path / "s" / "1", [[["ok"], []]])
    mark(tmp_path / "s" / "1", host="far", trial="b01-p02")
    (found,) = status.look([tmp_path])
    assert counts(found) == ("elsewhere", 1, 0, 0, 2) and found.good
    assert "process" in status.lines([found], 0)[3] and " on far " in status.lines([found], 0)[3]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"study": "s", "order": 3, "rig": {}}'])
def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    write(tmp_path / "s" / "1", [[["ok"]]])
    broken = write(tmp_path / "t" / "1", [[["ok"]]])
    (broken / "plan.json").write_text(text)
    good, bad = status.look([tmp_path])
    assert good.good and (bad.state, bad.study) == ("unreadable", "t") and not bad.good
    assert re.match(r"t: 1: ", status.lines([good, bad], 0)[-1])


def test_a_trial_or_a_mark_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "s" / "1", [[["ok"], ["ok"], ["ok"]]])
    (path / "trials" / "b01-p02-a1" / "trial.json").write_text("{")
    (path / "trials" / "b01-p03-a1" / "trial.json").unlink()
    (path / RUNNING).write_text("{}")
    (path / "trials" / ".b01-p04-a1.part").mkdir()
    (found,) = status.look([tmp_path])
    assert counts(found) == ("stopped", 1, 0, 0, 3) and not found.good
    assert [one.partition(":")[0] for one in found.problems] == [
        *("b01-p02-a1", "b01-p03-a1", RUNNING)
    ]


def command(*argv: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: it makes way for others, and stays so."""
    words = [sys.executable, "-m", "labkit.cli", "status", *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_has_exit_codes_and_json(tmp_path: Path) -> None:
    assert command(tmp_path).stdout.startswith("no campaign here\nrig: ")
    write(tmp_path / "s" / "1", [[["ok"], ["failed", "ok"]]])
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
    assert re.fullmatch(r"rig: .*, used by (nobody|process \d+)", rig)
    mark(write(tmp_path / "t" / "1", [[["ok"], []]]), trial="b01-p02", pid=os.getpid())
    bad = write(tmp_path / "u" / "1", [[["failed"]]])
    found = command(tmp_path, "--json")
    assert found.returncode == 1
    record = json.loads(found.stdout)
    assert [one["state"] for one in record["campaigns"]] == ["finished", "running", "failed"]
    assert record["campaigns"][1]["run"]["pid"] == os.getpid()
    assert record["campaigns"][1]["left_seconds"] == 0 and set(record["rig"]) == {
        *("virtual", "used_by")
    }
    assert command(bad.parent).returncode == 1


def test_looking_imports_nothing_that_is_heavy() -> None:
    code = (
        "import sys, labkit.cli, labkit.cli_batch\n"
        "print(*{'pandas', 'numpy', 'pyarrow', 'IPython', 'fabric', 'yaml'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == []
