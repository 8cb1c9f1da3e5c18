"""Networks for containers that exist while a study asks for them, beside the layer-2 bridge.

Each is made on every host that has an engine, by commands of that host, and removed again. The ends
of a VXLAN tunnel are configured by hand: on the generator, which ends it in an interface of its
own, and on a peer, whose containers are on it as the server's are.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Protocol

from labkit.errors import RigError, UsageError
from labkit.hosts import Host, Result, script
from labkit.hosts.target import Network, Target
from labkit.rig import engine

_TAKE = """
folder=$1 undo=$2
shift 2
mkdir -p "$folder"
note=$(printf '%s/%06d' "$folder" "$(ls "$folder" | wc -l)")
printf '%s\\n' "$undo" >"$note.tmp"
sync "$note.tmp"
mv "$note.tmp" "$note"
exec "$@"
"""
# What was never taken cannot be undone, and is no error: the note was written before.
_UNDO = """
for folder in "$1"*; do
    [ -d "$folder" ] || continue
    for note in $(ls -r "$folder"); do
        echo "$folder"
        sh "$folder/$note" </dev/null >/dev/null 2>&1 || true
        rm -f "$folder/$note"
    done
    rmdir "$folder"
done
"""


class NetworkHosts(Protocol):
    """What networks need of a rig; `labkit.rig.Rig` has it."""

    hosts: Mapping[str, Host]
    targets: Mapping[str, Target]
    addresses: Mapping[str, tuple[str, ...]]
    interfaces: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, str]
    layable: Mapping[str, Network]


class UndoLog:
    """Steps on hosts of a rig, undone at the end, or by who opens the rig after a kill.

    How a step is undone is written down on its host before it is taken. `name` tells the steps of
    one purpose from those of others at the same time.
    """

    def __init__(self, rig: NetworkHosts, name: str) -> None:
        self._rig, self._name = rig, name
        self._folders: dict[str, tuple[Host, str]] = {}

    def take(self, role: str, *argv: str, undo: tuple[str, ...], timeout: float = 60.0) -> Result:
        """Run a command on a host, after the one that undoes it was written down there."""
        target = self._rig.targets[role]
        # Ends with a point, so that no name is the beginning of another one.
        folder = f"{undo_folders(target.directory, role)}{self._name}."
        self._folders[role] = target.host, folder
        return target.host.run(*script(_TAKE, folder, shlex.join(undo), *argv), timeout=timeout)

    def undo(self) -> None:
        """Undo all of them, the last one on each host first."""
        for host, folder in reversed(self._folders.values()):
            undo_steps(host, folder)


def undo_folders(directory: str, role: str) -> str:
    """Return the prefix of the folders of a host's undo log, beside the directory of its trials.

    Hosts of one machine may share that directory.
    """
    return f"{PurePosixPath(directory).parent}/undo-{role}-"


def undo_steps(host: Host, folders: str) -> list[str]:
    """Undo the steps in folders whose names begin so; return the folder of each step."""
    return host.run(*script(_UNDO, folders), timeout=300).stdout.splitlines()


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
def laid(rig: NetworkHosts, names: Sequence[str]) -> Iterator[None]:
    """Make networks on a rig, whose targets know them, for the duration of a ``with`` block."""
    if unknown := [name for name in names if name not in _LAYERS]:
        raise UsageError(
            f"unknown network {unknown[0]!r}",
            why="it cannot be made on demand",
            remedy=f"one of {', '.join(_LAYERS)}",
        )
    before, steps = rig.targets, UndoLog(rig, "-".join(names))
    with ExitStack() as stack:
        stack.callback(setattr, rig, "targets", before)
        stack.callback(steps.undo)
        for name in names:
            if f"network:{name}" not in rig.missing:
                _LAYERS[name](rig, steps, rig.layable[name])
        yield


def _give(rig: NetworkHosts, role: str, network: Network) -> None:
    """Tell a target of a network; a peer's placements have addresses of their own on it."""
    if role == "peer":
        network = replace(network, first=network.address(APART))
    target = rig.targets[role]
    target = replace(target, networks={**target.networks, network.name: network})
    rig.targets = {**rig.targets, role: target}


def _engines(rig: NetworkHosts) -> list[str]:
    return [role for role in ("sut", "peer") if role in rig.targets and rig.targets[role].engine]


def _others(rig: NetworkHosts) -> list[str]:
    """Return the hosts that the system under test is reached from; a peer may be the generator."""
    return list(_machines(rig, ["generator", *_engines(rig)[1:]]).values())


def _machines(rig: NetworkHosts, roles: Sequence[str]) -> dict[str, str]:
    """Return the first of the roles that each machine has, by the machine's address."""
    found: dict[str, str] = {}
    for role in roles:
        found.setdefault(rig.addresses[role][0], role)
    return found


def _engine(target: Target) -> tuple[str, ...]:
    return ("env", f"DOCKER_HOST={target.engine}")


