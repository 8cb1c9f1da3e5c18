"""Networks between containers: their addresses, and what proves that of Weave Net."""

from __future__ import annotations

import ipaddress
from itertools import combinations

import pytest
from small_rig import make_rig

from labkit.errors import UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import Workload, docker
from labkit.rig import networks, rigfile
from labkit.rig.virtual import LAB
from labkit.runtimes import verify
from labkit.runtimes.networks import expected
from labkit.runtimes.verify import Expectation


def test_the_virtual_rig_s_networks_are_in_its_lab_and_apart() -> None:
    subnets = {name: ipaddress.ip_network(one.subnet) for name, one in networks.VIRTUAL.items()}
    assert set(subnets) == set(rigfile.NETWORK_NAMES) == set(networks._CREATE)
    assert all(one.subnet_of(ipaddress.ip_network(LAB)) for one in subnets.values())
    assert not [pair for pair in combinations(subnets.values(), 2) if pair[0].overlaps(pair[1])]
    for one in networks.VIRTUAL.values():
        last = ipaddress.ip_address(one.first) + 2 * networks.APART
        assert last in ipaddress.ip_network(one.subnet)


def test_what_is_no_network_is_named() -> None:
    with (
        pytest.raises(UsageError, match="unknown network 'flannel'"),
        networks.created(make_rig(), ["flannel"]),
    ):
        pass


def test_what_a_rig_lacks_is_left_out() -> None:
    rig = make_rig(missing={f"network:{name}": "because" for name in rigfile.NETWORK_NAMES})
    with rig.networks(list(rigfile.NETWORK_NAMES)):
        assert rig.targets == {}


def test_a_peer_on_the_generator_s_machine_is_one_end_of_a_tunnel() -> None:
    same = {"generator": ("198.18.0.2",), "sut": ("198.18.0.3",), "peer": ("198.18.0.2",)}
    apart = same | {"peer": ("198.18.0.5",)}
    roles = ["sut", "peer", "generator"]
    assert list(networks._machines(make_rig(addresses=same), roles).values()) == ["sut", "peer"]
    assert list(networks._machines(make_rig(addresses=apart), roles).values()) == roles


def weave_link(bridge: str) -> list[str]:
    """Return what is wrong of a container whose interface is on a bridge."""
    target = Target(LocalHost("sut"), "198.18.0.3", networks={"weave": networks.VIRTUAL["weave"]})
    wanted = expected(target, docker("weave"), Workload(("server",), 80))
    links = [
        {"ifname": "vethwepl1", "ifindex": 9, "link_index": 8, "master": bridge},
        {"ifname": "vethwe-bridge", "ifindex": 4, "master": "weave"},
    ]
    own = [{"ifname": "ethwe0", "ifindex": 8, "link_index": 9}]
    fixed = Expectation(cpus="1", container=True, cgroup="", root="", **wanted)
    return list(verify.check_bridge(fixed, {"host_links": links, "links": own}))


def test_a_container_on_weave_net_is_on_its_bridge() -> None:
    assert weave_link("weave") == []
    assert weave_link("docker0") == ["its interface is not enslaved to weave"]
