"""Machines of one's own that are cut off, rebooted, or left by a killed labkit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_machines import LABKIT, Machines, machines, state

from labkit.data import load
from labkit.status import find

pytestmark = pytest.mark.rig
#: Seconds for which a host cannot be reached, one after the other; LABKIT_CUTS=5,20,75,300 takes
#: ten minutes.
CUTS = [float(text) for text in os.environ.get("LABKIT_CUTS", "5").split(",")]


@pytest.fixture(scope="module")
def own(namespaces: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


def done(data: Path) -> int:
    return sum(one.done for one in find([data]))


def until(data: Path, number: int, process) -> None:
    """Wait until a campaign has measured so many trials and is in the middle of another."""
    for _ in range(4000):
        if done(data) >= number:
            time.sleep(0.3)
            return
        if process.poll() is not None:
            pytest.fail(process.stdout.read())
        time.sleep(0.05)
    pytest.fail("no trial was measured")


def test_a_campaign_survives_kill_cut_and_reboot_and_leaves_nothing(
    own: Machines, tmp_path: Path
) -> None:
    own.labkit("clean", "--rig", str(own.path))  # of what other tests left
    before, data = state(), tmp_path / "data"
    run = (*LABKIT, "run", "affinity-spinning", "-P", "tiny", "--rig", str(own.path))
    run += ("-p", "data", str(data), "-p", "networks", "[host]")
    run += ("-p", "cells", "{ladder: [], capture: []}", "-p", "blocks", str(len(CUTS)))
    draw = random.Random(os.environ.get("LABKIT_SEED", "1"))

    process = own.command(*run)
    until(data, 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed = load(data / "affinity-spinning").trials["trial"].tolist()
    assert state() != before
    own.labkit("clean", "--rig", str(own.path))
    assert state() == before
    again = own.labkit("clean", "--rig", str(own.path))
    assert again.splitlines() == [f"{role}: nothing was left" for role in own.servers]

    process = own.command(*run)
    time.sleep(draw.uniform(1, 4))  # while the rig is being opened
    own.cut(draw.choice(["generator", "sut"]), min(CUTS[-1], 75))
    for seconds in CUTS:
        until(data, done(data) + 1, process)
        time.sleep(draw.uniform(0, 0.5))
        own.cut(draw.choice(["generator", "sut"]), seconds)
    until(data, done(data) + 1, process)
    own.reboot("sut", 5)
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    assert "host sut has rebooted; the rig is opened again" in said
    campaign = load(data / "affinity-spinning")
    planned = sum(map(len, campaign.plan["order"]))
    assert len(campaign.ok) == campaign.ok["trial"].nunique() == planned
    # What was measured before the kill is still there, byte by byte the first rows.
    assert campaign.trials["trial"].tolist()[: len(killed)] == killed
    assert len({session["boot"] for session in campaign.sessions}) == 2
    assert state() == before


KILLED = """
import os, signal, sys
from labkit.hosts import Settings
from labkit.rig import machines
from labkit.rig.rigfile import read_rigfile
with machines.connected(read_rigfile(sys.argv[1])) as hosts, (
    Settings(hosts["sut"], "trial-killed")
) as tuning:
    assert tuning.set_file("/proc/sys/net/ipv4/tcp_slow_start_after_idle", 0), tuning.notes
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_settings_that_a_killed_process_left_are_restored(own: Machines) -> None:
    before = state()
    process = own.command(sys.executable, "-c", KILLED, str(own.path))
    said, _ = process.communicate(timeout=100)
    changed = state()
    assert changed["settings sut"] != before["settings sut"], said
    restored = own.labkit("clean", "--rig", str(own.path))
    assert "tcp_slow_start_after_idle" in restored
    assert state() == before
    again = own.labkit("clean", "--rig", str(own.path))
    assert set(again.splitlines()) == {f"{role}: nothing was left" for role in own.servers}


def test_the_state_of_all_hosts_is_shown_at_once(own: Machines) -> None:
    own.stop("clean")
    process = own.command(*LABKIT, "doctor", "--rig", str(own.path))
    shown, _ = process.communicate(timeout=200)
    own.start("clean")
    assert process.returncode == 1
    assert "MISS  reached: no; host clean cannot be reached" in shown
    generator, _, sut = shown.partition("\ngenerator\n")[2].partition("\nsut\n")
    assert "MISS" not in generator and "engine: Docker" not in generator
    assert "engine: Docker" in sut and "ok    python3: 3" in sut
    assert "ok    routes: lab0" in sut and "ok    bridge: labbr0" in sut
