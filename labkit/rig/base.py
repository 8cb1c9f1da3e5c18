"""A rig: the hosts of an experiment by role, their CPU map, and what they can and cannot run."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.errors import Interrupted, RigError, UsageError, suggestion
from labkit.hosts import Host
from labkit.hosts.agent import BOOT_ID
from labkit.hosts.target import Target
from labkit.placement import Placement
from labkit.process import announce, ended_as_by_ctrl_c
from labkit.rig import lock, netns
from labkit.rig.images import LayeredImage, Say, folders
from labkit.rig.networks import NAMES
from labkit.runtimes import RUNTIMES

#: CPUs of the two ends: the scheduler's choice, or one each.
AFFINITIES = ("free", "split")
#: The capability that a baseline level or a network requires; other networks: their name.
_NEEDS = {"clean": "clean-host", "rules": "", "chroot": "chroot", "cgroup": "cgroup"}
_NEEDS |= {"host": "", "bridge": "layer2", "nat": "nat"}
#: The kinds of rigs by name, each a module with two functions; `labkit.rig` lists them.
#: ``check(spec)`` raises an error if a specification is wrong or impossible here, and connects to
#: nothing. ``opened(spec, added, say)`` makes the rig for the duration of a ``with`` block; the
#: caller holds the lock.
KINDS: dict[str, Any] = {}


@dataclass(frozen=True)
class Additions:
    """The hosts, networks and images of a study besides those of every rig; see `Rig.open`."""

    networks: Sequence[str] = ()
    peer: Sequence[str] = ()
    clean_peer: bool = False
    collector: Sequence[str] = ()
    layers: Sequence[LayeredImage] = ()
    releases: Sequence[str] = ()


def kind_of(spec: str) -> Any:
    """Return the kind of rig that a specification names; raise `UsageError` if there is none."""
    name = ".toml" if spec.endswith(".toml") else spec.partition(":")[0]
    if name not in KINDS:
        known = ("auto", "virtual", "virtual:1gbit", "dry", "the path of a rig.toml")
        raise UsageError(f"no rig called {spec!r}", remedy=suggestion(spec, known))
    return KINDS[name]


def auto() -> str:
    """Return ``"virtual"``; raise `RigError` where this machine and user cannot have it."""
    kind_of("virtual").check("virtual")
    return "virtual"


@dataclass
class Rig:
    """The hosts of an experiment by role; `Rig.open` returns one."""

    #: The specification, and ``virtual``, ``inventory`` or ``dry``.
    name: str
    kind: str
    #: The hosts by role: ``generator`` sends the load, ``sut`` has the engine, ``clean`` has none.
    targets: Mapping[str, Target]
    #: CPU lists of ``generator``, ``sut``, ``clean`` and ``harness``; for ends that the scheduler
    #: places, ``all``, or ``all.<role>`` where each host has its own kernel. Also notes on what
    #: has no CPU list, such as ``softirq``.
    cpu_map: Mapping[str, str]
    #: Whether the hosts are namespaces of one kernel.
    shared_kernel: bool
    #: How the hosts are connected, and the limits of the rig's numbers, as text.
    links: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    #: Capabilities that the rig lacks, with the reason.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: The roles whose ports the switch mirrors to the collector.
    mirrors: Sequence[str] = ()

    @property
    def hosts(self) -> dict[str, Host]:
        """The hosts by role, for commands."""
        return {role: target.host for role, target in self.targets.items()}

    @property
    def interfaces(self) -> dict[str, tuple[str, ...]]:
        """The lab interfaces of each role."""
        return {role: target.interfaces for role, target in self.targets.items()}

    @staticmethod
    @contextmanager
    def open(
        spec: str | Path = "virtual",
        *,
        networks: Sequence[str] = (),
        peer: Sequence[str] = (),
        clean_peer: bool = False,
        collector: Sequence[str] = (),
        layers: Sequence[LayeredImage] = (),
        releases: Sequence[str] = (),
        patience: float = 0.0,
        say: Say = announce,
    ) -> Iterator[Rig]:
        """Open a rig for the duration of a ``with`` block.

        A rig that cannot have what is added opens without it; `missing` has the reason, and what
        needs it is infeasible. SIGTERM ends the block as Ctrl-C does.

        Parameters
        ----------
        spec : str or Path
            ``"virtual"``, ``"virtual:1gbit"`` (any rate), ``"auto"`` (the rig of this machine), the
            path of an inventory (``rig.toml``), or ``"dry"``, which only shows plans.
        networks : sequence of str
            Networks between containers, of ``labkit.placement.NETWORKS``.
        peer : sequence of str
            Images of ``containers/`` for a second engine, of the host ``peer``.
        clean_peer : bool
            Whether the virtual rig has ``clean-peer``, for a clean baseline at ``peer``.
        collector : sequence of str
            Roles whose traffic a further host, ``collector``, captures.
        layers : sequence of LayeredImage
            Images for ``docker(storage=...)``, built where the engine lacks them.
        releases : sequence of str
            Of `labkit.placement.RELEASES`, each a further host with that engine and the image
            ``net``, made of Debian's packages where it is missing.
        patience : float
            Seconds to wait for another process that uses this machine's rig.
        say : callable
            Receives a line before each step that takes seconds.

        Raises
        ------
        UsageError
            There is no such rig, network or image.
        RigError
            The rig is in use, or this machine cannot have it.
        """
        for what, given, known in (("network", networks, NAMES), ("image", peer, folders())):
            for name in given:
                if name not in known:
                    raise UsageError(f"unknown {what} {name!r}", remedy=suggestion(name, known))
        added = Additions(networks, peer, clean_peer, collector, layers, releases)
        name = auto() if str(spec) == "auto" else str(spec)
        kind = kind_of(name)
        kind.check(name)
        try:
            with (
                ended_as_by_ctrl_c(),
                lock.locked(patience) if name != "dry" else nullcontext(),
                kind.opened(name, added, say) as rig,
            ):
                yield rig
        except KeyboardInterrupt as error:
            raise Interrupted(str(error)) from error

    def target(self, placement: Placement, at: str = "") -> Target:
        """Return the host of a placement; raise `RigError` where the rig cannot run it.

        A clean baseline goes to a host without an engine. `at` is the role of another host, such
        as ``peer``; a clean baseline goes to ``clean-peer`` then, where the rig has it.
        """
        reason, clean = self.infeasible(placement), placement.baseline_level == "clean"
        if self.kind == "dry" and not reason:
            reason = "a dry rig shows plans and runs nothing; open another one, such as virtual"
        role = at or ("clean" if clean else placement.release or "sut")
        if clean and at == "peer" and "clean-peer" in self.targets:
            role = "clean-peer"
        target = self.targets.get(role)
        if at and target is None:
            reason = f"the rig was opened without a host {at!r}"
        elif at and target and not target.engine:
            # Any host without an engine is clean; the verification checks that it has no rules.
            no_engine = None if placement.runtime == "bare" else f"{at} has no engine"
            reason = None if clean else no_engine or reason
        if reason or target is None:
            where = f"on {at}" if at else "here"
            raise RigError(f"{placement.label} is not possible {where}", why=reason or "")
        storage = "" if at else placement.storage
        return replace(target, storage=target.storages[storage]) if storage else target

    def infeasible(self, placement: Placement) -> str | None:
        """Return why this rig cannot run a placement, or None."""
        if reason := RUNTIMES[placement.runtime].impossible.get(placement.network):
            return reason
        if placement.release and placement.network not in ("host", "bridge", "nat"):
            return "a release of Docker has the networks host, bridge and nat"
        if placement.release and placement.release not in self.targets:
            return f"the rig has no Docker of {placement.release}: only a virtual one makes it"
        docker, level = placement.runtime == "docker", placement.baseline_level or placement.network
        needs = {
            # Everything but a clean baseline runs under an engine's rules, which are verified.
            "rules": level != "clean",
            "docker": docker,
            f"runtime:{placement.runtime}": True,
            _NEEDS.get(level, f"network:{level}"): True,
            f"storage:{placement.storage}": True,
            "realtime": placement.limits.fifo,
            "network:nat": level == "nat" and not docker,
        }
        lacking = [name for name, needed in needs.items() if needed and name in self.missing]
        return self.missing[lacking[0]] if lacking else None

    def cpus(self, role: str, affinity: str) -> str:
        """Return the CPU list of a role under an affinity of `AFFINITIES`."""
        free = "all" if self.shared_kernel else f"all.{role}"
        return self.cpu_map[free if affinity == "free" else role]

    def owns(self, address: str) -> bool:
        """Tell whether an address belongs to a host or a network of this rig."""
        subnets: list[str] = []
        for target in self.targets.values():
            subnets += [*target.addresses, *(one.subnet for one in target.networks.values())]
        try:
            wanted = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(wanted in ipaddress.ip_network(text) for text in subnets)

    def check_target(self, address: str) -> None:
        """Raise `UsageError` unless load may be sent to the address."""
        if not self.owns(address):
            what, where = f"no load is sent to {address!r}", f"rig {self.name}"
            why, remedy = "no host of the rig has it", "use the address of a server that it placed"
            raise UsageError(what, where=where, why=why, remedy=remedy)

    def mirror(self) -> AbstractContextManager[None]:
        """Mirror ports to the collector inside a ``with`` block, if labkit controls the mirror."""
        return netns.mirrored(self.mirrors) if self.kind == "virtual" else nullcontext()

    def boots(self) -> dict[str, str]:
        """Return the boot identifier of each host."""
        return {role: host.run("cat", BOOT_ID).stdout.strip() for role, host in self.hosts.items()}

    def images(self) -> dict[str, str]:
        """Return the digest of every image by name; where hosts differ, also by host."""
        digests: dict[str, str] = {}
        for role, target in self.targets.items():
            for name, image in target.images.items():
                other = digests.get(name, image.digest) != image.digest
                digests[f"{name} on {role}" if other else name] = image.digest
        return digests

    def facts(self) -> dict[str, Any]:
        """Return the facts of every host by role; an engine that does not answer is an error.

        A plan without it could never be resumed.
        """
        with ThreadPoolExecutor(max(1, len(self.targets))) as pool:
            return dict(zip(self.targets, pool.map(_facts, self.targets.values()), strict=True))

    def describe(self) -> dict[str, Any]:
        """Return what a report shows of the rig, as JSON data."""
        hosts: dict[str, dict[str, Any]] = {
            role: {
                "addresses": list(target.addresses),
                "cpus": self.cpu_map.get(role, ""),
                "engine": bool(target.engine),
            }
            for role, target in self.targets.items()
        }
        if self.mirrors:
            hosts[netns.COLLECTOR]["mirrors"] = list(self.mirrors)
        return {
            "name": self.name,
            "kind": self.kind,
            "hosts": hosts,
            "links": list(self.links),
            "cpu_map": dict(self.cpu_map),
            "shared_kernel": self.shared_kernel,
            "capabilities": dict(self.missing),
            "caveats": list(self.caveats),
        }


def _facts(target: Target) -> dict[str, Any]:
    host, socket = target.host, target.engine or ""
    options = {"interfaces": target.interfaces, "engine": socket, "directory": target.disk}
    facts: dict[str, Any] = host.call("facts", timeout=120, **options)
    answer = facts["stable"]["engine"] or {}
    parts = answer.get("components", {})
    # Docker's Engine does not run without its containerd.
    if socket and (not answer or ("Engine" in parts and "containerd" not in parts)):
        where = f"host {host.name}: {socket}"
        raise RigError("the engine does not answer", where=where, remedy="start it")
    return facts
