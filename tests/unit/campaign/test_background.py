"""A client that is started before its window, and stopped until then."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.campaign.trial import Trial
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, labelled
from labkit.tools.base import Client, Measurement, Prestart

HOST, LABEL = LocalHost(), f"test-prestart-{os.getpid()}"
#: As sockperf does: it says so, sleeps in one call, and then sends.
PROGRAM = """
import sys, time
print("Warmup stage", flush=True)
time.sleep(0.2)
open(sys.argv[1], "w").write("begun")
print("sent")
sys.exit(7)
"""


class Place(SimpleNamespace):
    """A rig of which the generator is this machine."""

    targets: Any

    def check_target(self, address: str) -> None:
        assert address == "198.18.0.1"

    def cpus(self, role: str, affinity: str) -> str:
        return "0"


def prepared(folder: Path, *command: str) -> Any:
    """Return the context of a client that was started and stopped in `folder`/LABEL-load."""
    rig: Any = Place(targets={"generator": SimpleNamespace(host=HOST, directory=str(folder))})
    sleep = Prestart(0.2, "Warmup stage")
    client = Client(command, "198.18.0.1", 1.0, lambda *_: Measurement({}), prestart=sleep)
    return Trial(rig, {}, LABEL).prepare(client, name="load")


def test_it_begins_when_it_is_let_go_and_not_before(tmp_path: Path) -> None:
    begun, folder = tmp_path / "begun", tmp_path / f"{LABEL}-load"
    command = ("python3", "-c", PROGRAM, str(begun))
    with prepared(tmp_path, *command) as one:
        ready = one.ready()
        # It has slept its time, and is stopped all the same.
        pid = (folder / "client").read_text().strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T" and not begun.exists()
        result = HOST.run(*ready.argv, check=False)
        assert begun.exists() and result.status == 7
        assert result.stdout.splitlines() == ["Warmup stage", "sent"]
        # Whoever looks what aims where finds the command itself.
        assert set(command) <= set(ready.argv)
    assert not folder.exists()


def test_one_that_is_never_let_go_is_ended(tmp_path: Path) -> None:
    with prepared(tmp_path, "python3", "-c", PROGRAM, str(tmp_path / "begun")) as one:
        one.ready()
    assert not (tmp_path / "begun").exists() and labelled(HOST, LABEL) == []


def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    with (
        prepared(tmp_path, "sh", "-c", "echo no such option >&2; exit 1") as one,
        pytest.raises(ToolOutput, match="no such option"),
    ):
        one.ready()
