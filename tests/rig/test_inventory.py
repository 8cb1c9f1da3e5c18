"""An inventory of the virtual rig's namespaces as ordinary SSH hosts, with real trials on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from echoes import echoes
from own_machines import machines as own_machines

from labkit import Placement, Rig, Study, bare, docker, treatments
from labkit.campaign.trial import Trial
from labkit.errors import HostUnreachable, ManipulationError, RigError
from labkit.hosts import LocalHost, labelled, start_job
from labkit.rig import engine, images, machines, netns, virtual
from labkit.rig.base import Additions
from labkit.rig.images import Say
from labkit.tools import sockperf

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module")
def folder(namespaces: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a rig.toml of the virtual rig's namespaces."""
    with own_machines(tmp_path_factory.mktemp("machines"), apart=False) as made:
        made.open_ways()
        yield made.folder


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    with opened(folder / "rig.toml") as rig:
        yield rig
    assert docker_cli("ps", "--all", "--quiet") == ""


def opened(path: Path, say: Say = print) -> AbstractContextManager[Rig]:
    """Open a rig of machines below the one of this machine, whose lock the fixtures hold."""
    return machines.opened(str(path), Additions(), say)


def docker_cli(*argv: str) -> str:
    return LocalHost().run("docker", *argv, env={"DOCKER_HOST": engine.SOCKET}).stdout


def ping(trial: Trial, placement: Placement, wait: str):
    with trial.serve(sockperf.server(wait), placement) as server:
        # What the tool writes does not depend on the placement, and it sleeps before it sends.
        if placement == bare("clean"):
            client = sockperf.ping_pong(server.address, messages=500, size=64, wait=wait)
            return trial.measure(client)
        return trial.measure(echoes(server.address))


def test_real_trials_on_every_baseline_level_and_network(rig: Rig, tmp_path: Path) -> None:
    placements = [bare("clean"), bare("rules"), bare("chroot"), bare("cgroup")]
    placements += [docker("host"), docker("bridge"), docker("nat")]
    study = Study(
        "inventory",
        ping,
        factors={"placement": placements, "affinity": ["split"], "wait": ["block"]},
        baseline={"placement": bare("clean")},
        tools={"sockperf": sockperf.probe},
    )
    plan = study.plan(rig, blocks=1, seed=1)
    assert not plan.design.infeasible
    campaign = plan.run(into=tmp_path)
    assert list(campaign.trials.status) == ["ok"] * 7
    by_tool = campaign.ok.placement == "bare clean"
    assert campaign.ok.n_samples[by_tool].between(1, 500).all()
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("trial.json")]
    read = {record["rows"][0]["placement"]: record["verification"] for record in records}
    assert read["bare cgroup"]["control group"].startswith("/labkit-host/trial-")
    assert read["docker bridge"]["address 198.18.1.10"] == "yes"
    image = rig.targets["sut"].images["net"]
    assert read["docker host"]["image"] == image.digest
    assert read["bare chroot"]["root"] == image.rootfs
    assert (campaign.ok[["server_switches", "context_switches"]] > 0).all(axis=None)


def test_the_rig_describes_its_machines(rig: Rig) -> None:
    assert rig.kind == "inventory"
    assert rig.shared_kernel
    assert {"separate-machines", "nic-hardware", "busy-poll", "isolated-cpus"} <= set(rig.missing)
    assert not {"clean-host", "docker", "rules", "layer2", "chroot"} & set(rig.missing)
    assert any("share one kernel" in caveat for caveat in rig.caveats)
    assert rig.owns("198.18.1.10")
    assert rig.owns(netns.address("sut"))
    assert not rig.owns("198.18.0.1")
    assert set(rig.describe()["hosts"]) == {"generator", "sut", "clean"}
    assert rig.cpus("sut", "free") == netns.all_cpus()


def test_the_evidence_of_a_server_under_another_kernel(rig: Rig) -> None:
    """As on separate machines, evidence is read on each host."""
    cpu_map = {**rig.cpu_map, "all.sut": netns.all_cpus(), "all.generator": netns.all_cpus()}
    separate = replace(rig, shared_kernel=False, cpu_map=cpu_map)
    levels = {"placement": bare("rules"), "affinity": "free", "wait": "block"}
    treated = {"affinity": treatments.Pinning()}
    trial = Trial(separate, levels, "trial-0-apart", treatments=treated)
    assert ping(trial, bare("rules"), "block").messages > 0
    assert "server_switches" in trial.record["mechanisms"]


