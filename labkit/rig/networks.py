"""Networks between containers, made at the opening of a rig on every host with an engine.

Docker's are found again by their label, the others by the names of their devices, so that `remove`
needs no record of how far a killed campaign came.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from labkit.errors import RigError
from labkit.hosts import Host, script, start_job, stop_labelled
from labkit.hosts.target import Network, Target

#: Label of the networks on an engine, and of the routers of Weave Net.
LABEL, ROUTER = "labkit=network", "labkit-weave"
#: Offset of the peer's addresses, so that the two hosts never assign the same one.
APART = 96
#: The address at which a router of Weave Net answers questions, on its own host only.
ROUTER_STATUS = "127.0.0.1:6784"
#: Where Docker looks for plugins.
PLUGINS = "/run/docker/plugins"
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


def create(targets: Mapping[str, Target], networks: Sequence[Network]) -> dict[str, Target]:
    """Create networks on every host with an engine, and return the targets that have them."""
    made = dict(targets)
    for network in networks:
        engines = {role: target for role, target in made.items() if target.engine}
        if network.name == "macvlan":
            for target in engines.values():
                parent = f"parent={target.interfaces[0]}"
                _create(target, network, "--driver", "macvlan", "--opt", parent)
        elif network.name == "nat":
            arguments = (network.bridge, f"{network.gateway}/{network.prefix}", network.subnet)
            for target in engines.values():
                target.host.run(*script(_NAT, *arguments))
        elif network.name == "overlay":
            _overlay([*engines.values()], network)
        else:
            _weave(engines, network)
        for role, target in engines.items():
            others = tuple(one.address for one in engines.values() if one is not target)
            own: dict[str, dict[str, Any]] = {
                "macvlan": {"parent": target.interfaces[0]},
                # The server's end learns of others with their first container.
                "overlay": {
                    "remotes": () if role == "sut" else others,
                    "sandboxes": target.sandboxes,
                },
                "weave": {"remotes": others, "router": ROUTER_STATUS},
            }
            # Placements on a peer have other addresses.
            first = network.address(APART) if role == "peer" else network.first
            added = {network.name: replace(network, first=first, **own.get(network.name, {}))}
            made[role] = replace(target, networks={**target.networks, **added})
    return made


def _docker(target: Target, *argv: str) -> str:
    env = {"DOCKER_HOST": str(target.engine)}
    return target.host.run("docker", *argv, env=env).stdout.strip()


def _create(target: Target, network: Network, *options: str) -> None:
    options = ("--label", LABEL, "--subnet", network.subnet, *options)
    _docker(target, "network", "create", *options, network.engine)


# A bridge with address translation for engines that publish no ports; each placement adds its own
# rules to these. Docker's policy is to forward nothing.
_NAT = """
ip link add "$1" up type bridge && ip addr add "$2" dev "$1"
iptables -w -t nat -A POSTROUTING -s "$3" ! -o "$1" -j MASQUERADE
iptables -w -I FORWARD -i "$1" -j ACCEPT && iptables -w -I FORWARD -o "$1" -j ACCEPT
"""


#: The bridge for traffic that leaves a Swarm's containers. An engine makes it some time after it
#: has entered a Swarm, with rules that would change within a trial, and keeps it. Made before, with
#: the options that the engine gives it, it tells by its label that labkit entered the Swarm.
SWARM_BRIDGE = "docker_gwbridge"


def _enter_swarm(target: Target, *argv: str) -> None:
    settings = {"name": SWARM_BRIDGE, "enable_icc": "false", "enable_ip_masquerade": "true"}
    options = [f"--opt=com.docker.network.bridge.{key}={of}" for key, of in settings.items()]
    _docker(target, "network", "create", "--label", LABEL, *options, SWARM_BRIDGE)
    _docker(target, "swarm", *argv)


def _overlay(engines: Sequence[Target], network: Network) -> None:
    """Docker's overlay, in the Swarm that the engine of the sut is in, or else in one made here."""
    sut, *others = engines
    if _docker(sut, "info", "--format", "{{.Swarm.LocalNodeState}}") != "active":
        _enter_swarm(sut, "init", "--advertise-addr", sut.address, *_POOL)
        token = _docker(sut, "swarm", "join-token", "--quiet", "worker")
        for other in others:
            options = ("--advertise-addr", other.address, "--token", token)
            _enter_swarm(other, "join", *options, f"{sut.address}:2377")
    _create(sut, network, "--driver", "overlay", "--attachable")


