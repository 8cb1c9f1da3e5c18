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

from labkit.errors import CommandFailed, DatasetError, TuningConflict, UsageError
from labkit.hosts import LocalHost, Tuning, conflict, restore
from labkit.hosts.journal import Entry, Journal, parse_journal
from labkit.hosts.sysfs_values import read_files

HOST = LocalHost()


@pytest.fixture
def levers(tmp_path: Path) -> Path:
    directory = tmp_path / "levers"
    directory.mkdir()
    for name in ("a", "b", "c"):
        (directory / name).write_text(f"{name}-before\n")
    return directory


@pytest.fixture
def book(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def held(levers: Path) -> list[str]:
    return [(levers / name).read_text().strip() for name in ("a", "b", "c")]


BEFORE = ["a-before", "b-before", "c-before"]


def test_settings_last_as_long_as_the_context(levers: Path, book: str) -> None:
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        assert tuning.set_file(f"{levers}/a", 1)
        assert tuning.set_files({f"{levers}/b": "x y", f"{levers}/c": "3"}) == {
            f"{levers}/b": True,
            f"{levers}/c": True,
        }
        assert held(levers) == ["1", "x y", "3"]
        record = Journal(HOST, book).load()
        assert [entry.prior for entry in record.pending] == BEFORE
        assert record.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert {entry.boot for entry in record.pending} == {record.boot}
    assert held(levers) == BEFORE
    assert tuning.notes == []
    assert not (Path(book) / "journal").exists()


def test_one_file_set_twice_goes_all_the_way_back(levers: Path, book: str) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=book)
    for value in ("1", "2", "3"):
        tuning.set_file(f"{levers}/a", value)
    assert [outcome.state for outcome in tuning.restore()] == ["restored"] * 3
    assert held(levers) == BEFORE
    assert tuning.restore() == []


def test_a_value_that_is_there_already_is_not_ours(levers: Path, book: str) -> None:
    tuning = Tuning(HOST, "lkt-1", journal=book)
    assert tuning.set_file(f"{levers}/a", "a-before")
    assert Journal(HOST, book).load().pending == ()


def test_a_missing_lever_is_a_note(levers: Path, book: str) -> None:
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        assert tuning.set_files({f"{levers}/no": "1", f"{levers}/a": "1"}) == {
            f"{levers}/no": False,
            f"{levers}/a": True,
        }
    assert tuning.notes == [f"{levers}/no: not supported on this host"]
    assert not (levers / "no").exists()


def test_wrong_use(book: str) -> None:
    with pytest.raises(UsageError):
        Tuning(HOST, "", journal=book)
    with pytest.raises(UsageError):
        Tuning(HOST, "lkt-1", journal=book).set_file("relative", 1)
    with pytest.raises(UsageError):
        Tuning(HOST, "lkt-1", journal=book).hold_idle(-1)


def test_a_value_of_somebody_else_stays(levers: Path, book: str) -> None:
    with (
        pytest.raises(TuningConflict, match="b: conflict") as caught,
        Tuning(HOST, "lkt-1", journal=book) as tuning,
    ):
        tuning.set_files({f"{levers}/{name}": "ours" for name in "abc"})
        (levers / "b").write_text("theirs\n")
    assert held(levers) == ["a-before", "theirs", "c-before"]
    assert [outcome["state"] for outcome in caught.value.evidence["outcomes"]] == ["conflict"]
    again = restore(HOST, journal=book)  # it is not forgotten, and nothing else is left
    assert [(outcome.state, outcome.target) for outcome in again] == [("conflict", f"{levers}/b")]
    assert "theirs" in str(conflict(HOST, again))
    (levers / "b").write_text("b-before\n")
    assert [outcome.state for outcome in restore(HOST, journal=book)] == ["unchanged"]
    assert restore(HOST, journal=book) == []


def test_a_conflict_does_not_hide_another_error(levers: Path, book: str) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Tuning(HOST, "lkt-1", journal=book) as tuning,
    ):
        tuning.set_file(f"{levers}/b", "ours")
        (levers / "b").write_text("theirs\n")
        raise ZeroDivisionError
    assert len(tuning.notes) == 1
    assert "conflict" in tuning.notes[0]


