"""Settings and what restores them, on plain files, with real processes killed for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.errors import RigError
from labkit.hosts import LocalHost, Settings, agent, restore
from labkit.hosts.settings import forget, pending

HOST = LocalHost()
BEFORE = ["a-before", "b-before", "c-before"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    for name in ("a", "b", "c"):
        (directory / name).write_text(f"{name}-before\n")
    return directory


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def contents(files: Path) -> list[str]:
    return [(files / name).read_text().strip() for name in ("a", "b", "c")]


def states(journal: str, **which: str) -> list[tuple[str, str]]:
    return [(one.state, one.target[-1]) for one in restore(HOST, journal=journal, **which)]


def test_settings_are_restored_at_the_end(files: Path, journal: str) -> None:
    with Settings(HOST, "lkt-1", journal=journal) as settings:
        assert settings.set_file(f"{files}/a", 1)
        values = {f"{files}/b": "x y", f"{files}/c": "c-before", f"{files}/no": "1"}
        assert list(settings.set_files(values).values()) == [True, True, False]
        assert contents(files) == ["1", "x y", "c-before"]
        # An equal value and a missing file are not journalled.
        assert [entry.prior for entry in pending(HOST, journal)] == BEFORE[:2]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert {entry.boot for entry in pending(HOST, journal)} == {boot}
    assert contents(files) == BEFORE and not (files / "no").exists()
    assert settings.notes == [f"{files}/no: not supported on this host"]
    assert [path.name for path in Path(journal).iterdir()] == ["lock"]


def test_a_file_set_several_times_gets_its_first_value(files: Path, journal: str) -> None:
    settings = Settings(HOST, "lkt-1", journal=journal)
    for value in ("1", "2", "3"):
        settings.set_file(f"{files}/a", value)
    assert [outcome.state for outcome in settings.restore()] == ["restored"] * 3
    assert contents(files) == BEFORE
    assert settings.restore() == []


def test_a_value_that_is_not_taken_has_the_kernels_reason(journal: str) -> None:
    settings = Settings(HOST, "lkt-1", journal=journal)
    assert not settings.set_file("/proc/self/status", 1)
    settings.restore()
    (note,) = settings.notes
    assert "'1' was not taken: " in note


def test_a_value_changed_by_somebody_else_stays(files: Path, journal: str) -> None:
    settings = Settings(HOST, "lkt-1", journal=journal)
    with pytest.raises(RigError, match="b: conflict"), settings:
        settings.set_files({f"{files}/{name}": "ours" for name in "abc"})
        (files / "b").write_text("theirs\n")
    assert contents(files) == ["a-before", "theirs", "c-before"]
    assert states(journal) == [("conflict", "b")]  # it is not forgotten, and nothing else is left
    (files / "b").write_text("b-before\n")
    assert states(journal) == [("unchanged", "b")]
    assert states(journal) == []


def test_settings_of_others_stay(files: Path, journal: str) -> None:
    ours, theirs = (Settings(HOST, label, journal=journal) for label in ("lkt-1/x", "lkt-2/x"))
    also_ours = Settings(HOST, "lkt-1/x", journal=journal)
    for settings, name in ((ours, "a"), (theirs, "b"), (also_ours, "c")):
        settings.set_file(f"{files}/{name}", "1")
    ours.restore()
    assert contents(files) == ["a-before", "1", "1"]
    assert states(journal, label="lkt-1/") == [("restored", "c")]
    forget(HOST, pending(HOST, journal), journal)
    assert states(journal) == [] and contents(files) == ["a-before", "1", "c-before"]


KILLED = """
import os, signal, sys
from labkit.hosts import LocalHost, Settings
files, journal, label = sys.argv[1:]
with Settings(LocalHost(), label, journal=journal) as settings:
    settings.set_file(files + "/a", "1")
    settings.set_files({files + "/b": "2", files + "/a": "3"})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_restore_after_the_harness_was_killed(files: Path, journal: str) -> None:
    line = [sys.executable, "-c", KILLED, str(files), journal, "lkt-1"]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    assert contents(files) == ["3", "2", "c-before"]
    assert states(journal) == [("restored", "a"), ("restored", "b"), ("restored", "a")]
    assert contents(files) == BEFORE
    assert states(journal) == []


def killed_agent(
    call: str, arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch, at: int
) -> bool:
    """Call the agent in a child that dies before a sync, or before it opens a setting."""
    steps = 0

    def count(real: object) -> object:
        def step(*given: object, **options: object) -> object:
            nonlocal steps
            steps += 1
            if steps == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)  # type: ignore[operator]

        return step

    if (pid := os.fork()) == 0:
        os.fsync, os.open = count(os.fsync), count(os.open)  # type: ignore[assignment]
        getattr(agent, call)(**arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("call", ["set_values", "restore"])
def test_a_kill_at_any_step_leaves_nothing_unrecorded(
    call: str, files: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {f"{files}/a": "1", f"{files}/b": "2"}
    setting = {"values": values, "label": "lkt-1", "owner": "me", "journal": journal}
    for at in range(1, 20):
        if call == "restore":
            agent.set_values(**setting)
            agent.set_values(**(setting | {"values": {f"{files}/a": "3"}}))
        arguments = setting if call == "set_values" else {"journal": journal}
        killed = killed_agent(call, arguments, monkeypatch, at)
        changed = {f"{files}/{name[0]}" for name in BEFORE if name not in contents(files)}
        assert changed <= {entry["target"] for entry in agent.pending(journal)}
        assert {one["state"] for one in agent.restore(journal)} <= {"restored", "unchanged"}
        assert contents(files) == BEFORE
        if not killed:
            break
    assert at > 4


def test_nothing_is_restored_after_a_reboot(files: Path, journal: str) -> None:
    Settings(HOST, "lkt-1", journal=journal).set_file(f"{files}/a", "1")
    book = Path(journal, "journal")
    book.write_text(json.dumps(json.loads(book.read_text()) | {"boot": "another"}) + "\n")
    assert states(journal) == [("expired", "a")]
    assert contents(files)[0] == "1" and states(journal) == []


def test_reading_creates_nothing(journal: str) -> None:
    """A user who is not root, and has no journal, may restore all the same."""
    assert pending(HOST, journal) == [] == restore(HOST, journal=journal)
    assert not Path(journal).exists()


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("3\n", "00000003", True),
        ("00000000,00000003", "3", True),
        ("0,1", "0-1", True),
        ("0-2,3,7", "7,0-3", True),
        ("performance [powersave]", "powersave", True),
        ("always [madvise] never", "madvise", True),
        ("4096\t131072 6291456", "4096 131072 6291456", True),
        ("0", "00000000,00000000", True),
        ("3", "30", False),
        ("0,2", "0-2", False),
        ("-1", "1", False),
        ("1 2", "12", False),
        ("", "0", False),
        ("10", "1", False),
    ],
)
def test_equal_values(left: str, right: str, same: bool) -> None:
    assert agent.same(left, right) == agent.same(right, left) == same
