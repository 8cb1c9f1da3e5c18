"""TCP congestion control of the rig's namespaces: set, used by connections, restored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError
from labkit.placement import Placement, bare, docker
from labkit.rig.base import Rig
from labkit.tools import thrift_rpc

pytestmark = pytest.mark.rig
Make = Callable[..., Trial]
TCP = Path("/proc/sys/net/ipv4")

# Opens a connection, and prints the algorithm of both of its ends.
CONNECT = """
exec 3<>"/dev/tcp/$1/$2"
sleep 0.1
ss -tinH dst "$1:$2" | grep -E 'cubic|reno|bbr'
nsenter -t "$3" -n ss -tinH state established sport ":$2" | grep -E 'cubic|reno|bbr'
"""


def read(name: str) -> list[str]:
    return (TCP / f"tcp_{name}").read_text().split()


def of_hosts(lab: Rig) -> dict[str, str]:
    argv = ("cat", str(TCP / "tcp_congestion_control"))
    return {role: host.run(*argv).stdout.strip() for role, host in lab.hosts.items()}


@pytest.fixture
def level() -> str:
    """Return an algorithm that is not the machine's, if possible one that it restricts."""
    found = read("congestion_control")
    others = [name for name in read("available_congestion_control") if name not in found]
    if not others:
        pytest.skip("the kernel has one algorithm")
    allowed = read("allowed_congestion_control")
    return next((name for name in others if name not in allowed), others[0])


@pytest.mark.parametrize("placement", [bare("clean"), docker("host"), docker("nat")])
def test_both_ends_use_it_and_it_is_restored(
    lab: Rig, make_trial: Make, level: str, placement: Placement
) -> None:
    before = of_hosts(lab), read("congestion_control"), read("allowed_congestion_control")
    trial = make_trial(placement, congestion_control=level)
    with trial.treated():
        assert set(of_hosts(lab).values()) == {level}
        with trial.serve(thrift_rpc.server(), placement) as server:
            generator, place = lab.hosts["generator"], (server.address, str(server.port))
            argv = ("bash", "-c", CONNECT, "bash", *place, str(server.pid))
            ends = re.findall("cubic|reno|bbr", generator.run(*argv).stdout)
    assert trial.record["verification"]["congestion control"] == level
    assert len(ends) == 2 and set(ends) == {level}
    after = of_hosts(lab), read("congestion_control"), read("allowed_congestion_control")
    assert after == before


def test_as_found_is_recorded_and_changes_nothing(lab: Rig, make_trial: Make) -> None:
    trial = make_trial(docker("nat"), congestion_control="as found")
    with (
        trial.treated(),
        trial.serve(thrift_rpc.server(), docker("nat")) as server,
    ):
        inside = ("nsenter", "-t", str(server.pid), "-n", "cat")
        argv = (*inside, str(TCP / "tcp_congestion_control"))
        found = server.host.run(*argv).stdout.strip()
    assert trial.record["verification"]["congestion control"] == found != ""


def test_a_placement_outside_the_context_is_an_error(
    lab: Rig, make_trial: Make, level: str
) -> None:
    trial = make_trial(docker("host"), congestion_control=level)
    with (
        pytest.raises(ManipulationError, match=f"not {level}"),
        trial.serve(thrift_rpc.server(), docker("host")),
    ):
        raise AssertionError


def test_what_the_kernel_lacks_is_infeasible(lab: Rig, level: str) -> None:
    treatment = treatments.CongestionControl()
    assert treatment.feasibility(lab, level, {}) is None
    assert "no TCP congestion control 'tahoe'" in str(treatment.feasibility(lab, "tahoe", {}))
