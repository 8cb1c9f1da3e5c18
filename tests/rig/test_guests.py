"""Guests made by labkit, emulated, on a machine of their own beside the tests on the rig."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_machine import Machine, machine

from labkit.data import load
from labkit.rig.guests import EMULATED_CAVEAT, unusable

pytestmark = [
    pytest.mark.rig,
    pytest.mark.apart,
    pytest.mark.skipif(bool(unusable(emulated=True)[0]), reason=": ".join(unusable(emulated=True))),
]
#: One block of two placements.
SMALL = ("networks=[host]", "waits=[block]", "cells={ladder: [], capture: []}", "captured=[]")
SMALL += ("affinities=[split]",)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("guests")) as made:
        yield made


def finally_left(apart: Machine) -> list[str]:
    """Return what is left once a copy has ended that ran when labkit was interrupted."""
    for _ in range(300):
        if not (found := apart.left()):
            break
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_labkit_while_guests_boot_leaves_nothing(
    apart: Machine, how: signal.Signals
) -> None:
    process = apart.labkit("rig", "up", "--rig", "kvm:tcg")
    while "qemu-system-x86" not in " ".join(apart.left()):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), how)
    said, _ = process.communicate(timeout=200)
    if how == signal.SIGKILL:
        assert "qemu-system-x86" in " ".join(apart.left())
        removed, _ = apart.labkit("clean").communicate(timeout=200)
        assert "guest generator" in removed and "namespace labkit-guests" in removed, removed
    else:
        assert process.returncode == 1 and "interrupted" in said, said
    assert not finally_left(apart)


def test_a_study_runs_on_emulated_guests_and_says_that_its_timings_mean_nothing(
    apart: Machine, tmp_path: Path
) -> None:
    argv = ["run", "affinity-spinning", "-P", "tiny", "--rig", "kvm:tcg"]
    parameters = (*SMALL, f"data={tmp_path}", "messages=200")
    for parameter in parameters:
        argv += ["-p", *parameter.split("=", 1)]
    process = apart.labkit(*argv)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    campaign = load(tmp_path / "affinity-spinning")
    assert "docker host" in set(campaign.ok["placement"]), (said, campaign.trials)
    boots = {facts["volatile"]["boot_id"] for facts in campaign.facts.values()}
    assert len(boots) == 2  # kernels of their own
    assert campaign.rig["caveats"][0] == EMULATED_CAVEAT
    assert campaign.rig["kind"] == "emulated"
    assert "separate-machines" in campaign.rig["capabilities"]
    assert not finally_left(apart)
