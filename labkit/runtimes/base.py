"""Engines, and the life cycle of a placement: started, ready, verified, stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from labkit.errors import HostUnreachable, PlacementError
from labkit.hosts import Host
from labkit.hosts.target import Image, Network, Target
from labkit.placement import Placement, Workload, bare
from labkit.runtimes.verify import Facts, differences, raise_different


@dataclass(frozen=True)
class Instance:
    """A workload to run in a placement on a target.

    `cpus` is the CPU list of its affinity; by `label` its container, job and files are found.
    """

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
            where, remedy = f"host {self.target.host.name}", f"one of {', '.join(images)}"
            raise PlacementError(f"there is no image {name!r}", where=where, remedy=remedy)
        return images[name]

    @property
    def folder(self) -> str:
        """The directory of its job on the host."""
        return f"{self.target.directory}/{self.label}"

    @property
    def group(self) -> str:
        """The path of its control group, where labkit makes it."""
        return f"{self.target.parent_group}/{self.label}"


class Started(NamedTuple):
    """A started workload: its process on the host, or its container for the engine."""

    pid: int = 0
    container: str = ""


@dataclass(frozen=True)
class Server:
    """A verified server."""

    #: Where a client reaches it.
    address: str
    port: int
    #: Its process, as its host sees it.
    pid: int
    host: Host
    #: The observation of it when it was ready, and its CPU list.
    verification: dict[str, str]
    cpus: str
    #: The host's command that runs another inside this placement, on the same CPUs.
    enter: Callable[[Sequence[str]], list[str]]
    ends_with_client: bool = False
    #: The arguments of the agent's function ``observe``.
    reading: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=bare)

    @property
    def own_address(self) -> str:
        """Its address in its own network namespace, or the host's if it shares that."""
        names = [name for name in self.verification if name.startswith("address ")]
        addresses = [name.partition(" ")[2] for name in names]
        return next((one for one in addresses if not one.startswith(("127.", "::1"))), self.address)


class Engine(ABC):
    """An engine; by an instance's label it finds on the host what belongs to it."""

    #: Networks that it cannot have on any rig, with the reason.
    impossible: ClassVar[Mapping[str, str]] = {}
    #: The programs that a host needs for it, each with the remedy where it is missing.
    programs: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def start(self, instance: Instance) -> Started:
        """Start the workload on the host."""

    @abstractmethod
    def stop(self, instance: Instance) -> None:
        """Stop it and remove everything that belongs to it, if there is anything."""

    @abstractmethod
    def logs(self, instance: Instance) -> str:
        """Return what it printed on both streams."""

    @abstractmethod
    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the host's command that runs `argv` inside the placement."""

    @abstractmethod
    def expect(self, instance: Instance, started: Started) -> Facts:
        """Return the facts that the agent must observe."""


def network_of(target: Target, name: str) -> Network:
    """Return a network of a host; raise `PlacementError` if it is not set up."""
    if name not in target.networks:
        raise PlacementError(
            f"network {name!r} is not set up",
            where=f"host {target.host.name}",
            remedy=f'Rig.open(networks=["{name}"]); for the bridge of a real machine name '
            "bridge_port and bridge_address in rig.toml",
        )
    return target.networks[name]


def reached_at(target: Target, placement: Placement) -> str:
    """Return the address at which a client reaches a placement."""
    if placement.network in ("host", "nat"):
        return target.address
    return network_of(target, placement.network).address(target.place)


def observed(instance: Instance, started: Started, facts: Facts) -> dict[str, Any]:
    """Return the arguments of the agent's ``observe`` for what is expected of a placement."""
    target, workload = instance.target, instance.workload
    network = target.networks.get(instance.placement.network)
    group, source = facts["control group"], facts.get("mount at /data", "none")
    return {
        **started._asdict(),
        "port": workload.port,
        "protocol": workload.protocol,
        "group": "" if group == "none" else group,
        "engine": target.engine or "",
        "source": "" if source == "none" else source,
        "sandboxes": network.sandboxes if network else "",
        "router": network.router if network else "",
    }


def wait_ready(
    host: Host,
    reading: dict[str, Any],
    workload: Workload,
    priority: int = 0,
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Return process and facts as soon as the workload's own process serves, in a class by then."""
    options: dict[str, Any] = {"argv": workload.argv, "priority": priority, "seconds": seconds}
    found = host.call("observe_ready", reading=reading, **options)
    if found["why"]:
        where = f"host {host.name}, process {reading['pid'] or 'unknown'}"
        why = found["why"][-800:]
        raise PlacementError(f"{workload.argv[0]} did not become ready", where=where, why=why)
    return dict(found)


@contextmanager
def placed(
    engine: Engine,
    target: Target,
    placement: Placement,
    workload: Workload,
    *,
    cpus: str,
    label: str,
    logs: dict[str, str] | None = None,
    name: str = "server",
) -> Iterator[Server]:
    """Run a workload in its placement, verified, for the duration of a ``with`` block.

    What it printed is in `logs` then, as ``NAME.log``.
    """
    instance = Instance(target, placement, workload, cpus, label)
    try:
        started = engine.start(instance)
        facts = engine.expect(instance, started)
        reading = observed(instance, started, facts)
        ready = wait_ready(target.host, reading, workload, placement.limits.fifo or 0)
        reading["pid"], found = ready["pid"], ready["facts"]
        problems = differences(facts, found)
        raise_different(f"this is not {placement.label}", problems, verification=found)
        yield Server(
            reached_at(target, placement),
            workload.port,
            ready["pid"],
            target.host,
            found,
            cpus,
            lambda argv: engine.enter(instance, ["taskset", "-c", cpus, *argv]),
            workload.ends_with_client,
            reading,
            placement,
        )
    finally:
        try:
            if logs is not None:
                logs[f"{name}.log"] = engine.logs(instance)
        finally:
            try:
                engine.stop(instance)
            except (
                HostUnreachable
            ):  # placements of a host share its connection, and lose it at once
                engine.stop(instance)
