"""A client that is started before its window, and stopped until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.campaign import background
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, labelled
from labkit.tools.base import Client, Measurement, Prestart

HOST = LocalHost()


def client(*command: str, sleeps: float = 0.2) -> Client:
    return Client(
        command,
        "",
        1.0,
        lambda out, log: Measurement({}),
        prestart=Prestart(sleeps, "Warmup stage"),
    )


def sleepy(path: Path, sleeps: float = 0.2, status: int = 0) -> Client:
    argv = ("python3", "-c", PROGRAM, str(sleeps), str(path), str(status))
    return client(*argv, sleeps=sleeps)


#: As sockperf does: it says so, sleeps in one call, and then sends.
PROGRAM = """
import sys, time
print("Warmup stage", flush=True)
time.sleep(float(sys.argv[1]))
open(sys.argv[2], "w").write("begun")
print("sent")
sys.exit(int(sys.argv[3]))
"""


def state_of(directory: Path) -> str:
    pid = (directory / "held").read_text().split()[0]
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_it_begins_when_it_is_let_go_and_not_before(tmp_path: Path) -> None:
    directory, begun = tmp_path / "job", tmp_path / "begun"
    one = sleepy(begun)
    with background.prestart(HOST, str(directory), "test-prestart", one, one.argv) as prepared:
        ready = prepared.ready()
        # It has slept its time, and is stopped all the same.
        assert state_of(directory) == "T" and not begun.exists()
        result = HOST.run(*ready.argv, check=False)
        assert begun.exists() and result.status == 0
        assert result.stdout.splitlines() == ["Warmup stage", "sent"]
        # Whoever looks what aims where finds the command itself.
        assert set(one.argv) <= set(ready.argv)
    assert not directory.exists()


def test_its_status_is_the_client_s_own(tmp_path: Path) -> None:
    one = sleepy(tmp_path / "begun", status=7)
    with background.prestart(
        HOST, str(tmp_path / "job"), "test-prestart", one, one.argv
    ) as prepared:
        assert HOST.run(*prepared.ready().argv, check=False).status == 7


def test_one_that_is_never_let_go_is_ended(tmp_path: Path) -> None:
    one = sleepy(tmp_path / "begun")
    with background.prestart(
        HOST, str(tmp_path / "job"), "test-prestart-never", one, one.argv
    ) as prepared:
        prepared.ready()
    assert not (tmp_path / "begun").exists() and labelled(HOST, "test-prestart-never") == []


def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    one = client("sh", "-c", "echo no such option >&2; exit 1")
    with (
        background.prestart(
            HOST, str(tmp_path / "job"), "test-prestart", one, one.argv
        ) as prepared,
        pytest.raises(ToolOutput, match="no such option"),
    ):
        prepared.ready()
