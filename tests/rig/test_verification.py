"""Two observations of a placement: equal if nobody tampered, and different if somebody did."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from tampering import CASES, Case, Scene

from labkit.errors import ManipulationError
from labkit.placement import BASELINE_LEVELS, Limits, Placement, bare, container, docker, waiting
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES, placed
from labkit.runtimes.verify import check_unchanged
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
#: Of clients, the other cases, only the windows of whole trials know (`test_tampering.py`).
SERVERS = [case for case in CASES if not case.inside and "client" not in case.name]
#: They end as they began, and show by the pause in which nobody was served.
PASSING = ("stopped for a while, bare", "docker pause")
PLACEMENTS = [
    *(bare(level) for level in BASELINE_LEVELS),
    *(docker(network) for network in ("host", "bridge", "nat")),
    docker("host").with_seccomp("unconfined"),
    docker("nat", Limits("1", 512, 10_000, 2_000, 100_000_000)),
    container("lxc", "bridge"),
]


@pytest.mark.parametrize(
    "case", [one for one in SERVERS if one.name not in PASSING], ids=lambda case: case.name
)
def test_tampering_is_seen_by_the_second_observation(
    lab: Rig, label: str, left: Callable[[], list[str]], case: Case
) -> None:
    engine, workload = RUNTIMES[case.placement.runtime], case.workload or waiting("net")
    place = (engine, lab.target(case.placement), case.placement, workload)
    with placed(*place, cpus=lab.cpu_map["sut"], label=label) as server:
        scene = Scene(lab, server, 0)
        with case.around(scene):
            before = server.observe()
            case.tamper(scene)
            with pytest.raises(ManipulationError) as caught:
                check_unchanged("server", before, server.observe())
        assert any(re.search(case.said, text) for text in caught.value.evidence["problems"])
        subprocess.run(["kill", "-CONT", str(server.pid)], check=False)
    assert left() == []


@pytest.mark.parametrize("placement", PLACEMENTS * 2, ids=str)
def test_without_tampering_both_observations_are_equal(
    lab: Rig, label: str, placement: Placement
) -> None:
    engine, workload = RUNTIMES[placement.runtime], sockperf.server("block")
    place = (engine, lab.target(placement), placement, workload)
    with placed(*place, cpus=lab.cpu_map["sut"], label=label) as server:
        before = server.observe()
        argv = ("sockperf", "ping-pong", "-i", server.address, "-p", "11111", "-t", "1")
        lab.hosts["generator"].run("taskset", "-c", lab.cpu_map["generator"], *argv)
        check_unchanged("server", server.verification, before)
        check_unchanged("server", before, server.observe())
