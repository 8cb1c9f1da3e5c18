"""The first study as it is declared: its factors, what it refuses, how it reads a capture."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from capture_files import SERVER, ethernet, ipv4, message, pcap, tcp, udp
from notebook_studies import declared

from labkit.errors import LabkitError, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.paths import project
from labkit.rig import Rig
from labkit.runtimes.networks import NEVER
from labkit.tools.base import Measurement

NAME = "10-affinity-spinning.ipynb"
SUMMARY = "{} packets captured\n{} packets received by filter\n{} packets dropped by kernel\n"
BASE = ["placement", "affinity", "wait"]


def lab(*, listens: bool = True, **missing: str) -> Rig:
    roles = ("generator", "sut", "clean", *(["collector"] if listens else []))
    targets = {role: Target(LocalHost(role), SERVER) for role in roles}
    return Rig("made up", "virtual", {}, targets, {}, {}, True, missing=missing)


def plan(where: Rig | None = None, **parameters: Any) -> Any:
    names, here = declared(NAME, **parameters), where or lab()
    return names["study"].plan(here, blocks=1, seed=1, infeasible=names["infeasible"](here))


def reasons(found: Any) -> dict[str, str]:
    return {one.condition: one.reason for one in found.design.infeasible}


def test_what_is_captured_is_a_condition_of_its_own() -> None:
    found = plan()
    assert list(found.study.factors) == [*BASE, "capture"] and not found.design.infeasible
    on = [one for one in found.design.conditions if one["capture"] == "on"]
    assert {str(one["placement"]) for one in on} == {"bare clean", "docker host", "docker bridge"}
    assert {(one["affinity"], one["wait"], one.replicate) for one in on} == {("split", "spin", 1)}
    without = plan(cells={"ladder": ["spin"], "capture": []})
    assert list(without.study.factors["capture"]) == ["off"]
    assert len(without.design.conditions) == 22 == len(found.design.conditions) - len(on)
    # A capture takes longer: its program ends only when the kernel has handed over all it has.
    seconds = found.study.seconds
    assert seconds(dict(on[0].levels)) > seconds({"wait": "spin", "capture": "off"})


def test_several_exchanges_or_sizes_are_factors_and_one_is_a_setting() -> None:
    one = plan().study
    assert (one.settings["exchange"], one.settings["size"]) == ("udp", 64)
    exchanges = ["udp", "tcp", "udp in, tcp out"]
    found = plan(exchange=exchanges, size=[64, 1024]).study
    assert list(found.factors) == [*BASE, "exchange", "size", "capture"]
    assert "size" not in found.settings and "exchange" not in found.settings
    assert set(found.tools) == {"sockperf", "python3"}
    assert list(plan(size=[512]).study.factors) == [*BASE, "capture"]
    assert plan(size=[512]).settings["size"] == 512
    assert set(plan(exchange="udp in, tcp out").study.tools) == {"python3"}


def test_networks_that_cannot_be_are_refused_with_their_reason() -> None:
    found = plan(networks=["host", "bridge", "macvlan", "routed", "none", "container", "overlay"])
    said = reasons(found)
    for network in ("none", "container"):
        of = {why for name, why in said.items() if name.startswith(f"docker {network} ")}
        assert of == {NEVER[network]}
    overlay = {why for name, why in said.items() if name.startswith("docker overlay")}
    assert overlay == {"the generator has no end of the network overlay"}
    kept = {str(one["placement"]) for one in found.design.conditions}
    assert {"docker macvlan", "docker routed", "docker host", "docker bridge"} <= kept


@pytest.mark.parametrize("why", ["", "rig.toml names no host collector"])
def test_without_a_collector_capturing_is_refused_and_nothing_else(why: str) -> None:
    found = plan(lab(listens=False, **({"collector": why} if why else {})))
    said = reasons(found)
    assert set(said) == {
        f"{place} | split | spin | on" for place in ("bare clean", "docker host", "docker bridge")
    }
    assert set(said.values()) == {why or "the rig has no host that listens at the switch"}


def test_messages_of_several_packets_are_not_captured() -> None:
    found = plan(size=[64, 9000])
    assert {name.split(" | ")[3:] == ["9000", "on"] for name in reasons(found)} == {True}
    assert len(reasons(found)) == 3


def test_a_tool_that_is_not_here_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UsageError, match="can run no condition") as caught:
        plan(tool="sfnt-pingpong")
    assert "not installed" in caught.value.why and "containers/apps/local" in caught.value.why
    # What the tool cannot do needs it nowhere.
    assert not reasons(plan(tool="sfnt-pingpong", exchange="udp in, tcp out"))


@pytest.mark.parametrize(
    ("exchange", "tool", "why"),
    [
        ("udp", "sfnt-pingpong", "on ports that the kernel gives it"),
        ("udp in, tcp out", "sockperf", "published for one protocol"),
    ],
)
def test_what_a_published_port_cannot_carry_is_refused(exchange: str, tool: str, why: str) -> None:
    names = declared(NAME, tool=tool, exchange=exchange, networks=["host", "nat"])
    levels = {"placement": names["docker"]("nat"), "exchange": exchange, "size": 64}
    assert why in names["refused"](levels, {})
    assert names["refused"](levels | {"placement": names["docker"]("host")}, {}) is None
    lacking = {"image": "not in the image", "clean": "not on the host"}
    levels["placement"] = names["clean"]
    expected = "not on the host" if tool == "sfnt-pingpong" else None
    assert names["refused"](levels, lacking) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": "ping"},
        {"exchange": "udp in"},
        {"load": {"kind": "heavy"}},
        {"cells": {"ladder": ["spin"], "capture": ["docker macvlan"]}},
    ],
)
def test_a_parameter_without_a_meaning_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="unknown"):
        declared(NAME, **wrong)


@pytest.mark.parametrize("profile", ["tiny", "quick", "paper"])
def test_profiles_are_parameters_of_the_notebook(profile: str) -> None:
    path = project("notebooks/profiles") / f"10-affinity-spinning.{profile}.yaml"
    names = declared(NAME, **yaml.safe_load(path.read_text()))
    assert "capture" in names["study"].factors and names["replicates"]
    assert (len(names["cells"]["capture"]) == 1) == (profile == "tiny")


# How a capture becomes residence times.


def trial(**values: Any) -> Any:
    flags: list[str] = []
    about = {"tool": "sockperf", "exchange": "udp", "size": 14} | values
    return SimpleNamespace(**about, flag=lambda *texts: flags.extend(texts), flags=flags)


def seen(packets: list[tuple[int, bytes]], dropped: int = 0) -> Any:
    count = len(packets)
    summary = SUMMARY.format(count, count + dropped, dropped)
    return SimpleNamespace(packets=pcap(sorted(packets)), summary=summary)


def answer(number: int, **ways: Any) -> bytes:
    payload = struct.pack(">QHI", number, 0, 14)
    return ethernet(ipv4(udp(payload, sport=11_111, dport=40_000), src=SERVER, dst="198.18.0.1"))


def test_residence_times_stand_beside_the_round_trips() -> None:
    names = declared(NAME)
    packets = []
    for number in range(1, 101):
        packets += [(1000 * number, message(number)), (1000 * number + number, answer(number))]
    lost = packets.pop(-1)
    measurement = Measurement({"rtt_ns": np.arange(500, 550)}, {"dropped": 0.0}, 100)
    asked = trial()
    found = names["observed"](asked, measurement, seen(packets), SERVER)
    assert found.samples["rtt_ns"].tolist() == list(range(500, 550))
    inside = found.samples["residence_ns"]
    assert len(inside) == 50 and inside[0] == 1 and inside.max() > 90 and lost
    assert found.metrics == {
        "dropped": 0.0,
        "captured": 199,
        "capture_drops": 0,
        "paired": 99,
        "unpaired": 1,
    }
    assert [flag.partition(":")[0] for flag in asked.flags] == ["lost"] and found.flags == ()


def test_what_the_capture_dropped_is_flagged_and_round_trips_are_left_out_beside_it() -> None:
    names = declared(NAME)
    packets = [(10, message(1)), (25, answer(1)), (40, message(2)), (60, answer(2))]
    measurement = Measurement({"rtt_ns": np.arange(1, 9)})
    asked = trial()
    found = names["observed"](asked, measurement, seen(packets, dropped=7), SERVER)
    assert found.samples["residence_ns"].tolist() == [15, 20]
    assert found.samples["rtt_ns"].tolist() == [1, 5] and found.metrics["capture_drops"] == 7
    assert asked.flags[0].startswith("lossy capture: 7 of 11")
    assert found.flags == ("6 of 8 round trips left out beside the capture",)
    with pytest.raises(LabkitError, match="holds no message"):
        names["observed"](trial(), measurement, seen([]), SERVER)


def test_an_answer_over_tcp_is_told_from_what_only_acknowledges() -> None:
    names = declared(NAME)
    payload = struct.pack(">QHI", 3, 0, 14)
    back = {"src": SERVER, "dst": "198.18.0.1", "protocol": 6}
    packets = [
        (5, ethernet(ipv4(tcp(b""), **back))),
        (10, ethernet(ipv4(udp(payload), dst=SERVER))),
        (20, ethernet(ipv4(tcp(b""), **back))),
        (47, ethernet(ipv4(tcp(payload), **back))),
        (50, ethernet(ipv4(tcp(b""), dst=SERVER, protocol=6))),
    ]
    asked = trial(exchange="udp in, tcp out")
    found = names["observed"](asked, Measurement({"rtt_ns": np.array([90])}), seen(packets), SERVER)
    assert found.samples["residence_ns"].tolist() == [37] and asked.flags == []


def test_messages_that_bear_no_number_are_paired_in_turn() -> None:
    names = declared(NAME)
    payload = bytes(14)
    there = ethernet(ipv4(udp(payload), dst=SERVER))
    back = ethernet(ipv4(udp(payload), src=SERVER, dst="198.18.0.1"))
    packets = [(10, there), (13, back), (20, there), (24, back)]
    asked = trial(tool="sfnt-pingpong")
    found = names["observed"](
        asked, Measurement({"rtt_ns": np.array([9, 9])}), seen(packets), SERVER
    )
    assert found.samples["residence_ns"].tolist() == [3, 4]
