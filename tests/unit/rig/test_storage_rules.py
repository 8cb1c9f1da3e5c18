"""Which storages a machine can have, and what proves that a container has the one it was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.campaign.treatments import ColdCache, ContainerStorage
from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.host import Result
from labkit.hosts.target import Image, Storage, Target
from labkit.placement import DRIVERS, MOUNTS, bare, docker
from labkit.rig import storage
from labkit.rig.base import Rig
from labkit.runtimes.observed import reduced_mount
from labkit.runtimes.storage import data_options, data_source
from labkit.runtimes.verify import Expectation, problems

CAPTURED = Path(__file__).parents[2] / "captured"
READ = json.loads((CAPTURED / "verification-storages.json").read_text())
IMAGE = Image("layers-2", "labkit/layers-2:0", "sha256:0123456789abcdef", "")


def expected(name: str, **changes: Any) -> Expectation:
    """Return what must be true of the captured container with a storage."""
    wanted = READ[name]["expected"] | changes
    inside = {"host_network": True, "container": True, "root": ""}
    return Expectation("1", cgroup=READ[name]["verification"]["inspect"]["id"], **inside, **wanted)


@pytest.mark.parametrize("name", list(READ))
def test_each_storage_is_proven_by_what_was_read(name: str) -> None:
    assert problems(expected(name), READ[name]["verification"]) == []


@pytest.mark.parametrize("name", list(READ))
@pytest.mark.parametrize("other", list(READ))
def test_no_storage_passes_for_another(name: str, other: str) -> None:
    wrong = problems(expected(name), READ[other]["verification"])
    about = [problem for problem in wrong if "storage driver" in problem or "/data" in problem]
    assert bool(about) == (name != other)


def test_a_mount_of_another_directory_is_seen() -> None:
    source = "/var/lib/labkit/storage/bind/another"
    (wrong,) = problems(expected("bind", source=source), READ["bind"]["verification"])
    assert wrong.startswith("its /data is /") and wrong.endswith(f"not {source}")


def test_storage_is_no_matter_where_none_was_asked_for() -> None:
    plain = expected("vfs", driver="", filesystem="", source="")
    read = READ["vfs"]["verification"]
    assert problems(plain, read) == [] == problems(plain, {**read, "data": {}})


MOUNTS_OF = """
22 27 0:21 / /proc rw - proc proc rw
700 600 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/C:/B:/A,upperdir=/u,workdir=/w
701 700 254:0 /var/lib/x/my\\040data /data rw,relatime - ext4 /dev/vda rw
702 700 254:0 /database /database rw - ext4 /dev/vda rw
"""


def test_the_mount_of_a_path_is_the_deepest_that_holds_it() -> None:
    assert reduced_mount(MOUNTS_OF, "/data") == {
        "point": "/data",
        "type": "ext4",
        "root": "/var/lib/x/my data",
    }
    assert reduced_mount(MOUNTS_OF, "/dat") == {
        "point": "/",
        "type": "overlay",
        "root": "/",
        "layers": 4,
    }
    one = reduced_mount(MOUNTS_OF.replace("/C:/B:/A", "/image/rootfs"), "/dat")
    assert one["lower"] == "/image/rootfs" and one["layers"] == 2
    assert reduced_mount("", "/data") == {}
    assert reduced_mount("22 27 0:21 / /\n", "/data") == {}


def test_sources_of_mounts_are_named_after_the_content() -> None:
    def source(name: str) -> str:
        return data_source(Storage(name, "s", "overlay2", "ext4", "/disk"), IMAGE, "trial-1")

    assert source("bind") == "/disk/bind/layers-2-0123456789ab"
    assert source("volume").endswith("-layers-2-0123456789ab")
    other = Storage("volume", "s", "overlay2", "ext4", "/another")
    assert source("volume") != data_source(other, IMAGE, "trial-1"), "users of one engine"
    assert source("unionfs-fuse") == "/disk/unions/trial-1/union"
    assert source("overlay2") == ""


def test_a_rig_without_daemons_of_its_own_has_one_driver_and_two_mounts() -> None:
    found = storage.missing_beside("btrfs")
    able = {name for name in (*DRIVERS, *MOUNTS) if f"storage:{name}" not in found}
    assert able == {"btrfs", "bind", "volume"}
    assert "btrfs" in found["storage:overlay2"]
    without = storage.missing_beside(None)
    assert len(without) == len(DRIVERS) + len(MOUNTS)
    assert set(without.values()) == {"there is no engine"}


def test_a_machine_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_kernel_has", lambda name: name == "overlay")
    monkeypatch.setattr(storage, "find_tool", lambda name: None)
    found = storage.missing()
    assert found["storage:aufs"] == "the kernel has no aufs"
    assert found["storage:btrfs"] == "the kernel has no btrfs"
    assert "fuse" in found["storage:fuse-overlayfs"] and "fuse" in found["storage:unionfs-fuse"]
    assert not {"storage:overlay2", "storage:vfs", "storage:bind"} & found.keys()
    monkeypatch.setattr(storage, "_kernel_has", lambda name: True)
    monkeypatch.setattr(storage, "_engine_version", lambda: 24)
    assert "version 24" in storage.missing()["storage:aufs"]
    monkeypatch.setattr(storage, "_engine_version", lambda: 20)
    assert "storage:aufs" not in storage.missing()
    assert "btrfs-progs" in storage.missing()["storage:btrfs"]


def rig(**missing: str) -> Rig:
    target = Target(LocalHost("sut"), "198.18.0.3", engine="unix:///none")
    found = {name.replace("_", ":", 1): why for name, why in missing.items()}
    return Rig("r", "virtual", {}, {"sut": target}, {}, {}, True, missing=found)


def test_a_rig_refuses_what_it_lacks_and_says_how_to_have_a_storage_stand() -> None:
    lab = rig(storage_vfs="no disk")
    assert ContainerStorage().feasibility(lab, "vfs", {}) == "no disk"
    assert ContainerStorage().feasibility(lab, "btrfs", {}) is None
    lab.missing = {"cold-cache": "not root"}
    assert ColdCache().feasibility(lab, "cold", {}) == "not root"
    assert ColdCache().feasibility(lab, "warm", {}) is None
    with pytest.raises(RigError, match="has not been set up"):
        lab.target(docker("host", storage="bind"))


def test_the_place_of_a_placement_has_its_storages_engine() -> None:
    lab = rig()
    there = Storage("btrfs", "unix:///btrfs", "btrfs", "btrfs")
    target = Target(LocalHost("sut"), "198.18.0.3", engine="unix:///own", storages={"btrfs": there})
    lab.targets = {"sut": target}
    placed = lab.target(docker("host", storage="btrfs"))
    assert (placed.engine, placed.storage) == ("unix:///btrfs", there)
    assert lab.target(docker("host")) is target


def test_an_unknown_storage_is_refused() -> None:
    lab = rig()
    with pytest.raises(UsageError, match="no storage called zfs"), lab.storage({"zfs": []}):
        pass


def test_a_rig_that_cannot_run_the_container_refuses_every_storage() -> None:
    lab = rig(docker="no engine")
    assert lab.infeasible(docker("host")) == "no engine"
    assert {ContainerStorage().feasibility(lab, name, {}) for name in (*DRIVERS, *MOUNTS)} == {
        "no engine"
    }
    lab = rig(rules="no rules are read")
    assert lab.infeasible(bare("rules")) == "no rules are read"
    assert ColdCache().feasibility(lab, "cold", {}) == "no rules are read"
    assert ColdCache().feasibility(lab, "warm", {}) is None
    lab = rig()
    assert ContainerStorage().feasibility(lab, "bind", {}) is None
    assert ColdCache().feasibility(lab, "cold", {}) is None


def test_a_rig_without_any_of_the_storages_asks_nothing_of_its_hosts() -> None:
    lab = rig(storage_vfs="no disk", storage_btrfs="no btrfs")
    lab.targets = {}
    with lab.storage({"vfs": [], "btrfs": []}):
        assert lab.targets == {}


class Answering(LocalHost):
    """A host whose commands are answered from a list, and written down."""

    def __init__(self, *answers: str) -> None:
        super().__init__("sut")
        self.answers, self.asked = list(answers), list[tuple[str, ...]]()

    def run(self, *argv: str, **options: Any) -> Result:
        self.asked.append(argv)
        return Result(argv, "sut", 0, self.answers.pop(0), "", 0.0)


DISKS = [
    ("/dev/vda ext4\n/dev/vda  ext4\n", ""),
    (
        "tmpfs tmpfs\n/dev/vda ext4\n",
        "tmpfs tmpfs, the engine's data (/docker) on /dev/vda ext4",
    ),
    ("/dev/vda ext4\n/dev/vdb ext4\n", "two disks"),
    ("/dev/vda ext4\n", "is unknown"),
    ("", "is unknown"),
]


@pytest.mark.parametrize(("said", "why"), DISKS)
def test_a_directory_on_another_disk_is_no_match_for_the_engines_data(said: str, why: str) -> None:
    found = storage.apart(Answering("/docker\n", said), "unix:///e", "/disk")
    assert why in found and bool(found) == bool(why)
    able = storage.missing_beside("overlay2", found)
    assert ("storage:bind" in able) == bool(why)
    assert not {"storage:volume", "storage:overlay2"} & able.keys()


def test_an_engine_that_does_not_say_where_its_data_are_is_no_match() -> None:
    assert "is unknown" in storage.apart(Answering("\n"), "unix:///e", "/disk")


def test_directories_still_to_be_made_are_on_the_disk_of_what_stands(tmp_path: Path) -> None:
    class Rooted(LocalHost):
        def run(self, *argv: str, **options: Any) -> Result:
            if argv[:2] == ("docker", "info"):
                return Result(argv, "sut", 0, f"{tmp_path}/engine/data\n", "", 0.0)
            return super().run(*argv, **options)

    host = Rooted("sut")
    assert storage.apart(host, "unix:///e", f"{tmp_path}/still/to be/made") == ""
    assert "two disks" in storage.apart(host, "unix:///e", "/proc")


@pytest.mark.parametrize("name", ["bind", "volume"])
def test_what_fills_a_mount_carries_the_label_of_its_trial(name: str) -> None:
    host = Answering("")
    stands = Storage(name, "unix:///e", "overlay2", "ext4", "/disk")
    target = Target(host, "198.18.0.3", engine="unix:///e", storage=stands, cgroup_parent="/labkit")
    data_options(target, IMAGE, "trial-77-b1")
    ((*_, text, _, source, image, parent, label, disk),) = host.asked
    assert (image, parent, label, disk) == (IMAGE.reference, "/labkit", "trial-77-b1", "/disk")
    assert '--label "labkit=$label"' in text and source == data_source(stands, IMAGE, "")


def test_a_daemon_that_was_only_begun_is_ended_before_its_folders_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, done = tmp_path / "storage-btrfs-daemon", list[tuple[str, bool]]()
    folder.mkdir()
    monkeypatch.setattr(storage.netns, "DIRECTORY", tmp_path)
    monkeypatch.setattr(
        storage, "stop_labelled", lambda host, label: done.append((label, folder.is_dir()))
    )
    monkeypatch.setattr(
        storage.teardown, "unmount", lambda below: done.append(("unmount", folder.is_dir()))
    )
    assert storage.unremoved_drivers() == [] == storage.remove_daemons(LocalHost())
    assert done == [(storage.DAEMON_LABEL, True), ("unmount", True)]
    assert not folder.exists()
