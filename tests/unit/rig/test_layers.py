"""Generated layers: the same bytes everywhere, and names that change with what is in them."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.rig.layers import Layer, LayeredImage, tree, write_layer

TREE = tree("tree", 20, 50, 100_000)


@given(st.integers(1, 60), st.integers(1, 90), st.integers(1, 10**6))
def test_a_tree_has_its_numbers_of_directories_files_and_bytes(
    directories: int, files: int, size: int
) -> None:
    made = tree("tree", directories, files, size)
    folders = [path for path in made if made[path] is None]
    sizes = [made[path] or 0 for path in made if made[path] is not None]
    assert (len(folders), len(sizes), sum(sizes)) == (directories, files, size)
    parents = [str(PurePosixPath(path).parent) for path in made]
    assert set(parents) <= {".", *folders}
    assert max(parents.count(folder) for folder in folders) <= 8 + files / directories + 1


def archive(layer: Layer, number: int, folder: Path) -> bytes:
    write_layer(layer, number, folder / "layer.tar")
    return (folder / "layer.tar").read_bytes()


def test_a_layer_has_the_same_archive_each_time_and_another_one_above(tmp_path: Path) -> None:
    lowest = archive(TREE, 1, tmp_path)
    assert archive(dict(reversed(TREE.items())), 1, tmp_path) == lowest
    assert archive(TREE, 2, tmp_path) != lowest, "a driver that compares times sees a new layer"


def test_an_archive_has_every_directory_before_what_is_in_it(tmp_path: Path) -> None:
    archive({"large": 2**21 + 5, "deep/er/small": 1, "empty": None}, 3, tmp_path)
    with tarfile.open(tmp_path / "layer.tar") as opened:
        members = opened.getmembers()
    found = {member.name: None if member.isdir() else member.size for member in members}
    assert list(found) == ["data", *(f"data/{path}" for path in PATHS)]
    assert [found[f"data/{path}"] for path in PATHS] == [None, None, 1, None, 2**21 + 5]
    assert {member.mtime for member in members} == {1_000_000_003}
    assert {member.mode for member in members if member.isdir()} == {0o755}


PATHS = ("deep", "deep/er", "deep/er/small", "empty", "large")


@pytest.mark.parametrize("other", [(TREE,), ({**TREE, "one": 1}, TREE), (TREE, {**TREE, "one": 1})])
def test_a_name_changes_with_anything_in_its_layers(other: tuple[Layer, ...]) -> None:
    *_, top = LayeredImage("x", (TREE, TREE)).references("sha256:1")
    assert LayeredImage("x", other).references("sha256:1")[-1] != top
    assert LayeredImage("x", (TREE, TREE)).references("sha256:2")[-1] != top


def test_images_share_the_layers_that_they_have_in_common() -> None:
    short, long = (LayeredImage(str(n), (TREE,) * n).references("sha256:1") for n in (2, 4))
    assert long[:2] == short and len({*long}) == 4
