"""Rules of every rig: where placements go, what is infeasible, how one is opened and closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig

from labkit import treatments
from labkit.errors import Interrupted, RigError, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import bare, container, docker
from labkit.rig import Rig, auto, virtual


def target(engine: str | None = "unix:///run/engine.sock") -> Target:
    return Target(LocalHost("peer"), "198.18.0.5", engine=engine)


# Targets.


def test_a_placement_goes_to_the_sut_or_to_the_named_host() -> None:
    sut, peer = target(), target()
    rig = make_rig(targets={"sut": sut, "peer": peer})
    assert rig.target(docker("nat")) is sut
    assert rig.target(docker("nat"), at="peer") is peer
    assert rig.target(bare("rules"), at="peer") is peer


@pytest.mark.parametrize(
    ("targets", "missing", "why"),
    [
        ({}, {}, "without a host 'peer'"),
        ({"peer": target(engine=None)}, {}, "peer has no engine"),
        ({"peer": target()}, {"docker": "no engine anywhere"}, "no engine anywhere"),
    ],
)
def test_an_impossible_target_has_its_reason(
    targets: dict[str, Target], missing: dict[str, str], why: str
) -> None:
    with pytest.raises(RigError) as caught:
        make_rig(targets=targets, missing=missing).target(docker("nat"), at="peer")
    assert why in caught.value.why


def test_any_host_without_an_engine_is_a_clean_one() -> None:
    peer = target(engine=None)
    rig = make_rig(targets={"peer": peer}, missing={"clean-host": "there is none"})
    assert rig.target(bare("clean"), at="peer") is peer
    with pytest.raises(RigError, match="not possible here"):
        rig.target(bare("clean"))


# Infeasible placements and levels.


@pytest.mark.parametrize(
    ("lacking", "infeasible"),
    [
        ("clean-host", {"bare clean"}),
        ("chroot", {"bare chroot"}),
        ("cgroup", {"bare cgroup"}),
        ("docker", {"docker host", "docker bridge", "docker nat"}),
        ("layer2", {"docker bridge"}),
        ("nat", {"docker nat"}),
        ("rules", {"bare rules", "bare chroot", "bare cgroup"}
                  | {"docker host", "docker bridge", "docker nat"}),
    ],
)  # fmt: skip
def test_a_missing_capability_makes_placements_infeasible(
    lacking: str, infeasible: set[str]
) -> None:
    rig = make_rig(missing={lacking: "because"})
    placements = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
    placements += [docker(network) for network in ("host", "bridge", "nat")]
    assert {p.label for p in placements if rig.infeasible(p) == "because"} == infeasible
    assert not [p for p in placements if make_rig().infeasible(p)]


def test_an_engine_without_published_ports_needs_the_nat_network() -> None:
    rig = make_rig(missing={"network:nat": "no key nat"})
    assert rig.infeasible(container("lxc", "nat")) == "no key nat"
    assert rig.infeasible(docker("nat")) is None


@pytest.mark.parametrize("missing", [{}, {"peer": "one machine only"}])
def test_clients_in_containers_need_a_peer(missing: dict[str, str]) -> None:
    rig, both = make_rig(missing=missing), treatments.SecondHost(at="both")
    expected = missing.get("peer", "the rig has no second host with an engine")
    assert both.feasibility(rig, "both", {}) == expected
    assert both.feasibility(rig, "server", {}) is None
    assert both.feasibility(make_rig(targets={"peer": target()}), "both", {}) is None


# Opening and closing.


def test_an_unknown_network_is_an_error_before_anything_is_made() -> None:
    with (
        pytest.raises(UsageError, match="unknown network 'flannel'"),
        Rig.open("virtual", networks=["flannel"]),
    ):
        pass


def test_an_unknown_rig_is_an_error() -> None:
    with pytest.raises(UsageError, match="no rig called 'rack'") as caught, Rig.open("rack"):
        pass
    assert "rig.toml" in caught.value.remedy


@pytest.mark.parametrize(
    ("root", "tools", "why"),
    [
        ("", {}, ""),
        ("", {"sshd": "openssh-server"}, "openssh-server"),
        ("this is not root", {}, "not root"),
    ],
)
def test_auto_is_the_virtual_rig_or_an_error(
    monkeypatch: pytest.MonkeyPatch, root: str, tools: dict[str, str], why: str
) -> None:
    monkeypatch.setattr(virtual, "no_namespaces", lambda: root)
    monkeypatch.setattr(virtual, "missing_tools", lambda: tools)
    if not why:
        assert auto() == "virtual"
        return
    with pytest.raises(RigError) as caught:
        auto()
    said = f"{caught.value.why} {caught.value.remedy}"
    assert why in said and "rig.toml" in said


@pytest.mark.parametrize("attached", [False, True])
def test_ctrl_c_is_reported_once_the_rig_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attached: bool
) -> None:
    closed: list[bool] = []

    @contextmanager
    def opened(spec: str, added: Any, say: Any) -> Iterator[Rig]:
        if not attached:
            raise KeyboardInterrupt
        try:
            yield make_rig()
        finally:
            closed.append(True)

    monkeypatch.setattr("labkit.rig.machines.check", lambda spec: None)
    monkeypatch.setattr("labkit.rig.machines.opened", opened)
    monkeypatch.setattr("labkit.rig.lock.LOCK", tmp_path / "lock")
    with pytest.raises(Interrupted, match="interrupted; what was measured"), Rig.open("rig.toml"):
        raise KeyboardInterrupt
    assert bool(closed) == attached


@pytest.mark.parametrize("engine", [None, {"components": {"Engine": "1", "runc": "1"}}])
def test_a_rig_whose_engine_does_not_answer_has_no_facts(
    monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any] | None
) -> None:
    """A plan without it, or without its containerd, could not be resumed once it answers."""
    rig = make_rig(hosts={"sut": LocalHost("sut")}, targets={"sut": target()})
    answers = {"stable": {"engine": engine}}
    monkeypatch.setattr(LocalHost, "call", lambda host, function, **options: answers)
    with pytest.raises(RigError, match="the engine does not answer"):
        rig.facts()
