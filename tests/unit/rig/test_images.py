"""Images, generated layers and storages: their names, their files, and which a rig can have."""

import io
import os
import tarfile
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.hosts import Host, Result
from labkit.hosts.target import Image, Target
from labkit.placement import STORAGES
from labkit.rig import images
from labkit.rig.images import LayeredImage, ensure_layers, tree, write_layer


class Answering(Host):
    """A host that gives one answer to every call, and has the images that it has built."""

    def __init__(self, answer=None):
        super().__init__("sut")
        self.answer, self.commands = answer, list[tuple[str, ...]]()
        #: What it was sent last, and what each image was built from.
        self.sent, self.built = b"", dict[str, bytes]()

    def run(self, *argv, **options):
        self.commands.append(argv)
        if options.get("input"):
            self.sent += options["input"].encode("utf-8", "surrogateescape")
        if "--cgroup-parent" in argv:
            self.built[argv[-1]], self.sent = self.sent, b""
        lacks = "{{.Id}}" in argv and argv[-1] not in self.built
        return Result(argv, "sut", int(lacks), "sha256:2", "")

    def call(self, function, **arguments):
        return self.answer


def make_folder(folder, time):
    (folder / "sub").mkdir(parents=True)
    for name, mode in (("Dockerfile", 0o600), ("sub/run.sh", 0o700)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
        os.utime(folder / name, (time, time))
    return folder


def test_an_engine_gets_the_same_bytes_for_the_same_files_and_another_name_for_others(tmp_path):
    found, host = list[tuple[str, bytes]](), Answering()
    target = Target(host, "", "unix:///e", cgroup_parent="/group")
    for time in (1, 2):
        folder = make_folder(tmp_path / str(time) / "probe", time)
        images.build(target, images.tag(folder), folder)
        found.append(host.built.popitem())
    assert found[0] == found[1] and "/group" in host.commands[-2]
    names = [found[0][0]]
    (folder / "sub" / "run.sh").write_text("other")
    names.append(images.tag(folder))
    (folder / "sub" / "run.sh").rename(folder / "run.sh")
    names.append(images.tag(folder))
    assert len({*names}) == 3 and all(name.startswith("labkit/probe:") for name in names)
    with tarfile.open(fileobj=io.BytesIO(found[0][1])) as opened:
        modes = {member.name: member.mode for member in opened if member.isfile()}
    assert modes == {"./Dockerfile": 0o644, "./sub/run.sh": 0o755}


# Generated layers.

TREE = tree("tree", 20, 50, 100_000)


@given(st.integers(1, 60), st.integers(1, 90), st.integers(1, 10**6))
def test_a_tree_has_its_numbers_of_directories_files_and_bytes(directories, files, size):
    made = tree("tree", directories, files, size)
    folders = [path for path in made if made[path] is None]
    sizes = [made[path] or 0 for path in made if made[path] is not None]
    assert (len(folders), len(sizes), sum(sizes)) == (directories, files, size)
    parents = [str(PurePosixPath(path).parent) for path in made]
    assert set(parents) <= {".", *folders}
    assert max(parents.count(folder) for folder in folders) <= 8 + files / directories + 1


def archive(layer, number, folder):
    write_layer(layer, number, folder / "layer.tar")
    return (folder / "layer.tar").read_bytes()


def test_a_layer_has_the_same_archive_each_time_and_another_one_above(tmp_path):
    lowest = archive(TREE, 1, tmp_path)
    assert archive(dict(reversed(TREE.items())), 1, tmp_path) == lowest
    assert archive(TREE, 2, tmp_path) != lowest, "a driver that compares times sees a new layer"
    archive({"large": 2**21 + 5, "deep/er/small": 1, "empty": None}, 3, tmp_path)
    with tarfile.open(tmp_path / "layer.tar") as opened:
        members = opened.getmembers()
    assert [(member.name, member.size) for member in members] == [
        *(("data", 0), ("data/deep", 0), ("data/deep/er", 0), ("data/deep/er/small", 1)),
        *(("data/empty", 0), ("data/large", 2**21 + 5)),
    ]
    assert {member.mtime for member in members} == {1_000_000_003}
    assert {member.mode for member in members if member.isdir()} == {0o755}


def test_an_image_is_built_once_and_its_name_changes_with_anything_in_it():
    host = Answering()
    contents = [(TREE, TREE), (TREE,), ({**TREE, "one": 1}, TREE), (TREE, {**TREE, "one": 1})]
    for digest in ("sha256:0", "sha256:1"):
        base = {"python": Image("python", "labkit/python:1", digest, "")}
        target = Target(host, "198.18.0.3", engine="unix:///e", images=base)
        for layers in contents * 2:
            ensure_layers(target, LayeredImage("x", layers))
    builds = [argv for argv in host.commands if "--cgroup-parent" in argv]
    assert len(host.built) == len(builds) == 8


# Storages.


@pytest.mark.parametrize(
    ("driver", "disks", "unions", "able"),
    [
        ("overlay2", ["vda ext4"] * 2, ["aufs"], {"overlay2", "bind", "volume", "aufs"}),
        ("overlay2", ["vda ext4", "vdb ext4"], ["fuse-overlayfs"], {"overlay2", "volume"}),
        ("btrfs", ["vda btrfs"] * 2, ["fuse-overlayfs"], {"bind", "volume"}),
    ],
)
def test_a_rig_has_the_engines_driver_and_mounts_on_its_disk(driver, disks, unions, able):
    stored = dict(zip(("engine", "data"), disks, strict=True))
    stable = {"engine": {"Driver": driver}, "storage": stored}
    host = Answering({"stable": stable, "volatile": {"unions": unions}})
    made, reasons = images.with_storages(Target(host, "198.18.0.3", "unix:///e", disk="/disk"), ())
    lacking = {name.removeprefix("storage:") for name in reasons}
    assert {*STORAGES} - lacking == set(made.storages) == able
    assert made.storages["volume"].filesystem == disks[0][4:]
