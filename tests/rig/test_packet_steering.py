"""Packet steering on the interfaces of the rig: applied, verified, undone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from echoes import echoes

from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError
from labkit.hosts import restore
from labkit.hosts.packet_steering import read_queues
from labkit.placement import bare
from labkit.rig.base import Rig
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
OPEN = {"peer": ("net",)}
Make = Callable[..., Trial]


def steered_to(lab: Rig) -> list[str]:
    """Return the CPU list to which the first interface of each receiving host is steered."""
    return [
        read_queues(lab.hosts[role], "lab0", sysfs=lab.targets[role].sysfs)["rx-0/rps_cpus"]
        for role in treatments.ENDS
        if role in lab.targets
    ]


KILLED = """
import os, signal, sys
from labkit.hosts import LocalHost, Settings
from labkit.hosts.packet_steering import steer
sysfs, label = sys.argv[1:]
with Settings(LocalHost(), label) as tuning:
    steer(tuning, "lab0", "0", sysfs=sysfs)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_restore_undoes_steering_after_a_kill(lab: Rig, label: str) -> None:
    argv = [sys.executable, "-c", KILLED, lab.targets["sut"].sysfs, label]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL
    assert steered_to(lab) == ["0", ""]
    assert [one.state for one in restore(lab.hosts["sut"], label=label)] == ["restored"]
    assert steered_to(lab) == ["", ""]


def test_received_packets_are_steered_during_a_trial(lab: Rig, make_trial: Make) -> None:
    before, own = steered_to(lab), [lab.cpus("sut", "split"), lab.cpus("peer", "split")]
    trial = make_trial(bare("rules"), rps="on")
    with trial.serve(sockperf.server("block"), bare("rules")) as server:
        # Something else has undone it.
        with pytest.raises(ManipulationError, match="no packet was steered"):
            trial.measure(echoes(server.address))
        with trial.treated():
            assert steered_to(lab) == own
            messages = trial.measure(echoes(server.address)).messages
    # An interrupt may be for several packets, but here packets come one by one.
    assert trial.mechanisms["rps_ipis"] > messages / 2 > 0
    read = trial.record["treatments"]["rps"]["sut"]["lab0"]
    assert read["rx-0/rps_cpus"] == own[0]
    assert steered_to(lab) == before


def test_packets_are_moved_to_the_cpu_of_the_host_that_receives_them(
    lab: Rig, make_trial: Make
) -> None:
    before = steered_to(lab)
    trial = make_trial(bare("rules"), receiving_cpu="own")
    with trial.treated(), trial.serve(sockperf.server("block"), bare("rules")) as server:
        assert steered_to(lab) == [lab.cpus("sut", "split"), lab.cpus("peer", "split")]
        trial.measure(echoes(server.address))
        # The settings of a host may have been undone by something else.
        treatment = trial._treatments["receiving_cpu"][0]
        with pytest.raises(ManipulationError, match="no packet was steered"):
            treatment.check("own", {"rps_ipis": 0})
    assert steered_to(lab) == before