def test_a_placement_that_is_not_its_label_is_caught(rig: Rig, monkeypatch) -> None:
    from labkit.runtimes.docker import Docker

    monkeypatch.setattr(Docker, "network", staticmethod(lambda *_: ["--network", "host"]))
    levels = {"placement": docker("bridge"), "affinity": "split", "wait": "block"}
    trial = Trial(rig, levels, "trial-0-lie")
    with pytest.raises(ManipulationError, match="network: the host's"):
        ping(trial, docker("bridge"), "block")


def test_an_image_is_built_over_ssh(rig: Rig, tmp_path: Path) -> None:
    source = tmp_path / "probe"
    (source / "sub").mkdir(parents=True)
    (source / "Dockerfile").write_text(f"FROM {images.BASE}\nCOPY sub /probe\n")
    (source / "sub" / "bytes").write_bytes(bytes(range(256)))
    host, store = rig.hosts["sut"], str(tmp_path / "store")
    try:
        image = images.ensure_image(host, engine.SOCKET, source, store, "/labkit")
        assert image.reference == images.tag(source)
        assert (Path(image.rootfs) / "probe" / "bytes").read_bytes() == bytes(range(256))
        marker = Path(image.rootfs) / "marker"
        marker.touch()
        assert images.ensure_image(host, engine.SOCKET, source, store, "/labkit") == image
        assert marker.exists(), "an image is unpacked once"
    finally:
        docker_cli("image", "rm", "--force", images.tag(source))


def test_opening_removes_what_a_killed_campaign_left(rig: Rig, folder: Path) -> None:
    image = rig.targets["sut"].images["net"].reference
    options = ["--label=labkit=trial-1-x", "--network=none", "--cgroup-parent=/labkit"]
    docker_cli("run", "--detach", "--pull=never", *options, image, "sleep", "600")
    directory = str(folder / "left")
    start_job(rig.hosts["generator"], ["sleep", "600"], directory=directory, label="trial-1-x")
    lines: list[str] = []
    with opened(folder / "rig.toml", lines.append):
        assert docker_cli("ps", "--all", "--quiet") == ""
        assert labelled(LocalHost(), "trial-") == []
        for what in ("process", "container"):
            assert any(f"removed {what}" in line for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('interfaces = ["lab0"]', 'interfaces = ["lab7"]', "there is no interface lab7"),
        ('"198.18.0.3"]', '"198.18.0.33"]', "198.18.0.33 is not on lab0"),
        ("docker.sock", "nowhere.sock", "no Docker Engine answers"),
        ('cpus = "1"', 'cpus = "1023"', "it has no CPU"),
        ('bridge_port = "lab1"', 'bridge_port = "lab9"', "there is no interface lab9"),
        ('scratch = "', 'scratch = "/dev/null', "is not writable"),
        ('"198.18.1.10/24"', '"198.18.1.10/25"', "not labbr0 198.18.1.0/25"),
    ],
)
def test_a_host_that_differs_from_the_file_is_an_error(
    rig: Rig, folder: Path, old: str, new: str, why: str
) -> None:
    path = folder / "wrong.toml"
    text = (folder / "rig.toml").read_text()
    assert old in text or virtual.cpu_map()["sut"] != "1"
    head, mark, rest = text.partition("[hosts.sut]")
    path.write_text(head + mark + rest.replace(old, new, 1))
    with pytest.raises(RigError) as caught, opened(path):
        pass
    assert why in caught.value.why and caught.value.remedy


def test_an_unknown_host_key_is_refused(folder: Path) -> None:
    path = folder / "unknown.toml"
    path.write_text((folder / "rig.toml").read_text().replace('known_hosts"', 'nobody"'))
    (folder / "nobody").touch()
    with pytest.raises(HostUnreachable, match="key"), opened(path):
        pass


def test_one_campaign_at_a_time(folder: Path) -> None:
    with (
        pytest.raises(RigError, match="in use"),
        Rig.open(folder / "rig.toml"),  # the fixture holds the lock
    ):
        pass
