"""Networks that stand while a study asks for them, beside the layer-2 bridge that always does.

Each is laid on every host that has an engine, by commands of that host, and taken away again. Where
the two ends of a tunnel are is said by hand: to the generator, which ends it in an interface of its
own, and to a peer, whose containers are on it as the server's are.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labkit.errors import RigError, UsageError
from labkit.hosts import script
from labkit.hosts.site import Network, Site
from labkit.rig import engine, state
from labkit.rig.undoing import Steps

if TYPE_CHECKING:
    from labkit.rig.base import Rig

#: Label of the networks on an engine.
LABEL = "labkit=network"
#: Number of the tunnel laid by hand, and the port that IANA gave to VXLAN.
VNI, VXLAN_PORT = "5150", "4789"
#: What a VXLAN header takes off a frame of 1500 bytes.
VXLAN_MTU = "1450"
#: The Swarm's own networks.
_POOL = ("--default-addr-pool", "198.19.64.0/18", "--default-addr-pool-mask-length", "24")
#: Where a peer's placements begin, so that the two hosts never give the same address.
APART = 96
#: Whose routes are labkit's own (a number without a name in iproute2).
_PROTOCOL = ("proto", "198")

#: What each is called on a host, by network. Weave Net gives its own names.
_NAMES: dict[str, dict[str, Any]] = {
    "macvlan": {"engine": "labkit-macvlan"},
    "routed": {"engine": "labkit-routed", "bridge": "labrt0"},
    "nat": {"bridge": "labnat0"},
    "vxlan": {"engine": "labkit-vxlan", "bridge": "labvx0", "port": "labvxlan0"},
    "overlay": {"engine": "labkit-overlay"},
    "encrypted": {"engine": "labkit-encrypted"},
    "weave": {"engine": "labkit-weave", "bridge": "weave", "port": "vethwe-bridge"},
}

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
# Of this name and with the label: a network of the user's stays.
_REMOVE = """
docker network rm $(docker network ls --quiet --filter "name=^$1\\$" --filter "label=$2")
"""


def named(name: str, subnet: str, first: str) -> Network:
    """Return a network with the names that labkit gives, and with a rig's addresses.

    Where a host has an address in it, that is the first of the subnet; in a tunnel laid by hand the
    peer and the generator have the next ones.
    """
    own = name in ("routed", "nat", "vxlan")
    gateway = str(ipaddress.ip_network(subnet)[1]) if own else ""
    return Network(name, subnet, first, gateway, **_NAMES[name])


#: Those of the virtual rig; macvlan shares the hosts' own subnet.
VIRTUAL = {"macvlan": named("macvlan", "198.18.0.0/24", "198.18.0.32")} | {
    name: named(name, f"198.18.{number}.0/24", f"198.18.{number}.10")
    for number, name in enumerate(list(_NAMES)[1:], start=2)
}


@contextmanager
def laid(rig: Rig, names: Sequence[str]) -> Iterator[None]:
    """Have networks stand on a rig, whose sites know them, for the duration of a ``with`` block."""
    odd = [name for name in names if name not in _LAYERS]
    if odd:
        raise UsageError(f"no network {odd[0]!r} is laid", remedy=f"one of {', '.join(_LAYERS)}")
    before, steps = rig.sites, Steps(rig, "-".join(names))
    with ExitStack() as stack:
        stack.callback(setattr, rig, "sites", before)
        if rig.kind == "virtual" and (found := state.read()):
            # Killed from here on, a rig that is kept is not as it was made: it is made anew.
            state.write(**found | {"laid": list(names)})
            stack.callback(state.write, **found | {"laid": []})
        stack.callback(steps.undo)
        for name in names:
            if f"network:{name}" not in rig.missing:
                _LAYERS[name](rig, steps, rig.layable[name])
        yield


def _give(rig: Rig, role: str, network: Network) -> None:
    """Tell a site of a network; a peer's placements have addresses of their own on it."""
    if role == "peer":
        network = replace(network, first=network.address(APART))
    site = rig.sites[role]
    site = replace(site, networks={**site.networks, network.name: network})
    rig.sites = {**rig.sites, role: site}


