"""The journal and what restores from it, on plain files, with real processes killed for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import CommandFailed, DatasetError, RigError, UsageError
from labkit.hosts import LocalHost, Tuning, restore
from labkit.hosts.journal import Entry, Journal, conflict, parse_journal

HOST = LocalHost()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    for name in ("a", "b", "c"):
        (directory / name).write_text(f"{name}-before\n")
    return directory


@pytest.fixture
def journal_dir(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def contents(files: Path) -> list[str]:
    return [(files / name).read_text().strip() for name in ("a", "b", "c")]


def test_the_reason_of_a_value_that_was_not_taken_is_the_kernels(journal_dir: str) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=journal_dir)
    assert not tuning.set_file("/proc/self/status", 1)
    tuning.restore()
    (note,) = tuning.notes
    assert "printf" not in note and "sh:" not in note and note.partition("taken: ")[2]


BEFORE = ["a-before", "b-before", "c-before"]


def test_settings_are_restored_at_the_end(files: Path, journal_dir: str) -> None:
    with Tuning(HOST, "lkt-1", journal=journal_dir) as tuning:
        assert tuning.set_file(f"{files}/a", 1)
        assert tuning.set_files({f"{files}/b": "x y", f"{files}/c": "3"}) == {
            f"{files}/b": True,
            f"{files}/c": True,
        }
        assert contents(files) == ["1", "x y", "3"]
        record = Journal(HOST, journal_dir).load()
        assert [entry.prior for entry in record.pending] == BEFORE
        assert record.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert {entry.boot for entry in record.pending} == {record.boot}
    assert contents(files) == BEFORE
    assert tuning.notes == []
    assert not (Path(journal_dir) / "journal").exists()


def test_a_file_set_several_times_gets_its_first_value(files: Path, journal_dir: str) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=journal_dir)
    for value in ("1", "2", "3"):
        tuning.set_file(f"{files}/a", value)
    assert [outcome.state for outcome in tuning.restore()] == ["restored"] * 3
    assert contents(files) == BEFORE
    assert tuning.restore() == []


def test_an_equal_value_is_not_journalled(files: Path, journal_dir: str) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=journal_dir)
    assert tuning.set_file(f"{files}/a", "a-before")
    assert Journal(HOST, journal_dir).load().pending == ()


def test_a_missing_file_is_a_note(files: Path, journal_dir: str) -> None:
    with Tuning(HOST, "lkt-1", journal=journal_dir) as tuning:
        assert tuning.set_files({f"{files}/no": "1", f"{files}/a": "1"}) == {
            f"{files}/no": False,
            f"{files}/a": True,
        }
    assert tuning.notes == [f"{files}/no: not supported on this host"]
    assert not (files / "no").exists()


def test_wrong_use(journal_dir: str) -> None:
    with pytest.raises(UsageError):
        Tuning(HOST, "", journal=journal_dir)
    with pytest.raises(UsageError):
        Tuning(HOST, "lkt-1", journal=journal_dir).set_file("relative", 1)


def test_a_value_changed_by_somebody_else_is_kept(files: Path, journal_dir: str) -> None:
    with (
        pytest.raises(RigError, match="b: conflict") as caught,
        Tuning(HOST, "lkt-1", journal=journal_dir) as tuning,
    ):
        tuning.set_files({f"{files}/{name}": "ours" for name in "abc"})
        (files / "b").write_text("theirs\n")
    assert contents(files) == ["a-before", "theirs", "c-before"]
    assert [outcome["state"] for outcome in caught.value.evidence["outcomes"]] == ["conflict"]
    again = restore(HOST, journal=journal_dir)  # it is not forgotten, and nothing else is left
    assert [(outcome.state, outcome.target) for outcome in again] == [("conflict", f"{files}/b")]
    assert "theirs" in str(conflict(HOST, again))
    (files / "b").write_text("b-before\n")
    assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["unchanged"]
    assert restore(HOST, journal=journal_dir) == []


def test_a_conflict_does_not_hide_another_error(files: Path, journal_dir: str) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Tuning(HOST, "lkt-1", journal=journal_dir) as tuning,
    ):
        tuning.set_file(f"{files}/b", "ours")
        (files / "b").write_text("theirs\n")
        raise ZeroDivisionError
    assert len(tuning.notes) == 1
    assert "conflict" in tuning.notes[0]


KILLED = """
import os, signal, sys
from labkit.hosts import LocalHost, Tuning
files, journal_dir, label = sys.argv[1:]
with Tuning(LocalHost(), label, journal=journal_dir) as tuning:
    tuning.set_file(files + "/a", "1")
    tuning.set_files({files + "/b": "2", files + "/a": "3"})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_kill(files: Path, journal_dir: str, label: str) -> None:
    line = [sys.executable, "-c", KILLED, str(files), journal_dir, label]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL


