"""Facts that must be observed of a placement, by what its label says; engines put them together."""

from __future__ import annotations

from labkit.hosts.target import Network
from labkit.placement import Limits, format_cpus, parse_cpus, weight
from labkit.runtimes.base import Instance
from labkit.runtimes.verify import Facts

#: Sizes of pages, to which the kernel rounds a memory limit down.
PAGES = (4096, 16384, 65536)


def of_process(instance: Instance) -> Facts:
    """Return the facts of a placed process, whatever engine it has."""
    workload, fifo = instance.workload, instance.placement.limits.fifo
    facts = {
        "state": "running",
        "allowed CPUs": format_cpus(parse_cpus(instance.cpus)),
        "scheduling class": f"fifo {fifo}" if fifo else "other 0",
        "CPU quota": "none",
    }
    if workload.port:
        facts[f"listens on {workload.port}/{workload.protocol}"] = "yes"
    return facts


def of_container(instance: Instance, group: str, holder: str) -> Facts:
    """Return the facts of a container; `holder` is the program that its engine holds it by."""
    return {
        **of_process(instance),
        **of_limits(instance.placement.limits),
        "mounts": "its own",
        "seccomp filter": "yes",
        "engine rules": "yes",
        "control group": group,
        f"held by {holder}": "yes",
    }


def of_limits(limits: Limits) -> Facts:
    """Return the facts of a control group with limits, for either version."""
    quota = f"{limits.quota_us}/{limits.period_us} us" if limits.quota_us else "none"
    memory = limits.memory or 0
    weights = {weight(limits.shares, linear=old) for old in (True, False)} if limits.shares else ()
    facts: dict[str, str | tuple[str, ...]] = {
        "CPU quota": quota,
        "CPU weight": ("1024 shares", "100 weight", "none"),
        "memory limit": tuple(str(memory - memory % page) for page in PAGES) if memory else "none",
        "limit of read requests": str(limits.reads_per_s or "none"),
    }
    if limits.shares:
        facts["CPU weight"] = (f"{limits.shares} shares", *(f"{one} weight" for one in weights))
    if limits.cpuset:
        facts["cpuset"] = format_cpus(parse_cpus(limits.cpuset))
    return facts


def of_network(instance: Instance, network: Network | None) -> Facts:
    """Return the facts of a placement's network; `network` is what the rig has made for it."""
    target, workload, kind = instance.target, instance.workload, instance.placement.network
    facts = {"network": "the host's" if kind == "host" else "its own"}
    if kind == "nat" and workload.port:
        for protocol in workload.protocols:
            facts[f"NAT from {target.address} {protocol}"] = "to it"
    elif workload.port:
        facts[f"NAT of port {workload.port}"] = "none"
    if network is None:
        return facts
    facts[f"address {network.address(target.place)}"] = "yes"
    return {**facts, **of_bridge(instance, network), **of_tunnel(network)}


def of_bridge(instance: Instance, network: Network) -> Facts:
    """Return the facts of the host's bridge, or of the interface that a macvlan is on."""
    if network.parent:
        return {f"macvlan of {network.parent}": "bridge"}
    if not network.bridge:
        return {}
    # By another port, packets could take another way than the one that the label names.
    networks = instance.target.networks.values()
    ports = {port for one in networks for port in (one.port, one.parent)} - {""}
    facts = {f"{port} on {network.bridge}": "none" for port in sorted(ports)}
    if network.port:
        facts[f"{network.port} on {network.bridge}"] = "yes"
    return {**facts, f"bridge {network.bridge}": "yes"}


def of_tunnel(network: Network) -> Facts:
    """Return the facts of a network between hosts: where its tunnel or its router leads."""
    if network.router:
        return {f"router to {end}": ("fastdp", "sleeve") for end in network.remotes}
    if not (network.remotes or network.sandboxes):
        return {}
    return {"tunnel": "yes", **{f"tunnel to {end}": "yes" for end in network.remotes}}
