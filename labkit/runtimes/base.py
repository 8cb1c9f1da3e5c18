"""Engines, and the life cycle of a placement: started, ready, verified, stopped."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from labkit.errors import HostUnreachable, ManipulationError, PlacementError
from labkit.hosts import Host
from labkit.hosts.target import Image, Network, Target
from labkit.placement import Limits, Placement, Workload, bare, format_cpus, parse_cpus

#: The words for each fact that is expected; one of several for a tuple.
Facts = Mapping[str, str | tuple[str, ...]]
#: Seconds within which a workload's own process must serve.
PATIENCE = 30.0
#: Facts that count what a window may add.
COUNTED = "flows "


@dataclass(frozen=True)
class Instance:
    """A workload to run in a placement on a target; by `label` all that belongs to it is found."""

    target: Target
    placement: Placement
    workload: Workload
    cpus: str
    label: str

    @property
    def network(self) -> Network | None:
        """The placement's network, None for the host's."""
        kind = self.placement.network
        return None if kind == "host" else network_of(self.target, kind)

    @property
    def image(self) -> Image:
        """The workload's image on the host."""
        name, images = self.workload.image, self.target.images
        if name not in images:
            raise PlacementError(f"no image {name!r}", remedy=f"one of {', '.join(images)}")
        return images[name]

    @property
    def folder(self) -> str:
        """The directory of its job on the host."""
        return f"{self.target.directory}/{self.label}"

    @property
    def group(self) -> str:
        """The path of its control group, where labkit makes it."""
        # For an engine on systemd, the parent is only a slice's name.
        return f"/{self.target.cgroup_parent.strip('/')}/{self.label}"

    def failed(self, why: str) -> PlacementError:
        """Return the error of a workload that did not start."""
        what, where = f"{self.placement.label} did not start", f"host {self.target.host.name}"
        return PlacementError(what, where=where, why=why.strip()[-1200:])


@dataclass(frozen=True)
class Server:
    """A server as clients reach it, its process on its host, and its first observation.

    `enter` returns the host's command that runs another in its placement, on the same CPUs;
    `reading` are the arguments of the agent's function ``observe``.
    """

    address: str
    port: int
    pid: int
    host: Host
    verification: dict[str, str]
    cpus: str
    enter: Callable[[Sequence[str]], list[str]]
    ends_with_client: bool = False
    reading: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=bare)

    @property
    def own_address(self) -> str:
        """Its address in its own network namespace, or the host's if it shares that."""
        words = (name.split() for name in self.verification if name.startswith("address "))
        own = (word for _, word in words if not word.startswith(("127.", "::1")))
        return next(own, self.address)


class Engine(Protocol):
    """An engine; by an instance's label it finds on the host what belongs to it."""

    #: Networks that it cannot have on any rig, with the reason.
    impossible: ClassVar[Mapping[str, str]] = {}
    #: The programs that a host needs for it, each with the remedy where it is missing.
    programs: ClassVar[Mapping[str, str]] = {}

    def start(self, instance: Instance) -> tuple[int, str]:
        """Start the workload; return its process on the host, or 0 and the engine's container."""

    def stop(self, instance: Instance) -> str:
        """Stop it, remove all that belongs to it, and return what it printed on both streams."""

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the host's command that runs `argv` inside the placement."""

    def expect(self, instance: Instance, container: str) -> Facts:
        """Return the facts that the agent must observe."""


def network_of(target: Target, name: str) -> Network:
    """Return a network of a host; raise `PlacementError` if it is not set up."""
    if name not in target.networks:
        what, where = f"network {name!r} is not set up", f"host {target.host.name}"
        remedy = f'Rig.open(networks=["{name}"]), or bridge_port and bridge_address in rig.toml'
        raise PlacementError(what, where=where, remedy=remedy)
    return target.networks[name]


def reached_at(target: Target, placement: Placement) -> str:
    """Return the address at which a client reaches a placement."""
    if placement.network in ("host", "nat"):
        return target.address
    return network_of(target, placement.network).address(target.place)


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
        facts[f"listens on {workload.port}/{workload.protocols[0]}"] = "yes"
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
        facts |= {f"{port} on {network.bridge}": "none" for port in sorted(ports - {""})}
        if network.port:
            facts[f"{network.port} on {network.bridge}"] = "yes"
        facts[f"bridge {network.bridge}"] = "yes"
    if network.router:
        facts |= {f"router to {end}": ("fastdp", "sleeve") for end in network.remotes}
    elif network.name == "overlay":
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
    rounded = tuple(str(memory - memory % page) for page in (4096, 16384, 65536))  # to a page
    default = "1024 shares", "100 weight", "none"
    converted = [f"{weight} weight" for weight in weights(shares)] if shares else []
    return {
        "CPU quota": f"{limits.quota_us}/{limits.period_us} us" if limits.quota_us else "none",
        "CPU weight": (f"{shares} shares", *converted) if shares else default,
        "memory limit": rounded if memory else "none",
        **({"cpuset": format_cpus(parse_cpus(limits.cpuset))} if limits.cpuset else {}),
    }


