"""The first study's protocol: exchanges, networks, loads, and captures."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from notebook_studies import declared
from programs import needs

from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import CommandTimeout, ToolOutput
from labkit.hosts import LocalHost
from labkit.placement import Placement, bare, docker
from labkit.rig import netns
from labkit.rig.base import Rig

pytestmark = pytest.mark.rig
OPEN = {"networks": ("macvlan",), "collector": ("sut", "clean")}
Left = Callable[[], list[str]]


def mirrors() -> str:
    """Return the filters of the switch that copy packets."""
    found = []
    for role, ports in netns.PORTS.items():
        for number in range(len(ports)):
            show = ("tc", "filter", "show", "dev", netns.plug(role, number), "ingress")
            show = ("nsenter", f"--net=/run/netns/{netns.SWITCH}", *show)
            found.append(LocalHost().run(*show, check=False).stdout)
    return "".join(found)


#: Messages of a trial, and of those that repeat one that failed: on a busy machine a round trip may
#: take a hundred times as long. sockperf is given a time for them, in which some have to come back.
MESSAGES = {"sockperf": (500, 5_000, 50_000), "sfnt-pingpong": (500, 100, 20)}


def measured(
    rig: Rig, label: str, place: Placement, *, tool: str = "sockperf", **more: Any
) -> tuple[int, Trial, Any]:
    *first, last = MESSAGES[tool]
    for messages in first:
        try:
            return once(rig, label, place, messages, tool=tool, **more)
        except CommandTimeout:
            pass
        except ToolOutput as error:
            if "no complete result" not in str(error):
                raise
    return once(rig, label, place, last, tool=tool, **more)


def once(
    rig: Rig, label: str, place: Placement, messages: int, *, tool: str, capture: str, **more: Any
) -> tuple[int, Trial, Any]:
    names = declared("10-affinity-spinning.ipynb")
    about = {"placement": place, "wait": "spin", "size": 64, **more}
    about |= {"seccomp": "default", "tool": tool, "messages": messages}
    treated = {"capture": treatments.PacketCapture()}
    trial = Trial(rig, {"capture": capture}, label, treatments=treated)
    return messages, trial, names["ping"](trial, **about)


@needs("sfnt-pingpong")
@pytest.mark.parametrize("place", [bare("clean"), docker("bridge")], ids=str)
def test_the_paper_s_own_tool(lab: Rig, label: str, left: Left, place: Placement) -> None:
    messages, _, measurement = measured(lab, label, place, capture="on", tool="sfnt-pingpong")
    rtt, inside = measurement.samples["rtt_ns"], measurement.samples["residence_ns"]
    # It exchanges as many messages as it was asked to, however long that takes.
    assert len(rtt) == len(inside) == messages
    assert 0 < np.median(inside) < np.median(rtt)
    assert left() == []


@pytest.mark.parametrize("place", [bare("clean"), docker("bridge"), docker("macvlan")], ids=str)
def test_a_captured_trial_has_round_trip_and_residence_times(
    lab: Rig, label: str, left: Left, place: Placement
) -> None:
    messages, trial, measurement = measured(lab, label, place, capture="on")
    rtt, inside = measurement.samples["rtt_ns"], measurement.samples["residence_ns"]
    # On a busy machine fewer are exchanged in the time that the tool takes.
    assert 0 < len(rtt) == len(inside) <= messages and inside.min() > 0
    assert np.median(inside) < np.median(rtt)
    found = measurement.metrics
    assert found["paired"] >= len(rtt) and found["captured"] >= 2 * found["paired"]
    assert found["capture_drops"] == found["unpaired"] == 0, trial.record["flags"]
    assert mirrors() == "" and left() == []


def test_a_trial_without_capture_is_not_mirrored(
    lab: Rig,
    label: str,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never() -> None:
        raise AssertionError("the switch mirrors")

    monkeypatch.setattr(lab, "mirror", never)
    messages, _, measurement = measured(lab, label, docker("macvlan"), capture="off")
    assert list(measurement.samples) == ["rtt_ns"]
    assert 0 < len(measurement.samples["rtt_ns"]) <= messages
    assert left() == []


def test_a_capture_that_dies_fails_its_trial(
    lab: Rig, make_trial: Callable[..., Trial], left: Left
) -> None:
    trial = make_trial(bare("clean"), capture="on")
    with pytest.raises(ToolOutput, match="tcpdump ended while it captured"), trial.capture():
        pids = netns.pids([netns.PREFIX + "collector"])
        captures = [pid for pid in pids if psutil.Process(pid).name() == "tcpdump"]
        assert len(captures) == 1
        os.kill(captures[0], signal.SIGKILL)
    assert left() == []
