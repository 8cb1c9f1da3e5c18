"""Storages of containers: which of them a rig can have, and what is mounted for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig

from labkit.campaign.treatments import ColdCache, ContainerStorage
from labkit.hosts import LocalHost, Result, agent
from labkit.hosts.target import Image, Storage, Target
from labkit.placement import STORAGES, UNIONS, bare, docker
from labkit.rig import Rig, storage
from labkit.runtimes.docker import data_options, data_source

IMAGE = Image("layers-2", "labkit/layers:0", "sha256:0123456789abcdef", "")


class Answering(LocalHost):
    """A host that gives one answer to every call, and records commands."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__("sut")
        self.answer, self.commands = answer, list[tuple[str, ...]]()

    def run(self, *argv: str, **options: Any) -> Result:
        self.commands.append(argv)
        return Result(argv, "sut", 0, "", "", 0.0)

    def call(self, function: str, **arguments: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("driver", "disks", "unions", "able"),
    [
        ("overlay2", ["vda ext4"] * 2, ["aufs"], {"overlay2", "bind", "volume", "aufs"}),
        ("overlay2", ["vda ext4", "vdb ext4"], ["fuse-overlayfs"], {"overlay2", "volume"}),
        ("btrfs", ["vda btrfs"] * 2, ["fuse-overlayfs"], {"bind", "volume"}),
        ("", [], [], set()),
    ],
)
def test_a_rig_has_the_engines_driver_and_mounts_on_its_disk(
    driver: str, disks: list[str], unions: list[str], able: set[str]
) -> None:
    stored = dict(zip(("engine", "data"), disks, strict=False))
    stable = {"engine": {"Driver": driver} if driver else None, "storage": stored}
    facts = {"stable": stable, "volatile": {"unions": unions}}
    found, reasons = storage.find(Answering(facts), "unix:///e", "/disk")
    assert {name for name in STORAGES if f"storage:{name}" not in reasons} == set(found) == able
    assert all(reasons.values())
    filesystems = {name: one.filesystem for name, one in found.items()}
    assert filesystems.get("overlay2", "overlay") == "overlay"
    assert filesystems.get("volume", "") == "".join(disks[:1])[4:]


def test_a_missing_directory_is_on_the_disk_of_its_nearest_parent() -> None:
    assert agent.disk_of(Path("/proc/1/not yet/made")) == agent.disk_of(Path("/proc"))


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


def test_a_placement_has_its_storage() -> None:
    bound = Storage("bind", "overlay2", "ext4")
    target = Target(LocalHost(), "198.18.0.3", engine="unix:///own", storages={"bind": bound})
    rig = make_rig(targets={"sut": target})
    assert rig.target(docker("host", storage="bind")).storage == bound
    assert rig.target(bare("rules")) is rig.target(docker("host")) is target
