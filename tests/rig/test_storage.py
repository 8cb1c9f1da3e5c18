"""Every storage that this machine has: its layers, verified, used and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from labkit import treatments
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, RigError
from labkit.placement import STORAGES, UNIONS, docker, waiting
from labkit.rig import engine
from labkit.rig.base import Rig
from labkit.rig.layers import LayeredImage, ensure_layers, tree
from labkit.runtimes import placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.verify import Facts
from labkit.tools import file_operations

pytestmark = pytest.mark.rig
FILES = {f"first/{number}": 300_000 for number in range(2)}
TREE = tree("tree", 5, 20, 20_000)
IMAGE = LayeredImage("tested", (TREE | {"layer-1": 4096} | FILES, TREE | {"layer-2": 4096}))
OPEN = {"layers": (IMAGE,)}


def test_layers_are_the_same_bytes_when_they_are_built_again(lab: Rig) -> None:
    target = lab.targets["sut"]
    host, env = target.host, {"DOCKER_HOST": str(target.engine)}
    again = replace(IMAGE, layers=(*IMAGE.layers, {"layer-3": 1}))
    built = []
    for _ in range(2):
        image = ensure_layers(target, again)
        inspect = ("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}")
        built.append(json.loads(host.run(*inspect, image.reference, env=env).stdout))
        host.run("docker", "image", "rm", image.reference, env=env)
    assert built[0] == built[1] and len(built[0]) >= 4


def test_docker_keeps_the_times_of_a_layer(lab: Rig) -> None:
    target = lab.targets["sut"]
    image, host, env = target.images["tested"], target.host, {"DOCKER_HOST": str(target.engine)}
    show = ("docker", "run", "--rm", "--network", "none", image.reference)
    listing = ("ls", "-l", "--time-style=+%s", "/data/layer-1", "/data/layer-2")
    lines = host.run(*show, *listing, env=env).stdout.splitlines()
    times = [line.split()[5] for line in lines]
    assert times == ["1000000001", "1000000002"]


@pytest.mark.parametrize("name", STORAGES)
def test_each_operation_runs_in_a_verified_storage(
    lab: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]], name: str
) -> None:
    placement = docker("host", storage=name)
    if reason := lab.missing.get(f"storage:{name}"):
        assert treatments.ContainerStorage().feasibility(lab, name, {}) == reason
        with pytest.raises(RigError) as caught:
            lab.target(placement)
        assert caught.value.why == reason
        return
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
    counts = {key: len(measurement.samples["latency_ns"]) for key, measurement in found.items()}
    assert counts == {"write": 20, "fsync": 5, "top": 20, "lowest": 20, "first": 2, "ls": 3}
    assert read["file system of /data"] == lab.targets["sut"].storages[name].filesystem
    assert left() == []
    assert list((engine.STORAGES / "unions").glob("*")) == []


def test_a_container_does_not_see_what_the_previous_one_wrote(
    lab: Rig, make_trial: Callable[..., Trial]
) -> None:
    for name in ("overlay2", *UNIONS):  # a bind mount and a volume keep what is written to them
        if f"storage:{name}" in lab.missing:
            continue
        placement = docker("host", storage=name)
        for _ in range(2):
            with make_trial(placement).serve(waiting("tested"), placement) as server:
                argv = server.enter(
                    ["sh", "-c", "head -c 3 /data/first/0; echo new >/data/first/0"]
                )
                assert "new" not in server.host.run(*argv).stdout


def test_cold_caches_are_dropped_by_the_host_itself(
    lab: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]]
) -> None:
    name = next(one for one in STORAGES if f"storage:{one}" not in lab.missing)
    placement = docker("host", storage=name)
    trial = make_trial(placement, storage=name)

    def cached() -> int:
        text = lab.targets["sut"].host.run("grep", "^Cached:", "/proc/meminfo").stdout
        return int(text.split()[1])

    with trial.serve(waiting("tested"), placement) as server:
        before = cached()
        treatments.ColdCache().begin(lab, "cold")
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


@pytest.mark.parametrize("name", ["overlay2", "bind"])
def test_another_storage_than_that_of_the_label_is_an_error(
    lab: Rig, label: str, left: Callable[[], list[str]], name: str
) -> None:
    placement = docker("host", storage=name)
    arguments = (Mislabelled(), lab.target(placement), placement, waiting("tested"))
    with pytest.raises(ManipulationError) as caught, placed(*arguments, cpus="1", label=label):
        pass
    assert "not zfs" in caught.value.what and "; mount at /data: " in caught.value.what
    assert left() == []
