"""Weave Net between two engines, where its router is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import needs
from test_application_pairs import pair

from labkit.campaign.trial import Trial
from labkit.placement import docker
from labkit.rig.base import Rig
from labkit.tools.applications import APPLICATIONS

pytestmark = [pytest.mark.rig, needs("weaver")]
OPEN = {"peer": ("apps",), "networks": ("weave",)}


def test_routers_carry_packets_between_two_engines(
    lab: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]]
) -> None:
    trial = make_trial(docker("weave"))
    with pair(trial, APPLICATIONS["iperf3 tcp"]) as measure:
        assert measure(APPLICATIONS["iperf3 tcp"]).metrics["throughput_mbit_per_s"] > 0
    ends = trial.record["verification"], trial.record["verifications"]["client"]
    # What carried the packets is known of each end: the kernel, or the routers themselves.
    for end, other in zip(ends, ("peer", "sut"), strict=True):
        assert end[f"router to {lab.addresses[other][0]}"] in ("sleeve", "fastdp")
    assert left() == []
