"""The layer-2 bridge of containers on a machine of an inventory, and what a rig made there."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from labkit.errors import LabkitError, RigError
from labkit.hosts import Host
from labkit.hosts.site import Network
from labkit.rig import engine

#: Label of what a rig makes on an engine, beside the trials' own.
LABEL = "labkit=rig"


def remove_networks(host: Host, socket: str) -> list[str]:
    """Remove the networks that a rig made; the port of a bridge that goes is free again."""
    env = {"DOCKER_HOST": socket}
    listing = ("docker", "network", "ls", "--quiet", "--filter", f"label={LABEL}")
    found = host.run(*listing, env=env).stdout.split()
    for network in found:
        host.run("docker", "network", "rm", network, env=env)
    return [f"network {network}" for network in found]


def make_bridge(host: Host, socket: str, bridge: Network) -> bool:
    """See that the layer-2 network stands and the port is on it; tell whether it was made here.

    A network of that name that stands is used as it is, if it is what the file says; otherwise it
    is made, with a label by which it is removed again.
    """
    links = {one["ifname"]: one for one in json.loads(host.run("ip", "-j", "addr", "show").stdout)}
    port = links.get(bridge.port)
    if port is None:
        raise _bridge_error(host, f"there is no interface {bridge.port}", "correct bridge_port")
    if any(one.get("scope") == "global" for one in port.get("addr_info", [])):
        why = f"{bridge.port} has an address: on a bridge it would lose its connections"
        raise _bridge_error(host, why, "name a second lab interface, without an address")
    if "UP" not in port.get("flags", []):
        raise _bridge_error(
            host, f"{bridge.port} is down", f"on that host: ip link set {bridge.port} up"
        )
    env = {"DOCKER_HOST": socket}
    found = host.run("docker", "network", "inspect", bridge.engine, env=env, check=False)
    if found.status == 0:
        problem = _other_network(json.loads(found.stdout)[0], bridge)
        if not problem and port.get("master") != bridge.bridge:
            problem = f"{bridge.port} is not enslaved to {bridge.bridge}"
        if problem:
            remedy = (
                f"on that host: ip link set {bridge.port} master {bridge.bridge}; or remove the "
            )
            raise _bridge_error(host, problem, remedy + "network, and labkit makes it")
        return False
    if port.get("master"):
        raise _bridge_error(
            host, f"{bridge.port} is enslaved to {port['master']}", "free it, or name that bridge"
        )
    options = ("--label", LABEL, "--subnet", bridge.subnet)
    engine.create_network(host, socket, bridge.engine, bridge.bridge, *options)
    try:
        host.run("ip", "link", "set", bridge.port, "master", bridge.bridge)
    except LabkitError:
        remove_networks(host, socket)
        raise
    return True


def _other_network(found: Mapping[str, Any], bridge: Network) -> str:
    """Return in what a network that stands is not the one that the file speaks of."""
    subnets = [str(one.get("Subnet")) for one in found.get("IPAM", {}).get("Config") or []]
    name = (found.get("Options") or {}).get("com.docker.network.bridge.name")
    if found.get("Driver") != "bridge" or name != bridge.bridge:
        return f"the network {bridge.engine} is not on the bridge {bridge.bridge} but on {name}"
    address = ipaddress.ip_address(bridge.first)
    if not any(address in ipaddress.ip_network(one) for one in subnets):
        return f"{bridge.first} is not in the subnet of {bridge.engine}, {', '.join(subnets)}"
    return ""


def _bridge_error(host: Host, why: str, remedy: str) -> RigError:
    return RigError(
        "the layer-2 bridge of the containers cannot be had",
        where=f"{host!r}, keys bridge...",
        why=why,
        remedy=remedy,
    )