def weights(shares: int) -> tuple[int, int]:
    """Return the weights of cgroup v2 to which versions of runc convert CPU shares, newer first."""
    # Before runc 1.3.2, the default of 1,024 shares had less than the default weight of 100:
    # https://github.com/opencontainers/cgroups/pull/20. Either is what the label says.
    log = math.log2(shares)
    newer = math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
    return min(10_000, newer), 1 + ((shares - 2) * 9999) // 262142


def differences(expected: Facts, observed: Mapping[str, str]) -> list[str]:
    """Return every fact that is not as expected, in words; a fact that is not there is "none"."""
    found = []
    for name, wanted in expected.items():
        words = (wanted,) if isinstance(wanted, str) else wanted
        if (actual := observed.get(name, "none")) not in words:
            found.append(f"{name}: {actual}, not {' or '.join(words)}")
    return found


def check_translated(
    before: Mapping[str, str], after: Mapping[str, str], protocols: Iterable[str]
) -> None:
    """Raise `ManipulationError` unless flows of each transport ("": any) took the NAT rules."""
    # The engine's proxy answers on a published port too, and nothing translates its traffic.
    found = []
    for protocol in protocols:
        first, last = (
            sum(int(x) for name, x in one.items() if name.startswith(COUNTED + protocol))
            for one in (before, after)
        )
        if last <= first:
            found.append(f"{protocol or 'any'} flows: {last}, as before the window")
    raise_different("the load did not pass the address translation", found)


def raise_different(problem: str, found: list[str], **details: Any) -> None:
    """Raise `ManipulationError` with what was found, if anything; `details` are its evidence."""
    if found:
        more = [f"and {len(found) - 4} more"] if len(found) > 4 else []
        what = f"{problem}: {'; '.join([*found[:4], *more])}"
        remedy = "the trial is discarded; leave the rig alone while it measures"
        evidence = {"problems": found, **details}
        raise ManipulationError(what, remedy=remedy, evidence=evidence)


@contextmanager
def placed(engine: Engine, instance: Instance, logs: dict[str, str], name: str) -> Iterator[Server]:
    """Run a workload in its placement, verified, in a ``with`` block; its log is in `logs` then."""
    target, placement, workload = instance.target, instance.placement, instance.workload

    def enter(argv: Sequence[str]) -> list[str]:
        return engine.enter(instance, ["taskset", "-c", instance.cpus, *argv])

    try:
        pid, container = engine.start(instance)
        facts, network = engine.expect(instance, container), target.networks.get(placement.network)
        group, source = facts["control group"], facts.get("mount at /data", "none")
        reading = {
            "pid": pid,
            "container": container,
            "port": workload.port,
            "protocol": workload.protocols[0],
            "group": "" if group == "none" else group,
            "engine": target.engine or "",
            "source": "" if source == "none" else source,
            "sandboxes": target.sandboxes if placement.network == "overlay" else "",
            "router": network.router if network else "",
        }
        options: dict[str, Any] = {"argv": workload.argv, "priority": placement.limits.fifo or 0}
        ready = target.host.call("observe_ready", reading=reading, seconds=PATIENCE, **options)
        if why := ready["why"][-800:]:
            raise instance.failed(f"{workload.argv[0]} (process {reading['pid']}): {why}")
        reading["pid"], found = ready["pid"], ready["facts"]
        problems = differences(facts, found)
        raise_different(f"this is not {placement.label}", problems, verification=found)
        address, pid, ends = reached_at(target, placement), ready["pid"], workload.ends_with_client
        port, host, cpus = workload.port, target.host, instance.cpus
        yield Server(address, port, pid, host, found, cpus, enter, ends, reading, placement)
    finally:
        try:
            logs[f"{name}.log"] = engine.stop(instance)
        except HostUnreachable:
            # Placements of a host share its connection, and lose it at once.
            logs[f"{name}.log"] = engine.stop(instance)
