"""Networks between containers that exist while a study needs them, besides the layer-2 bridge.

Each is created on every host with an engine, by commands on that host, and removed again. The ends
of a VXLAN tunnel are configured by hand: on the generator as an interface of its own, on a peer
with a bridge for containers, as on the system under test.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from labkit.errors import RigError, UsageError, suggestion
from labkit.hosts import Host, Result, script
from labkit.hosts.target import Network, Target
from labkit.rig import engine
from labkit.runtimes.observed import ASK_ROUTER

if TYPE_CHECKING:
    from labkit.rig.base import Rig

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
# Undoing a step that was never taken fails, which is no error: its note is written first.
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


class UndoLog:
    """Steps on hosts of a rig that are undone at the end, or by the next user after a kill.

    The command that undoes a step is written to a file on its host before the step is taken.
    `name` distinguishes logs that exist at the same time.
    """

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name
        self._folders: dict[str, tuple[Host, str]] = {}

    def take(self, role: str, *argv: str, undo: tuple[str, ...], timeout: float = 60.0) -> Result:
        """Run a command on a host, after recording the one that undoes it there."""
        target = self._rig.targets[role]
        # The dot keeps one name from being the beginning of another.
        folder = f"{undo_folders(target.directory, role)}{self._name}."
        self._folders[role] = target.host, folder
        return target.host.run(*script(_TAKE, folder, shlex.join(undo), *argv), timeout=timeout)

    def undo(self) -> None:
        """Undo all steps, on each host the last one first."""
        for host, folder in reversed(self._folders.values()):
            undo_steps(host, folder)


def undo_folders(directory: str, role: str) -> str:
    """Return the path prefix of a host's undo logs, next to the directory of its trials.

    It has the role in it, since hosts of one machine may share that directory.
    """
    return f"{PurePosixPath(directory).parent}/undo-{role}-"


def undo_steps(host: Host, folders: str) -> list[str]:
    """Undo the steps in all logs with a path prefix; return the log of each step."""
    return host.run(*script(_UNDO, folders), timeout=300).stdout.splitlines()


#: Label of the networks on an engine.
LABEL = "labkit=network"
#: Identifier of the tunnel that is configured by hand, and the port that IANA assigned to VXLAN.
VNI, VXLAN_PORT = "5150", "4789"
#: 1500 bytes without the VXLAN header.
VXLAN_MTU = "1450"
#: The Swarm's own networks.
_POOL = ("--default-addr-pool", "198.19.64.0/18", "--default-addr-pool-mask-length", "24")
#: Offset of the peer's addresses, so that the two hosts never assign the same one.
APART = 96
#: Marks labkit's routes (a number without a name in iproute2).
_PROTOCOL = ("proto", "198")

#: Where a router of Weave Net answers questions, on its own host only.
ROUTER_STATUS = "127.0.0.1:6784"

#: Names on a host, by network; those of Weave Net are its own.
NAMES: dict[str, dict[str, Any]] = {
    "macvlan": {"engine": "labkit-macvlan"},
    "routed": {"engine": "labkit-routed", "bridge": "labrt0"},
    "nat": {"bridge": "labnat0"},
    "vxlan": {"engine": "labkit-vxlan", "bridge": "labvx0", "port": "labvxlan0"},
    "overlay": {"engine": "labkit-overlay"},
    "encrypted": {"engine": "labkit-encrypted"},
    "weave": {"engine": "labkit-weave", "bridge": "weave", "port": "vethwe-bridge"},
}

# A bridge with address translation for engines that publish no ports; each placement adds its own
# rules to these. Docker's policy is to forward nothing.
_NAT_UP = """
ip link add "$1" type bridge
ip addr add "$2" dev "$1"
ip link set "$1" up
iptables -w -t nat -A POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
iptables -w -I FORWARD -i "$1" -j ACCEPT
iptables -w -I FORWARD -o "$1" -j ACCEPT
"""
_NAT_DOWN = """
set +e
iptables -w -D FORWARD -o "$1" -j ACCEPT
iptables -w -D FORWARD -i "$1" -j ACCEPT
iptables -w -t nat -D POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
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
# By name and label, so that a network of the user's stays.
_REMOVE = """
docker network rm $(docker network ls --quiet --filter "name=^$1\\$" --filter "label=$2")
"""


