"""Settings and what restores them, on plain files, with real processes killed for real."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from labkit.errors import RigError
from labkit.hosts import Host, Settings, agent

HOST = Host()
BEFORE = ["a-before", "b-before", "c-before"]


@pytest.fixture
def files(tmp_path):
    for name in BEFORE:
        (tmp_path / name[0]).write_text(f"{name}\n")
    return tmp_path


@pytest.fixture
def journal(tmp_path):
    return str(tmp_path / "journal")


def contents(files):
    return [(files / name).read_text().strip() for name in "abc"]


def states(journal, **which):
    rows = [one.partition(": ") for one in HOST.call("restore", journal=journal, **which)]
    return [(outcome.partition(",")[0], target[-1]) for target, _, outcome in rows]


def test_settings_are_restored_at_the_end(files, journal):
    assert HOST.call("restore", journal=journal) == [] and not Path(journal).exists()
    with Settings(HOST, "lkt-1", journal=journal) as settings:
        assert settings.set_files({f"{files}/a": 1}) and settings.set_files({f"{files}/a": 2})
        assert not settings.set_files({f"{files}/b": "x y", f"{files}/c": "c-before", "/no/a": "1"})
        assert not settings.set_files({"/proc/version": 1})
        assert contents(files) == ["2", "x y", "c-before"]
        # An equal value and a missing file are not journalled.
        made = agent.pending(journal)[:3]
        assert [entry["prior"] for entry in made] == ["a-before", "1", "b-before"]
    assert contents(files) == BEFORE and agent.pending(journal) == []
    assert settings.notes[0] == "/no/a: not supported on this host"
    assert "'1' was not taken: " in settings.notes[1]


def test_a_value_changed_by_somebody_else_stays(files, journal):
    settings = Settings(HOST, "lkt-1", journal=journal)
    with pytest.raises(RigError, match="b: conflict"), settings:
        settings.set_files({f"{files}/{name}": "ours" for name in "abc"})
        (files / "b").write_text("theirs\n")
    assert contents(files) == ["a-before", "theirs", "c-before"]
    assert states(journal) == [("conflict", "b")]  # it is not forgotten, and nothing else is left
    (files / "b").write_text("b-before\n")
    assert states(journal) == [("unchanged", "b")]
    assert states(journal) == []


def test_settings_of_others_stay(files, journal):
    ours, theirs, also_ours = (
        Settings(HOST, label, journal=journal) for label in ("lkt-1/x", "lkt-2/x", "lkt-1/x")
    )
    for settings, name in ((ours, "a"), (theirs, "b"), (also_ours, "c")):
        settings.set_files({f"{files}/{name}": "1"})
    ours.__exit__(None)
    assert contents(files) == ["a-before", "1", "1"]
    assert states(journal, label="lkt-1/") == [("restored", "c")]


@pytest.mark.parametrize(
    ("change", "gone"),
    [({"boot": "another"}, False), ({"target": "eth7 gro"}, True), ({"target": "/no/a"}, False)],
)
def test_nothing_is_restored_that_is_gone(files, journal, change, gone):
    """A reboot, a network namespace, a device."""
    Settings(HOST, "lkt-1", journal=journal).set_files({f"{files}/a": "1"})
    book = Path(journal, "journal")
    book.write_text(json.dumps(json.loads(book.read_text()) | change) + "\n")
    assert [state for state, _ in states(journal, gone=gone)] == ["gone"]
    assert contents(files)[0] == "1" and states(journal) == []


def killed(at, call, **arguments):
    """Call in a child that is killed before a sync, or before it writes a setting."""
    steps = itertools.count(1)

    def counted(real):
        def step(*given, **options):
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        return step

    if (pid := os.fork()) == 0:
        os.fsync, Path.write_text = counted(os.fsync), counted(Path.write_text)  # type: ignore
        call(**arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("restoring", [False, True])
def test_a_kill_at_any_step_leaves_nothing_unrecorded(restoring, files, journal):
    setting = {"label": "lkt-1", "journal": journal}
    values, again = {f"{files}/a": "1", f"{files}/b": "2"}, {f"{files}/a": "3"}
    for at in range(1, 20):
        if restoring:
            agent.set_values(values=values, **setting)
            agent.set_values(values=again, **setting)
            died = killed(at, agent.restore, journal=journal)
        else:
            died = killed(at, agent.set_values, values=values, **setting)
        changed = {f"{files}/{name[0]}" for name in BEFORE if name not in contents(files)}
        assert changed <= {entry["target"] for entry in agent.pending(journal)}
        assert {state for state, _ in states(journal)} <= {"restored", "unchanged"}
        assert contents(files) == BEFORE
        if not died:
            break
    assert at > 4


SAME = {"3\n": "00000003", "00000000,00000003": "3", "0,1": "0-1", "0-2,3,7": "7,0-3"}
SAME |= {"performance [powersave]": "powersave", "4096\t131072 6291": "4096 131072 6291"}


def test_equal_values():
    for left, right in SAME.items():
        assert agent.same(left, right) and agent.same(right, left), left
    assert not any(agent.same(*pair) for pair in (("3", "30"), ("-1", "1"), ("1 2", "12")))
