"""Rules of every rig: where placements go, what is infeasible, how one is opened and closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig

from labkit import Study, treatments
from labkit.errors import DryRun, Interrupted, RigError, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import bare, container, docker
from labkit.rig import Rig, auto, virtual
from labkit.rig.checks import Check


def target(engine: str | None = "unix:///run/engine.sock") -> Target:
    return Target(LocalHost("peer"), "198.18.0.5", engine=engine)


def test_a_placement_goes_to_the_sut_or_to_the_named_host() -> None:
    sut, peer, without = target(), target(), target(engine=None)
    rig = make_rig(targets={"sut": sut, "peer": peer})
    assert rig.target(docker("nat")) is sut
    assert rig.target(docker("nat"), at="peer") is rig.target(bare("rules"), at="peer") is peer
    # Any host without an engine is a clean one.
    rig = make_rig(targets={"peer": without}, missing={"clean-host": "there is none"})
    assert rig.target(bare("clean"), at="peer") is without
    with pytest.raises(RigError, match="not possible here"):
        rig.target(bare("clean"))


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


#: Placements without a capability.
LACKING = {
    "clean-host": "bare clean",
    "chroot": "bare chroot",
    "cgroup": "bare cgroup",
    "docker": "docker host, docker bridge, docker nat",
    "layer2": "docker bridge, lxc bridge",
    "nat": "docker nat, lxc nat",
    "network:nat": "lxc nat",
    "runtime:lxc": "lxc bridge, lxc nat",
    "rules": "bare rules, bare chroot, bare cgroup, docker host, docker bridge, docker nat, "
    "lxc bridge, lxc nat",
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_missing_capability_makes_placements_infeasible(lacking: str) -> None:
    placements = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
    placements += [docker(network) for network in ("host", "bridge", "nat")]
    placements += [container("lxc", network) for network in ("bridge", "nat")]
    rig = make_rig(missing={lacking: "because"})
    found = ", ".join(p.label for p in placements if rig.infeasible(p) == "because")
    assert found == LACKING[lacking]
    assert not [p for p in placements if make_rig().infeasible(p)]


# Opening and closing.


@pytest.mark.parametrize(
    ("spec", "added", "what"),
    [
        ("virtual", {"networks": ["flannel"]}, "unknown network 'flannel'"),
        ("virtual", {"peer": ["nothing"]}, "unknown image 'nothing'"),
        ("rack", {}, "no rig called 'rack'"),
    ],
)
def test_what_is_unknown_is_an_error_before_anything_is_made(
    spec: str, added: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what), Rig.open(spec, **added):
        pass


def test_auto_is_the_virtual_rig_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for a fault that nothing can be measured with."""
    note, fault = (Check("c", "none", False, "no sshd", "apt", needed) for needed in (False, True))
    monkeypatch.setattr(virtual, "check_machine", lambda: [note])
    assert auto() == "virtual"
    monkeypatch.setattr(virtual, "check_machine", lambda: [note, fault])
    with pytest.raises(RigError, match="no virtual rig") as caught:
        auto()
    assert caught.value.why == "no sshd" and "rig.toml" in caught.value.remedy


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
    rig = make_rig(targets={"sut": target()})
    answers = {"stable": {"engine": engine}}
    monkeypatch.setattr(LocalHost, "call", lambda host, function, **options: answers)
    with pytest.raises(RigError, match="the engine does not answer"):
        rig.facts()


# The dry rig.


def test_a_dry_rig_shows_the_plan_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(
        "tiny",
        lambda trial, placement: trial.serve(None, placement),
        factors={
            "placement": [bare("clean"), docker("nat"), docker("overlay")],
            "hosts": treatments.SecondHost(1, 2, at=2, images=["net"]),
        },
    )
    with pytest.raises(DryRun, match="tiny: 6 conditions x 5 blocks = 30 trials on rig dry"):
        study.run("dry", blocks=5, seed=1, into=tmp_path)
    assert "expected duration" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_nothing_is_placed_on_a_dry_rig() -> None:
    with Rig.open("dry", peer=["net"], clean_peer=True, collector=["sut"]) as rig:
        assert {"peer", "clean-peer", "collector"} < rig.hosts.keys() == rig.targets.keys()
        assert rig.facts()["sut"]["stable"]["memory_gib"] > 0
        with pytest.raises(RigError, match="docker nat is not possible here") as caught:
            rig.target(docker("nat"))
    assert "a dry rig shows plans" in caught.value.why
