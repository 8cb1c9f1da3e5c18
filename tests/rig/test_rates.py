"""Virtual links with a rate, in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from labkit.hosts import LocalHost, script, start_job
from labkit.rig import Rig, netns

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


@pytest.fixture(scope="module")
def limited() -> Iterator[Rig]:
    with Rig.open(f"virtual:{RATE}", patience=900.0, say=print) as rig:
        yield rig


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


def test_every_link_has_a_bucket_at_both_ends(limited: Rig) -> None:
    # The system under test has two links, and there are two peers.
    assert len([line for line in buckets() if "rate 200Mbit" in line]) == 2 * 6
    assert limited.name == "virtual:200mbit"
    assert "200 Mbit/s each way" in limited.links[0]
    assert any("200 Mbit/s are token buckets" in text for text in limited.caveats)
