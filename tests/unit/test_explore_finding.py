"""What can be explored is found wherever it lies, and what cannot is refused with a reason."""

from __future__ import annotations

import shutil

import pytest
from explore_campaigns import FAILED, write

from labkit import load
from labkit.dataset.packing import pack
from labkit.errors import DatasetError
from labkit.explore.finding import find
from labkit.explore.study import Explored
from labkit.paths import project


def explored(path):
    return Explored(find(path)[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("explore") / "echo")


def test_campaigns_are_found_in_folders_in_archives_and_loaded(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "all" / "echo" / "one")
    shutil.copytree(folder, tmp_path / "all" / "other")
    assert [one.name for one in find(tmp_path / "all")] == ["echo/one", "other"]
    assert find(tmp_path / "all")[0].home == f"{tmp_path / 'all'}/echo/one"
    pack(tmp_path / "all", tmp_path / "all.tar")
    packed = find(tmp_path / "all.tar")
    assert [one.name for one in packed] == ["echo/one", "other"]
    assert len(Explored(packed[1]).trials) == len(explored(folder).trials)
    assert [one.name for one in find(tmp_path / "all.tar" / "other")] == ["other"]
    assert [one.name for one in find(load(folder))] == ["echo"]
    assert {one.name for one in find("data/reference")} == {
        path.name for path in project("data/reference").iterdir() if path.is_dir()
    }


def test_where_nothing_can_be_explored_the_error_says_what_to_do(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="no campaign here") as caught:
        find(tmp_path / "empty")
    assert caught.value.remedy and str(tmp_path / "empty") in caught.value.where
    with pytest.raises(DatasetError, match="no such folder or archive") as caught:
        find("data/nowhere")
    assert "starts at the project" in caught.value.why
    (tmp_path / "text.tar").write_text("not one")
    with pytest.raises(DatasetError, match="not an archive"):
        find(tmp_path / "text.tar")


def test_a_campaign_in_which_nothing_succeeded_is_refused(tmp_path):
    path = write(tmp_path / "echo", blocks=2)
    for trial in (path / "trials").iterdir():
        if trial.name != f"{FAILED}-a1":
            shutil.rmtree(trial)
    with pytest.raises(DatasetError, match="no trial of this campaign succeeded") as caught:
        explored(path)
    assert "it <b>broke</b>" in caught.value.why
    shutil.rmtree(path / "trials")
    with pytest.raises(DatasetError, match="nothing was measured"):
        explored(path)
