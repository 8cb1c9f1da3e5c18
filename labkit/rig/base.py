"""A rig: the hosts of an experiment by role, their CPU map, and what they can and cannot run."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple

from labkit import process
from labkit.data import refuse_unknown
from labkit.errors import Interrupted, RigError, RigInUse, UsageError, suggestion
from labkit.hosts import Host
from labkit.hosts.agent import BOOT_ID
from labkit.hosts.target import Target
from labkit.placement import Placement
from labkit.rig.images import LayeredImage, folders
from labkit.runtimes import RUNTIMES

#: The lock by which two runs never share a rig; without root, the machines of a rig.toml.
LOCK = Path("/run/labkit/lock") if os.geteuid() == 0 else Path.home() / ".cache/labkit/lock"


class Additions(NamedTuple):
    """The hosts, networks and images of a study besides those of every rig."""

    #: Networks between containers, of ``labkit.placement.NETWORKS``.
    networks: Sequence[str] = ()
    #: Images of ``containers/`` for a second engine, of the host ``peer``.
    peer: Sequence[str] = ()
    #: Whether the virtual rig has ``clean-peer``, for a clean baseline at ``peer``.
    clean_peer: bool = False
    #: Roles whose traffic a further host, ``collector``, captures.
    collector: Sequence[str] = ()
    #: Images for ``docker(storage=...)``, built where the engine lacks them.
    layers: Sequence[LayeredImage] = ()
    #: Of ``labkit.placement.RELEASES``, each a further host with that engine and the image ``net``.
    releases: Sequence[str] = ()


Opener = Callable[[str, Additions], AbstractContextManager["Rig"]]
#: For each kind of rig a function that raises an error if a specification is wrong or impossible
#: here, and one that makes the rig for a ``with`` block under the lock. `labkit.rig` lists them.
KINDS: dict[str, tuple[Callable[[str], object], Opener]] = {}


def opener(spec: str) -> Opener:
    """Return the function that opens a rig, which exists and which this machine can have."""
    name = ".toml" if spec.endswith(".toml") else spec.partition(":")[0]
    if name not in KINDS:
        known = ("auto", "virtual", "virtual:1gbit", "dry", "the path of a rig.toml")
        raise UsageError(f"no rig called {spec!r}", remedy=suggestion(spec, known))
    check, opened = KINDS[name]
    check(spec)
    return opened


def locked(patience: float = 0.0) -> AbstractContextManager[None]:
    """Hold this machine's rig, after waiting up to `patience` seconds for it."""
    remedy = "--wait (labkit ask, run and report) waits for it; Ctrl-C there ends it"
    return process.locked(LOCK, RigInUse("the rig is in use", remedy=remedy), patience=patience)


