"""The project's folder, wherever a command or a kernel runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import paths
from labkit.errors import UsageError
from labkit.paths import MARK, project


def made(folder: Path) -> Path:
    (folder / MARK).parent.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def test_the_nearest_folder_upwards_then_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = project()
    assert (clone / "labkit").is_dir()
    monkeypatch.chdir(tmp_path)
    assert project("data") == clone / "data"
    made(tmp_path / "outer")
    inner = made(tmp_path / "outer" / "inner")
    monkeypatch.chdir(inner / "notebooks")
    assert project("data/local") == inner / "data/local"
    assert project(tmp_path) == tmp_path


def test_a_folder_above_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root without the capability to pass over permissions, or a user, works below it."""
    below = tmp_path / "closed" / "below"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (tmp_path / "closed").chmod(0)
    user = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    code = "from labkit.paths import SHIPPED, project; assert project() == SHIPPED"
    try:
        subprocess.run([*user, sys.executable, "-c", code], check=True)
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_without_a_clone_there_is_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "SHIPPED", tmp_path)
    with pytest.raises(UsageError, match="no clone of labkit here") as caught:
        project()
    assert caught.value.where == str(tmp_path)
