"""What tests on the virtual rig share: the rig itself, which comes up once for all that ask for it.

There is one rig a machine. Modules whose tests bring it up themselves, or start programs that do,
never ask for ``lab``; they come after all that do, and find none.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labkit import Rig
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.hosts import LocalHost, labelled
from labkit.placement import Placement
from labkit.rig import engine, netns
from labkit.rig.base import Rig as AnyRig

#: Seconds to wait for whoever else uses the machine's rig.
PATIENCE = 900.0
MINE = f"trial-{os.getpid()}-"
#: What the levels of these tests' trials do.
TREATMENTS = {
    "affinity": treatments.Pinning(),
    "wait": treatments.BusyPolling(),
    "idle": treatments.IdlePolicy(),
    "rps": treatments.PacketSteering(),
    "capture": treatments.PacketCapture(),
}
_numbers = itertools.count(1)


@dataclass
class Shared:
    """The rig of all modules that ask for ``lab``, while it stands."""

    rig: AnyRig | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    #: The files of which some test asks for it.
    asking: set[Path] = field(default_factory=set)

    def close(self) -> None:
        self.rig = None
        self.stack.close()


SHARED = Shared()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    SHARED.asking = {item.path for item in items if "lab" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: _on_rig(item) and item.path not in SHARED.asking)


def _on_rig(item: pytest.Item) -> bool:
    return item.get_closest_marker("rig") is not None


@pytest.fixture(scope="module")
def lab() -> AnyRig:
    if SHARED.rig is None:
        opened = Rig.open("virtual", patience=PATIENCE, say=print)
        SHARED.rig = SHARED.stack.enter_context(opened)
    return SHARED.rig


@pytest.fixture(scope="module", autouse=True)
def no_lab_beside(request: pytest.FixtureRequest) -> None:
    """Take the shared rig down before a module of which no test asks for it."""
    if request.path not in SHARED.asking:
        SHARED.close()


def pytest_sessionfinish() -> None:
    SHARED.close()


@pytest.fixture
def label() -> str:
    """Return a label that nothing else carries, and that `labkit clean` would find."""
    return f"{MINE}test{next(_numbers)}"


@pytest.fixture
def make_trial(lab: AnyRig, label: str) -> Callable[..., Trial]:
    def make(placement: Placement | None = None, **levels: Any) -> Trial:
        values = {"placement": placement, "affinity": "split"} | levels
        condition = Condition(tuple(values.items()))
        return Trial(lab, condition, {}, label, {}, treatments=TREATMENTS)

    return make


@pytest.fixture(scope="session")
def left() -> Callable[[], list[str]]:
    """Return a function that lists what trials of this process have left on the standing rig."""
    return left_behind


def left_behind() -> list[str]:
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


def group_roots() -> list[Path]:
    base = Path("/sys/fs/cgroup")
    return [path for path in (base / "labkit", *base.glob("*/labkit")) if path.is_dir()]
