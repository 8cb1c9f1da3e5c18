"""Storages of containers: which of them a rig can have, and what is mounted for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig

from labkit.campaign.treatments import ColdCache, ContainerStorage
from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Storage, Target
from labkit.placement import STORAGES, UNIONS, bare, docker
from labkit.rig import Rig, storage
from labkit.runtimes.docker import data_options, data_source

IMAGE = Image("layers-2", "labkit/layers:0", "sha256:0123456789abcdef", "")


class Answering(LocalHost):
    """A host that gives one answer to every command, and records the commands."""

    def __init__(self, answer: str = "") -> None:
        super().__init__("sut")
        self.answer, self.commands = answer, list[tuple[str, ...]]()

    def run(self, *argv: str, **options: Any) -> Result:
        self.commands.append(argv)
        return Result(argv, "sut", 0, self.answer, "", 0.0)


@pytest.mark.parametrize(
    ("answer", "able"),
    [
        ("overlay2\n/dev/vda ext4\n/dev/vda  ext4\naufs\n", {"overlay2", "bind", "volume", "aufs"}),
        ("overlay2\n/dev/vda ext4\n/dev/vdb ext4\nfuse-overlayfs\n", {"overlay2", "volume"}),
        ("btrfs\n/dev/vda btrfs\n/dev/vda btrfs\nfuse-overlayfs\n", {"bind", "volume"}),
        ("", set()),
    ],
)
def test_a_rig_has_the_engines_driver_and_mounts_on_its_disk(answer: str, able: set[str]) -> None:
    reasons = storage.missing(Answering(answer), "unix:///e", "/disk")
    assert {name for name in STORAGES if f"storage:{name}" not in reasons} == able
    assert all(reasons.values())


def test_a_missing_directory_is_on_the_disk_of_its_nearest_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho /\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    reasons = storage.missing(LocalHost(), "unix:///e", "/not yet/made")
    assert "storage:bind" not in reasons and "driver /" in reasons["storage:overlay2"]
    assert "two disks" in storage.missing(LocalHost(), "unix:///e", "/proc")["storage:bind"]


def test_what_is_mounted_is_named_after_its_content() -> None:
    def source(name: str) -> str:
        return data_source(Storage(name, "overlay2", "ext4", "/disk"), IMAGE, "trial-1")

    assert source("bind") == "/disk/bind/layers-2-0123456789ab"
    assert source("volume") == "volumes"
    assert source("fuse-overlayfs") == "/disk/unions/trial-1/union"
    assert source("overlay2") == ""


@pytest.mark.parametrize("name", STORAGES)
def test_a_container_mounts_what_its_label_says(name: str) -> None:
    host = Answering()
    placed = Storage(name, "overlay2", "ext4", "/disk")
    target = Target(host, "198.18.0.3", engine="unix:///e", storage=placed)
    options = data_options(target, IMAGE, "trial-1")
    assert bool(options) == (name != "overlay2")
    source = data_source(placed, IMAGE, "trial-1")
    mounted = "type=volume,dst=/data" if name == "volume" else f"type=bind,src={source},dst=/data"
    assert options in ([], ["--mount", mounted])
    assert bool(host.commands) == (name in ("bind", *UNIONS))


def rig_lacking(**missing: str) -> Rig:
    target = Target(LocalHost("sut"), "198.18.0.3", engine="unix:///own")
    reasons = {name.replace("_", ":", 1): why for name, why in missing.items()}
    return make_rig(targets={"sut": target}, missing=reasons)


def test_conditions_with_a_missing_storage_or_cache_are_infeasible() -> None:
    rig = rig_lacking(storage_aufs="no aufs")
    assert ContainerStorage().feasibility(rig, "aufs", {}) == "no aufs"
    assert ContainerStorage().feasibility(rig, "bind", {}) is None
    assert ColdCache().feasibility(rig, "cold", {}) is None
    rig.missing = {"cold-cache": "not root"}
    assert ColdCache().feasibility(rig, "cold", {}) == "not root"
    assert ColdCache().feasibility(rig, "warm", {}) is None
    for name in STORAGES:
        assert ContainerStorage().feasibility(rig_lacking(docker="none"), name, {}) == "none"


def test_a_placement_has_the_storage_that_was_set_up() -> None:
    rig = rig_lacking()
    with pytest.raises(RigError, match="has not been set up"):
        rig.target(docker("host", storage="bind"))
    bound = Storage("bind", "overlay2", "ext4")
    target = Target(LocalHost(), "198.18.0.3", engine="unix:///own", storages={"bind": bound})
    rig.targets = {"sut": target}
    assert rig.target(docker("host", storage="bind")).storage == bound
    assert rig.target(bare("rules")) is rig.target(docker("host")) is target


def test_an_unknown_storage_is_an_error_and_a_missing_one_is_left_out() -> None:
    with pytest.raises(UsageError, match="unknown storage 'zfs'"):
        rig_lacking().storage({"zfs": []}).__enter__()
    rig = make_rig(missing={"storage:aufs": "no aufs"})
    with rig.storage({"aufs": []}):
        assert rig.targets == {}
