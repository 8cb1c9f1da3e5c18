"""The peer: both ends in containers, on engines of two hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from labkit import treatments
from labkit.campaign.trial import Trial
from labkit.hosts import LocalHost, labelled
from labkit.placement import bare, docker, waiting
from labkit.rig import engine, netns
from labkit.rig.base import Rig
from labkit.tools import thrift_rpc

pytestmark = pytest.mark.rig
Left = Callable[[], list[str]]
Make = Callable[..., Trial]


@pytest.fixture(scope="module")
def with_peer(lab: Rig) -> Iterator[Rig]:
    with lab.peer(images=["python"]):
        yield lab


def test_a_clean_baseline_at_the_peer_goes_to_a_host_without_an_engine(lab: Rig) -> None:
    spread, clean = treatments.SecondHost(at=2, spread=True), {"placement": bare("clean")}
    with lab.peer(images=[]):
        reason = "the rig has one host without an engine"
        assert spread.feasibility(lab, 2, clean) == reason
    with lab.peer(images=[], clean=True):
        assert spread.feasibility(lab, 2, clean) is None
        target = lab.target(bare("clean"), at="peer")
        assert target.host.name == "clean-peer" and not target.engine
        assert lab.target(docker("host"), at="peer").host.name == "peer"
        assert not target.host.run("nft", "list", "ruleset").stdout.strip()
        assert lab.cpus("clean-peer", "split") == lab.cpus("peer", "split")
    assert "clean-peer" not in lab.hosts and "clean-peer" not in lab.targets


def test_a_peer_takes_part_only_for_its_block(lab: Rig) -> None:
    before = (lab.hosts, lab.targets, lab.addresses, lab.cpu_map)
    for _ in range(2):  # its engine starts again in the same namespace
        with lab.peer(images=["python"]):
            assert netns.pids([netns.PREFIX + "peer"]) and "peer" in lab.targets
            running = {row[2].split()[0] for row in labelled(LocalHost(), engine.LABEL)}
            assert "dockerd" in running
        assert (lab.hosts, lab.targets, lab.addresses, lab.cpu_map) == before
        assert not (netns.DIRECTORY / "peer.pid").exists()
    assert treatments.SecondHost(at="both").feasibility(lab, "both", {})


def test_each_interface_answers_for_its_own_addresses_only(lab: Rig) -> None:
    """Both ports of the sut are on one switch; only one has the address."""
    generator, sut = lab.hosts["generator"], lab.hosts["sut"]
    link = json.loads(sut.run("ip", "-j", "link", "show", "lab0").stdout)[0]
    for _ in range(5):
        generator.run("ip", "neigh", "flush", "dev", "lab0")
        generator.run("bash", "-c", "echo >/dev/udp/198.18.0.3/9; sleep 0.1")
        known = json.loads(generator.run("ip", "-j", "neigh", "show", "198.18.0.3").stdout)
        assert [row["lladdr"] for row in known] == [link["address"]]


# From here on one peer is there until the module ends.


@pytest.mark.parametrize("network", ["host", "nat"])
def test_both_ends_run_in_containers_of_two_engines(
    with_peer: Rig, make_trial: Make, left: Left, network: str
) -> None:
    placement = docker(network)
    trial = make_trial(placement, sides="both")
    options = {"name": "client", "at": "peer", "cpus": trial.cpus("generator")}
    with (
        trial.serve(thrift_rpc.server(), placement) as server,
        trial.serve(waiting("python"), placement, **options) as client,
    ):
        assert client.host.name == "peer" and server.host.name == "sut"
        address = client.own_address
        call = thrift_rpc.closed_loop(
            server.address, calls=200, call="receive", size=200, inside=True
        )
        found = trial.measure(call, inside=client)
        near = with_peer.hosts["sut"].run("ip", "-j", "neigh", "show", "198.18.0.5").stdout
    assert len(found.samples["latency_ns"]) == 200
    assert address.startswith("198.19.128." if network == "nat" else "198.18.0.5")
    verification = trial.record["verifications"]["client"]
    assert verification["allowed CPUs"] == with_peer.cpus("generator", "split")
    assert verification["image"] == with_peer.targets["peer"].images["python"].digest
    # The server's packets come from the peer's address, also from behind a bridge.
    assert json.loads(near)[0]["lladdr"]
    assert trial.mechanisms["client_group_cpu_use"] > 0
    assert left() == []


def test_the_generator_stays_without_firewall_rules(with_peer: Rig) -> None:
    rules = with_peer.hosts["generator"].run("nft", "list", "ruleset").stdout
    assert not rules.strip()
    on_peer = with_peer.hosts["peer"].run("nft", "list", "ruleset").stdout
    assert "masquerade" in on_peer
    assert with_peer.describe()["hosts"]["peer"] == {
        "addresses": ["198.18.0.5"],
        "cpus": with_peer.cpu_map["generator"],
        "engine": True,
    }
    assert treatments.SecondHost(at="both").feasibility(with_peer, "both", {}) is None


def test_its_engine_has_the_same_runtimes(with_peer: Rig) -> None:
    asked = ("docker", "info", "--format", "{{json .Runtimes}}")
    known = {
        role: json.loads(
            with_peer.hosts[role]
            .run(*asked, env={"DOCKER_HOST": str(with_peer.targets[role].engine)})
            .stdout
        )
        for role in ("sut", "peer")
    }
    assert set(known["peer"]) == set(known["sut"]) >= {"runc"}
