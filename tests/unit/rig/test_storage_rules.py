"""Which storages a rig can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig

from labkit.campaign.treatments import ColdCache, ContainerStorage
from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Storage, Target
from labkit.placement import DRIVERS, MOUNTS, bare, docker
from labkit.rig import Rig, storage
from labkit.runtimes.storage import data_options, data_source

IMAGE = Image("layers-2", "labkit/layers-2:0", "sha256:0123456789abcdef", "")


def test_sources_of_mounts_are_named_after_their_content() -> None:
    def source(name: str, disk: str = "/disk") -> str:
        return data_source(Storage(name, "s", "overlay2", "ext4", disk), IMAGE, "trial-1")

    assert source("bind") == "/disk/bind/layers-2-0123456789ab"
    assert source("volume").endswith("-layers-2-0123456789ab")
    assert source("volume") != source("volume", disk="/another"), "users may share an engine"
    assert source("unionfs-fuse") == "/disk/unions/trial-1/union"
    assert source("overlay2") == ""


# Missing storages.


def test_without_storage_daemons_there_is_one_driver_and_two_mounts() -> None:
    reasons = storage.missing_without_daemons("btrfs")
    able = {name for name in (*DRIVERS, *MOUNTS) if f"storage:{name}" not in reasons}
    assert able == {"btrfs", "bind", "volume"}
    assert "btrfs" in reasons["storage:overlay2"]
    without_engine = storage.missing_without_daemons(None)
    assert set(without_engine) == {f"storage:{name}" for name in (*DRIVERS, *MOUNTS)}


def test_a_machine_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_kernel_has", lambda name: name == "overlay")
    monkeypatch.setattr(storage, "find_tool", lambda name: None)
    reasons = storage.missing()
    assert reasons["storage:aufs"] == "the kernel has no aufs"
    assert reasons["storage:btrfs"] == "the kernel has no btrfs"
    assert "fuse" in reasons["storage:fuse-overlayfs"] and "fuse" in reasons["storage:unionfs-fuse"]
    assert not {"storage:overlay2", "storage:vfs", "storage:bind"} & reasons.keys()
    monkeypatch.setattr(storage, "_kernel_has", lambda name: True)
    assert "btrfs-progs" in storage.missing()["storage:btrfs"]
    for version, missing in ((24, True), (20, False)):
        monkeypatch.setattr(storage, "_engine_version", lambda version=version: version)
        assert ("storage:aufs" in storage.missing()) == missing


class Answering(LocalHost):
    """A host that gives prepared answers, and records its commands."""

    def __init__(self, *answers: str) -> None:
        super().__init__("sut")
        self.answers, self.commands = list(answers), list[tuple[str, ...]]()

    def run(self, *argv: str, **options: Any) -> Result:
        self.commands.append(argv)
        return Result(argv, "sut", 0, self.answers.pop(0), "", 0.0)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (("/docker\n", "/dev/vda ext4\n/dev/vda  ext4\n"), ""),
        (("/docker\n", "tmpfs tmpfs\n/dev/vda ext4\n"), "data (/docker) on /dev/vda ext4"),
        (("/docker\n", "/dev/vda ext4\n/dev/vdb ext4\n"), "two disks"),
        (("/docker\n", "/dev/vda ext4\n"), "is unknown"),
        (("\n",), "is unknown"),
    ],
)
def test_a_bind_mount_must_be_on_the_disk_of_the_engine(answers: tuple[str, ...], why: str) -> None:
    reason = storage.disk_difference(Answering(*answers), "unix:///e", "/disk")
    assert why in reason and bool(reason) == bool(why)
    reasons = storage.missing_without_daemons("overlay2", reason)
    assert ("storage:bind" in reasons) == bool(why)
    assert not {"storage:volume", "storage:overlay2"} & reasons.keys()


def test_a_missing_directory_is_on_the_disk_of_its_nearest_parent(tmp_path: Path) -> None:
    class Engine(LocalHost):
        def run(self, *argv: str, **options: Any) -> Result:
            if argv[:2] == ("docker", "info"):
                return Result(argv, "sut", 0, f"{tmp_path}/engine/data\n", "", 0.0)
            return super().run(*argv, **options)

    assert storage.disk_difference(Engine(), "unix:///e", f"{tmp_path}/not yet/made") == ""
    assert "two disks" in storage.disk_difference(Engine(), "unix:///e", "/proc")


# Storages of a rig.


def rig_lacking(**missing: str) -> Rig:
    target = Target(LocalHost("sut"), "198.18.0.3", engine="unix:///own")
    reasons = {name.replace("_", ":", 1): why for name, why in missing.items()}
    return make_rig(targets={"sut": target}, missing=reasons)


def test_conditions_with_a_missing_storage_or_cache_are_infeasible() -> None:
    rig = rig_lacking(storage_vfs="no disk")
    assert ContainerStorage().feasibility(rig, "vfs", {}) == "no disk"
    assert ContainerStorage().feasibility(rig, "btrfs", {}) is None
    assert ColdCache().feasibility(rig, "cold", {}) is None
    rig.missing = {"cold-cache": "not root"}
    assert ColdCache().feasibility(rig, "cold", {}) == "not root"
    assert ColdCache().feasibility(rig, "warm", {}) is None
    for name in (*DRIVERS, *MOUNTS):
        assert ContainerStorage().feasibility(rig_lacking(docker="none"), name, {}) == "none"


def test_a_placement_with_a_storage_goes_to_that_storages_engine() -> None:
    rig = rig_lacking()
    with pytest.raises(RigError, match="has not been set up"):
        rig.target(docker("host", storage="btrfs"))
    btrfs = Storage("btrfs", "unix:///btrfs", "btrfs", "btrfs")
    target = Target(LocalHost(), "198.18.0.3", engine="unix:///own", storages={"btrfs": btrfs})
    rig.targets = {"sut": target}
    placed = rig.target(docker("host", storage="btrfs"))
    assert (placed.engine, placed.storage) == ("unix:///btrfs", btrfs)
    assert rig.target(bare("rules")) is rig.target(docker("host")) is target


def test_an_unknown_storage_is_an_error() -> None:
    with pytest.raises(UsageError, match="no storage called zfs"):
        rig_lacking().storage({"zfs": []}).__enter__()


def test_missing_storages_are_left_out() -> None:
    rig = make_rig(missing={"storage:vfs": "no disk"})
    with rig.storage({"vfs": []}):
        assert rig.targets == {}


@pytest.mark.parametrize("name", ["bind", "volume"])
def test_the_container_that_fills_a_mount_has_the_label_of_its_trial(name: str) -> None:
    host, bound = Answering(""), Storage(name, "unix:///e", "overlay2", "ext4", "/disk")
    target = Target(host, "198.18.0.3", engine="unix:///e", storage=bound)
    data_options(target, IMAGE, "trial-77-b1")
    ((*_, text, _, source, image, parent, label, disk),) = host.commands
    assert (image, parent, label, disk) == (IMAGE.reference, "/labkit", "trial-77-b1", "/disk")
    assert '--label "labkit=$label"' in text and source == data_source(bound, IMAGE, "")


# Leftovers.


def test_what_storages_leave_on_the_disk_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "storage"
    monkeypatch.setattr(storage.engine, "STORAGES", disk)
    assert storage.forget(LocalHost()) == ""
    temporary = ("bind/x", "unions/t", "archives/1", "btrfs.img.new", "branches/2.new")
    for name in ("vfs/a", "branches/1", *temporary):
        (disk / name).mkdir(parents=True)
    storage.remove_temporary()
    kept = sorted(str(path.relative_to(disk)) for path in disk.glob("*/*"))
    assert kept == ["branches/1", "vfs/a"] and not (disk / "btrfs.img.new").exists()
    assert str(disk) in storage.forget(LocalHost())
    assert not disk.exists()