def _weave(engines: Mapping[str, Target], network: Network) -> None:
    """A router of Weave Net on each host with an engine, connected, and a network of its plugin.

    An engine looks for plugins where those of the whole machine are, so that on hosts of one
    machine the driver is named after the host. Containers are on the bridge ``weave`` and leave it
    by ``vethwe-bridge`` to the router, which carries packets itself (sleeve) or has the kernel do
    it (fastdp, where that has Open vSwitch); verification reads which. It excludes a Swarm.
    """
    addresses = [target.address for target in engines.values()]
    for number, (role, target) in enumerate(engines.items()):
        if target.host.run("ip", "link", "show", "weave", check=False).status == 0:
            # Taking labkit's down would take the owner's down with it.
            where = f"host {target.host.name}"
            raise RigError("a router of Weave Net is here already", where=where)
        folder = _router_folder(target)
        # Hosts of one machine would give themselves the same name; 1376 is Weave's own default MTU.
        argv = ["env", "CHECKPOINT_DISABLE=1", "weaver", f"--name=02:00:00:00:00:{number + 1:02x}"]
        argv += [f"--nickname={role}", f"--host={target.address}", "--port=6783", "--mtu=1376"]
        argv += [f"--http-addr={ROUTER_STATUS}", "--no-dns", "--datapath=datapath"]
        argv += [f"--db-prefix={folder}/db", f"--ipalloc-range={network.subnet}"]
        argv += [f"--ipalloc-init=consensus={len(engines)}", f"--docker-api={target.engine}"]
        argv += ["--plugin", "--plugin-socket=", f"--plugin-mesh-socket={_plugin(role)}"]
        target.host.run("mkdir", "-p", PLUGINS)
        start_job(target.host, [*argv, *addresses[:number]], directory=folder, label=ROUTER)
    for role, target in engines.items():
        # Both ends must say so: containers that are made before would have no way to the other.
        others = len(engines) - 1
        target.host.call("await_router", router=ROUTER_STATUS, others=others, seconds=30)
        driver = PurePosixPath(_plugin(role)).stem
        _create(target, network, "--internal", "--driver", driver, "--ipam-driver", driver)


def _router_folder(target: Target) -> str:
    return f"{PurePosixPath(target.directory).parent}/weave-{target.host.name}"


def _plugin(role: str) -> str:
    return f"{PLUGINS}/labkit-weave-{role}.sock"


def remove(target: Target) -> list[str]:
    """Remove networks from a host with an engine, also those of a killed campaign.

    Returns lines on what there was. The owner's own Swarm and networks stay.
    """
    host, nat, env = target.host, NAMES["nat"]["bridge"], {"DOCKER_HOST": str(target.engine)}
    listing = ("network", "ls", "--filter", f"label={LABEL}", "--format", "{{.Name}}")
    removed = _docker(target, *listing).split()
    if SWARM_BRIDGE in removed:
        _docker(target, "swarm", "leave", "--force")
    for name in removed:
        # A Swarm's network may be gone with it.
        host.run("docker", "network", "rm", name, env=env, check=name == SWARM_BRIDGE)
    # A host is asked for rules only where a device shows that there are some, since asking may
    # load a table.
    if host.run("ip", "link", "show", nat, check=False).status == 0:
        _drop_rules(host, f"[io] {nat} ")
        host.run("ip", "link", "del", nat)
        removed.append("nat")
    if host.run("test", "-d", _router_folder(target), check=False).status == 0:
        stop_labelled(host, ROUTER, grace=5.0)
        for device in ("vethwe-bridge", "vethwe-datapath", "weave", "vxlan-6784", "datapath"):
            host.run("ip", "link", "del", device, check=False)
        _drop_rules(host, "WEAVE|Weave Net|-[io] weave ", chains="WEAVE")
        host.run("rm", "-rf", "--", _router_folder(target), _plugin(host.name))
    return [f"network {name.removeprefix('labkit-')}" for name in removed]


def _drop_rules(host: Host, pattern: str, chains: str = "") -> None:
    """Delete the firewall rules that match a pattern, and chains whose name begins so."""
    for table in ("filter", "nat", "mangle"):
        iptables = ("iptables", "-w", "-t", table)
        lines = host.run(*iptables, "-S").stdout.splitlines()
        for line in lines:
            if line.startswith("-A ") and re.search(pattern, line):
                host.run(*iptables, "-D", *shlex.split(line)[1:])
        for line in lines if chains else ():
            if line.startswith(f"-N {chains}"):
                host.run(*iptables, "-X", line.split()[1])
