"""The virtual rig on this machine: CPU map, rates of links, and subnets."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import combinations

import pytest

from labkit.errors import UsageError
from labkit.placement import RELEASES, docker
from labkit.rig import Rig, engine, netns, networks, virtual
from labkit.rig.checks import Seen

#: Eight CPUs, the threads of two cores.
FILES = {
    f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": "0-3" if cpu < 4 else "4-7"
    for cpu in range(8)
}


def lacking(generator: str, sut: str, isolated: str | None = None) -> dict[str, str]:
    facts = {"stable": {"cpu": {"isolated": isolated}, "files": FILES}}
    seen = Seen("", None, {"real_time": ""}, facts, {}, 0.0)
    return virtual.lacking(seen, {"generator": generator, "sut": sut})


def test_threads_of_one_core_are_not_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "two-cores" in lacking("1", "2") and "two-cores" not in lacking("1", "4")
    assert {"two-cpus", "separate-cpu-time"} <= lacking("1", "1").keys()
    # A container may have fewer CPUs than are online.
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1, 2, 6, 7})
    cpus = virtual.cpu_map(FILES)
    assert (cpus["generator"], cpus["sut"], cpus["harness"]) == ("1", "2", "6")
    assert cpus["all"] == "1-2,6-7"


@pytest.mark.parametrize(("isolated", "lacks"), [(None, True), ("2-3\n", True), ("0-1\n", False)])
def test_the_two_ends_have_to_be_on_isolated_cpus(isolated: str | None, lacks: bool) -> None:
    assert ("isolated-cpus" in lacking("0", "1", isolated)) == lacks


def test_rates_are_read_as_tc_writes_them() -> None:
    rates = ("virtual", "virtual:1gbit", "virtual:250mbit", "virtual:64kbit")
    assert [netns.bits_per_second(rate) for rate in rates] == [0, 10**9, 25 * 10**7, 64_000]


@pytest.mark.parametrize("rate", ["", "0gbit", "1.5gbit", "1Gbit"])
def test_an_invalid_rate_is_an_error_before_anything_is_made(rate: str) -> None:
    with pytest.raises(UsageError, match="invalid rate") as caught, Rig.open(f"virtual:{rate}"):
        pass
    assert "virtual:1gbit" in caught.value.remedy


def test_networks_are_in_the_lab_and_do_not_overlap() -> None:
    subnets = {name: ip_network(network.subnet) for name, network in networks.VIRTUAL.items()}
    assert subnets.keys() == networks.NAMES.keys()
    assert all(subnet.subnet_of(ip_network(netns.LAB)) for subnet in subnets.values())
    assert not any(a.overlaps(b) for a, b in combinations(subnets.values(), 2))
    for name, network in networks.VIRTUAL.items():
        assert ip_address(network.first) + 2 * networks.APART in subnets[name]


def test_a_release_of_docker_is_a_host_of_its_own() -> None:
    own = [engine.layer2(role) for role in ("sut", *RELEASES)]
    places = [int(ip_address(one)) for row in own for one in (row.gateway, row.address(20))]
    assert places == sorted(set(places)) and {row.subnet for row in own} == {own[0].subnet}
    with Rig.open("dry", releases=["sid"]) as rig:
        placements = [docker("nat", release=one) for one in ("", "sid", "debian13")]
        placements.append(docker("overlay", release="sid"))
        assert [bool(rig.infeasible(one)) for one in placements] == [False, False, True, True]
        assert rig.cpus("sid", "split") == rig.cpus("sut", "split")
