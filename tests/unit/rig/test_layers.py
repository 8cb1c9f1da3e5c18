"""Generated layers and the archives that engines load: the same bytes everywhere."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import RigError, UsageError
from labkit.rig import layers
from labkit.rig.layers import Entry, File, LayeredImage, Tree, read_saved, write_images

TREE = Tree("tree", 20, 50, 100_000)


def archive(layer: layers.Contents) -> bytes:
    return b"".join(layers.archive_bytes(layer))


@given(st.integers(1, 60), st.integers(1, 90), st.integers(1, 10**6))
def test_a_tree_has_its_numbers_of_directories_files_and_bytes(
    directories: int, files: int, size: int
) -> None:
    layer = layers.contents([Tree("tree", directories, files, size)], 1)
    inside = {path: entry for path, entry in layer.items() if path.startswith("data/tree")}
    folders = [path for path, entry in inside.items() if entry.size_b is None]
    sizes = [entry.size_b for entry in inside.values() if entry.size_b is not None]
    assert (len(folders), len(sizes), sum(sizes)) == (directories, files, size)
    parents = [path.rpartition("/")[0] for path in folders]
    assert max(parents.count(path) for path in folders) <= 8
    assert all(
        path.rpartition("/")[0] in list(layer)[:n] for n, path in enumerate(layer) if "/" in path
    )


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1.5)])
def test_an_empty_tree_is_an_error(numbers: tuple[Any, Any, Any]) -> None:
    with pytest.raises(UsageError, match="at least one"):
        Tree("tree", *numbers)


def test_a_layer_has_the_same_archive_each_time_and_another_one_at_another_position() -> None:
    lowest, above = LayeredImage("x", ((TREE,), (TREE,))).contents()
    assert archive(lowest) == archive(layers.contents([TREE], 1))
    assert archive(lowest) != archive(above)  # a driver that compares times sees a new layer
    assert lowest.keys() == above.keys()
    assert layers.layer_name(lowest) != layers.layer_name(above)


def test_an_archive_and_a_directory_of_a_layer_have_the_same_files(tmp_path: Path) -> None:
    layer = layers.contents([TREE, File("large", 3 * 2**20 + 5), File("deep/er/small", 1)], 2)
    layers.write_folder(layer, tmp_path)
    with tarfile.open(fileobj=io.BytesIO(archive(layer))) as opened:
        for member in opened.getmembers():
            path = tmp_path / Path(member.name).relative_to("data")
            assert member.isdir() == path.is_dir()
            if handle := opened.extractfile(member):
                assert handle.read() == path.read_bytes()
    assert sum(1 for _ in tmp_path.rglob("*")) == len(layer) - 1


def test_merging_keeps_the_visible_files() -> None:
    image = LayeredImage(
        "x", ((File("a", 10), File("b", 1)), (File("a", 20),), (File("c", 3),)), merged=True
    )
    (layer,) = image.contents()
    assert layer["data/a"] == Entry(20, layers._EPOCH + 2)
    assert layer["data/b"] == Entry(1, layers._EPOCH + 1)
    assert layer.keys() == {"data", "data/a", "data/b", "data/c"}


def test_a_reference_changes_with_anything_in_the_image() -> None:
    image = LayeredImage("x", ((TREE,),))
    others = [
        LayeredImage("x", ((TREE,), (TREE,))),
        LayeredImage("x", ((Tree("tree", 20, 50, 100_001),),)),
        LayeredImage("x", ((TREE,),), merged=True),
    ]
    references = {one.reference("sha256:1") for one in [image, *others]}
    assert len(references | {image.reference("sha256:2")}) == 5
    assert image.reference("sha256:1") == LayeredImage("x", ((TREE,),)).reference("sha256:1")


def saved(path: Path) -> dict[str, Any]:
    """Write an archive as ``docker save`` of one image with one layer does."""
    data = archive({"etc": Entry(None, 0), "etc/name": Entry(4, 0)})
    ids = ["sha256:" + hashlib.sha256(data).hexdigest()]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["sh"]},
        "history": [{"created_by": "base"}],
        "rootfs": {"type": "layers", "diff_ids": ids},
    }
    parts = {
        "base.json": json.dumps(config).encode(),
        "1/layer.tar": data,
        "manifest.json": json.dumps(
            [{"Config": "base.json", "RepoTags": ["base:1"], "Layers": ["1/layer.tar"]}]
        ).encode(),
    }
    with tarfile.open(path, "w") as out:
        for name, content in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return config


def test_layered_images_are_written_over_their_base(tmp_path: Path) -> None:
    config = saved(tmp_path / "bases.tar")
    one, two = LayeredImage("one", ((TREE,),)), LayeredImage("two", ((TREE,), (TREE,)))
    images = [(one, "one:1", "base:1"), (two, "two:1", "base:1")]
    digests = write_images(tmp_path / "bases.tar", ["base:1"], images, tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as out:
        found = read_saved(out)
        names = out.getnames()
        assert len(names) == len(set(names)) == 7  # 3 layers, 3 configurations, the manifest
        assert json.loads(found["base:1"].config) == config
        for image, reference, _ in images:
            whole = found[reference]
            assert digests[reference] == "sha256:" + hashlib.sha256(whole.config).hexdigest()
            made = json.loads(whole.config)
            assert made["config"] == {"Cmd": ["sh"], "Labels": {"labkit.image": "layers"}}
            assert len(made["history"]) == 1 + len(image.layers)
            for member, diff_id in zip(whole.members, made["rootfs"]["diff_ids"], strict=True):
                handle = out.extractfile(member)
                assert handle is not None
                assert "sha256:" + hashlib.sha256(handle.read()).hexdigest() == diff_id
        assert found["two:1"].members[:2] == found["one:1"].members
    again = write_images(tmp_path / "bases.tar", ["base:1"], images, tmp_path / "again.tar")
    assert again == digests


def test_an_archive_without_images_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "odd.tar", "w") as out:
        out.addfile(tarfile.TarInfo("readme"))
    with tarfile.open(tmp_path / "odd.tar") as out, pytest.raises(RigError, match="saved image"):
        read_saved(out)
