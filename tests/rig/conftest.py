"""Fixtures on the virtual rig, which is opened once, with all that it can have.

A machine has one rig. Modules whose tests bring it up themselves, or start programs that do, must
not use ``lab``: they run after all that do, and find no rig.
"""

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from labkit import Rig
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.hosts import LocalHost
from labkit.rig import netns
from labkit.rig.images import LayeredImage, tree
from labkit.rig.virtual import group_roots

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0
MINE = f"trial-{os.getpid()}-"
#: Two layers with a tree each, and two files for first writes.
FILES = tree("tree", 5, 20, 20_000)
LAYERED = LayeredImage(
    "layered",
    (
        FILES | {"layer-1": 4096} | {f"first/{number}": 300_000 for number in range(2)},
        FILES | {"layer-2": 4096},
    ),
)
EVERYTHING: dict[str, Any] = {
    "networks": ("nat", "macvlan", "overlay", "weave"),
    "peer": ("net", "apps", "python"),
    "clean_peer": True,
    "collector": ("sut", "clean"),
    "layers": (LAYERED,),
    "releases": ("debian13",),
}
#: Treatments of these tests' trials.
TREATMENTS = {
    "affinity": treatments.Pinning(),
    "wait": treatments.BusyPolling(),
    "idle": treatments.IdlePolicy(),
    "rps": treatments.PacketSteering(),
    "congestion_control": treatments.CongestionControl(),
    "capture": treatments.PacketCapture(),
    "tunnel_offload": treatments.TunnelOffload(),
    "receiving_cpu": treatments.PacketSteering(),
    "burst_us": treatments.QuotaBurst(),
}
_numbers = itertools.count(1)
#: The open rig, what closes it, and the files with a test that uses it.
OPEN: list[Rig] = []
CLOSING = ExitStack()
USERS: set[Path] = set()


def pytest_collection_modifyitems(items):
    USERS.update(item.path for item in items if "lab" in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: bool(item.get_closest_marker("rig")) and item.path not in USERS)


def close_lab():
    OPEN.clear()
    CLOSING.close()


@pytest.fixture(scope="module")
def lab():
    """Return the shared rig."""
    if not OPEN:
        opened = Rig.open("virtual", patience=PATIENCE, **EVERYTHING)
        OPEN.append(CLOSING.enter_context(opened))
    return OPEN[0]


@pytest.fixture(scope="module", autouse=True)
def close_unused_lab(request):
    """Take the shared rig down before a module without a test that uses it."""
    if request.path not in USERS:
        close_lab()


@pytest.hookimpl(trylast=True)  # after the fixtures of a module that was interrupted
def pytest_sessionfinish():
    close_lab()


@pytest.fixture(scope="module")
def namespaces():
    """Open a rig of the module's own, whose namespaces serve as machines."""
    options = {"peer": ("net",), "collector": ("sut",)}
    with Rig.open("virtual", patience=PATIENCE, **options) as rig:
        yield rig


@pytest.fixture
def label():
    """Yield a label that nothing else carries, and by which nothing is left at the end."""
    yield f"{MINE}test{next(_numbers)}"
    if OPEN:
        assert leftovers() == []


@pytest.fixture
def make_trial(lab, label):
    def make(placement=None, **levels):
        values = {"placement": placement, "affinity": "split"} | levels
        return Trial(lab, values, label, treatments=TREATMENTS)

    return make


def leftovers():
    """Return what trials of this process have left on the rig."""
    local = LocalHost()
    argv = ("docker", "ps", "--all", "--filter", "label=labkit", "--format", "{{.Names}}")
    sockets = (netns.SOCKET, netns.PEER_SOCKET, netns.socket_of("debian13"))
    containers = [local.run(*argv, env={"DOCKER_HOST": one}).stdout.split() for one in sockets]
    groups = [path for root in group_roots() for path in root.iterdir() if path.is_dir()]
    jobs = netns.DIRECTORY / "jobs"
    return [
        *(f"container {name}" for names in containers for name in names),
        *(f"process {row}" for row in local.call("labelled", prefix=MINE)),
        *(f"control group {path}" for path in groups),
        *(f"directory {path}" for path in (jobs.iterdir() if jobs.is_dir() else ())),
    ]
