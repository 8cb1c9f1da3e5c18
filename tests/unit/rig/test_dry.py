"""The dry rig: a recorded rig that shows plans, without root, and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import Rig, Study, bare, docker, treatments
from labkit.errors import DryRun, RigError


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