KILLED = """
import os, signal, sys
from labkit.hosts import LocalHost, Tuning
levers, book, label = sys.argv[1:]
with Tuning(LocalHost(), label, journal=book) as tuning:
    tuning.set_file(levers + "/a", "1")
    tuning.set_files({levers + "/b": "2", levers + "/a": "3"})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run_and_kill(levers: Path, book: str, label: str) -> None:
    line = [sys.executable, "-c", KILLED, str(levers), book, label]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL


def test_restore_after_the_harness_was_killed(levers: Path, book: str) -> None:
    run_and_kill(levers, book, "lkt-1")
    assert held(levers) == ["3", "2", "c-before"]
    states = [(outcome.state, outcome.target[-1]) for outcome in restore(HOST, journal=book)]
    assert states == [("restored", "a"), ("restored", "b"), ("restored", "a")]
    assert held(levers) == BEFORE
    assert restore(HOST, journal=book) == []


def test_restore_of_one_label(levers: Path, book: str) -> None:
    run_and_kill(levers, book, "lkt-1/x")
    Tuning(HOST, "lkt-2/x", journal=book).set_file(f"{levers}/c", "9")
    assert len(restore(HOST, journal=book, label="lkt-1/")) == 3
    assert held(levers) == ["a-before", "b-before", "9"]
    assert [entry.label for entry in Journal(HOST, book).load().pending] == ["lkt-2/x"]
    assert [outcome.state for outcome in restore(HOST, journal=book)] == ["restored"]
    assert held(levers) == BEFORE


def killing(name: str, how: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in front of the real one, which it runs before it kills its caller."""
    real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout
    program = directory / name
    program.write_text(f"#!/bin/sh\n{how.format(real=real.strip())}\nkill -9 $PPID\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_killed_between_journal_and_write(
    levers: Path, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing("sync", '{real} "$@"', tmp_path, patch)
        with pytest.raises(CommandFailed):
            Tuning(HOST, "lkt-1", journal=book).set_file(f"{levers}/a", "1")
    assert held(levers) == BEFORE
    assert [entry.value for entry in Journal(HOST, book).load().pending] == ["1"]
    assert [outcome.state for outcome in restore(HOST, journal=book)] == ["unchanged"]
    assert Journal(HOST, book).load().pending == ()


def test_killed_before_the_journal_is_synced_nothing_is_written(
    levers: Path, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killing("sync", ":", tmp_path, patch)
        with pytest.raises(CommandFailed):
            Tuning(HOST, "lkt-1", journal=book).set_file(f"{levers}/a", "1")
    assert held(levers) == BEFORE


def test_restore_that_is_killed_is_done_again(
    levers: Path, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_and_kill(levers, book, "lkt-1")
    with monkeypatch.context() as patch:
        killing("rm", ":", tmp_path, patch)  # the values are back, the journal not yet gone
        with pytest.raises(CommandFailed):
            restore(HOST, journal=book)
    assert held(levers) == BEFORE
    assert {outcome.state for outcome in restore(HOST, journal=book)} <= {"unchanged", "restored"}
    assert held(levers) == BEFORE
    assert restore(HOST, journal=book) == []


def test_values_of_another_boot_expire(levers: Path, book: str) -> None:
    run_and_kill(levers, book, "lkt-1")
    states = [outcome.state for outcome in restore(HOST, journal=book, boot="another")]
    assert states == ["expired"] * 3
    assert held(levers) == ["3", "2", "c-before"]
    assert restore(HOST, journal=book) == []


@pytest.mark.parametrize("cut", [1, 40, -2])
def test_a_torn_last_line_is_tolerated(levers: Path, book: str, cut: int) -> None:
    run_and_kill(levers, book, "lkt-1")
    file = Path(book) / "journal"
    line = file.read_text().splitlines()[-1]
    with file.open("a") as stream:
        stream.write(line[:cut])
    assert Journal(HOST, book).load().torn == (line[:cut],)
    tuning = Tuning(HOST, "lkt-1", journal=book)
    assert tuning.set_file(f"{levers}/c", "5")  # appended on a line of its own
    assert len(restore(HOST, journal=book)) == 4
    assert held(levers) == BEFORE
    assert restore(HOST, journal=book) == []


def test_a_lever_that_went_away_is_gone(levers: Path, book: str) -> None:
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        tuning.set_file(f"{levers}/a", "1")
        (levers / "a").unlink()
    assert tuning.notes == []
    assert not (levers / "a").exists()


def test_a_value_changed_at_the_same_time_is_not_overwritten(levers: Path, book: str) -> None:
    path = f"{levers}/a"
    (answer,) = Journal(HOST, book).write([], [(path, "another", "1")])
    assert not answer.ok
    assert answer.now == "a-before"
    assert held(levers) == BEFORE


def test_what_the_kernel_made_of_a_value_is_ours_too(levers: Path, book: str) -> None:
    entry = Entry("file", f"{levers}/a", "a-before", "1000", "lkt-1", "")
    journal = Journal(HOST, book)
    boot = journal.load().boot
    entry = Entry(**(vars(entry) | {"boot": boot}))
    journal.write([entry], [(entry.target, "a-before", "1024")])
    assert [outcome.state for outcome in restore(HOST, journal=book)] == ["conflict"]
    journal.amend({entry.id: "1024"})
    assert [outcome.state for outcome in restore(HOST, journal=book)] == ["restored"]
    assert held(levers) == BEFORE


def test_finish_keeps_what_was_added_meanwhile(levers: Path, book: str) -> None:
    journal = Journal(HOST, book)
    first, second = (Entry("file", f"{levers}/{n}", "x", "y", "lkt-1", "") for n in "ab")
    journal.write([first])
    record = journal.load()
    journal.write([second])
    journal.finish({first.id: "restored"}, record)
    assert journal.load().pending == (second,)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(DatasetError):
        parse_journal('{"version": 99, "id": "x"}\n')


@given(st.lists(st.text(st.characters(exclude_characters="\n"))))
def test_no_rubbish_stops_the_reading(lines: list[str]) -> None:
    entry = Entry("file", "/x", "1", "2", "l", "b", id="i")
    good = json.dumps({"version": 1} | vars(entry))
    entries, torn = parse_journal("\n".join([*lines, good, ""]))
    assert entry in entries
    assert len(torn) + len(entries) == len([line for line in lines if line]) + 1


def test_many_files_are_read_at_once(levers: Path) -> None:
    (levers / "b").write_text("two\nlines\n\n")
    paths = [f"{levers}/{name}" for name in ("a", "no", "b")]
    assert list(read_files(HOST, paths).values()) == ["a-before", None, "two\nlines"]
    assert read_files(HOST, []) == {}
