"""A rig: the hosts of an experiment by role, their CPU map, and what they can and cannot run."""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labkit.errors import FenceError, Interrupted, RigError, UsageError
from labkit.hosts import Host, Tuning, collect_facts
from labkit.hosts.target import Network, Target
from labkit.placement import Placement
from labkit.process import ended_as_by_ctrl_c
from labkit.rig import interrupts, lock, networks, storage
from labkit.rig.layers import LayeredImage
from labkit.runtimes import RUNTIMES

#: How the two ends are pinned: left to the scheduler, a CPU each, or both on the server's CPU.
AFFINITIES = ("free", "split", "same")
Say = Callable[[str], None]

#: The capability that a baseline level or a network requires; other networks: their name.
_NEEDS = {"clean": "clean-host", "rules": "", "chroot": "chroot", "cgroup": "cgroup"}
_NEEDS |= {"host": "", "bridge": "layer2", "nat": "nat"}


@contextmanager
def open_rig(
    spec: str | Path = "virtual", *, say: Say = print, patience: float = 0.0
) -> Iterator[Rig]:
    """Open a rig for the duration of a ``with`` block; SIGTERM ends it as Ctrl-C does."""
    name = auto() if str(spec) == "auto" else str(spec)
    kind = next((kind for kind in Rig.__subclasses__() if kind.accepts(name)), None)
    if kind is None:
        raise UsageError(
            f"no rig called {name!r}",
            remedy='use "virtual", "virtual:1gbit" (any rate), "one-host", "auto", or the path of '
            "an inventory (rig.toml)",
        )
    try:
        with (
            ended_as_by_ctrl_c(signal.SIGTERM),
            lock.locked(patience),
            kind.opened(name, say) as rig,
        ):
            yield rig
    except KeyboardInterrupt as error:
        raise Interrupted(str(error)) from error


def auto() -> str:
    """Return the rig that this machine and user can have: ``"virtual"``, or else ``"one-host"``."""
    reasons = []
    for kind in Rig.__subclasses__():
        if kind.auto_spec:
            if not (why := kind.unavailable()):
                return kind.auto_spec
            reasons.append(f"{kind.auto_spec}: {why}")
    raise RigError(
        "this machine and user can have no rig",
        why="; ".join(reasons),
        remedy="as root `make setup` brings what the virtual rig needs; for the one-host rig start "
        "a Docker Engine and join the group docker; or name other machines in a rig.toml",
    )


