"""Verification: the facts that a placement's label implies, and two observations of it.

What the agent observes of a placement is compared with the facts here when it starts, and with the
first observation at the end of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from labkit.errors import ManipulationError
from labkit.hosts.target import Network, weight
from labkit.placement import Limits, format_cpus, parse_cpus

if TYPE_CHECKING:
    from labkit.runtimes.base import Instance

#: The words for each fact that is expected; one of several for a tuple.
Facts = Mapping[str, str | tuple[str, ...]]
#: Facts that count what a window may add.
COUNTED = "flows "
#: Differences that a message lists.
LISTED = 4
#: Sizes of pages, to which the kernel rounds a memory limit down.
PAGES = (4096, 16384, 65536)


def of_process(instance: Instance, network: Network | None) -> Facts:
    """Return the facts of a process and its network, made by the rig unless that is None."""
    target, workload, placement = instance.target, instance.workload, instance.placement
    fifo, kind = placement.limits.fifo, placement.network
    facts: dict[str, str | tuple[str, ...]] = {
        "state": "running",
        "allowed CPUs": format_cpus(parse_cpus(instance.cpus)),
        "scheduling class": f"fifo {fifo}" if fifo else "other 0",
        "CPU quota": "none",
        "network": "the host's" if kind == "host" else "its own",
    }
    if workload.port:
        facts[f"listens on {workload.port}/{workload.protocol}"] = "yes"
        ways = {f"NAT from {target.address} {one}": "to it" for one in workload.protocols}
        facts |= ways if kind == "nat" else {f"NAT of port {workload.port}": "none"}
    if network is None:
        return facts
    facts[f"address {network.address(target.place)}"] = "yes"
    if network.parent:
        facts[f"macvlan of {network.parent}"] = "bridge"
    elif network.bridge:
        # By another port, packets could take another way than the one that the label names.
        ports = {port for one in target.networks.values() for port in (one.port, one.parent)}
        for port in sorted(ports | {network.port}):
            words = "yes" if port == network.port else "none"
            facts |= {f"{port} on {network.bridge}": words} if port else {}
        facts[f"bridge {network.bridge}"] = "yes"
    if network.router:
        facts |= {f"router to {end}": ("fastdp", "sleeve") for end in network.remotes}
    elif network.remotes or network.sandboxes:
        facts |= {"tunnel": "yes", **{f"tunnel to {end}": "yes" for end in network.remotes}}
    return facts


def of_container(instance: Instance, network: Network | None, group: str, holder: str) -> Facts:
    """Return the facts of a container; `holder` is the program that its engine holds it by."""
    return {
        **of_process(instance, network),
        **of_limits(instance.placement.limits),
        "mounts": "its own",
        "seccomp filter": "yes",
        "engine rules": "yes",
        "control group": group,
        f"held by {holder}": "yes",
    }


def of_limits(limits: Limits) -> Facts:
    """Return the facts of a control group with limits, for either version."""
    memory, shares = limits.memory or 0, limits.shares
    weights: tuple[str, ...] = ("1024 shares", "100 weight", "none")
    if shares:
        weights = tuple(f"{weight(shares, linear=old)} weight" for old in (True, False))
        weights = (f"{shares} shares", *weights)
    return {
        "CPU quota": f"{limits.quota_us}/{limits.period_us} us" if limits.quota_us else "none",
        "CPU weight": weights,
        "memory limit": tuple(str(memory - memory % page) for page in PAGES) if memory else "none",
        **({"cpuset": format_cpus(parse_cpus(limits.cpuset))} if limits.cpuset else {}),
    }


def differences(expected: Facts, observed: Mapping[str, str]) -> list[str]:
    """Return every fact that is not as expected, in words; a fact that is not there is "none"."""
    found = []
    for name, wanted in expected.items():
        words = (wanted,) if isinstance(wanted, str) else wanted
        actual = observed.get(name, "none")
        if actual not in words:
            found.append(f"{name}: {actual}, not {' or '.join(words)}")
    return found


def check_unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `ManipulationError` if a placement, by its name, is not as it was observed before."""
    lasting = {key: text for key, text in before.items() if not key.startswith(COUNTED)}
    raise_different(f"{name} did not stay as it was in the window", differences(lasting, after))


def check_translated(
    before: Mapping[str, str], after: Mapping[str, str], protocols: Iterable[str]
) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The engine's proxy answers on the port too, and nothing translates its traffic. There must be a
    flow of each transport; "" is any.
    """
    found = []
    for protocol in protocols:
        first, last = (
            sum(int(x) for name, x in one.items() if name.startswith(COUNTED + protocol))
            for one in (before, after)
        )
        if last <= first:
            found.append(f"{protocol or 'any'} flows: {last}, as before the window")
    raise_different("the load did not pass the address translation", found)


def raise_different(
    problem: str, found: list[str], *, where: str = "", why: str = "", **details: Any
) -> None:
    """Raise `ManipulationError` with what was found, if anything; `details` are its evidence."""
    if found:
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise ManipulationError(
            f"{problem}: {'; '.join(found[:LISTED])}{more}",
            where=where,
            why=why,
            remedy="the trial is discarded; leave the rig alone while it measures",
            evidence={"problems": found, **details},
        )