def named(name: str, subnet: str, first: str) -> Network:
    """Return a network with labkit's names for it and a rig's addresses.

    Where the host has an address in it, that is the first of the subnet; in the tunnel that is
    configured by hand, the peer and the generator have the next ones.
    """
    has_gateway = name in ("routed", "nat", "vxlan")
    gateway = str(ipaddress.ip_network(subnet)[1]) if has_gateway else ""
    return Network(name, subnet, first, gateway, **NAMES[name])


#: Networks of the virtual rig; macvlan shares the hosts' subnet.
VIRTUAL = {"macvlan": named("macvlan", "198.18.0.0/24", "198.18.0.32")} | {
    name: named(name, f"198.18.{number}.0/24", f"198.18.{number}.10")
    for number, name in enumerate(list(NAMES)[1:], start=2)
}


@contextmanager
def created(rig: Rig, names: Sequence[str]) -> Iterator[None]:
    """Create networks on a rig, and add them to its targets, for a ``with`` block."""
    if unknown := [name for name in names if name not in _CREATE]:
        raise UsageError(
            f"unknown network {unknown[0]!r}",
            why="it cannot be made on demand",
            remedy=suggestion(unknown[0], _CREATE),
        )
    before, steps = rig.targets, UndoLog(rig, "-".join(names))
    with ExitStack() as stack:
        stack.callback(setattr, rig, "targets", before)
        stack.callback(steps.undo)
        for name in names:
            if f"network:{name}" in rig.missing:
                continue
            if name not in rig.possible_networks:
                raise UsageError(
                    f"the rig {rig.name} has no network {name!r}", remedy="choose another rig"
                )
            _CREATE[name](rig, steps, rig.possible_networks[name])
        yield


def _add_to_target(rig: Rig, role: str, network: Network) -> None:
    """Add a network to a target; placements on a peer have other addresses on it."""
    if role == "peer":
        network = replace(network, first=network.address(APART))
    target = rig.targets[role]
    target = replace(target, networks={**target.networks, network.name: network})
    rig.targets = {**rig.targets, role: target}


def _engines(rig: Rig) -> list[str]:
    return [role for role in ("sut", "peer") if role in rig.targets and rig.targets[role].engine]


def _machines(rig: Rig, roles: Sequence[str]) -> dict[str, str]:
    """Return one role for each machine, by the machine's address: a peer may be the generator."""
    machines: dict[str, str] = {}
    for role in roles:
        machines.setdefault(rig.addresses[role][0], role)
    return machines


def _engine(target: Target) -> tuple[str, ...]:
    """Return the prefix of a docker command for a target's engine."""
    return ("env", f"DOCKER_HOST={target.engine}")


def _create(rig: Rig, role: str, steps: UndoLog, network: Network, *options: str) -> None:
    """Create a network of an engine."""
    head = _engine(rig.targets[role])
    argv = ("docker", "network", "create", "--label", LABEL, "--subnet", network.subnet, *options)
    undo = (*head, *script(_REMOVE, network.engine, LABEL))
    steps.take(role, *head, *argv, network.engine, undo=undo)


def _macvlan(rig: Rig, steps: UndoLog, network: Network) -> None:
    for role in _engines(rig):
        parent = rig.interfaces[role][0]
        network = replace(network, parent=parent)
        _create(rig, role, steps, network, "--driver", "macvlan", "--opt", f"parent={parent}")
        _add_to_target(rig, role, network)


def _bridged(rig: Rig, role: str, steps: UndoLog, network: Network, *options: str) -> None:
    fixed = (*engine.bridge_options(network.bridge), "--gateway", network.gateway)
    _create(rig, role, steps, network, *fixed, *options)


def _routed(rig: Rig, steps: UndoLog, network: Network) -> None:
    """Only on the system under test: a peer would need other addresses and routes."""
    _bridged(rig, "sut", steps, network)
    # The engine's rules admit only what it published.
    rule = ("DOCKER-USER", "-o", network.bridge, "-j", "ACCEPT")
    steps.take("sut", "iptables", "-w", "-I", *rule, undo=("iptables", "-w", "-D", *rule))
    route = (network.subnet, "via", rig.targets["sut"].address, *_PROTOCOL)
    for role in _machines(rig, ["generator", *_engines(rig)[1:]]).values():
        steps.take(role, "ip", "route", "add", *route, undo=("ip", "route", "del", *route))
    _add_to_target(rig, "sut", network)


def _nat(rig: Rig, steps: UndoLog, network: Network) -> None:
    """A bridge for engines that publish no ports; Docker has its own."""
    values = (network.bridge, f"{network.gateway}/{network.prefix}", network.subnet)
    for role in _engines(rig):
        undo = tuple(script(_NAT_DOWN, *values))
        steps.take(role, *script(_NAT_UP, *values), undo=undo)
        _add_to_target(rig, role, network)


