"""Networks between containers that exist while a study needs them, besides the layer-2 bridge.

Each is made on every host with an engine. Docker's are found again by their label, the others by
the names of their devices, so that `remove` needs no record of how far a killed campaign came.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError, suggestion
from labkit.hosts import Host, script
from labkit.hosts.target import Network, Target

if TYPE_CHECKING:
    from labkit.rig.base import Rig

#: Label of the networks on an engine.
LABEL = "labkit=network"
#: Offset of the peer's addresses, so that the two hosts never assign the same one.
APART = 96
#: Where a router of Weave Net answers questions, on its own host only.
ROUTER_STATUS = "127.0.0.1:6784"
#: What Weave Net has of a packet of 1500 bytes, by its own default.
WEAVE_MTU = "1376"
#: The Swarm's own networks.
_POOL = ("--default-addr-pool", "198.19.64.0/18", "--default-addr-pool-mask-length", "24")

#: Names on a host, by network; those of Weave Net are its own.
NAMES: dict[str, dict[str, Any]] = {
    "macvlan": {"engine": "labkit-macvlan"},
    "nat": {"bridge": "labnat0"},
    "overlay": {"engine": "labkit-overlay"},
    "weave": {"engine": "labkit-weave", "bridge": "weave", "port": "vethwe-bridge"},
}


def named(name: str, subnet: str, first: str) -> Network:
    """Return a network with labkit's names for it and a rig's addresses."""
    gateway = str(ipaddress.ip_network(subnet)[1]) if name == "nat" else ""
    return Network(name, subnet, first, gateway, **NAMES[name])


#: Networks of the virtual rig; macvlan shares the hosts' subnet.
VIRTUAL = {
    "macvlan": named("macvlan", "198.18.0.0/24", "198.18.0.32"),
    "nat": named("nat", "198.18.3.0/24", "198.18.3.10"),
    "overlay": named("overlay", "198.18.5.0/24", "198.18.5.10"),
    "weave": named("weave", "198.18.7.0/24", "198.18.7.10"),
}


@contextmanager
def created(rig: Rig, names: Sequence[str]) -> Iterator[None]:
    """Create networks on a rig, and add them to its targets, for a ``with`` block."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"unknown network {name!r}", remedy=suggestion(name, NAMES))
    able = [name for name in names if f"network:{name}" not in rig.missing]
    before = rig.targets
    try:
        for name in able:
            _CREATE[name](rig, rig.possible_networks[name])
        yield
    finally:
        rig.targets = before
        for role in _engines(rig):
            target = before[role]
            remove(target.host, str(target.engine), target.directory, role, able)


def _engines(rig: Rig) -> list[str]:
    return [role for role in ("sut", "peer") if role in rig.targets and rig.targets[role].engine]


def _add_to_target(rig: Rig, role: str, network: Network) -> None:
    """Add a network to a target; placements on a peer have other addresses on it."""
    if role == "peer":
        network = replace(network, first=network.address(APART))
    target = rig.targets[role]
    target = replace(target, networks={**target.networks, network.name: network})
    rig.targets = {**rig.targets, role: target}


def _docker(target: Target, *argv: str) -> str:
    result = target.host.run("docker", *argv, env={"DOCKER_HOST": str(target.engine)})
    return result.stdout.strip()


def _create(target: Target, network: Network, *options: str) -> None:
    """Create a network of an engine."""
    options = ("--label", LABEL, "--subnet", network.subnet, *options)
    _docker(target, "network", "create", *options, network.engine)


def _macvlan(rig: Rig, network: Network) -> None:
    for role in _engines(rig):
        parent = rig.interfaces[role][0]
        options = ("--driver", "macvlan", "--opt", f"parent={parent}")
        _create(rig.targets[role], network, *options)
        _add_to_target(rig, role, replace(network, parent=parent))


# A bridge with address translation for engines that publish no ports; each placement adds its own
# rules to these. Docker's policy is to forward nothing.
_NAT = """
ip link add "$1" type bridge
ip addr add "$2" dev "$1"
ip link set "$1" up
iptables -w -t nat -A POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
iptables -w -I FORWARD -i "$1" -j ACCEPT
iptables -w -I FORWARD -o "$1" -j ACCEPT
"""


