"""A rig without hosts, on which plans are made and trials run that need none."""

import os

import pytest

from labkit.errors import HostUnreachable
from labkit.rig.base import Rig


class Nowhere(Rig):
    """It can run every placement but those in Docker; it may boot again, or be gone."""

    boot, gone = "boot a", False

    def facts(self):
        return {"sut": {"stable": {"memory_gib": 2}, "volatile": {"boot_id": self.boot}}}

    def infeasible(self, placement):
        return "no engine" if placement.runtime == "docker" else None

    def boots(self):
        if self.gone:
            raise HostUnreachable("no answer", where="host sut")
        return {"sut": self.boot}


@pytest.fixture
def rig():
    cpus = {"harness": str(min(os.sched_getaffinity(0))), "sut": "1", "all": "0-1"}
    return Nowhere("nowhere", "virtual", {}, {**cpus, "generator": "0"}, shared_kernel=True)
