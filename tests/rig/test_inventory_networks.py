"""Two hosts with an engine each as an inventory: networks between them, and a capture.

They are namespaces of the virtual rig; the inventory reaches them over SSH and creates its own
networks.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import own_machines
import pytest
from echoes import echoes

from labkit import Rig, bare, docker, treatments
from labkit.campaign.trial import Trial
from labkit.hosts import LocalHost, labelled
from labkit.pcap import read
from labkit.placement import Placement, container, waiting
from labkit.rig import machines, netns
from labkit.rig.base import Additions
from labkit.rig.engine import PEER_SOCKET, digests
from labkit.rig.images import Say
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
CREATED = ("macvlan", "nat", "overlay")
NETWORKS = """
[networks]
macvlan = "198.18.0.32/24"
nat = "198.18.33.10/24"
overlay = "198.18.35.10/24"
"""


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Rig]]:
    """Yield the directory of a rig.toml, and the virtual rig that provides its machines."""
    with ExitStack() as stack:
        options = {"peer": ["net"], "collector": ["sut"]}
        below = stack.enter_context(Rig.open("virtual", patience=900, say=print, **options))
        place = tmp_path_factory.mktemp("machines")
        made = stack.enter_context(own_machines.machines(place, apart=False))
        # Without the virtual rig's bridge for containers.
        text = re.sub(r"(?m)^bridge_.*\n", "", made.path.read_text())
        root = f'exec_root = "{netns.DIRECTORY}/docker"\n'
        text = text.replace("[hosts.clean]", f"{root}[hosts.clean]")
        own = (f'engine = "{PEER_SOCKET}"', f'exec_root = "{netns.DIRECTORY}/peer"')
        text += made.table("peer", *own) + made.table("collector", 'mirrors = ["sut"]')
        (place / "plain.toml").write_text(text)
        (place / "rig.toml").write_text(text + NETWORKS)
        for role in ("peer", "collector"):
            made.start(role)
        made.open_ways()
        yield place, below


def opened(path: Path, say: Say = print, **added: Any) -> AbstractContextManager[Rig]:
    """Open a rig of machines below the one of this machine, whose lock the fixture holds."""
    return machines.opened(str(path), Additions(**added), say)


@pytest.fixture(scope="module")
def networked(below: tuple[Path, Rig]) -> Iterator[Rig]:
    with opened(below[0] / "rig.toml") as bare_rig:
        before = network_state(bare_rig)
    with opened(below[0] / "rig.toml", networks=CREATED, peer=("net",)) as rig:
        yield rig
        shown = rig
    assert network_state(shown) == before


def network_state(rig: Rig) -> dict[str, list[str]]:
    """Return what networks change on the machines."""
    found = {}
    for role in ("generator", "sut", "peer"):
        host = rig.hosts[role]
        links = json.loads(host.run("ip", "-j", "link").stdout)
        found[role] = sorted(link["ifname"] for link in links)
        found[role] += host.run("ip", "route").stdout.splitlines()
        found[role] += host.run("iptables-save").stdout.splitlines() if role != "generator" else []
    # Comments, and counters of chains.
    found = {
        role: [line for line in lines if not line.startswith(("#", ":"))]
        for role, lines in found.items()
    }
    for role, socket in (("sut", rig.targets["sut"].engine), ("peer", PEER_SOCKET)):
        env = {"DOCKER_HOST": str(socket)}
        names = ("docker", "network", "ls", "--format", "{{.Name}}")
        member = ("docker", "info", "--format", "{{.Swarm.LocalNodeState}}")
        for argv in (names, member):
            found[role] += sorted(rig.hosts[role].run(*argv, env=env).stdout.split())
    return found


def make(rig: Rig, placement: Placement, name: str) -> Trial:
    levels = {"placement": placement, "affinity": "split", "wait": "block"}
    return Trial(rig, levels, f"trial-0-{name}")


def far(address: str) -> Client:
    """Return a client for the inside of a placement, read by its summary."""
    argv = ("sockperf", "ping-pong", "-i", address, "-p", "11111", "-t", "1")

    def parse(stdout: str, log: str) -> Measurement:
        received = re.search(r"\[Total Run\].*?ReceivedMessages=(\d+)", stdout)
        assert received, stdout
        return Measurement({}, {}, int(received[1]))

    return Client(argv, address, 4.0, parse)


@pytest.mark.parametrize("network", ["host", "nat", "macvlan", "overlay"])
def test_containers_of_two_machines_reach_each_other(networked: Rig, network: str) -> None:
    placement = docker(network)
    assert networked.infeasible(placement) is None
    two_hosts = treatments.SecondHost(at=2, spread=True)
    assert two_hosts.feasibility(networked, 2, {"placement": placement}) is None
    trial = make(networked, placement, network)
    beside = {"name": "client", "at": "peer", "cpus": trial.cpus("generator")}
    with (
        trial.serve(sockperf.server("block"), placement) as server,
        trial.serve(waiting("net"), placement, **beside) as inside,
    ):
        assert inside.host.name == "peer" and server.host.name == "sut"
        measurement = trial.measure(far(server.address), inside=inside)
        if network == "macvlan":
            assert trial.measure(echoes(server.address)).messages == 200
    assert measurement.messages >= 100
    subnet = {"macvlan": "198.18.0.", "overlay": "198.18.35."}
    assert server.address.startswith(subnet.get(network, "198.18."))


def test_an_engine_without_published_ports_uses_the_nat_network(networked: Rig) -> None:
    placement = container("lxc", "nat")
    if reason := networked.infeasible(placement):
        pytest.skip(reason)
    trial = make(networked, placement, "lxc")
    with trial.serve(sockperf.server("block"), placement) as server:
        assert trial.measure(echoes(server.address)).messages == 200


def test_the_next_user_removes_networks_of_a_killed_campaign(
    networked: Rig, below: tuple[Path, Rig]
) -> None:
    # An engine keeps a network that a container is on.
    sut, lines = networked.targets["sut"], list[str]()
    options = ("--label=labkit=trial-1-x", "--network=labkit-macvlan", "--cgroup-parent=/labkit")
    run = ("run", "--detach", "--pull=never", *options, sut.images["net"].reference, "sleep", "600")
    LocalHost().run("docker", "--host", str(sut.engine), *run)
    with opened(below[0] / "rig.toml", lines.append):
        removed = {
            (line.split()[1], line.split()[-1]) for line in lines if "removed network" in line
        }
    assert removed >= {("sut:", name) for name in CREATED} | {("peer:", "nat")}


def test_a_network_that_is_not_in_the_file_is_infeasible(below: tuple[Path, Rig]) -> None:
    with opened(below[0] / "plain.toml", networks=CREATED) as plain:
        for network in CREATED:
            engine = "lxc" if network == "nat" else "docker"
            reason = plain.infeasible(container(engine, network)) or ""
            assert f"no key {network} in its table [networks]" in reason
        assert set(plain.targets["sut"].networks) <= {"bridge"}
        there = shutil.which("weaver")
        why = "no key weave in its table" if there else "weaver, is not on the host"
        assert why in (plain.infeasible(docker("weave")) or "")
        assert treatments.SecondHost(at="both").feasibility(plain, "both", {}), "no peer was asked"


def test_the_mirror_is_used_only_where_it_shows_both_directions(below: tuple[Path, Rig]) -> None:
    path, capture = below[0] / "rig.toml", treatments.PacketCapture()
    with opened(path, collector=("sut",)) as rig:
        assert "does not see what sut sends" in (capture.feasibility(rig, "on", {}) or "")
        assert "collector" not in rig.targets
    with below[1].mirror():
        with opened(path, collector=("generator",)) as rig:
            assert "no mirrors for generator" in (capture.feasibility(rig, "on", {}) or "")
        with opened(path, collector=("sut",)) as rig:
            assert capture.feasibility(rig, "on", {}) is None
            trial = make(rig, bare("rules"), "capture")
            with (
                trial.serve(sockperf.server("block"), bare("rules")) as server,
                trial.capture("udp port 11111") as captured,
            ):
                trial.measure(echoes(server.address, 50))
    assert len(read(captured.packets, captured.summary).packets) >= 100
    assert labelled(LocalHost(), "trial-") == []


def test_images_of_this_machine_are_sent_to_an_engine_that_lacks_them(
    below: tuple[Path, Rig],
) -> None:
    name, sut, peer = "labkit/probe:sent", below[1].targets["sut"], below[1].targets["peer"]
    source, socket = str(sut.engine), str(peer.engine)
    LocalHost().run("docker", "--host", source, "tag", sut.images["net"].reference, name)
    try:
        machines.send_images(source, peer.host, socket, [name], print)
        assert digests(peer.host, socket, [name]) == {name: sut.images["net"].digest}
    finally:
        for engine in (source, socket):
            LocalHost().run("docker", "--host", engine, "image", "rm", name)
