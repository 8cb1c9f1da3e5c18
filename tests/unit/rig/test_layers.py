"""Generated layers: the same bytes everywhere, and names that change with what is in them."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Target
from labkit.rig.images import Layer, LayeredImage, ensure_layers, tree, write_layer

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


class Building(LocalHost):
    """An engine that lacks an image until it is built, and keeps the names of those built."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[str] = []

    def run(self, *argv: str, **options: Any) -> Result:
        if "inspect" in argv:
            return Result(argv, "sut", 0 if argv[-1] in self.built else 1, "sha256:2", "", 0.0)
        self.built += [word for word in argv if word.startswith("labkit/layers:")]
        return Result(argv, "sut", 0, "", "", 0.0)


def test_an_image_is_built_once_and_its_name_changes_with_anything_in_it() -> None:
    host = Building()
    contents = [(TREE, TREE), (TREE,), ({**TREE, "one": 1}, TREE), (TREE, {**TREE, "one": 1})]
    for digest in ("sha256:0", "sha256:1"):
        images = {"python": Image("python", "labkit/python:1", digest, "")}
        target = Target(host, "198.18.0.3", engine="unix:///e", images=images)
        for layers in contents * 2:
            ensure_layers(target, LayeredImage("x", layers))
    assert len(host.built) == len({*host.built}) == 8