def test_restore_after_the_harness_was_killed(files: Path, journal_dir: str) -> None:
    run_and_kill(files, journal_dir, "lkt-1")
    assert contents(files) == ["3", "2", "c-before"]
    states = [(outcome.state, outcome.target[-1]) for outcome in restore(HOST, journal=journal_dir)]
    assert states == [("restored", "a"), ("restored", "b"), ("restored", "a")]
    assert contents(files) == BEFORE
    assert restore(HOST, journal=journal_dir) == []


def test_reading_creates_nothing(journal_dir: str) -> None:
    """A user who is not root, and has no journal, may restore all the same."""
    assert Journal(HOST, journal_dir).load().pending == ()
    assert restore(HOST, journal=journal_dir) == []
    assert not Path(journal_dir).exists()


def test_restore_by_label(files: Path, journal_dir: str) -> None:
    run_and_kill(files, journal_dir, "lkt-1/x")
    Tuning(HOST, "lkt-2/x", journal=journal_dir).set_file(f"{files}/c", "9")
    assert len(restore(HOST, journal=journal_dir, label="lkt-1/")) == 3
    assert contents(files) == ["a-before", "b-before", "9"]
    assert [entry.label for entry in Journal(HOST, journal_dir).load().pending] == ["lkt-2/x"]
    assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["restored"]
    assert contents(files) == BEFORE


