"""What a placement's network asks of a site, and what the manipulation check must then find."""

from __future__ import annotations

from typing import Any

from labkit.errors import PlacementError
from labkit.hosts.site import Network, Site
from labkit.placement import Placement, Workload

#: Why nothing can be measured over these, whatever the engine.
NEVER = {
    "none": "a container without a network cannot be reached",
    "container": "it is the network of another container: measure that one",
}


def no_swarm(reason: str) -> dict[str, str]:
    """Return what Docker alone has as impossible: Swarm's networks for a reason, and Weave Net."""
    weave = "Weave Net is laid by its plugin of the Docker Engine"
    return {"overlay": reason, "encrypted": reason, "weave": weave}


def network_of(site: Site, placement: Placement) -> Network:
    """Return the network of a placement; raise `PlacementError` where it does not stand."""
    found = site.networks.get(placement.network)
    if found is None:
        raise PlacementError(
            f"the network {placement.network!r} does not stand",
            where=f"host {site.host.name}",
            remedy=f'with lab.networks(["{placement.network}"]): ...; for the bridge of a real '
            "machine name bridge_port and bridge_address in rig.toml",
        )
    return found


def published(site: Site, workload: Workload) -> list[str]:
    """Return the options that publish a workload's port on its host; none for one without."""
    port = f"{site.address}:{workload.port}:{workload.port}"
    ways = workload.protocols if workload.port else ()
    return [text for one in ways for text in ("--publish", f"{port}/{one}")]


def reached_at(site: Site, placement: Placement) -> str:
    """Return the address at which a client reaches a placement."""
    if placement.network in ("host", "nat"):
        return site.address
    return network_of(site, placement).address(site.place)


def expected(site: Site, placement: Placement, workload: Workload) -> dict[str, Any]:
    """Return what of an `Expectation` follows from the network."""
    kind = placement.network
    found: dict[str, Any] = {"host_network": kind == "host", "service": workload.port}
    if kind in ("host", "nat"):
        found["published"] = site.address if kind == "nat" and workload.port else ""
        found["protocols"] = workload.protocols
        return found
    network = network_of(site, placement)
    ways = {way for one in site.networks.values() for way in (one.port, one.parent) if way}
    return found | {
        "bridge": network.bridge,
        "port": network.port,
        "others": tuple(sorted(ways - {network.port})),
        "parent": network.parent,
        "remotes": network.remotes,
        "hidden": bool(network.sandboxes),
        "address": network.address(site.place),
    }
