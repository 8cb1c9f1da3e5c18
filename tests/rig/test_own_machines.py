"""Machines of one's own by SSH: trials on them, and cuts, reboots and kills that leave nothing."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from loads import echoes
from own_machines import LABKIT, ROLES, machines, state
from processes import wait_for

from labkit import Study, bare, docker, treatments
from labkit.campaign.trial import Trial
from labkit.data import load
from labkit.errors import RigError, UsageError
from labkit.hosts import Host, Settings
from labkit.hosts.target import Target
from labkit.pcap import read
from labkit.placement import container, waiting
from labkit.rig import images, netns
from labkit.rig import machines as inventory
from labkit.rig.base import Additions
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
CREATED = ("macvlan", "nat", "overlay")
LEFT = ("--label=labkit=trial-1-x", "--cgroup-parent=/labkit")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


def opened(path, **added):
    """Open a rig of machines below the one of this machine, whose lock the fixture holds."""
    return inventory.opened(str(path), Additions(**added))


@pytest.fixture(scope="module")
def rig(own):
    """Two hosts with an engine each, and networks between them."""
    before = state()
    with opened(own.path, networks=CREATED, peer=("net",), collector=("sut",)) as networked:
        yield networked
    assert state() == before


def docker_cli(*argv, role="sut"):
    return Host().run("docker", *argv, env={"DOCKER_HOST": netns.socket_of(role)}).stdout


def ping(trial, placement):
    with trial.serve(sockperf.server("block"), placement) as server:
        # The output of the tool does not depend on the placement, and it sleeps before it sends.
        if placement == bare("clean"):
            return trial.measure(
                sockperf.ping_pong(server.address, messages=500, size=64, wait="block")
            )
        return trial.measure(echoes(server.address))


def test_a_campaign_on_every_baseline_level_and_network(rig, tmp_path):
    levels = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
    placements = [*levels, docker("host"), docker("bridge"), docker("nat")]
    factors = {"placement": placements, "affinity": treatments.Pinning("split")}
    tools = {"sockperf": sockperf.probe}
    plan = Study("own", ping, factors, tools=tools).plan(rig, blocks=1, seed=1)
    assert not plan.design.infeasible
    campaign = plan.run(into=tmp_path)
    assert list(campaign.trials.status) == ["ok"] * 7
    # Counters of the servers' hosts, each with a kernel.
    assert (campaign.ok[["server_switches", "context_switches"]] > 0).all(axis=None)
    assert not rig.shared_kernel and set(campaign.rig["hosts"]) == {*ROLES}
    assert docker_cli("ps", "--all", "--quiet") == ""
    rig.check_target("198.18.1.10")
    with pytest.raises(UsageError):
        rig.check_target("198.18.2.1")


def test_a_host_that_differs_from_the_file_is_an_error(own):
    path, text = own.folder / "wrong.toml", own.path.read_text()
    path.write_text(text.replace(f'"{own.folder}/scratch/sut', '"/dev/null/sut'))
    with pytest.raises(RigError) as caught, opened(path):
        pass
    assert "is not writable" in caught.value.why and caught.value.remedy


def make(rig, placement, name):
    treated = {"affinity": treatments.Pinning()}
    levels = {"placement": placement, "affinity": "split"}
    return Trial(rig, levels, f"trial-0-{name}", treatments=treated)


@pytest.mark.parametrize(
    "placement", [*map(docker, ("host", "nat", "macvlan", "overlay")), container("lxc", "nat")]
)
def test_containers_of_two_machines_reach_each_other(rig, placement):
    assert rig.infeasible(placement) is None
    trial = make(rig, placement, "networks")
    peer = {"name": "client", "at": "peer", "cpus": trial.cpus("generator")}
    with trial.serve(sockperf.server("block"), placement) as server:
        if placement.network != "overlay":
            assert trial.measure(echoes(server.address)).messages == 200
        if placement.runtime == "docker":
            with trial.serve(waiting("net"), placement, **peer) as client:
                assert client.host.name == "peer" and server.host.name == "sut"
                inside = sockperf.ping_pong(server.address, messages=100, size=64, wait="block")
                assert trial.measure(inside, inside=client).messages >= 100
    subnet = {"macvlan": "198.18.0.", "overlay": "198.18.35."}
    assert server.address.startswith(subnet.get(placement.network, "198.18."))


def test_images_are_built_over_ssh_and_sent_to_an_engine_that_lacks_them(rig, tmp_path):
    source = tmp_path / "probe"
    (source / "sub").mkdir(parents=True)
    (source / "Dockerfile").write_text(f"FROM {images.BASE}\nCOPY sub /probe\n")
    (source / "sub" / "bytes").write_bytes(bytes(range(256)))
    name, disk = images.tag(source), str(tmp_path / "store" / "disk")
    sut, peer = (Target(rig.hosts[n], "", netns.socket_of(n), disk=disk) for n in ("sut", "peer"))
    try:
        image = images.ensure_image(sut, source)
        assert image.reference == name
        assert (Path(image.rootfs) / "probe" / "bytes").read_bytes() == bytes(range(256))
        images.send(netns.socket_of("sut"), peer, [name])
        assert images.digest_of(peer, name) == image.digest
    finally:
        for role in ("sut", "peer"):
            docker_cli("image", "rm", "--force", name, role=role)


def test_the_next_user_removes_all_of_a_killed_campaign(own, rig, capsys):
    # An engine keeps a network that a container is on.
    image = rig.targets["sut"].images["net"].reference
    network = "--network=labkit-macvlan"
    docker_cli("run", "--detach", "--pull=never", *LEFT, network, image, "sleep", "600")
    folder = str(own.folder / "left")
    given = {"argv": ["sleep", "600"], "folder": folder, "label": "trial-1-x"}
    rig.hosts["generator"].call("start", **given)
    setting = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    assert Settings(rig.hosts["sut"], "trial-1-x").set_files({setting: 0})
    with opened(own.path):
        assert docker_cli("ps", "--all", "--quiet") == ""
        assert Host().call("labelled", prefix="trial-") == []
    kinds, said = ["process", "container", f"setting {setting}: restored"], capsys.readouterr().out
    for kind in (*kinds, *(f"network {name}" for name in CREATED)):
        assert f"removed {kind}" in said


def test_a_capture_has_what_the_mirror_shows(own, rig):
    assert treatments.PacketCapture().feasibility(rig, "on", {}) is None
    trial = make(rig, bare("rules"), "capture")
    with (
        netns.mirrored(own.rig.mirrors),
        trial.serve(sockperf.server("block"), bare("rules")) as server,
        trial.capture("udp port 11111") as captured,
    ):
        trial.measure(echoes(server.address, 50))
    assert len(read(captured.packets, captured.summary).packets) >= 100


# Labkit as a program on another machine.


def until(data, process, more=1):
    """Wait until a campaign has measured so many more trials and is in the middle of another."""

    def done():
        return len([*data.rglob("trials/*/trial.json")])

    wanted = done() + more
    wait_for(lambda: done() >= wanted or process.poll() is not None, 200)
    assert process.poll() is None, process.stdout.read()
    time.sleep(0.3)


def test_a_campaign_survives_kill_cut_and_reboot_and_leaves_nothing(own, tmp_path):
    own.labkit("clean", "--rig", str(own.path))  # of what other tests left
    before, data = state(), tmp_path / "data"
    given = {"data": data, "services": "[linpack]", "cases": "['1']", "blocks": 9}
    run = (*LABKIT, "run", "interference", "-P", "tiny", "--rig", str(own.path))
    run += tuple(word for name, value in given.items() for word in ("-p", name, str(value)))
    draw = random.Random(os.environ.get("LABKIT_SEED", "1"))

    process = own.command(*run)
    until(data, process, 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed = load(data / "interference").trials["trial"].tolist()
    assert state() != before
    own.labkit("clean", "--rig", str(own.path))
    assert state() == before

    process = own.command(*run)
    time.sleep(draw.uniform(1, 4))  # while the rig is being opened
    own.cut(draw.choice(["generator", "sut"]))
    until(data, process)
    time.sleep(draw.uniform(0, 0.5))  # in the middle of another trial
    own.cut(draw.choice(["generator", "sut"]))
    until(data, process)
    own.reboot()
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    assert "the rig is opened again" in said
    campaign = load(data / "interference")
    planned = sum(map(len, campaign.plan["order"]))
    assert len(campaign.ok) == campaign.ok["trial"].nunique() == planned
    # What was measured before the kill is still there, byte by byte the first rows.
    assert campaign.trials["trial"].tolist()[: len(killed)] == killed
    assert len({session["boot"] for session in campaign.sessions}) == 2
    assert state() == before