def _vxlan(rig: Rig, steps: UndoLog, network: Network) -> None:
    """A mesh of tunnels between the generator and every host with an engine."""
    with_engine = _engines(rig)
    machines = _machines(rig, [*with_engine, "generator"])
    for number, (local, role) in enumerate(machines.items()):
        remotes = tuple(address for address in machines if address != local)
        # Each bridge has another address: with the same one, both would answer for it.
        gateway = str(ipaddress.ip_address(network.gateway) + number)
        end = replace(network, remotes=remotes, gateway=gateway)
        if role in with_engine:
            _bridged(rig, role, steps, end, "--opt", f"com.docker.network.driver.mtu={VXLAN_MTU}")
            join = ("ip", "link", "set", network.port, "master", network.bridge)
            _add_to_target(rig, role, end)
        else:
            join = ("ip", "addr", "add", f"{gateway}/{network.prefix}", "dev", network.port)
        text = f"VNI={VNI} PORT={VXLAN_PORT} MTU={VXLAN_MTU}\n{_TUNNEL}"
        undo = ("ip", "link", "del", network.port)
        steps.take(role, *script(text, network.port, local, *remotes), undo=undo)
        rig.hosts[role].run(*join)


def _swarm(rig: Rig, steps: UndoLog) -> None:
    """Join the rig's engines to a Swarm, unless that of the sut is in one."""
    sut = rig.targets["sut"]
    if _membership(sut) == "active":
        return
    init = ("docker", "swarm", "init", "--advertise-addr", sut.address, *_POOL)
    _enter(rig, "sut", steps, *init)
    token = sut.host.run(*_engine(sut), "docker", "swarm", "join-token", "--quiet", "worker")
    for role in _engines(rig)[1:]:
        join = ("docker", "swarm", "join", "--token", token.stdout.strip())
        advertised = ("--advertise-addr", rig.targets[role].address)
        _enter(rig, role, steps, *join, *advertised, f"{sut.address}:2377")


def _membership(target: Target) -> str:
    argv = ("docker", "info", "--format", "{{.Swarm.LocalNodeState}}")
    return target.host.run(*_engine(target), *argv).stdout.strip()


def _enter(rig: Rig, role: str, steps: UndoLog, *argv: str) -> None:
    """Enter a Swarm, to be left again; an engine that is in another one is an error."""
    target = rig.targets[role]
    if (member := _membership(target)) != "inactive":
        raise RigError(
            f"the engine of {role} is in a Swarm ({member}), and that of sut is not in it",
            where=f"host {target.host.name}",
            remedy="have both in one Swarm, or neither",
        )
    head = _engine(target)
    # The engine creates this bridge for traffic that leaves a Swarm's containers, and keeps it.
    bridge = ("docker", "network", "inspect", "docker_gwbridge")
    if target.host.run(*head, *bridge, check=False).status != 0:
        steps.take(role, "true", undo=(*head, "docker", "network", "rm", "docker_gwbridge"))
    steps.take(role, *head, *argv, undo=(*head, "docker", "swarm", "leave", "--force"))
    # It does so on its own time, with rules that would then change within a trial.
    made = " ".join((*head, *bridge))
    target.host.run("timeout", "30", "sh", "-c", f"until {made}; do sleep 0.1; done", check=False)


def _overlay(rig: Rig, steps: UndoLog, network: Network, *options: str) -> None:
    _swarm(rig, steps)
    sut = rig.targets["sut"]
    _create(rig, "sut", steps, network, "--driver", "overlay", "--attachable", *options)
    for role in _engines(rig):
        # The server's end learns of others with their first container.
        ends = () if role == "sut" else (sut.address,)
        _add_to_target(
            rig, role, replace(network, remotes=ends, sandboxes=rig.targets[role].sandboxes)
        )


def _encrypted(rig: Rig, steps: UndoLog, network: Network) -> None:
    _overlay(rig, steps, network, "--opt", "encrypted")


