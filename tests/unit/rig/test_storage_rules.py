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
from labkit.rig import images
from labkit.runtimes.docker import data_options

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
    found, reasons = images.find_storages(Answering(facts), "unix:///e", "/disk")
    assert {name for name in STORAGES if f"storage:{name}" not in reasons} == set(found) == able
    assert all(reasons.values())
    filesystems = {name: one.filesystem for name, one in found.items()}
    assert filesystems.get("overlay2", "overlay") == "overlay"
    assert filesystems.get("volume", "") == "".join(disks[:1])[4:]


def test_a_missing_directory_is_on_the_disk_of_its_nearest_parent() -> None:
    assert agent.disk_of(Path("/proc/1/not yet/made")) == agent.disk_of(Path("/proc"))


@pytest.mark.parametrize("name", STORAGES)
def test_a_container_mounts_what_its_label_says(name: str) -> None:
    host = Answering()
    placed = Storage(name, "overlay2", "ext4", "/disk")
    target = Target(host, "198.18.0.3", engine="unix:///e", storage=placed)
    mounted = {
        "overlay2": [],
        "volume": ["--mount", "type=volume,dst=/data"],
        "bind": ["--mount", "type=bind,src=/disk/bind/layers-2-0123456789ab,dst=/data"],
    }
    union = ["--mount", "type=bind,src=/disk/unions/trial-1/union,dst=/data"]
    assert data_options(target, IMAGE, "trial-1") == mounted.get(name, union)
    assert bool(host.commands) == (name in ("bind", *UNIONS))


def test_a_placement_has_its_storage_or_the_reason_why_not() -> None:
    bound = Storage("bind", "overlay2", "ext4")
    target = Target(LocalHost(), "198.18.0.3", engine="unix:///own", storages={"bind": bound})
    lacking = {"storage:aufs": "no aufs", "cold-cache": "not root"}
    rig = make_rig(targets={"sut": target}, missing=lacking)
    assert rig.target(docker("host", storage="bind")).storage == bound
    assert rig.target(bare("rules")) is rig.target(docker("host")) is target
    assert ContainerStorage().feasibility(rig, "aufs", {}) == "no aufs"
    assert ContainerStorage().feasibility(rig, "bind", {}) is None
    without = make_rig(missing={"docker": "none"})
    assert {ContainerStorage().feasibility(without, name, {}) for name in STORAGES} == {"none"}
    assert ColdCache().feasibility(rig, "cold", {}) == "not root"
    assert ColdCache().feasibility(rig, "warm", {}) is None
