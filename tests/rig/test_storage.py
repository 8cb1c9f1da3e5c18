"""Every storage that this machine has: its layers, verified, used and removed."""

import json
from dataclasses import replace

import pytest
from conftest import LAYERED

from labkit import treatments
from labkit.errors import RigError
from labkit.placement import STORAGES, UNIONS, docker, waiting
from labkit.rig import netns
from labkit.rig.images import ensure_layers
from labkit.tools import file_operations

pytestmark = pytest.mark.rig


def test_layers_are_the_same_bytes_when_they_are_built_again(lab):
    target = lab.targets["sut"]
    host, env = target.host, {"DOCKER_HOST": str(target.engine)}
    again = replace(LAYERED, layers=(*LAYERED.layers, {"layer-3": 1}))
    built = []
    for _ in range(2):
        image = ensure_layers(target, again)
        inspect = ("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}")
        built.append(json.loads(host.run(*inspect, image.reference, env=env).stdout))
        host.run("docker", "image", "rm", image.reference, env=env)
    assert built[0] == built[1] and len(built[0]) >= 4


@pytest.mark.parametrize("name", STORAGES)
def test_each_operation_runs_in_a_verified_storage(lab, make_trial, name):
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
    with trial.serve(waiting("layered"), placement) as server:
        found = {key: trial.measure(one, inside=server) for key, one in clients.items()}
        read = server.verification
        times = ("stat", "-c", "%Y", "/data/layer-1", "/data/layer-2")
        shown = server.host.run(*server.enter(times)).stdout.split()
        server.host.run(*server.enter(["sh", "-c", "echo new >/data/first/0"]))
    counts = {key: len(measurement.samples["latency_ns"]) for key, measurement in found.items()}
    assert counts == {"write": 20, "fsync": 5, "top": 20, "lowest": 20, "first": 2, "ls": 3}
    assert read["file system of /data"] == lab.targets["sut"].storages[name].filesystem
    if name != "bind":  # which keeps what is written to it, as does a copy
        assert shown == ["1000000001", "1000000002"]
    assert list((netns.STORAGES / "unions").glob("*")) == []
    if name in ("overlay2", *UNIONS):  # the next container does not see what this one wrote
        with make_trial(placement).serve(waiting("layered"), placement) as server:
            argv = server.enter(["head", "-c", "3", "/data/first/0"])
            assert server.host.run(*argv).stdout != "new"


def test_cold_caches_are_dropped_by_the_host_itself(lab):
    def cached():
        text = lab.targets["sut"].host.run("grep", "^Cached:", "/proc/meminfo").stdout
        return int(text.split()[1])

    before = cached()
    treatments.ColdCache().begin(lab, "cold")
    assert cached() < before
