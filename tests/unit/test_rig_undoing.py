"""Steps on a host: noted before they are taken, undone in reverse, by others after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_rig_findings import make_rig

from labkit.errors import CommandFailed
from labkit.hosts import LocalHost
from labkit.hosts.site import Site
from labkit.rig import Rig, undoing
from labkit.rig.undoing import Steps


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return make_rig(sites={"sut": Site(LocalHost("sut"), "", directory=str(tmp_path / "jobs"))})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def take(steps: Steps, folder: Path, name: str) -> None:
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
    steps = Steps(rig, "macvlan")
    for name in ("one", "two words", "three"):
        take(steps, tmp_path, name)
    assert set(left(tmp_path)) == {"one", "two words", "three", "undo-sut-macvlan."}
    steps.undo()
    assert left(tmp_path) == ["log"], "the notes go with what they speak of"
    order = [Path(line).name for line in (tmp_path / "log").read_text().splitlines()]
    assert order == ["three", "two words", "one"]


def test_one_purpose_leaves_what_another_one_did(rig: Rig, tmp_path: Path) -> None:
    outer, inner = Steps(rig, "macvlan-nat"), Steps(rig, "macvlan")
    take(outer, tmp_path, "outer")
    take(inner, tmp_path, "inner")
    inner.undo()
    assert (tmp_path / "outer").exists() and not (tmp_path / "inner").exists()
    outer.undo()
    assert left(tmp_path) == ["log"]


def test_who_comes_after_a_kill_undoes_the_notes_of_every_purpose(rig: Rig, tmp_path: Path) -> None:
    for purpose, name in (("nat", "one"), ("routed", "two")):
        take(Steps(rig, purpose), tmp_path, name)
    folders = undoing.notes(str(tmp_path / "jobs"), "sut")
    done = undoing.undo(LocalHost(), folders)
    assert left(tmp_path) == ["log"] and len(done) == 2
    assert undoing.undo(LocalHost(), folders) == [], "once"


def test_a_step_that_fails_was_noted_and_undoing_it_is_no_error(rig: Rig, tmp_path: Path) -> None:
    steps = Steps(rig, "nat")
    with pytest.raises(CommandFailed):
        steps.take("sut", "false", undo=("rm", str(tmp_path / "never")))
    take(steps, tmp_path, "one")
    steps.undo()
    assert left(tmp_path) == ["log"]
