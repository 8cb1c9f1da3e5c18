"""What rigs say that have no second host with an engine, and where others place what they get."""

from typing import Any

import pytest
from small_rig import make_rig

from labkit import treatments
from labkit.errors import RigError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import bare, docker
from labkit.rig import Rig


def rig_with(**targets: Target) -> Rig:
    return make_rig(targets=targets)


def target(engine: str | None = "unix:///run/engine.sock") -> Target:
    return Target(LocalHost("peer"), "198.18.0.5", engine=engine)


@pytest.mark.parametrize("missing", [{}, {"peer": "one machine only"}])
def test_clients_in_containers_are_refused_with_the_reason(missing: dict[str, str]) -> None:
    rig = make_rig(missing=missing)
    expected = missing.get("peer", "the rig has no second host with an engine")
    assert treatments.SecondHost(at="both").feasibility(rig, "both", {}) == expected
    assert treatments.SecondHost(at="both").feasibility(rig, "server", {}) is None


def test_they_are_not_where_there_is_one() -> None:
    rig = rig_with(peer=target())
    assert treatments.SecondHost(at="both").feasibility(rig, "both", {}) is None


def test_another_host_than_the_placements_own() -> None:
    sut, other = target(), target()
    rig = rig_with(sut=sut, peer=other)
    assert rig.target(docker("nat")) is sut
    assert rig.target(docker("nat"), at="peer") is other
    assert rig.target(bare("rules"), at="peer") is other


@pytest.mark.parametrize(
    ("targets", "missing", "why"),
    [
        ({}, {}, "no host 'peer'"),
        ({"peer": target(engine=None)}, {}, "peer has no engine"),
        ({"peer": target()}, {"docker": "no engine anywhere"}, "no engine anywhere"),
    ],
)
def test_where_it_cannot_be(targets: dict[str, Target], missing: dict[str, str], why: str) -> None:
    rig: Any = make_rig(targets=targets, missing=missing)
    with pytest.raises(RigError) as found:
        rig.target(docker("nat"), at="peer")
    assert why in str(found.value.why)


def test_other_kinds_of_rig_go_on_without_it() -> None:
    rig = make_rig(kind="one-host")
    with rig.peer(images=["python"]):
        assert treatments.SecondHost(at="both").feasibility(rig, "both", {})
        assert "peer" not in rig.targets