def killing(name: str, how: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in front of the real one, which it runs before it kills its caller."""
    real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout
    program = directory / name
    program.write_text(f"#!/bin/sh\n{how.format(real=real.strip())}\nkill -9 $PPID\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_killed_between_journal_and_write(
    files: Path, journal_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing("sync", '{real} "$@"', tmp_path, patch)
        with pytest.raises(CommandFailed):
            Tuning(HOST, "lkt-1", journal=journal_dir).set_file(f"{files}/a", "1")
    assert contents(files) == BEFORE
    assert [entry.value for entry in Journal(HOST, journal_dir).load().pending] == ["1"]
    assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["unchanged"]
    assert Journal(HOST, journal_dir).load().pending == ()


def test_killed_before_the_journal_is_synced(
    files: Path, journal_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing("sync", ":", tmp_path, patch)
        with pytest.raises(CommandFailed):
            Tuning(HOST, "lkt-1", journal=journal_dir).set_file(f"{files}/a", "1")
    assert contents(files) == BEFORE


def test_a_killed_restore_can_be_repeated(
    files: Path, journal_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_and_kill(files, journal_dir, "lkt-1")
    with monkeypatch.context() as patch:
        killing("rm", ":", tmp_path, patch)  # the values are back, the journal not yet gone
        with pytest.raises(CommandFailed):
            restore(HOST, journal=journal_dir)
    assert contents(files) == BEFORE
    assert {outcome.state for outcome in restore(HOST, journal=journal_dir)} <= {
        "unchanged",
        "restored",
    }
    assert contents(files) == BEFORE
    assert restore(HOST, journal=journal_dir) == []


def test_values_of_another_boot_expire(files: Path, journal_dir: str) -> None:
    run_and_kill(files, journal_dir, "lkt-1")
    states = [outcome.state for outcome in restore(HOST, journal=journal_dir, boot="another")]
    assert states == ["expired"] * 3
    assert contents(files) == ["3", "2", "c-before"]
    assert restore(HOST, journal=journal_dir) == []


@pytest.mark.parametrize("cut", [1, 40, -2])
def test_a_torn_last_line_is_tolerated(files: Path, journal_dir: str, cut: int) -> None:
    run_and_kill(files, journal_dir, "lkt-1")
    file = Path(journal_dir) / "journal"
    line = file.read_text().splitlines()[-1]
    with file.open("a") as stream:
        stream.write(line[:cut])
    assert Journal(HOST, journal_dir).load().torn == (line[:cut],)
    tuning = Tuning(HOST, "lkt-1", journal=journal_dir)
    assert tuning.set_file(f"{files}/c", "5")  # appended on a line of its own
    assert len(restore(HOST, journal=journal_dir)) == 4
    assert contents(files) == BEFORE
    assert restore(HOST, journal=journal_dir) == []


@pytest.mark.parametrize("gone", ["journal", "."])
def test_settings_whose_journal_was_removed_are_restored_from_memory(
    files: Path, journal_dir: str, gone: str
) -> None:
    with (
        pytest.raises(RigError, match="journal of settings was removed") as caught,
        Tuning(HOST, "lkt-1", journal=journal_dir) as tuning,
    ):
        tuning.set_files({f"{files}/a": 1, f"{files}/b": 2})
        subprocess.run(["rm", "-r", f"{journal_dir}/{gone}".removesuffix("/.")], check=True)
        tuning.set_file(f"{files}/c", 3)
    assert contents(files) == BEFORE
    assert f"{files}/a: lost" in caught.value.why and f"{files}/c" not in caught.value.why
    assert restore(HOST, journal=journal_dir) == []


def test_settings_that_somebody_restored_and_forgot_are_not_lost(
    files: Path, journal_dir: str
) -> None:
    with Tuning(HOST, "lkt-1", journal=journal_dir) as tuning:
        tuning.set_file(f"{files}/a", 1)
        assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["restored"]
    assert contents(files) == BEFORE and tuning.notes == []


def test_what_another_process_remembers_is_restored_without_a_journal(
    files: Path, journal_dir: str
) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=journal_dir)
    tuning.set_file(f"{files}/a", 1)
    (Path(journal_dir) / "journal").unlink()
    Tuning(HOST, "lkt-1", journal=journal_dir).set_file(f"{files}/b", 1)
    Tuning(HOST, "other", journal=journal_dir).set_file(f"{files}/c", 1)
    outcomes = restore(HOST, journal=journal_dir, label="lkt-1", known=tuning.entries)
    assert {(one.target[-1], one.state) for one in outcomes} == {("a", "lost"), ("b", "restored")}
    assert contents(files) == ["a-before", "b-before", "1"]


def test_a_lever_that_went_away_is_gone(files: Path, journal_dir: str) -> None:
    with Tuning(HOST, "lkt-1", journal=journal_dir) as tuning:
        tuning.set_file(f"{files}/a", "1")
        (files / "a").unlink()
    assert tuning.notes == []
    assert not (files / "a").exists()


def test_a_concurrently_changed_value_is_not_overwritten(files: Path, journal_dir: str) -> None:
    path = f"{files}/a"
    (answer,) = Journal(HOST, journal_dir).write([], [(path, "another", "1")])
    assert not answer.ok
    assert answer.now == "a-before"
    assert contents(files) == BEFORE


def test_a_value_rounded_by_the_kernel_is_restored(files: Path, journal_dir: str) -> None:
    entry = Entry("file", f"{files}/a", "a-before", "1000", "lkt-1", "")
    journal = Journal(HOST, journal_dir)
    boot = journal.load().boot
    entry = Entry(**(vars(entry) | {"boot": boot}))
    journal.write([entry], [(entry.target, "a-before", "1024")])
    assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["conflict"]
    journal.amend({entry.id: "1024"})
    assert [outcome.state for outcome in restore(HOST, journal=journal_dir)] == ["restored"]
    assert contents(files) == BEFORE


def test_finish_keeps_new_entries(files: Path, journal_dir: str) -> None:
    journal = Journal(HOST, journal_dir)
    first, second = (Entry("file", f"{files}/{n}", "x", "y", "lkt-1", "") for n in "ab")
    journal.write([first])
    record = journal.load()
    journal.write([second])
    journal.finish({first.id: "restored"}, record)
    assert journal.load().pending == (second,)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(DatasetError):
        parse_journal('{"version": 99, "id": "x"}\n')


@given(st.lists(st.text(st.characters(exclude_characters="\n"))))
def test_unreadable_lines_are_skipped(lines: list[str]) -> None:
    entry = Entry("file", "/x", "1", "2", "l", "b", id="i")
    good = json.dumps({"version": 1} | vars(entry))
    entries, torn = parse_journal("\n".join([*lines, good, ""]))
    assert entry in entries
    assert len(torn) + len(entries) == len([line for line in lines if line]) + 1