def _create(rig: NetworkHosts, role: str, steps: UndoLog, network: Network, *options: str) -> None:
    """Make a network of an engine."""
    head = _engine(rig.targets[role])
    argv = ("docker", "network", "create", "--label", LABEL, "--subnet", network.subnet, *options)
    undo = (*head, *script(_REMOVE, network.engine, LABEL))
    steps.take(role, *head, *argv, network.engine, undo=undo)


def _macvlan(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
    for role in _engines(rig):
        parent = rig.interfaces[role][0]
        network = replace(network, parent=parent)
        _create(rig, role, steps, network, "--driver", "macvlan", "--opt", f"parent={parent}")
        _give(rig, role, network)


def _bridged(rig: NetworkHosts, role: str, steps: UndoLog, network: Network, *options: str) -> None:
    fixed = (*engine.bridge_options(network.bridge), "--gateway", network.gateway)
    _create(rig, role, steps, network, *fixed, *options)


def _routed(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
    """Lay it on the system under test alone: a peer would need other addresses and ways."""
    _bridged(rig, "sut", steps, network)
    # The engine's rules let nothing in that it did not publish.
    rule = ("DOCKER-USER", "-o", network.bridge, "-j", "ACCEPT")
    steps.take("sut", "iptables", "-I", *rule, undo=("iptables", "-D", *rule))
    way = (network.subnet, "via", rig.targets["sut"].address, *_PROTOCOL)
    for role in _others(rig):
        steps.take(role, "ip", "route", "add", *way, undo=("ip", "route", "del", *way))
    _give(rig, "sut", network)


def _nat(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
    """Lay the bridge for engines that publish nothing by themselves; Docker has its own."""
    values = (network.bridge, f"{network.gateway}/{network.prefix}", network.subnet)
    for role in _engines(rig):
        undo = tuple(script(_NAT_DOWN, *values))
        steps.take(role, *script(_NAT_UP, *values), undo=undo)
        _give(rig, role, network)


def _vxlan(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
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


def _swarm(rig: NetworkHosts, steps: UndoLog) -> None:
    """Join the engines of the rig to a Swarm, unless they are in one."""
    sut = rig.targets["sut"]
    if _membership(sut) == "active":
        return
    init = ("docker", "swarm", "init", "--advertise-addr", sut.address, *_POOL)
    _enter(rig, "sut", steps, *init)
    token = sut.host.run(*_engine(sut), "docker", "swarm", "join-token", "--quiet", "worker")
    for role in _engines(rig)[1:]:
        join = ("docker", "swarm", "join", "--token", token.stdout.strip())
        own = ("--advertise-addr", rig.targets[role].address)
        _enter(rig, role, steps, *join, *own, f"{sut.address}:2377")


def _membership(target: Target) -> str:
    argv = ("docker", "info", "--format", "{{.Swarm.LocalNodeState}}")
    return target.host.run(*_engine(target), *argv).stdout.strip()


def _enter(rig: NetworkHosts, role: str, steps: UndoLog, *argv: str) -> None:
    """Enter a Swarm, which is left again; one that somebody else entered is not touched."""
    target = rig.targets[role]
    if (member := _membership(target)) != "inactive":
        raise RigError(
            f"the engine of {role} is in a Swarm ({member}), and that of sut is not in it",
            where=f"host {target.host.name}",
            remedy="have both in one Swarm, or neither",
        )
    head = _engine(target)
    # The engine makes a bridge for what leaves a Swarm's containers, and keeps it.
    bridge = ("docker", "network", "inspect", "docker_gwbridge")
    if target.host.run(*head, *bridge, check=False).status != 0:
        undo = (*head, "docker", "network", "rm", "docker_gwbridge")
        steps.take(role, "true", undo=undo)
    leave = (*head, "docker", "swarm", "leave", "--force")
    steps.take(role, *head, *argv, undo=leave)


def _overlay(rig: NetworkHosts, steps: UndoLog, network: Network, *options: str) -> None:
    _swarm(rig, steps)
    sut = rig.targets["sut"]
    _create(rig, "sut", steps, network, "--driver", "overlay", "--attachable", *options)
    for role in _engines(rig):
        # What the server's end knows of others comes with their first container.
        ends = () if role == "sut" else (sut.address,)
        _give(rig, role, replace(network, remotes=ends, sandboxes=rig.targets[role].sandboxes))


def _encrypted(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
    _overlay(rig, steps, network, "--opt", "encrypted")


def _weave(rig: NetworkHosts, steps: UndoLog, network: Network) -> None:
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


_LAYERS: dict[str, Callable[[NetworkHosts, UndoLog, Network], None]] = {
    "macvlan": _macvlan,
    "routed": _routed,
    "nat": _nat,
    "vxlan": _vxlan,
    "overlay": _overlay,
    "encrypted": _encrypted,
    "weave": _weave,
}
