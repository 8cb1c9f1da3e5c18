"""Parsing the recorded output of the observation script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.errors import ToolOutput
from labkit.runtimes import observed

RECORDED = Path(__file__).parents[2] / "captured" / "verification-docker-nat.txt"
RAW = RECORDED.read_text()


def test_only_the_fields_that_rules_need_are_kept() -> None:
    found = observed.parse(RAW)
    text = json.dumps(found)
    assert "link/ether" not in text and "ff:ff:ff:ff:ff:ff" not in text and "masquerade" not in text
    kept = {"ifname", "ifindex", "link_index", "link_netnsid", "master", "kind"}
    assert {key for link in found["links"] + found["host_links"] for key in link} == kept
    assert found["addresses"]["eth0"] == ["198.19.0.2"]
    assert "dnat to 198.19.0.2:11111" in found["host_ruleset"]
    assert found["host_ruleset_size"]["rules"] < found["host_ruleset_size"]["lines"]
    assert found["ruleset_size"]["lines"] == 0
    assert len(text) < 5000


def test_no_addresses_in_the_host_network() -> None:
    sections = observed.sections(RAW)
    shared = RAW.replace(sections["ns.net"], sections["host.net"])
    assert observed.parse(shared)["addresses"] == {}


def test_the_digest_of_rules_ignores_counters() -> None:
    def digest(text: str) -> str:
        return observed.reduced_rules("rules", text)["rules_size"]["sha256"]

    rules = "# at 10:00\n:INPUT ACCEPT [0:0]\ncounter packets 3 bytes 180 jump DOCKER\n"
    assert digest(rules) == digest(
        rules.replace("10:00", "11:00").replace("[0:0]", "[7:9]").replace("3 bytes", "4 bytes")
    )
    assert digest(rules) != digest(rules.replace("DOCKER", "OTHER"))


def test_a_recorded_verification_is_parsed() -> None:
    assert observed.parse(RAW) == json.loads(RECORDED.with_suffix(".json").read_text())


def test_the_connections_of_a_router_of_weave_net_are_read() -> None:
    answer = (RECORDED.parent / "weave-connections.txt").read_text()
    assert observed.parse(f"{RAW}\n@@ router\n{answer}")["router"] == {"198.18.0.5": "sleeve"}
    waiting = answer.replace("established", "retrying   ")
    assert observed.parse(f"{RAW}\n@@ router\n{waiting}")["router"] == {}
    assert "router" not in observed.parse(RAW)


@pytest.mark.parametrize("name", ["ns.net", "host.net", "status", "cgroup"])
def test_a_required_section_may_not_be_empty(name: str) -> None:
    body = observed.sections(RAW)[name]
    with pytest.raises(ToolOutput, match=f"could not read {name}"):
        observed.parse(RAW.replace(f"@@ {name}\n{body}\n", f"@@ {name}\n"))


def test_links_that_are_not_json_are_an_error_with_the_output() -> None:
    with pytest.raises(ToolOutput) as caught:
        observed.parse(RAW.replace("@@ links\n[", "@@ links\n!"))
    assert caught.value.evidence["output"].startswith("!")
