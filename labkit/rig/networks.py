"""Networks that stand while a study asks for them, beside the layer-2 bridge that always does.

Each is laid on every host that has an engine, by commands of that host, and taken away again in
the reverse order. Where the two ends of a tunnel are is said by hand: to the generator, which ends
it in an interface of its own, and to a peer, whose containers are on it as the server's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.errors import UsageError
from labkit.hosts import Host, script
from labkit.hosts.site import Network, Site
from labkit.rig import engine, state

if TYPE_CHECKING:
    from labkit.rig.base import Rig

#: Label of the networks on an engine, by which what a killed campaign left is found.
LABEL = "labkit=network"
#: Number of the tunnel laid by hand, and the port that IANA gave to VXLAN.
VNI, VXLAN_PORT = "5150", "4789"
#: What a VXLAN header takes off a frame of 1500 bytes.
VXLAN_MTU = "1450"
#: The Swarm's own networks.
_POOL = ("--default-addr-pool", "198.19.64.0/18", "--default-addr-pool-mask-length", "24")
#: Where a peer's placements begin, so that the two hosts never give the same address.
_APART = 96

_MACVLAN = Network("macvlan", "198.18.0.0/24", "198.18.0.32", "", "labkit-macvlan", parent="lab0")
_ROUTED = Network("routed", "198.18.2.0/24", "198.18.2.10", "198.18.2.1", "labkit-routed", "labrt0")
_NAT = Network("nat", "198.18.3.0/24", "198.18.3.10", "198.18.3.1", bridge="labnat0")
_VXLAN = Network(
    "vxlan", "198.18.4.0/24", "198.18.4.10", "198.18.4.1", "labkit-vxlan", "labvx0", "labvxlan0"
)
_OVERLAY = Network("overlay", "198.18.5.0/24", "198.18.5.10", "", "labkit-overlay")
_ENCRYPTED = Network("encrypted", "198.18.6.0/24", "198.18.6.10", "", "labkit-encrypted")
#: The address of the generator's own end of the tunnel laid by hand.
_VXLAN_GENERATOR = "198.18.4.2"

# What a network without published ports needs to reach the outside, and to be reached: rules are
# added for each placement; these are what they stand on. Docker's own policy is to forward nothing.
_NAT_UP = """
ip link add "$1" type bridge
ip addr add "$2" dev "$1"
ip link set "$1" up
iptables -t nat -A POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
iptables -I FORWARD -i "$1" -j ACCEPT
iptables -I FORWARD -o "$1" -j ACCEPT
"""
_NAT_DOWN = """
set +e
iptables -D FORWARD -o "$1" -j ACCEPT
iptables -D FORWARD -i "$1" -j ACCEPT
iptables -t nat -D POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
ip link del "$1"
true
"""
_TUNNEL = """
device=$1 local=$2
shift 2
ip link add "$device" mtu "$MTU" type vxlan id "$VNI" local "$local" dstport "$PORT"
for remote in "$@"; do
    bridge fdb append 00:00:00:00:00:00 dev "$device" dst "$remote"
done
ip link set "$device" up
"""


@contextmanager
def laid(rig: Rig, names: Sequence[str]) -> Iterator[None]:
    """Have networks stand on a rig, whose sites know them, for the duration of a ``with`` block."""
    odd = [name for name in names if name not in _LAYERS]
    if odd:
        raise UsageError(f"no network {odd[0]!r} is laid", remedy=f"one of {', '.join(_LAYERS)}")
    before = rig.sites
    with ExitStack() as stack:
        stack.callback(setattr, rig, "sites", before)
        if rig.kind == "virtual" and (found := state.read()):
            # Killed from here on, a rig that is kept is not as it was made: it is made anew.
            state.write(**found | {"laid": list(names)})
            stack.callback(state.write, **found | {"laid": []})
        for name in names:
            if f"network:{name}" not in rig.missing:
                _LAYERS[name](rig, stack)
        yield


def _give(rig: Rig, role: str, network: Network) -> None:
    """Tell a site of a network; a peer's placements have addresses of their own on it."""
    if role == "peer":
        network = replace(network, first=network.address(_APART))
    site = rig.sites[role]
    site = replace(site, networks={**site.networks, network.name: network})
    rig.sites = {**rig.sites, role: site}


def _engines(rig: Rig) -> list[str]:
    return [role for role in ("sut", "peer") if role in rig.sites and rig.sites[role].engine]


def _create(site: Site, stack: ExitStack, network: Network, *options: str) -> None:
    """Make a network of an engine, and remove it at the end."""
    env = {"DOCKER_HOST": str(site.engine)}
    argv = ("docker", "network", "create", "--label", LABEL, "--subnet", network.subnet, *options)
    site.host.run(*argv, network.engine, env=env)
    _removed(site, stack, network)


def _removed(site: Site, stack: ExitStack, network: Network) -> None:
    env = {"DOCKER_HOST": str(site.engine)}
    remove = ("docker", "network", "rm", network.engine)
    stack.callback(site.host.run, *remove, env=env, check=False)


def _macvlan(rig: Rig, stack: ExitStack) -> None:
    for role in _engines(rig):
        parent = rig.interfaces[role][0]
        network = replace(_MACVLAN, parent=parent)
        options = ("--driver", "macvlan", "--opt", f"parent={parent}")
        _create(rig.sites[role], stack, network, *options)
        _give(rig, role, network)


