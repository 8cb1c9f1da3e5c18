"""Networks between containers, made at the opening of a rig on every host with an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import PurePosixPath
from typing import Any

from labkit.errors import RigError
from labkit.hosts import script
from labkit.hosts.target import Network, Target
from labkit.placement import RELEASES
from labkit.runtimes.jobs import withdraw

#: Label of the networks on an engine and of the routers of Weave Net, and the bridge with a port.
LABEL, ROUTER, BRIDGE = "labkit=network", "labkit-weave", "labbr0"
#: Offset of the peer's addresses, so that the two hosts never assign the same one.
APART = 96
#: Where a router of Weave Net answers questions, on its own host only, and Docker finds plugins.
ROUTER_STATUS, PLUGINS = "127.0.0.1:6784", "/run/docker/plugins"
#: An option of Docker's own kind of network.
_OPTION = "--opt=com.docker.network.bridge."
#: Tables with rules of networks.
_TABLES = ("filter", "nat", "mangle")

#: Names on a host of the networks that studies ask for; those of Weave Net are its own.
NAMES: dict[str, dict[str, Any]] = {
    "macvlan": {"engine": "labkit-macvlan"},
    "nat": {"bridge": "labnat0"},
    "overlay": {"engine": "labkit-overlay"},
    "weave": {"engine": "labkit-weave", "bridge": "weave", "port": "vethwe-bridge"},
}
# A bridge with address translation for engines that publish no ports; each placement adds its own
# rules to these. Docker's policy is to forward nothing.
_NAT = """
ip link add "$1" up type bridge && ip addr add "$2" dev "$1"
iptables -w -t nat -A POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
iptables -w -I FORWARD -i "$1" -j ACCEPT && iptables -w -I FORWARD -o "$1" -j ACCEPT
"""
#: The bridge for traffic that leaves a Swarm's containers. An engine makes it some time after it
#: entered, with rules that would change within a trial. Made before, with the same options, it
#: tells by its label that labkit entered the Swarm.
SWARM_BRIDGE = "docker_gwbridge"


def named(name: str, first: IPv4Interface, port: str = "lab1") -> Network:
    """Return a network with labkit's names for it, by its first address with the prefix length."""
    gateway = str(first.network[1]) if name in ("bridge", "nat") else ""
    names = NAMES.get(name, {"engine": "labkit-layer2", "bridge": BRIDGE, "port": port})
    return Network(name, str(first.network), str(first.ip), gateway, **names)


#: First addresses of the virtual rig's networks, in 198.18; macvlan shares the hosts' subnet.
FIRST = {"bridge": "1.10", "macvlan": "0.32", "nat": "3.10", "overlay": "5.10", "weave": "7.10"}
VIRTUAL = {name: named(name, IPv4Interface(f"198.18.{at}/24")) for name, at in FIRST.items()}


def create(targets: Mapping[str, Target], networks: Sequence[Network]) -> dict[str, Target]:
    """Create networks on the hosts with an engine, and return the targets that have them."""
    made, every = dict(targets), {role: one for role, one in targets.items() if one.engine}
    for network in networks:
        name, without = network.name, ["peer"] if network.name == "bridge" else RELEASES
        engines = {role: target for role, target in every.items() if role not in without}
        if name == "overlay":
            _overlay([*engines.values()], network)
        elif name == "weave":
            _weave(engines, network)
        for role, target in engines.items():
            near, own = target.interfaces[0], dict[str, Any]()
            others = tuple(one.address for one in engines.values() if one is not target)
            if name == "bridge":
                options = (f"name={network.bridge}", "enable_ip_masquerade=false")
                gateway = f"--gateway={of_host(network, role).gateway}"
                _create(target, network, *(_OPTION + one for one in options), gateway)
                target.host.run("ip", "link", "set", network.port, "master", network.bridge, "up")
            elif name == "macvlan":
                _create(target, network, "--driver", "macvlan", "--opt", f"parent={near}")
                own = {"parent": near}
            elif name == "nat":
                gateway = f"{network.gateway}/{network.prefix}"
                target.host.run(*script(_NAT, network.bridge, gateway, network.subnet))
            elif name == "overlay":
                # The server's end learns of others with their first container.
                own = {"remotes": () if role == "sut" else others}
            else:
                own = {"remotes": others, "router": ROUTER_STATUS}
            added = {name: replace(of_host(network, role), **own)}
            made[role] = replace(made[role], networks={**made[role].networks, **added})
    return made


def of_host(network: Network, role: str) -> Network:
    """Return a network with the addresses that it has on a host."""
    if network.name != "bridge":
        return replace(network, first=network.address(APART if role == "peer" else 0))
    place = 30 * ["sut", *RELEASES].index(role)
    gateway = str(IPv4Address(network.gateway) + place)
    return replace(network, first=network.address(place), gateway=gateway)


