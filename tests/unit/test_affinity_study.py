"""The first study as its notebook declares it: factors, settings, and what is infeasible."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from capture_files import SERVER
from notebook_studies import declared

from labkit.errors import UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.paths import project
from labkit.rig import Rig
from labkit.runtimes.networks import NEVER

NAME = "10-affinity-spinning.ipynb"
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
    assert {(one["affinity"], one["wait"], one.repeat) for one in on} == {("split", "spin", 1)}
    without = plan(cells={"ladder": ["spin"], "capture": []})
    assert list(without.study.factors["capture"]) == ["off"]
    assert len(without.design.conditions) == 22 == len(found.design.conditions) - len(on)
    # A capture takes longer: its program ends only when the kernel has handed over all it has.
    seconds = found.study.seconds
    assert seconds({"wait": "spin", "capture": "on"}) > seconds({"wait": "spin", "capture": "off"})


def test_every_tuning_can_be_captured() -> None:
    tunings = [f"{pinned} + {wait}" for pinned in ("free", "split") for wait in ("block", "spin")]
    found = plan(captured=tunings)
    on = {
        (f"{one['affinity']} + {one['wait']}", str(one["placement"]))
        for one in found.design.conditions
        if one["capture"] == "on"
    }
    three = ("bare clean", "docker host", "docker bridge")
    assert on == {(tuning, place) for tuning in tunings for place in three}


def test_busy_polling_is_a_level_where_device_and_tool_have_it() -> None:
    waits = ["block", "spin", "busy_poll"]
    asked = {"split + busy_poll", "split + spin"}
    offered = plan(waits=waits, captured=[*asked])
    assert not offered.design.infeasible
    polled = [one for one in offered.design.conditions if one["wait"] == "busy_poll"]
    assert {one["capture"] for one in polled} == {"off", "on"}
    without = reasons(plan(lab(**{"busy-poll": "veth has no queue"}), waits=waits))
    assert without and set(without.values()) == {"veth has no queue"}
    assert all("busy_poll" in name for name in without)
    mixed = reasons(plan(waits=waits, exchange=["udp", "udp in, tcp out"]))
    assert {tuple(name.split(" | ")[2:4]) for name in mixed} == {("busy_poll", "udp in, tcp out")}
    assert all(why.endswith("other ways: block, spin") for why in mixed.values())


def test_several_exchanges_or_sizes_are_factors_and_one_is_a_setting() -> None:
    one = plan().study
    assert (one.settings["exchange"], one.settings["size"]) == ("udp", 64)
    exchanges = ["udp", "tcp", "udp in, tcp out"]
    found = plan(exchange=exchanges, size=[64, 1024]).study
    assert list(found.factors) == [*BASE, "exchange", "size", "capture"]
    assert "size" not in found.settings and "exchange" not in found.settings
    assert set(found.tools) == {"sockperf", "python3"}
    assert set(plan(exchange="udp in, tcp out").study.tools) == {"python3"}
    filters = plan(seccomp=["default", "unconfined"]).study
    assert "seccomp" in filters.factors and "seccomp" not in filters.settings
    assert one.settings["seccomp"] == "default"


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
    assert set(said.values()) == {why or "the rig has no collector"}


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
    assert "not installed" in caught.value.why and "no distribution packages it" in caught.value.why
    # What the tool cannot do needs it nowhere.
    assert not reasons(plan(tool="sfnt-pingpong", exchange="udp in, tcp out"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tool": "ping"},
        {"exchange": "udp in"},
        {"load": {"kind": "heavy"}},
        {"cells": {"ladder": ["spin"], "capture": ["docker macvlan"]}},
        {"captured": ["tuned"]},
    ],
)
def test_a_parameter_without_a_meaning_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="unknown"):
        declared(NAME, **wrong)


@pytest.mark.parametrize("profile", ["tiny", "ask", "quick", "decide", "paper", "why"])
def test_profiles_are_parameters_of_the_notebook(profile: str) -> None:
    path = project("notebooks/profiles") / f"10-affinity-spinning.{profile}.yaml"
    names = declared(NAME, **yaml.safe_load(path.read_text()))
    assert "capture" in names["study"].factors and names["twice"]
    captured = {"tiny": 1, "ask": 0, "why": 2}
    assert len(names["cells"]["capture"]) == captured.get(profile, 3)
