"""The network of a placement: where clients reach it, and how an engine publishes its port."""

from __future__ import annotations

from labkit.errors import UNPACKAGED, PlacementError
from labkit.hosts.target import Network, Target
from labkit.placement import Placement, Workload

#: Networks that cannot be measured with any engine, and why.
NEVER = {
    "none": "a container without a network cannot be reached",
    "container": "it is the network of another container: measure that one",
}
#: What a network needs that no distribution packages.
EXTERNAL = {"weave": f"Weave Net's router, weaver, is not on the host; {UNPACKAGED}"}


def no_swarm(reason: str) -> dict[str, str]:
    """Return the networks that only Docker has, with the reason why another engine has none."""
    weave = "Weave Net is a plugin of the Docker Engine"
    return {"overlay": reason, "weave": weave}


def network_of(target: Target, placement: Placement) -> Network:
    """Return the network of a placement; raise `PlacementError` if it is not set up."""
    network = target.networks.get(placement.network)
    if network is None:
        raise PlacementError(
            f"network {placement.network!r} is not set up",
            where=f"host {target.host.name}",
            remedy=f'with lab.networks(["{placement.network}"]): ...; for the bridge of a real '
            "machine name bridge_port and bridge_address in rig.toml",
        )
    return network


def published(target: Target, workload: Workload) -> list[str]:
    """Return the options that publish a workload's port, if it has one, on the host."""
    port = f"{target.address}:{workload.port}:{workload.port}"
    protocols = workload.protocols if workload.port else ()
    return [text for protocol in protocols for text in ("--publish", f"{port}/{protocol}")]


def reached_at(target: Target, placement: Placement) -> str:
    """Return the address at which a client reaches a placement."""
    if placement.network in ("host", "nat"):
        return target.address
    return network_of(target, placement).address(target.place)