def _nat(rig: Rig, network: Network) -> None:
    address = f"{network.gateway}/{network.prefix}"
    for role in _engines(rig):
        rig.targets[role].host.run(*script(_NAT, network.bridge, address, network.subnet))
        _add_to_target(rig, role, network)


#: The bridge for traffic that leaves a Swarm's containers. An engine makes it some time after it
#: has entered a Swarm, with rules that would change within a trial, and keeps it. Made before, with
#: the options that the engine gives it, it tells by its label that labkit entered the Swarm.
SWARM_BRIDGE = "docker_gwbridge"
_SWARM_BRIDGE_OPTIONS = (
    *("--opt", f"com.docker.network.bridge.name={SWARM_BRIDGE}"),
    *("--opt", "com.docker.network.bridge.enable_icc=false"),
    *("--opt", "com.docker.network.bridge.enable_ip_masquerade=true"),
)


def _enter_swarm(target: Target, *argv: str) -> None:
    _docker(target, "network", "create", "--label", LABEL, *_SWARM_BRIDGE_OPTIONS, SWARM_BRIDGE)
    _docker(target, "swarm", *argv)


def _overlay(rig: Rig, network: Network) -> None:
    """Docker's overlay, in the Swarm that the engine of the sut is in, or else in one made here."""
    sut, *others = [rig.targets[role] for role in _engines(rig)]
    if _docker(sut, "info", "--format", "{{.Swarm.LocalNodeState}}") != "active":
        _enter_swarm(sut, "init", "--advertise-addr", sut.address, *_POOL)
        token = _docker(sut, "swarm", "join-token", "--quiet", "worker")
        for other in others:
            options = ("--advertise-addr", other.address, "--token", token)
            _enter_swarm(other, "join", *options, f"{sut.address}:2377")
    _create(sut, network, "--driver", "overlay", "--attachable")
    for role in _engines(rig):
        # The server's end learns of others with their first container.
        ends = () if role == "sut" else (sut.address,)
        sandboxes = rig.targets[role].sandboxes
        _add_to_target(rig, role, replace(network, remotes=ends, sandboxes=sandboxes))


# Where the user's own routers are, these could not be, and would take theirs down with them.
_ROUTER_UP = """
folder=$1 plugin=$2
shift 2
! ip link show weave 2>/dev/null || { echo "a router of Weave Net is here already" >&2; exit 1; }
mkdir -p "$folder" "${plugin%/*}"
cd "$folder"
export CHECKPOINT_DISABLE=1
exec setsid -f sh -c 'echo $$ >pid; exec "$@" >log 2>&1 </dev/null' sh "$@"
"""
# Both ends must say so: containers that are made before would have no way to the other host.
_ROUTER_READY = """
import sys, time, urllib.request
folder, status, others = sys.argv[1:]
for _ in range(300):
    try:
        with urllib.request.urlopen(f"http://{status}/status/connections") as answer:
            if answer.read().count(b" established ") == int(others):
                sys.exit()
    except OSError:
        pass
    time.sleep(0.1)
sys.exit(open(f"{folder}/log").read()[-800:])
"""