def _engines(rig: Rig) -> list[str]:
    return [role for role in ("sut", "peer") if role in rig.sites and rig.sites[role].engine]


def _others(rig: Rig) -> list[str]:
    """Return the hosts that the system under test is reached from; a peer may be the generator."""
    return list(_machines(rig, ["generator", *_engines(rig)[1:]]).values())


def _machines(rig: Rig, roles: Sequence[str]) -> dict[str, str]:
    """Return the first of the roles that each machine has, by the machine's address."""
    found: dict[str, str] = {}
    for role in roles:
        found.setdefault(rig.addresses[role][0], role)
    return found


def _engine(site: Site) -> tuple[str, ...]:
    return ("env", f"DOCKER_HOST={site.engine}")


def _create(rig: Rig, role: str, steps: Steps, network: Network, *options: str) -> None:
    """Make a network of an engine."""
    head = _engine(rig.sites[role])
    argv = ("docker", "network", "create", "--label", LABEL, "--subnet", network.subnet, *options)
    undo = (*head, *script(_REMOVE, network.engine, LABEL))
    steps.take(role, *head, *argv, network.engine, undo=undo)


def _macvlan(rig: Rig, steps: Steps, network: Network) -> None:
    for role in _engines(rig):
        parent = rig.interfaces[role][0]
        network = replace(network, parent=parent)
        _create(rig, role, steps, network, "--driver", "macvlan", "--opt", f"parent={parent}")
        _give(rig, role, network)


def _bridged(rig: Rig, role: str, steps: Steps, network: Network, *options: str) -> None:
    fixed = (*engine.bridge_options(network.bridge), "--gateway", network.gateway)
    _create(rig, role, steps, network, *fixed, *options)


def _routed(rig: Rig, steps: Steps, network: Network) -> None:
    """Lay it on the system under test alone: a peer would need other addresses and ways."""
    _bridged(rig, "sut", steps, network)
    # The engine's rules let nothing in that it did not publish.
    rule = ("DOCKER-USER", "-o", network.bridge, "-j", "ACCEPT")
    steps.take("sut", "iptables", "-I", *rule, undo=("iptables", "-D", *rule))
    way = (network.subnet, "via", rig.sites["sut"].address, *_PROTOCOL)
    for role in _others(rig):
        steps.take(role, "ip", "route", "add", *way, undo=("ip", "route", "del", *way))
    _give(rig, "sut", network)


def _nat(rig: Rig, steps: Steps, network: Network) -> None:
    """Lay the bridge for engines that publish nothing by themselves; Docker has its own."""
    values = (network.bridge, f"{network.gateway}/{network.prefix}", network.subnet)
    for role in _engines(rig):
        undo = tuple(script(_NAT_DOWN, *values))
        steps.take(role, *script(_NAT_UP, *values), undo=undo)
        _give(rig, role, network)


def _vxlan(rig: Rig, steps: Steps, network: Network) -> None:
    """Lay a mesh of tunnels between the generator and every host with an engine."""
    with_engine = _engines(rig)
    ends = _machines(rig, [*with_engine, "generator"])
    for number, (here, role) in enumerate(ends.items()):
        others = tuple(there for there in ends if there != here)
        remove = ("ip", "link", "del", network.port)
        # Each host's bridge has an address of its own: two of one would answer for each other.
        own = str(ipaddress.ip_address(network.gateway) + number)
        end = replace(network, remotes=others, gateway=own)
        if role in with_engine:
            _bridged(rig, role, steps, end, "--opt", f"com.docker.network.driver.mtu={VXLAN_MTU}")
            join = ("ip", "link", "set", network.port, "master", network.bridge)
            _give(rig, role, end)
        else:
            join = ("ip", "addr", "add", f"{own}/{network.prefix}", "dev", network.port)
        text = f"VNI={VNI} PORT={VXLAN_PORT} MTU={VXLAN_MTU}\n{_TUNNEL}"
        steps.take(role, *script(text, network.port, here, *others), undo=remove)
        rig.hosts[role].run(*join)


