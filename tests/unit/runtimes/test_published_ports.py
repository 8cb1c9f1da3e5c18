"""Published ports: a rule for each transport, and flows that must have taken it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labkit.campaign import record
from labkit.errors import ManipulationError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import Workload, docker
from labkit.runtimes import Server, networks
from labkit.runtimes.verify import Expectation, check_nat, nat_flows
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


def checked(
    monkeypatch: pytest.MonkeyPatch, *rulesets: dict[str, Any]
) -> Callable[[tuple[str, ...]], None]:
    """Return the check of windows, after each of which the host shows the next rule set."""
    first, *later = rulesets
    shown = iter(later)
    monkeypatch.setattr(record, "observe", lambda target, pid: next(shown))
    server = Server(ADDRESS, 5201, 1, SITE.host, first, "1", list)
    return lambda protocols: record.check_published(SITE, server, protocols)


def test_a_window_s_flows_must_have_taken_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    window = checked(monkeypatch, ruleset(0, 0), ruleset(2, 0), ruleset(3, 1), ruleset(3, 1))
    window(iperf3.tcp(ADDRESS, seconds=1).protocols)
    udp = iperf3.udp(ADDRESS, seconds=1, mbit_per_s=0).protocols
    window(udp)
    with pytest.raises(ManipulationError, match="did not pass the address translation"):
        window(("",))  # nothing more came by
    assert nat_flows(ruleset(3, 1), 5201) == 4 and nat_flows(ruleset(3, 1), 5201, "udp") == 1


def test_datagrams_that_went_past_the_translation_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    window = checked(monkeypatch, ruleset(0, 0), ruleset(5, 0))
    with pytest.raises(ManipulationError, match="address translation udp"):
        window(iperf3.udp(ADDRESS, seconds=1, mbit_per_s=0).protocols)