def _create(target: Target, network: Network, *options: str) -> None:
    options = ("--label", LABEL, "--subnet", network.subnet, *options)
    target.run("docker", "network", "create", *options, network.engine)


def _overlay(engines: Sequence[Target], network: Network) -> None:
    """Docker's overlay, in a Swarm of the engines."""
    sut, options = engines[0], ("enable_icc=false", "enable_ip_masquerade=true")
    create = ("docker", "network", "create", "--label", LABEL, *(_OPTION + one for one in options))
    for target in engines:
        target.run(*create, f"{_OPTION}name={SWARM_BRIDGE}", SWARM_BRIDGE)
        address = ("--advertise-addr", target.address)
        if target is sut:
            pool = ("--default-addr-pool=198.19.64.0/18", "--default-addr-pool-mask-length=24")
            sut.run("docker", "swarm", "init", *address, *pool)
        else:
            token = sut.run("docker", "swarm", "join-token", "--quiet", "worker").stdout.strip()
            target.run("docker", "swarm", "join", *address, "--token", token, f"{sut.address}:2377")
    _create(sut, network, "--driver", "overlay", "--attachable")


def _weave(engines: Mapping[str, Target], network: Network) -> None:
    """A router of Weave Net on each host with an engine, connected, and a network of its plugin."""
    addresses = [target.address for target in engines.values()]
    for number, (role, target) in enumerate(engines.items()):
        host, (folder, plugin) = target.host, _weave_paths(target)
        if host.run("ip", "link", "show", "weave", check=False).status == 0:
            # Taking labkit's down would take the owner's down with it.
            raise RigError("a router of Weave Net is here already", where=f"host {host.name}")
        # Hosts of one machine would give themselves the same name; 1376 is Weave's own MTU.
        argv = ["env", "CHECKPOINT_DISABLE=1", "weaver", f"--name=02:00:00:00:00:{number + 1:02x}"]
        argv += [f"--nickname={role}", f"--host={target.address}", "--port=6783", "--mtu=1376"]
        argv += [f"--http-addr={ROUTER_STATUS}", "--no-dns", "--datapath=datapath"]
        argv += [f"--db-prefix={folder}/db", f"--ipalloc-range={network.subnet}"]
        argv += [f"--ipalloc-init=consensus={len(engines)}", f"--docker-api={target.engine}"]
        argv += ["--plugin", "--plugin-socket=", f"--plugin-mesh-socket={plugin}"]
        host.run("mkdir", "-p", PLUGINS)
        host.call("start", folder=folder, argv=[*argv, *addresses[:number]], label=ROUTER)
    for target in engines.values():
        # Both ends must say so: containers that are made before would have no way to the other.
        others = len(engines) - 1
        target.host.call("await_router", router=ROUTER_STATUS, others=others, seconds=30)
        driver = PurePosixPath(_weave_paths(target)[1]).stem
        _create(target, network, "--internal", "--driver", driver, "--ipam-driver", driver)


def _weave_paths(target: Target) -> tuple[str, str]:
    """Return a router's folder and plugin; hosts of one machine share the folder of plugins."""
    folder, name = PurePosixPath(target.directory).parent, f"weave-{target.host.name}"
    return f"{folder}/{name}", f"{PLUGINS}/labkit-{name}.sock"


def remove_containers(target: Target) -> list[str]:
    """Remove labkit's containers of an engine, and return their identifiers."""
    listing = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit")
    containers = target.run(*listing).stdout.split()
    if containers:
        target.run("docker", "rm", "--force", "--volumes", *containers)
    return containers


def remove(target: Target) -> list[str]:
    """Remove labkit's networks from a host, Docker's by label, others by the names of devices."""
    host, nat = target.host, NAMES["nat"]["bridge"]
    listing = ("docker", "network", "ls", "--filter", f"label={LABEL}", "--format", "{{.Name}}")
    removed = target.run(*listing).stdout.split()
    if SWARM_BRIDGE in removed:
        target.run("docker", "swarm", "leave", "--force")
    for name in removed:
        # A Swarm's network may be gone with it.
        target.run("docker", "network", "rm", name, check=name == SWARM_BRIDGE)
    # A host is asked for rules only where a device shows that there are some, since asking may
    # load a table.
    if host.run("ip", "link", "show", nat, check=False).status == 0:
        withdraw(host, f"[io] {nat} ", _TABLES)
        host.run("ip", "link", "del", nat)
        removed.append("nat")
    folder, plugin = _weave_paths(target)
    if host.run("test", "-d", folder, check=False).status == 0:
        host.call("stop", prefix=ROUTER, grace=5.0)
        for device in ("vethwe-bridge", "vethwe-datapath", "weave", "vxlan-6784", "datapath"):
            host.run("ip", "link", "del", device, check=False)
        withdraw(host, "WEAVE|Weave Net|-[io] weave ", _TABLES)
        host.run("rm", "-rf", "--", folder, plugin)
    return [f"network {name.removeprefix('labkit-')}" for name in removed]