def _swarm(rig: Rig, steps: Steps) -> None:
    """Join the engines of the rig to a Swarm, unless they are in one."""
    sut = rig.sites["sut"]
    if _membership(sut) == "active":
        return
    init = ("docker", "swarm", "init", "--advertise-addr", sut.address, *_POOL)
    _enter(rig, "sut", steps, *init)
    token = sut.host.run(*_engine(sut), "docker", "swarm", "join-token", "--quiet", "worker")
    for role in _engines(rig)[1:]:
        join = ("docker", "swarm", "join", "--token", token.stdout.strip())
        own = ("--advertise-addr", rig.sites[role].address)
        _enter(rig, role, steps, *join, *own, f"{sut.address}:2377")


def _membership(site: Site) -> str:
    argv = ("docker", "info", "--format", "{{.Swarm.LocalNodeState}}")
    return site.host.run(*_engine(site), *argv).stdout.strip()


def _enter(rig: Rig, role: str, steps: Steps, *argv: str) -> None:
    """Enter a Swarm, which is left again; one that somebody else entered is not touched."""
    site = rig.sites[role]
    if (member := _membership(site)) != "inactive":
        raise RigError(
            f"the engine of {role} is in a Swarm ({member}), and that of sut is not in it",
            where=f"host {site.host.name}",
            remedy="have both in one Swarm, or neither",
        )
    head = _engine(site)
    # The engine makes a bridge for what leaves a Swarm's containers, and keeps it.
    bridge = ("docker", "network", "inspect", "docker_gwbridge")
    if site.host.run(*head, *bridge, check=False).status != 0:
        undo = (*head, "docker", "network", "rm", "docker_gwbridge")
        steps.take(role, "true", undo=undo)
    leave = (*head, "docker", "swarm", "leave", "--force")
    steps.take(role, *head, *argv, undo=leave)


def _overlay(rig: Rig, steps: Steps, network: Network, *options: str) -> None:
    _swarm(rig, steps)
    sut = rig.sites["sut"]
    _create(rig, "sut", steps, network, "--driver", "overlay", "--attachable", *options)
    for role in _engines(rig):
        # What the server's end knows of others comes with their first container.
        ends = () if role == "sut" else (sut.address,)
        _give(rig, role, replace(network, remotes=ends, sandboxes=rig.sites[role].sandboxes))


def _encrypted(rig: Rig, steps: Steps, network: Network) -> None:
    _overlay(rig, steps, network, "--opt", "encrypted")


def _weave(rig: Rig, steps: Steps, network: Network) -> None:
    """Lay a network of Weave Net's plugin, whose routers their owner has launched and peered.

    Written from its documentation, and never run here: the driver ``weavemesh`` with its own
    management of addresses is told the same subnet on each host, one within the range that the
    routers were launched with. Its containers are on the bridge ``weave``, and leave it by
    ``vethwe-bridge`` to its data path, whether that is in the kernel or in user space; what that
    does with the packets is not read back. It does not stand beside a Swarm.
    """
    ways = ("--driver", "weavemesh", "--ipam-driver", "weavemesh")
    for role in _engines(rig):
        _create(rig, role, steps, network, *ways)
        _give(rig, role, network)


_LAYERS: dict[str, Callable[[Rig, Steps, Network], None]] = {
    "macvlan": _macvlan,
    "routed": _routed,
    "nat": _nat,
    "vxlan": _vxlan,
    "overlay": _overlay,
    "encrypted": _encrypted,
    "weave": _weave,
}
