"""Steps on a host: noted before they are taken, undone in reverse, by others after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_rig import make_rig

from labkit.errors import CommandFailed
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.rig import Rig, networks
from labkit.rig.networks import UndoLog


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return make_rig(targets={"sut": Target(LocalHost("sut"), "", directory=str(tmp_path / "jobs"))})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def take(steps: UndoLog, folder: Path, name: str) -> None:
    """Make a file; undoing it says so in another file, in order."""
    undo = (
        "sh",
        "-c",
        'rm "$1" && echo "$1" >>"$2"',
        "sh",
        str(folder / name),
        str(folder / "log"),
    )
    steps.take("sut", "touch", str(folder / name), undo=undo)


def test_steps_are_undone_the_last_one_first(rig: Rig, tmp_path: Path) -> None:
    steps = UndoLog(rig, "macvlan")
    for name in ("one", "two words", "three"):
        take(steps, tmp_path, name)
    assert set(left(tmp_path)) == {"one", "two words", "three", "undo-sut-macvlan."}
    steps.undo()
    assert left(tmp_path) == ["log"], "the notes go with what they speak of"
    order = [Path(line).name for line in (tmp_path / "log").read_text().splitlines()]
    assert order == ["three", "two words", "one"]


def test_one_purpose_leaves_what_another_one_did(rig: Rig, tmp_path: Path) -> None:
    outer, inner = UndoLog(rig, "macvlan-nat"), UndoLog(rig, "macvlan")
    take(outer, tmp_path, "outer")
    take(inner, tmp_path, "inner")
    inner.undo()
    assert (tmp_path / "outer").exists() and not (tmp_path / "inner").exists()
    outer.undo()
    assert left(tmp_path) == ["log"]


def test_who_comes_after_a_kill_undoes_the_notes_of_every_purpose(rig: Rig, tmp_path: Path) -> None:
    for purpose, name in (("nat", "one"), ("routed", "two")):
        take(UndoLog(rig, purpose), tmp_path, name)
    folders = networks.undo_folders(str(tmp_path / "jobs"), "sut")
    done = networks.undo_steps(LocalHost(), folders)
    assert left(tmp_path) == ["log"] and len(done) == 2
    assert networks.undo_steps(LocalHost(), folders) == [], "once"


def test_a_step_that_fails_was_noted_and_undoing_it_is_no_error(rig: Rig, tmp_path: Path) -> None:
    steps = UndoLog(rig, "nat")
    with pytest.raises(CommandFailed):
        steps.take("sut", "false", undo=("rm", str(tmp_path / "never")))
    take(steps, tmp_path, "one")
    steps.undo()
    assert left(tmp_path) == ["log"]
