"""Networks between containers: their addresses, and which of them a rig makes."""

from __future__ import annotations

import ipaddress
from itertools import combinations

from labkit.rig import networks
from labkit.rig.netns import LAB


def test_networks_of_the_virtual_rig_are_in_the_lab_and_do_not_overlap() -> None:
    subnets = {
        name: ipaddress.ip_network(network.subnet) for name, network in networks.VIRTUAL.items()
    }
    assert subnets.keys() == networks.NAMES.keys()
    assert all(subnet.subnet_of(ipaddress.ip_network(LAB)) for subnet in subnets.values())
    assert not any(a.overlaps(b) for a, b in combinations(subnets.values(), 2))
    for name, network in networks.VIRTUAL.items():
        assert ipaddress.ip_address(network.first) + 2 * networks.APART in subnets[name]
