"""Virtual links with a rate, in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from labkit.hosts import LocalHost, script, start_job
from labkit.rig import Rig, netns, virtual

pytestmark = pytest.mark.rig
RATE = "200mbit"
SECONDS = 2
_LISTENS = """
tries=0
until ss -Hltn | grep -q ":5201 "; do
    tries=$((tries + 1))
    [ "$tries" -lt 500 ]
    sleep 0.02
done
"""


@pytest.fixture
def limited(namespaces: bool) -> Iterator[Rig]:
    rig = virtual.VirtualRig.attach(f"virtual:{RATE}")
    yield rig
    rig.close()
    assert buckets() == []


def buckets() -> list[str]:
    """Return every token bucket in the lab's namespaces."""
    local, lines = LocalHost(), []
    for name in netns.existing():
        text = local.run("nsenter", f"--net=/run/netns/{name}", "tc", "qdisc", "show").stdout
        lines += [f"{name}: {line}" for line in text.splitlines() if " tbf " in f" {line} "]
    return lines


def transfer(rig: Rig, source: str, target: str) -> float:
    """Return what iperf3 received from one host on another, in bits per second."""
    there, directory = rig.hosts[target], f"{netns.DIRECTORY}/jobs/trial-rates"
    job = start_job(there, ["iperf3", "-s", "-1"], directory=directory, label="trial-rates")
    try:
        there.run(*script(_LISTENS))
        argv = ("iperf3", "-c", rig.addresses[target][0], "-t", str(SECONDS), "--json")
        found = json.loads(rig.hosts[source].run(*argv, timeout=60).stdout)
    finally:
        job.stop()
        there.run("rm", "-rf", "--", directory)
    return float(found["end"]["sum_received"]["bits_per_second"])


@pytest.mark.parametrize(("source", "target"), [("generator", "sut"), ("sut", "generator")])
def test_a_transfer_keeps_to_the_rate_each_way(limited: Rig, source: str, target: str) -> None:
    most = netns.bits_per_second(RATE) + 8 * 2 * 65536 / SECONDS
    assert transfer(limited, source, target) <= most


def test_without_a_rate_no_link_has_a_bucket(namespaces: bool) -> None:
    rig = virtual.VirtualRig.attach()
    try:
        assert buckets() == []
    finally:
        rig.close()


def test_every_link_has_a_bucket_at_both_ends(limited: Rig) -> None:
    # The system under test has two links.
    assert len(buckets()) == 2 * 4
    with limited.peer(["net"]):
        assert len([line for line in buckets() if "rate 200Mbit" in line]) == 2 * 5
    assert len(buckets()) == 2 * 4


def test_two_rates_are_two_rigs(limited: Rig) -> None:
    assert limited.name == "virtual:200mbit"
    assert "200 Mbit/s each way" in limited.links[0]
    plain = virtual.VirtualRig.attach()
    assert plain.name == "virtual" and "Mbit" not in plain.links[0]
    assert plain.describe() != limited.describe()
    plain.close()


def test_attaching_removes_the_rate_of_a_killed_campaign(namespaces: bool) -> None:
    killed = virtual.VirtualRig.attach(f"virtual:{RATE}")
    assert buckets()
    virtual.VirtualRig.attach().close()
    assert buckets() == []
    killed.close()
