"""What a placement's network needs of its host, and what verification must then find."""

from __future__ import annotations

from typing import Any

from labkit.errors import PlacementError
from labkit.hosts.target import Network, Target
from labkit.placement import Placement, Workload

#: Why nothing can be measured over these, whatever the engine.
NEVER = {
    "none": "a container without a network cannot be reached",
    "container": "it is the network of another container: measure that one",
}
#: What a network needs that labkit neither has nor makes.
EXTERNAL = {
    "weave": "Weave Net is packaged nowhere any more: launch it on both hosts with an engine",
}


def no_swarm(reason: str) -> dict[str, str]:
    """Return the networks that only Docker has as impossible, those of Swarm for a reason."""
    weave = "Weave Net is laid by its plugin of the Docker Engine"
    return {"overlay": reason, "encrypted": reason, "weave": weave}


def network_of(target: Target, placement: Placement) -> Network:
    """Return the network of a placement; raise `PlacementError` where it is not set up."""
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
    """Return the options that publish a workload's port on its host; none for one without."""
    port = f"{target.address}:{workload.port}:{workload.port}"
    ways = workload.protocols if workload.port else ()
    return [text for one in ways for text in ("--publish", f"{port}/{one}")]


def reached_at(target: Target, placement: Placement) -> str:
    """Return the address at which a client reaches a placement."""
    if placement.network in ("host", "nat"):
        return target.address
    return network_of(target, placement).address(target.place)


def expected(target: Target, placement: Placement, workload: Workload) -> dict[str, Any]:
    """Return what of an `Expectation` follows from the network."""
    kind = placement.network
    facts: dict[str, Any] = {"host_network": kind == "host", "service": workload.port}
    if kind in ("host", "nat"):
        facts["published"] = target.address if kind == "nat" and workload.port else ""
        facts["protocols"] = workload.protocols
        return facts
    network = network_of(target, placement)
    ways = {way for one in target.networks.values() for way in (one.port, one.parent) if way}
    return facts | {
        "bridge": network.bridge,
        "port": network.port,
        "others": tuple(sorted(ways - {network.port})),
        "parent": network.parent,
        "remotes": network.remotes,
        "hidden": bool(network.sandboxes),
        "address": network.address(target.place),
    }