def _weave(rig: Rig, network: Network) -> None:
    """A router of Weave Net on each host with an engine, connected, and a network of its plugin.

    An engine looks for plugins where those of the whole machine are, so that on hosts of one
    machine the driver is named after the host. Containers are on the bridge ``weave`` and leave it
    by ``vethwe-bridge`` to the router, which carries packets itself (sleeve) or has the kernel do
    it (fastdp, where that has Open vSwitch); verification reads which. It excludes a Swarm.
    """
    roles = _engines(rig)
    addresses = [rig.targets[role].address for role in roles]
    for number, role in enumerate(roles):
        target = rig.targets[role]
        folder, plugin = _router(target.directory, role)
        # Hosts of one machine would give themselves the same name.
        argv = ["weaver", f"--name=02:00:00:00:00:{number + 1:02x}", f"--nickname={role}"]
        argv += [f"--host={target.address}", "--port=6783", f"--http-addr={ROUTER_STATUS}"]
        argv += ["--no-dns", "--datapath=datapath", f"--mtu={WEAVE_MTU}"]
        argv += [f"--db-prefix={folder}/db"]
        argv += [f"--ipalloc-range={network.subnet}", f"--ipalloc-init=consensus={len(roles)}"]
        argv += [f"--docker-api={target.engine}", "--plugin", "--plugin-socket="]
        argv += [f"--plugin-mesh-socket={plugin}", *addresses[:number]]
        target.host.run(*script(_ROUTER_UP, folder, plugin, *argv))
    for role in roles:
        target = rig.targets[role]
        folder, plugin = _router(target.directory, role)
        values = (folder, ROUTER_STATUS, str(len(roles) - 1))
        target.host.run("python3", "-c", _ROUTER_READY, *values, timeout=90)
        driver = PurePosixPath(plugin).stem
        _create(target, network, "--internal", "--driver", driver, "--ipam-driver", driver)
        others = tuple(address for address in addresses if address != target.address)
        _add_to_target(rig, role, replace(network, remotes=others, router=ROUTER_STATUS))


def _router(directory: str, role: str) -> tuple[str, str]:
    """Return the directory of a host's router, and the socket of its plugin."""
    folder = f"{PurePosixPath(directory).parent}/weave-{role}"
    return folder, f"/run/docker/plugins/labkit-weave-{role}.sock"


_CREATE: dict[str, Callable[[Rig, Network], None]] = {
    "macvlan": _macvlan,
    "nat": _nat,
    "overlay": _overlay,
    "weave": _weave,
}

# Prints the name of each network that was there. A host is asked for its rules only where the
# network's device shows that there are some, since asking may load a table.
_REMOVE = r"""
set +e
label=$1 swarm=$2 nat=$3 folder=$4 plugin=$5
shift 5
# A manager of a Swarm takes the name as a prefix, and no pattern.
ours() { docker network ls --quiet --filter "label=$label" --filter "name=$1"; }
drop_rules() {
    for table in filter nat mangle; do
        iptables -w -t "$table" -S | grep -E -- "^-A .*($1)" | sed 's/^-A/-D/' |
            while read -r rule; do eval "iptables -w -t $table $rule"; done
    done
}
for name in "$@"; do
    [ -z "$(ours "labkit-$name")" ] || { docker network rm "labkit-$name" >&2; echo "$name"; }
    case $name in
    overlay)
        [ -z "$(ours "$swarm")" ] || {
            docker swarm leave --force >&2
            docker network rm "$swarm" >&2
            echo "$swarm"
        }
        ;;
    nat)
        ip link show "$nat" >/dev/null 2>&1 && {
            drop_rules "[io] $nat "
            ip link del "$nat"
            echo "$name"
        }
        ;;
    weave)
        [ -d "$folder" ] && {
            read -r pid <"$folder/pid"
            [ "$(cat "/proc/$pid/comm")" != weaver ] || {
                kill "$pid"
                timeout 5 tail --pid "$pid" -f /dev/null || kill -KILL "$pid"
            }
            for device in vethwe-bridge vethwe-datapath weave vxlan-6784 datapath; do
                ip link del "$device"
            done
            drop_rules 'WEAVE|Weave Net|-[io] weave '
            for table in filter nat mangle; do
                for chain in $(iptables -w -t "$table" -S | sed -n 's/^-N \(WEAVE.*\)/\1/p'); do
                    iptables -w -t "$table" -X "$chain"
                done
            done
            rm -rf "$folder" "$plugin"
        }
        ;;
    esac
done
true
"""


def remove(
    host: Host, socket: str, directory: str, role: str, names: Iterable[str] = NAMES
) -> list[str]:
    """Remove networks from a host with an engine, also those of a killed campaign.

    Returns what there was. The owner's own Swarm and networks stay.
    """
    values = (LABEL, SWARM_BRIDGE, NAMES["nat"]["bridge"], *_router(directory, role), *names)
    result = host.run(*script(_REMOVE, *values), env={"DOCKER_HOST": socket}, timeout=300)
    return [f"network {name}" for name in result.stdout.split()]
