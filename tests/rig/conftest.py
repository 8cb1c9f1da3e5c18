"""Fixtures on the virtual rig, which is opened once, with all that it can have.

A machine has one rig: tests that bring it up themselves, or start programs that do, run before
those that use ``lab``.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from labkit import Rig
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.hosts import Host
from labkit.rig import netns
from labkit.rig.images import LayeredImage, tree

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0
MINE, GROUPS = f"trial-{os.getpid()}-", Path("/sys/fs/cgroup")
#: Two layers with a tree each, and two files for first writes.
FILES, FIRST = tree("tree", 5, 20, 20_000), {f"first/{number}": 300_000 for number in range(2)}
LAYERED = LayeredImage("layered", (FILES | FIRST | {"layer-1": 4096}, FILES | {"layer-2": 4096}))
EVERYTHING: dict[str, Any] = {"networks": ("nat", "macvlan", "overlay", "weave")}
EVERYTHING |= {"peer": ("net", "apps", "python"), "clean_peer": True, "layers": (LAYERED,)}
EVERYTHING |= {"collector": ("sut", "clean"), "releases": ("debian13",)}
#: Treatments of these tests' trials.
TREATMENTS = {
    "affinity": treatments.Pinning(),
    "wait": treatments.BusyPolling(),
    "idle": treatments.IdlePolicy(),
    "rps": treatments.PacketSteering(),
    "congestion_control": treatments.CongestionControl(),
    "capture": treatments.PacketCapture(),
    "tunnel_offload": treatments.TunnelOffload(),
    "burst_us": treatments.QuotaBurst(),
}
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "lab" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def lab():
    """Open the shared rig on one CPU, which none of its daemons may inherit."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cpus)])
    with Rig.open("virtual", patience=PATIENCE, **EVERYTHING) as rig:
        os.sched_setaffinity(0, cpus)
        yield rig


@pytest.fixture
def label(lab):
    """Yield a label that nothing else carries, and by which nothing is left at the end."""
    yield f"{MINE}test{next(_numbers)}"
    assert leftovers() == []


@pytest.fixture
def make_trial(lab, label):
    def make(placement=None, **levels):
        values = {"placement": placement, "affinity": "split"} | levels
        return Trial(lab, values, label, treatments=TREATMENTS)

    return make


def leftovers():
    """Return what trials of this process have left on the rig."""
    local = Host()
    argv = ("docker", "ps", "--all", "--filter", "label=labkit", "--format", "{{.Names}}")
    sockets = (netns.socket_of("sut"), netns.socket_of("peer"), netns.socket_of("debian13"))
    containers = [local.run(*argv, env={"DOCKER_HOST": one}).stdout.split() for one in sockets]
    # Of version 2, or in the hierarchies of version 1.
    groups = [path for at in ("labkit/*/", "*/labkit/*/") for path in GROUPS.glob(at)]
    jobs = netns.DIRECTORY / "jobs"
    return [
        *(f"container {name}" for names in containers for name in names),
        *(f"process {row}" for row in local.call("labelled", prefix=MINE)),
        *(f"control group {path}" for path in groups),
        *(f"directory {path}" for path in (jobs.iterdir() if jobs.is_dir() else ())),
    ]