@dataclass
class Rig:
    """The hosts of an experiment by role; `Rig.open` returns one."""

    #: The specification, and ``virtual``, ``inventory`` or ``dry``.
    name: str
    kind: str
    #: The hosts by role: ``generator`` sends the load, ``sut`` has the engine, ``clean`` has none.
    targets: Mapping[str, Target]
    #: CPU lists of roles and of ``harness``; for ends that the scheduler places, ``all``, or
    #: ``all.<role>`` where each host has its own kernel. Also notes, such as ``softirq``.
    cpu_map: Mapping[str, str]
    #: Whether the hosts are namespaces of one kernel.
    shared_kernel: bool
    #: How the hosts are connected, as text.
    links: tuple[str, ...] = ()
    #: Capabilities that the rig lacks, with the reason.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: The roles whose ports the switch mirrors to the collector.
    mirrors: Sequence[str] = ()

    @property
    def hosts(self) -> dict[str, Host]:
        """The hosts by role, for commands."""
        return {role: target.host for role, target in self.targets.items()}

    @staticmethod
    @contextmanager
    def open(spec: str | Path = "virtual", *, patience: float = 0, **added: Any) -> Iterator["Rig"]:
        """Open a rig for the duration of a ``with`` block.

        A rig that cannot have what is added opens without it; `missing` has the reason, and what
        needs it is infeasible. SIGTERM ends the block as Ctrl-C does.

        Parameters
        ----------
        spec : str or Path
            ``"virtual"`` or ``"auto"`` (this machine), ``"virtual:1gbit"`` (any rate), the path of
            an inventory (``rig.toml``), or ``"dry"``, which only shows plans.
        patience : float
            Seconds to wait for another process that uses this machine's rig.
        **added
            The fields of `labkit.rig.base.Additions`.

        Raises
        ------
        UsageError
            There is no such rig, network or image.
        RigError
            The rig is in use, or this machine cannot have it.
        """
        asked = Additions(**added)
        refuse_unknown("image", asked.peer, folders())
        name = "virtual" if str(spec) == "auto" else str(spec)
        opened = opener(name)
        alone = locked(patience) if name != "dry" else nullcontext()
        try:
            with process.ended_as_by_ctrl_c(), alone, opened(name, asked) as rig:
                yield rig
        except KeyboardInterrupt as error:
            raise Interrupted(str(error)) from error

    def target(self, placement: Placement, at: str = "") -> Target:
        """Return the host of a placement, or `at` another role; `RigError` if it is infeasible."""
        reason, clean = self.infeasible(placement), placement.baseline_level == "clean"
        role = at or ("clean" if clean else placement.release or "sut")
        if clean and at == "peer" and "clean-peer" in self.targets:
            role = "clean-peer"
        target = self.targets.get(role)
        if target is None:
            reason = reason or f"the rig was opened without a host {role!r}"
        elif at and not target.engine and (clean or placement.runtime != "bare"):
            # Any host without an engine is clean; the verification checks that it has no rules.
            reason = None if clean else f"{at} has no engine"
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
        level = placement.baseline_level or placement.network
        needs = [f"runtime:{placement.runtime}", f"storage:{placement.storage}"]
        # Everything but a clean baseline runs under an engine's rules, which are verified.
        needs += ["clean-host" if level == "clean" else "rules"]
        needs += ["realtime"] if placement.limits.fifo else []
        if (level, placement.runtime) != ("nat", "docker"):  # which publishes ports by itself
            needs.append(f"network:{level}")
        return next((self.missing[name] for name in needs if name in self.missing), None)

    def cpus(self, role: str, affinity: str) -> str:
        """Return the CPU list of a role: its own ("split"), or for the scheduler ("free")."""
        free = "all" if self.shared_kernel else f"all.{role}"
        return self.cpu_map[free if affinity == "free" else role]

    def check_target(self, address: str) -> None:
        """Raise `UsageError` unless a host or a network of this rig has the address."""
        subnets: list[str] = []
        for target in self.targets.values():
            subnets += [*target.addresses, *(one.subnet for one in target.networks.values())]
        with suppress(ValueError):
            if any(ip_address(address) in ip_network(text) for text in subnets):
                return
        what, why = f"no load is sent to {address!r}", f"no host of the rig {self.name} has it"
        raise UsageError(what, why=why, remedy="use the address of a server that it placed")

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
        """Return the facts of every host by role."""
        with ThreadPoolExecutor() as pool:
            return dict(zip(self.targets, pool.map(_facts, self.targets.values()), strict=True))

    def describe(self) -> dict[str, Any]:
        """Return what a report shows of the rig, as JSON data."""
        hosts = dict[str, Any]()
        for role, target in self.targets.items():
            cpus, engine = self.cpu_map.get(role, ""), bool(target.engine)
            hosts[role] = {"addresses": list(target.addresses), "cpus": cpus, "engine": engine}
        if self.mirrors:
            hosts["collector"]["mirrors"] = list(self.mirrors)
        # Every page of a campaign shows the lack of these.
        shown = ["separate-machines", "nic-hardware", "clean-on-sut", "own-cpus"]
        shown += ["separate-cpu-time", "own-machine"]
        return {
            **{name: getattr(self, name) for name in ("name", "kind", "shared_kernel")},
            "hosts": hosts,
            "links": list(self.links),
            "cpu_map": dict(self.cpu_map),
            "capabilities": dict(self.missing),
            "caveats": [self.missing[name] for name in shown if name in self.missing],
        }


def _facts(target: Target) -> dict[str, Any]:
    """Return a host's facts; a plan without those of its engine could never be resumed."""
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