@dataclass
class Rig:
    """Hosts by role, as every kind of rig gives them; each kind is a subclass.

    Parameters
    ----------
    name, kind : str
        What the user called it, and ``virtual``, ``inventory`` or ``one-host``.
    hosts : mapping of str to Host
        ``generator`` sends the load, ``sut`` holds the engine, ``clean`` has none.
    targets : mapping of str to Target
        Places for workloads, by role.
    addresses : mapping of str to tuple of str
        Lab addresses of each role.
    interfaces : mapping of str to tuple of str
        Lab interfaces of each role.
    cpu_map : mapping of str to str
        CPU list of ``generator``, ``sut``, ``clean`` and ``harness``; and, for ends that the
        scheduler places, ``all``, or ``all.<role>`` where the hosts have a kernel each.
    cpu_notes : mapping of str to str
        What is known in words only: where ``softirq`` runs, or that the harness is elsewhere.
    shared_kernel : bool
        Whether the hosts are namespaces of one kernel.
    links : tuple of str
        How they are joined, in words.
    caveats : tuple of str
        What its numbers cannot say.
    missing : mapping of str to str
        Capabilities that it lacks, with the reason.
    at_close : tuple of callable
        What is to be undone on the hosts while they can still be reached.
    rate : str
        The rate that labkit gave to its links, as ``tc`` writes it; "" for none.
    layable : mapping of str to Network
        Networks that can be made between its containers, by name, with this rig's addresses.
    mirrored : mapping of str to tuple of str
        For a host that listens at the switch, the roles whose ports are mirrored to it.
    """

    name: str
    kind: str
    hosts: Mapping[str, Host]
    targets: Mapping[str, Target]
    addresses: Mapping[str, tuple[str, ...]]
    cpu_map: Mapping[str, str]
    shared_kernel: bool
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    at_close: tuple[Callable[[], object], ...] = ()
    rate: str = ""
    layable: Mapping[str, Network] = field(default_factory=dict)
    mirrored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cpu_notes: Mapping[str, str] = field(default_factory=dict)

    #: The specification by which ``auto`` opens this kind; "" where a file has to name the hosts.
    auto_spec: ClassVar[str] = ""
    #: Whether storage drivers get a Docker daemon each, on this machine.
    own_daemons: ClassVar[bool] = False

    @staticmethod
    def open(spec: str | Path = "virtual", **options: Any) -> AbstractContextManager[Rig]:
        """Return a context in which the rig stands; see `labkit.rig.open_rig`."""
        return open_rig(spec, **options)

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Tell whether a specification names this kind of rig."""
        return bool(cls.auto_spec) and spec == cls.auto_spec

    @classmethod
    def unavailable(cls) -> str:
        """Return why this machine and user cannot have this kind of rig; "" where they can."""
        return ""

    @classmethod
    def attach(cls, spec: str | Path, say: Say) -> Rig:
        """Return the connected rig; the caller holds `labkit.rig.lock.locked`."""
        raise NotImplementedError

    @classmethod
    @contextmanager
    def opened(cls, spec: str, say: Say) -> Iterator[Rig]:
        """Attach the rig for the duration of a ``with`` block."""
        rig = cls.attach(spec, say)
        try:
            yield rig
        finally:
            rig.close()

    @contextmanager
    def changed(self, **attributes: Any) -> Iterator[None]:
        """Have other attributes for the duration of a ``with`` block."""
        before = {name: getattr(self, name) for name in attributes}
        try:
            for name, value in attributes.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def target(self, placement: Placement, at: str = "") -> Target:
        """Return where a placement goes: a clean baseline has a host without an engine.

        Parameters
        ----------
        placement : Placement
            What is to be placed.
        at : str, optional
            The role of another host to place it on, such as ``peer``.
        """
        if at:
            return self._target_at(placement, at)
        role = "clean" if placement.baseline_level == "clean" else "sut"
        # Where a published port needs another address than the host's own (one-host).
        role = "nat" if placement.network == "nat" and "nat" in self.targets else role
        reason = self.infeasible(placement)
        if reason:
            raise RigError(f"{placement.label} is not possible here", why=reason)
        if placement.storage and placement.storage not in self.targets[role].storages:
            raise RigError(
                f"the storage {placement.storage} has not been set up",
                remedy=f'with lab.storage(["{placement.storage}"], images=[...]): ...',
            )
        target = self.targets[role]
        return target.with_storage(placement.storage) if placement.storage else target

    def _target_at(self, placement: Placement, role: str) -> Target:
        reason = self.infeasible(placement)
        clean = (
            placement.baseline_level == "clean"
            and role in self.targets
            and not self.targets[role].engine
        )
        # Any host without an engine is a clean one; what is placed there is checked to be beside
        # no rules.
        reason = None if clean else reason
        if role not in self.targets:
            reason = f"the rig has no host {role!r}; with lab.peer(...): ... makes a second one"
        elif placement.runtime != "bare" and not self.targets[role].engine:
            reason = f"{role} has no engine"
        if reason:
            raise RigError(f"{placement.label} is not possible on {role}", why=reason)
        return self.targets[role]

    def infeasible(self, placement: Placement) -> str | None:
        """Return why this rig cannot run a placement, or None."""
        runtime = RUNTIMES[placement.runtime]
        if reason := runtime.infeasible(placement.network):
            return reason
        way = placement.baseline_level or placement.network
        # Whatever is not on a clean host is beside an engine's rules, and is checked to be so.
        asked = ["rules"] if way != "clean" else []
        asked += [*runtime.needs]
        asked += [f"runtime:{placement.runtime}", _NEEDS.get(way, f"network:{way}")]
        asked += [f"storage:{placement.storage}"] if placement.storage else []
        asked += ["realtime"] if placement.limits.fifo else []
        asked += ["network:nat"] if way == "nat" and not runtime.publishes_ports else []
        return next((self.missing[name] for name in asked if name in self.missing), None)

    def cpus(self, role: str, affinity: str) -> str:
        """Return the CPU list of a role under an affinity of `AFFINITIES`."""
        if affinity not in AFFINITIES:
            raise UsageError(f"unknown affinity {affinity!r}", remedy=f"one of {AFFINITIES}")
        if affinity == "free":
            return self.cpu_map["all" if self.shared_kernel else f"all.{role}"]
        return self.cpu_map["sut" if affinity == "same" else role]

    def owns(self, address: str) -> bool:
        """Tell whether an address belongs to a host of this rig."""
        try:
            wanted = ipaddress.ip_address(address)
        except ValueError:
            return False
        held = [one for addresses in self.addresses.values() for one in addresses]
        subnets = {
            one.subnet for target in self.targets.values() for one in target.networks.values()
        }
        return any(wanted == ipaddress.ip_address(one) for one in held) or any(
            wanted in ipaddress.ip_network(one) for one in subnets
        )

    def check_target(self, address: str) -> None:
        """Raise `FenceError` unless load may be sent to the address."""
        if not self.owns(address):
            raise FenceError(
                f"no load is sent to {address!r}",
                where=f"rig {self.name}",
                why="no host of the rig has this address",
                remedy="use the address of a server that the rig placed",
            )

    def images(self) -> dict[str, str]:
        """Return the digest of every image that stands on the rig, by name.

        Where hosts have made it each for itself, the further ones have the host in their name.
        """
        found: dict[str, str] = {}
        for role, target in self.targets.items():
            for name, image in target.images.items():
                other = found.get(name, image.digest) != image.digest
                found[f"{name} on {role}" if other else name] = image.digest
        return found

    def facts(self) -> dict[str, Any]:
        """Return the facts of every host, by role."""
        return {
            role: collect_facts(
                host,
                interfaces=self.interfaces.get(role, ()),
                engine_socket=self.targets[role].engine if role in self.targets else None,
            )
            for role, host in self.hosts.items()
        }

    def describe(self) -> dict[str, Any]:
        """Return what a report shows of the rig, as JSON data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "hosts": {
                role: {
                    "addresses": list(self.addresses.get(role, ())),
                    "cpus": self.cpu_map.get(role, ""),
                    "engine": bool(role in self.targets and self.targets[role].engine),
                    **({"mirrors": list(self.mirrored[role])} if role in self.mirrored else {}),
                }
                for role in self.hosts
            },
            "links": list(self.links),
            "cpu_map": self._cpu_table(),
            "shared_kernel": self.shared_kernel,
            "capabilities": dict(self.missing),
            "caveats": list(self.caveats),
        }

    def _cpu_table(self) -> dict[str, str]:
        """Return CPU lists, with the notes in front of what is not a host's."""
        hosts = [key for key in self.cpu_map if not key.startswith(("harness", "all"))]
        shared = next((key for key in self.cpu_map if key not in hosts), None)
        table: dict[str, str] = {}
        for key, cpus in self.cpu_map.items():
            table |= self.cpu_notes if key == shared else {}
            table[key] = cpus
        return table | dict(self.cpu_notes)

    @contextmanager
    def peer(self, images: Sequence[str]) -> Iterator[None]:
        """Have a second host with an engine, ``peer``, for the duration of a ``with`` block.

        For placements of clients, beside a generator that stays without firewall rules. Where a
        rig cannot have one, plans refuse what needs it.

        Parameters
        ----------
        images : sequence of str
            Names of ``containers/`` that its engine is to have.
        """
        yield

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Have a host that can listen to the traffic of roles (``sut``) inside a ``with`` block.

        Where a rig cannot have one, `missing` says why, and plans refuse what needs it.
        """
        yield

    @contextmanager
    def mirror(self) -> Iterator[None]:
        """Show the collector what passes, where the rig does that, inside a ``with`` block."""
        yield

    @contextmanager
    def networks(self, names: Sequence[str]) -> Iterator[None]:
        """Have networks for containers for the duration of a ``with`` block.

        Those that this rig cannot have are left out; `missing` says why, and plans refuse them. A
        peer whose containers are to be on them has to be there before: ``with lab.peer(...):``
        first.

        Parameters
        ----------
        names : sequence of str
            Of ``labkit.placement.NETWORKS``; ``nat`` is the one for engines that publish no ports
            by themselves.
        """
        with networks.laid(self, names):
            yield

    def interrupts(self, policy: str) -> AbstractContextManager[list[str]]:
        """Hold interrupts off the server's CPU inside a ``with`` block, and say what was moved.

        Parameters
        ----------
        policy : {"as found", "moved"}
        """
        return interrupts.interrupts(self, policy)

    @contextmanager
    def idle(self, policy: str) -> Iterator[None]:
        """Hold an idle policy on every machine of the rig for the duration of a ``with`` block.

        Parameters
        ----------
        policy : {"as found", "held"}
            ``held`` keeps CPUs from any idle state that takes time to leave. The machine goes back
            by itself, since what holds it is an open file.

        Raises
        ------
        RigError
            The machine cannot be held.
        """
        if policy not in ("as found", "held"):
            raise UsageError(f"unknown idle policy {policy!r}", remedy='"as found" or "held"')
        roles = [] if policy == "as found" else ["sut"] if self.shared_kernel else list(self.hosts)
        with ExitStack() as stack:
            for role in roles:
                tuning = stack.enter_context(Tuning(self.hosts[role], "trial-idle"))
                if not tuning.hold_idle():
                    raise RigError(
                        "the idle policy cannot be held",
                        where=f"host {role}",
                        why="; ".join(tuning.notes),
                        remedy='measure with idle="as found"',
                    )
            yield

    @contextmanager
    def storage(
        self, wanted: Mapping[str, Sequence[LayeredImage | str]], *, say: Say = print
    ) -> Iterator[None]:
        """Have storages for containers for the duration of a ``with`` block.

        Those that this rig cannot have are left out; `missing` says why, and plans refuse them.

        Parameters
        ----------
        wanted : mapping of str to sequence of LayeredImage or str
            Storages of ``labkit.placement.DRIVERS`` and ``MOUNTS``, each with the images that its
            containers are made of: a name of ``containers/``, or layers over one.
        say : callable
            Receives a line before each step that takes seconds.
        """
        able = {name: wanted[name] for name in wanted if f"storage:{name}" not in self.missing}
        if not able:
            yield
            return
        before = self.targets["sut"]
        with storage.ready(before, able, own_daemons=self.own_daemons, say=say) as target:
            self.targets = {**self.targets, "sut": target}
            try:
                yield
            finally:
                self.targets = {**self.targets, "sut": before}

    def close(self) -> None:
        """Undo what only this rig needed, and drop the connections."""
        with ExitStack() as stack:
            for host in self.hosts.values():
                stack.callback(host.close)
            for undo in self.at_close:
                stack.callback(undo)
