"""Fixtures on the virtual rig, which is opened once for all tests that use ``lab``.

A machine has one rig. Modules whose tests bring it up themselves, or start programs that do, must
not use ``lab``; they run after all that do, and find no rig.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labkit import Rig
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.hosts import LocalHost, labelled
from labkit.placement import Placement
from labkit.rig import engine, netns
from labkit.rig.teardown import group_roots

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0
MINE = f"trial-{os.getpid()}-"
#: Treatments of these tests' trials.
TREATMENTS = {
    "affinity": treatments.Pinning(),
    "wait": treatments.BusyPolling(),
    "idle": treatments.IdlePolicy(),
    "rps": treatments.PacketSteering(),
    "congestion_control": treatments.CongestionControl(),
    "capture": treatments.PacketCapture(),
    "tunnel_offload": treatments.TunnelOffload(),
    "receiving_cpu": treatments.ReceivingCpu(),
}
_numbers = itertools.count(1)


@dataclass
class Shared:
    """The rig of all modules that use ``lab``, while it is open, and its options."""

    rig: Rig | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    #: The files with a test that uses it.
    users: set[Path] = field(default_factory=set)

    def close(self) -> None:
        self.rig = None
        self.stack.close()


SHARED = Shared()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    SHARED.users = {item.path for item in items if "lab" in getattr(item, "fixturenames", ())}
    items.sort(key=_order)


def _order(item: pytest.Item) -> tuple[bool, str]:
    """Put tests of one shared rig together, and those that open a rig themselves last."""
    if item.get_closest_marker("rig") is None:
        return False, ""
    options = getattr(getattr(item, "module", None), "OPEN", {})
    return item.path not in SHARED.users, str(options if item.path in SHARED.users else "")


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Rig:
    """Return the shared rig, opened with the options that the module has as ``OPEN``."""
    options = getattr(request.module, "OPEN", {})
    if SHARED.rig is None or SHARED.options != options:
        SHARED.close()
        opened = Rig.open("virtual", patience=PATIENCE, say=print, **options)
        SHARED.rig, SHARED.options = SHARED.stack.enter_context(opened), options
    return SHARED.rig


@pytest.fixture(scope="module", autouse=True)
def close_unused_lab(request: pytest.FixtureRequest) -> None:
    """Take the shared rig down before a module without a test that uses it."""
    if request.path not in SHARED.users:
        SHARED.close()


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Rig]:
    """Open a rig of the module's own, whose namespaces serve as machines."""
    with Rig.open("virtual", patience=PATIENCE, say=print) as rig:
        yield rig


@pytest.hookimpl(trylast=True)  # after the fixtures of a module that was interrupted
def pytest_sessionfinish() -> None:
    SHARED.close()


@pytest.fixture
def label() -> str:
    """Return a label that nothing else carries, and that `labkit clean` would find."""
    return f"{MINE}test{next(_numbers)}"


@pytest.fixture
def make_trial(lab: Rig, label: str) -> Callable[..., Trial]:
    def make(placement: Placement | None = None, **levels: Any) -> Trial:
        values = {"placement": placement, "affinity": "split"} | levels
        return Trial(lab, values, label, treatments=TREATMENTS)

    return make


@pytest.fixture(scope="session")
def left() -> Callable[[], list[str]]:
    """Return a function that lists what trials of this process have left on the rig."""
    return leftovers


def leftovers() -> list[str]:
    local = LocalHost()
    argv = ("docker", "ps", "--all", "--filter", "label=labkit", "--format", "{{.Names}}")
    containers = local.run(*argv, env={"DOCKER_HOST": engine.SOCKET}).stdout.split()
    groups = [path for root in group_roots() for path in root.iterdir() if path.is_dir()]
    jobs = netns.DIRECTORY / "jobs"
    return [
        *(f"container {name}" for name in containers),
        *(f"process {row}" for row in labelled(local, MINE)),
        *(f"control group {path}" for path in groups),
        *(f"directory {path}" for path in (jobs.iterdir() if jobs.is_dir() else ())),
    ]
