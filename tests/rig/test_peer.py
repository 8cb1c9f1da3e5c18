"""The peer: both ends in containers, on engines of two hosts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from labkit import treatments
from labkit.campaign.trial import Trial
from labkit.placement import bare, docker, waiting
from labkit.rig.base import Rig
from labkit.tools import thrift_rpc

pytestmark = pytest.mark.rig
OPEN = {"peer": ("python",), "clean_peer": True}
Left = Callable[[], list[str]]
Make = Callable[..., Trial]


def test_a_clean_baseline_at_the_peer_goes_to_a_host_without_an_engine(lab: Rig) -> None:
    spread, clean = treatments.SecondHost(at=2, spread=True), {"placement": bare("clean")}
    assert spread.feasibility(lab, 2, clean) is None
    target = lab.target(bare("clean"), at="peer")
    assert target.host.name == "clean-peer" and not target.engine
    assert lab.target(docker("host"), at="peer").host.name == "peer"
    assert not target.host.run("nft", "list", "ruleset").stdout.strip()
    assert lab.cpus("clean-peer", "split") == lab.cpus("peer", "split")


def test_each_interface_answers_for_its_own_addresses_only(lab: Rig) -> None:
    """Both ports of the sut are on one switch; only one has the address."""
    generator, sut = lab.hosts["generator"], lab.hosts["sut"]
    link = json.loads(sut.run("ip", "-j", "link", "show", "lab0").stdout)[0]
    for _ in range(5):
        generator.run("ip", "neigh", "flush", "dev", "lab0")
        generator.run("bash", "-c", "echo >/dev/udp/198.18.0.3/9; sleep 0.1")
        known = json.loads(generator.run("ip", "-j", "neigh", "show", "198.18.0.3").stdout)
        assert [row["lladdr"] for row in known] == [link["address"]]


@pytest.mark.parametrize("network", ["host", "nat"])
def test_both_ends_run_in_containers_of_two_engines(
    lab: Rig, make_trial: Make, left: Left, network: str
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
        call = thrift_rpc.client(server.address, calls=200, call="receive", size=200, inside=True)
        found = trial.measure(call, inside=client)
        near = lab.hosts["sut"].run("ip", "-j", "neigh", "show", "198.18.0.5").stdout
    assert len(found.samples["latency_ns"]) == 200
    assert address.startswith("198.19.128." if network == "nat" else "198.18.0.5")
    verification = trial.record["verifications"]["client"]
    assert verification["allowed CPUs"] == lab.cpus("generator", "split")
    assert verification["image"] == lab.targets["peer"].images["python"].digest
    # The server's packets come from the peer's address, also from behind a bridge.
    assert json.loads(near)[0]["lladdr"]
    assert trial.mechanisms["client_group_cpu_use"] > 0
    assert left() == []


def test_the_generator_stays_without_firewall_rules(lab: Rig) -> None:
    rules = lab.hosts["generator"].run("nft", "list", "ruleset").stdout
    assert not rules.strip()
    on_peer = lab.hosts["peer"].run("nft", "list", "ruleset").stdout
    assert "masquerade" in on_peer
    assert lab.describe()["hosts"]["peer"] == {
        "addresses": ["198.18.0.5"],
        "cpus": lab.cpu_map["generator"],
        "engine": True,
    }
    assert treatments.SecondHost(at="both").feasibility(lab, "both", {}) is None


def test_its_engine_has_the_same_runtimes(lab: Rig) -> None:
    asked = ("docker", "info", "--format", "{{json .Runtimes}}")
    known = {
        role: json.loads(
            lab.hosts[role].run(*asked, env={"DOCKER_HOST": str(lab.targets[role].engine)}).stdout
        )
        for role in ("sut", "peer")
    }
    assert set(known["peer"]) == set(known["sut"]) >= {"runc"}
