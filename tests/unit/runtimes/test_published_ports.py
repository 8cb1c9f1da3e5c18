"""Published ports: a rule for each transport, and flows that must have taken it."""

from __future__ import annotations

from typing import Any

from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import Workload, docker
from labkit.runtimes import networks
from labkit.runtimes.verify import Expectation, check_nat
from labkit.tools import iperf3

ADDRESS = "198.18.0.3"
SITE = Target(LocalHost(), ADDRESS)
RULE = "ip daddr 198.18.0.3 {} dport 5201 counter packets {} bytes 0 dnat to 198.19.0.2:5201"


def ruleset(tcp: int | None, udp: int | None) -> dict[str, Any]:
    counted = {"tcp": tcp, "udp": udp}
    rules = [RULE.format(name, count) for name, count in counted.items() if count is not None]
    return {"host_ruleset": "\n".join(rules), "addresses": {"eth0": ["198.19.0.2"]}}


def test_a_port_is_published_for_every_transport_that_it_takes() -> None:
    both, one = iperf3.server(), Workload(("true",), 5201, "tcp")
    options = networks.published(SITE, both)
    assert options == [
        *("--publish", f"{ADDRESS}:5201:5201/tcp"),
        *("--publish", f"{ADDRESS}:5201:5201/udp"),
    ]
    assert networks.published(SITE, one) == options[:2]
    assert networks.published(SITE, Workload(("true",), 0)) == []
    assert networks.expected(SITE, docker("nat"), both)["protocols"] == ("tcp", "udp")


def test_each_transport_needs_its_rule() -> None:
    expected = Expectation("1", **networks.expected(SITE, docker("nat"), iperf3.server()))
    assert list(check_nat(expected, ruleset(0, 0))) == []
    for there, lacking in (((0, None), "udp"), ((None, 0), "tcp")):
        said = f"no NAT rule leads from {ADDRESS}, port 5201/{lacking}, to it"
        assert list(check_nat(expected, ruleset(*there))) == [said]