# Where the user's own routers are, these could not be, and would take theirs down with them.
_ROUTER_UP = """
folder=$1 plugin=$2
shift 2
[ ! -e /sys/class/net/weave ] || { echo "a router of Weave Net is here already" >&2; exit 1; }
mkdir -p "$folder" "${plugin%/*}"
cd "$folder"
export CHECKPOINT_DISABLE=1
exec setsid -f sh -c 'echo $$ >pid; exec "$@" >log 2>&1 </dev/null' sh "$@"
"""
_ROUTER_DOWN = """
set +e
folder=$1 plugin=$2
read -r pid <"$folder/pid"
if [ "$(cat "/proc/$pid/comm")" = weaver ]; then
    kill "$pid"
    for try in $(seq 50); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -d "/proc/$pid" ] || kill -KILL "$pid"
fi
for device in vethwe-bridge vethwe-datapath weave vxlan-6784 datapath; do
    ip link del "$device"
done
for table in filter nat mangle; do
    iptables -w -t "$table" -S | grep -E '^-A .*(WEAVE|Weave Net|-[io] weave )' | sed 's/^-A/-D/' |
        while read -r rule; do eval "iptables -w -t $table $rule"; done
    for chain in $(iptables -w -t "$table" -S | sed -n 's/^-N \\(WEAVE.*\\)/\\1/p'); do
        iptables -w -t "$table" -X "$chain"
    done
done
rm -rf "$folder" "$plugin"
true
"""
# Both ends must say so: containers that are made before would have no way to the other host.
_ROUTER_READY = """
folder=$1 status=$2 others=$3 tries=0
while [ "$tries" -lt 300 ]; do
    count=$(bash -c "$4" bash "$status" 2>/dev/null | grep -c ' established ') || true
    [ "$count" != "$others" ] || exit 0
    tries=$((tries + 1))
    sleep 0.1
done
tail -n 5 "$folder/log" >&2
exit 1
"""
#: What Weave Net has of a packet of 1500 bytes, by its own default.
WEAVE_MTU = "1376"


def _weave(rig: Rig, steps: UndoLog, network: Network) -> None:
    """A router of Weave Net on each host with an engine, connected, and a network of its plugin.

    An engine looks for plugins where those of the whole machine are, so that on hosts of one
    machine the driver is named after the host. Containers are on the bridge ``weave`` and leave it
    by ``vethwe-bridge`` to the router, which carries packets itself (sleeve) or has the kernel do
    it (fastdp, where that has Open vSwitch); verification reads which. It excludes a Swarm.
    """
    roles = _engines(rig)
    addresses = [rig.targets[role].address for role in roles]
    for number, role in enumerate(roles):
        folder, plugin = _router(rig.targets[role], role)
        argv = ["weaver", f"--host={addresses[number]}", f"--nickname={role}", "--port=6783"]
        # Hosts of one machine would give themselves the same name.
        argv += [f"--name=02:00:00:00:00:{number + 1:02x}", f"--http-addr={ROUTER_STATUS}"]
        argv += [
            "--no-dns",
            "--datapath=datapath",
            f"--mtu={WEAVE_MTU}",
            f"--db-prefix={folder}/db",
        ]
        argv += [f"--ipalloc-range={network.subnet}", f"--ipalloc-init=consensus={len(roles)}"]
        argv += [f"--docker-api={rig.targets[role].engine}", "--plugin", "--plugin-socket="]
        argv += [f"--plugin-mesh-socket={plugin}", *addresses[:number]]
        undo = tuple(script(_ROUTER_DOWN, folder, plugin))
        steps.take(role, *script(_ROUTER_UP, folder, plugin, *argv), undo=undo)
    for role in roles:
        target = rig.targets[role]
        values = (_router(target, role)[0], ROUTER_STATUS, str(len(roles) - 1), ASK_ROUTER)
        target.host.run(*script(_ROUTER_READY, *values), timeout=90)
    for role, address in zip(roles, addresses, strict=True):
        driver = PurePosixPath(_router(rig.targets[role], role)[1]).stem
        options = ("--internal", "--driver", driver, "--ipam-driver", driver)
        _create(rig, role, steps, network, *options)
        others = tuple(other for other in addresses if other != address)
        _add_to_target(rig, role, replace(network, remotes=others, router=ROUTER_STATUS))


def _router(target: Target, role: str) -> tuple[str, str]:
    """Return the directory of a host's router, and the socket of its plugin."""
    folder = f"{PurePosixPath(target.directory).parent}/weave-{role}"
    return folder, f"/run/docker/plugins/labkit-weave-{role}.sock"


_CREATE: dict[str, Callable[[Rig, UndoLog, Network], None]] = {
    "macvlan": _macvlan,
    "routed": _routed,
    "nat": _nat,
    "vxlan": _vxlan,
    "overlay": _overlay,
    "encrypted": _encrypted,
    "weave": _weave,
}