def _bridged(site: Site, stack: ExitStack, network: Network, *options: str) -> None:
    ways = ("--label", LABEL, "--subnet", network.subnet, "--gateway", network.gateway)
    names = (str(site.engine), network.engine, network.bridge)
    engine.create_network(site.host, *names, *ways, *options)
    _removed(site, stack, network)


def _routed(rig: Rig, stack: ExitStack) -> None:
    """Lay it on the system under test alone: a peer would need other addresses and ways."""
    sut = rig.sites["sut"]
    _bridged(sut, stack, _ROUTED)
    # The engine's rules let nothing in that it did not publish.
    rule = ("DOCKER-USER", "-o", _ROUTED.bridge, "-j", "ACCEPT")
    sut.host.run("iptables", "-I", *rule)
    stack.callback(sut.host.run, "iptables", "-D", *rule, check=False)
    way = ("route", "add", _ROUTED.subnet, "via", sut.address)
    for role in ("generator", "peer"):
        if role in rig.hosts:
            rig.hosts[role].run("ip", *way)
            drop = ("ip", "route", "del", _ROUTED.subnet)
            stack.callback(rig.hosts[role].run, *drop, check=False)
    _give(rig, "sut", _ROUTED)


def _nat(rig: Rig, stack: ExitStack) -> None:
    """Lay the bridge for engines that publish nothing by themselves; Docker has its own."""
    for role in _engines(rig):
        host = rig.sites[role].host
        values = (_NAT.bridge, f"{_NAT.gateway}/{_NAT.prefix}", _NAT.subnet)
        stack.callback(host.run, *script(_NAT_DOWN, *values), check=False)
        host.run(*script(_NAT_UP, *values))
        _give(rig, role, _NAT)


def _tunnel(host: Host, stack: ExitStack, here: str, others: Sequence[str]) -> None:
    stack.callback(host.run, "ip", "link", "del", _VXLAN.port, check=False)
    text = f"VNI={VNI} PORT={VXLAN_PORT} MTU={VXLAN_MTU}\n{_TUNNEL}"
    host.run(*script(text, _VXLAN.port, here, *others))


def _vxlan(rig: Rig, stack: ExitStack) -> None:
    """Lay a mesh of tunnels between the generator and every host with an engine."""
    ends = {role: rig.addresses[role][0] for role in ("generator", *_engines(rig))}
    for role, here in ends.items():
        others = [there for there in ends.values() if there != here]
        host = rig.hosts[role]
        if role == "generator":
            _tunnel(host, stack, here, others)
            own = f"{_VXLAN_GENERATOR}/{_VXLAN.prefix}"
            host.run("ip", "addr", "add", own, "dev", _VXLAN.port)
            continue
        # Each host's bridge has an address of its own: two of one would answer for each other.
        network = replace(_VXLAN, remotes=tuple(others))
        if role == "peer":
            network = replace(network, gateway="198.18.4.3")
        mtu = ("--opt", f"com.docker.network.driver.mtu={VXLAN_MTU}")
        _bridged(rig.sites[role], stack, network, *mtu)
        _tunnel(host, stack, here, others)
        host.run("ip", "link", "set", _VXLAN.port, "master", _VXLAN.bridge)
        _give(rig, role, network)


def _swarm(rig: Rig, stack: ExitStack) -> None:
    """Join the engines of the rig to a Swarm, unless they are; it goes with the rig's networks."""
    sut = rig.sites["sut"]
    env = {"DOCKER_HOST": str(sut.engine)}
    state = ("docker", "info", "--format", "{{.Swarm.LocalNodeState}}")
    if sut.host.run(*state, env=env).stdout.strip() == "active":
        return
    sut.host.run("docker", "swarm", "init", "--advertise-addr", sut.address, *_POOL, env=env)
    # The engine makes a bridge for what leaves a Swarm's containers, and keeps it.
    gateway = ("docker", "network", "rm", "docker_gwbridge")
    stack.callback(sut.host.run, *gateway, env=env, check=False)
    leave = ("docker", "swarm", "leave", "--force")
    stack.callback(sut.host.run, *leave, env=env, check=False, timeout=60)
    token = sut.host.run("docker", "swarm", "join-token", "--quiet", "worker", env=env)
    for role in _engines(rig):
        site = rig.sites[role]
        if role == "sut":
            continue
        there = {"DOCKER_HOST": str(site.engine)}
        join = ("docker", "swarm", "join", "--token", token.stdout.strip())
        stack.callback(site.host.run, *gateway, env=there, check=False)
        site.host.run(*join, "--advertise-addr", site.address, f"{sut.address}:2377", env=there)
        stack.callback(site.host.run, *leave, env=there, check=False, timeout=60)


def _overlay(rig: Rig, stack: ExitStack, network: Network = _OVERLAY, *options: str) -> None:
    _swarm(rig, stack)
    sut = rig.sites["sut"]
    _create(sut, stack, network, "--driver", "overlay", "--attachable", *options)
    for role in _engines(rig):
        site = rig.sites[role]
        # What the server's end knows of others comes with their first container.
        ends = () if role == "sut" else (sut.address,)
        _give(rig, role, replace(network, remotes=ends, sandboxes=site.sandboxes))


def _encrypted(rig: Rig, stack: ExitStack) -> None:
    _overlay(rig, stack, _ENCRYPTED, "--opt", "encrypted")


_LAYERS: dict[str, Callable[[Rig, ExitStack], None]] = {
    "macvlan": _macvlan,
    "routed": _routed,
    "nat": _nat,
    "vxlan": _vxlan,
    "overlay": _overlay,
    "encrypted": _encrypted,
}
