"""Every storage that this machine has: verified, used and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from labkit import treatments
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, RigError
from labkit.hosts import LocalHost
from labkit.placement import DRIVERS, MOUNTS, docker, waiting
from labkit.rig import engine, teardown
from labkit.rig.base import Rig
from labkit.rig.layers import File, LayeredImage, Tree
from labkit.runtimes import placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.verify import Facts
from labkit.tools import file_operations

pytestmark = pytest.mark.rig
STORAGES = (*DRIVERS, *MOUNTS)
FILES = tuple(File(f"first/{n}", 300_000) for n in range(2))
IMAGE = LayeredImage(
    "tested",
    (
        (Tree("tree", 5, 20, 20_000), File("layer-1", 4096), *FILES),
        (Tree("tree", 5, 20, 20_000), File("layer-2", 4096)),
    ),
)


@pytest.fixture(scope="module")
def stored(lab: Rig) -> Iterator[Rig]:
    with lab.storage({name: [IMAGE] for name in STORAGES}):
        yield lab
    assert teardown.mounted((str(engine.STORAGES),)) == []
    losetup = LocalHost().run("losetup", "--list", "--noheadings", "--output", "BACK-FILE").stdout
    assert str(engine.STORAGES) not in losetup
    assert not [path for path in ("bind", "unions") if (engine.STORAGES / path).exists()]


def lacking(lab: Rig, name: str) -> bool:
    """Tell whether this machine lacks a storage, which is then infeasible with the reason."""
    reason = lab.missing.get(f"storage:{name}")
    if reason:
        assert treatments.ContainerStorage().feasibility(lab, name, {}) == reason
        with pytest.raises(RigError) as caught:
            lab.target(docker("host", storage=name))
        assert caught.value.why == reason
    return bool(reason)


@pytest.mark.parametrize("name", STORAGES)
def test_each_operation_runs_in_a_verified_storage(
    stored: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]], name: str
) -> None:
    if lacking(stored, name):
        return
    placement = docker("host", storage=name)
    trial = make_trial(placement, storage=name)
    clients = {
        "write": file_operations.write(size_b=5000, count=20),
        "fsync": file_operations.write(size_b=5000, count=5, flush="fsync"),
        "top": file_operations.open_close(count=20, path="/data/layer-2"),
        "lowest": file_operations.open_close(count=20, path="/data/layer-1"),
        "first": file_operations.first_write(folder="/data/first", size_b=300_000, files=2),
        "ls": file_operations.traverse("/data/tree", count=3, files=50),
    }
    with trial.serve(waiting("tested"), placement) as server:
        found = {key: trial.measure(one, inside=server) for key, one in clients.items()}
        read = server.verification
    assert trial.record["mechanisms"]["reference_ns"] > 0
    counts = {key: len(measurement.samples["latency_ns"]) for key, measurement in found.items()}
    assert counts == {"write": 20, "fsync": 5, "top": 20, "lowest": 20, "first": 2, "ls": 3}
    assert read["file system of /data"] == stored.targets["sut"].storages[name].filesystem
    assert left() == []
    assert list((engine.STORAGES / "unions").glob("*")) == []


def test_the_engine_keeps_its_bridge_while_other_daemons_run(stored: Rig) -> None:
    shown = stored.hosts["sut"].run("ip", "-brief", "-4", "addr", "show", "docker0").stdout
    assert shown.startswith("docker0") and "/" in shown


def test_a_container_does_not_see_what_the_previous_one_wrote(
    stored: Rig, make_trial: Callable[..., Trial]
) -> None:
    for name in STORAGES:
        if f"storage:{name}" in stored.missing or name in ("bind", "volume"):
            continue  # a bind mount and a volume keep what is written to them
        placement = docker("host", storage=name)
        for _ in range(2):
            with make_trial(placement).serve(waiting("tested"), placement) as server:
                argv = server.enter(
                    ["sh", "-c", "head -c 3 /data/first/0; echo new >/data/first/0"]
                )
                assert "new" not in server.host.run(*argv).stdout


def test_cold_caches_are_dropped_by_the_host_itself(
    stored: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]]
) -> None:
    name = next(one for one in STORAGES if f"storage:{one}" not in stored.missing)
    placement = docker("host", storage=name)
    trial = make_trial(placement, storage=name)

    def cached() -> int:
        text = stored.targets["sut"].host.run("grep", "^Cached:", "/proc/meminfo").stdout
        return int(text.split()[1])

    with trial.serve(waiting("tested"), placement) as server:
        before = cached()
        treatments.ColdCache().begin(stored, "cold")
        assert cached() < before
        cold = trial.measure(file_operations.traverse("/data/tree", files=50), inside=server)
        traversals = file_operations.traverse("/data/tree", count=2, files=50)
        warm = trial.measure(traversals, inside=server)
    assert len(cold.samples["latency_ns"]) == 1 and len(warm.samples["latency_ns"]) == 2
    assert left() == []


class Mislabelled(Docker):
    """Starts the right container, and expects another driver and another mount."""

    def expect(self, *arguments: Any) -> Facts:
        right = super().expect(*arguments)
        other = "none" if right["mount at /data"] != "none" else "/elsewhere"
        return {**right, "storage driver": "zfs", "mount at /data": other}


@pytest.mark.parametrize("name", ["vfs", "bind"])
def test_another_storage_than_that_of_the_label_is_an_error(
    stored: Rig, label: str, left: Callable[[], list[str]], name: str
) -> None:
    placement = docker("host", storage=name)
    arguments = (Mislabelled(), stored.target(placement), placement, waiting("tested"))
    with pytest.raises(ManipulationError) as caught, placed(*arguments, cpus="1", label=label):
        pass
    assert "not zfs" in caught.value.what
    assert ("mounted" if name in MOUNTS else "in its own layer") in caught.value.what
    assert left() == []
