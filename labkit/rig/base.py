"""A rig: the hosts of an experiment by role, their CPU map, and what they can and cannot run."""

from __future__ import annotations

import ipaddress
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import (
    FenceError,
    HostUnreachable,
    Interrupted,
    RigError,
    UsageError,
    suggestion,
)
from labkit.hosts import Host, Settings, collect_facts, restore, stop_labelled
from labkit.hosts.cache_line import LEAST_NS, command, timings
from labkit.hosts.settings import BOOT_ID
from labkit.hosts.target import Network, Target
from labkit.placement import Placement, cpu_set, parse_cpus
from labkit.process import announce, ended_as_by_ctrl_c
from labkit.rig import engine, lock, networks, storage
from labkit.rig.images import Say
from labkit.rig.layers import LayeredImage
from labkit.runtimes import RUNTIMES
from labkit.runtimes.docker import PREFIX
from labkit.runtimes.jobs import withdraw

#: CPUs of the two ends: the scheduler's choice, one each, or both on the server's CPU.
AFFINITIES = ("free", "split", "same")

#: The capability that a baseline level or a network requires; other networks: their name.
_NEEDS = {"clean": "clean-host", "rules": "", "chroot": "chroot", "cgroup": "cgroup"}
_NEEDS |= {"host": "", "bridge": "layer2", "nat": "nat"}


def auto() -> str:
    """Return ``"virtual"``; raise `RigError` where this machine and user cannot have it."""
    kind_of("virtual").check("virtual")
    return "virtual"


def kind_of(spec: str) -> type[Rig]:
    """Return the kind of rig that a specification names; raise `UsageError` if there is none."""
    for kind in Rig.__subclasses__():
        if kind.accepts(spec):
            return kind
    raise UsageError(
        f"no rig called {spec!r}",
        remedy=f"{suggestion(spec, ('virtual', 'auto'))}; virtual:1gbit (any rate), or the path of "
        "a rig.toml",
    )


@dataclass
class Rig:
    """The hosts of an experiment by role; `Rig.open` returns one.

    Parameters
    ----------
    name, kind : str
        The specification, and ``virtual`` or ``inventory``.
    hosts : mapping of str to Host
        ``generator`` sends the load, ``sut`` has the engine, ``clean`` has none.
    targets : mapping of str to Target
        Hosts as places for workloads, by role.
    addresses, interfaces : mapping of str to tuple of str
        Lab addresses and interfaces of each role.
    cpu_map : mapping of str to str
        CPU lists of ``generator``, ``sut``, ``clean`` and ``harness``; for ends that the scheduler
        places, ``all``, or ``all.<role>`` where each host has its own kernel.
    cpu_notes : mapping of str to str
        What has no CPU list: where ``softirq`` runs, or that the harness is elsewhere.
    shared_kernel : bool
        Whether the hosts are namespaces of one kernel.
    links, caveats : tuple of str
        How the hosts are connected, and what the rig's numbers cannot show, as text.
    missing : mapping of str to str
        Capabilities that the rig lacks, with the reason.
    at_close : tuple of callable
        What to undo on the hosts before the connections are closed.
    possible_networks : mapping of str to Network
        Networks between containers that `networks` can create, with this rig's addresses.
    patience : float
        Seconds that a campaign waits for a host that does not answer; 0 for hosts that would not
        come back by themselves.
    nearest_ns : float
        The least time of a cache line that was read so far, in ns; see `cache_line`.
    mirrored : mapping of str to tuple of str
        For a capture host, the roles whose ports the switch mirrors to it.

    Examples
    --------
    The hosts need a machine that may be changed, so this is not run as a test:

    >>> from labkit import Rig
    >>> with Rig.open("virtual") as rig:  # doctest: +SKIP
    ...     print(rig.cpu_map, rig.infeasible(docker("overlay")))
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
    possible_networks: Mapping[str, Network] = field(default_factory=dict)
    mirrored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cpu_notes: Mapping[str, str] = field(default_factory=dict)
    patience: float = 0.0
    nearest_ns: float = math.inf

    @staticmethod
    @contextmanager
    def open(
        spec: str | Path = "virtual", *, say: Say = announce, patience: float = 0.0
    ) -> Iterator[Rig]:
        """Open a rig for the duration of a ``with`` block.

        SIGTERM ends the block as Ctrl-C does.

        Parameters
        ----------
        spec : str or Path
            ``"virtual"``, ``"virtual:1gbit"`` (any rate), ``"auto"`` (the rig of this machine), or
            the path of an inventory (``rig.toml``).
        say : callable
            Receives a line before each step that takes seconds.
        patience : float
            Seconds to wait for another process that uses this machine's rig.

        Raises
        ------
        UsageError
            There is no such rig.
        RigError
            The rig is in use, or this machine cannot have it.
        """
        name = auto() if str(spec) == "auto" else str(spec)
        kind = kind_of(name)
        kind.check(name)
        try:
            with (
                ended_as_by_ctrl_c(signal.SIGTERM),
                lock.locked(patience),
                kind.opened(name, say) as rig,
            ):
                yield rig
        except KeyboardInterrupt as error:
            raise Interrupted(str(error)) from error

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Tell whether a specification names this kind of rig."""
        return False

    @classmethod
    def check(cls, spec: str) -> None:
        """Raise an error if a specification is wrong or impossible here; connects to nothing."""

    @classmethod
    def attach(cls, spec: str | Path, say: Say) -> Rig:
        """Return the connected rig; the caller holds `labkit.rig.lock.locked`."""
        raise NotImplementedError

    @classmethod
    @contextmanager
    def opened(cls, spec: str, say: Say) -> Iterator[Rig]:
        """Attach the rig for the duration of a ``with`` block."""
        with closing(cls.attach(spec, say)) as rig:
            yield rig

    @contextmanager
    def changed(self, **attributes: Any) -> Iterator[None]:
        """Set attributes for the duration of a ``with`` block."""
        before = {name: getattr(self, name) for name in attributes}
        try:
            vars(self).update(attributes)
            yield
        finally:
            vars(self).update(before)

    def target(self, placement: Placement, at: str = "") -> Target:
        """Return the host of a placement; raise `RigError` where the rig cannot run it.

        A clean baseline goes to a host without an engine. `at` is the role of another host, such
        as ``peer``; a clean baseline goes to ``clean-peer`` then, where the rig has it.
        """
        reason = self.infeasible(placement)
        clean = placement.baseline_level == "clean"
        role = at or ("clean" if clean else "sut")
        if clean and at == "peer" and "clean-peer" in self.targets:
            role = "clean-peer"
        target = self.targets.get(role)
        if at and target is None:
            reason = f"the rig has no host {at!r}; with lab.peer(...): ... makes a second one"
        elif at and target and not target.engine:
            # Any host without an engine is clean; the verification checks that it has no rules.
            reason = reason if placement.runtime == "bare" else f"{at} has no engine"
            reason = None if clean else reason
        if reason:
            raise RigError(
                f"{placement.label} is not possible {f'on {at}' if at else 'here'}", why=reason
            )
        target = self.targets[role]
        if at or not placement.storage:
            return target
        if placement.storage not in target.storages:
            raise RigError(
                f"the storage {placement.storage} has not been set up",
                remedy=f'with lab.storage(["{placement.storage}"], images=[...]): ...',
            )
        return target.with_storage(placement.storage)

    def infeasible(self, placement: Placement) -> str | None:
        """Return why this rig cannot run a placement, or None."""
        docker = placement.runtime == "docker"
        if reason := RUNTIMES[placement.runtime].impossible.get(placement.network):
            return reason
        level = placement.baseline_level or placement.network
        # Everything but a clean baseline runs under an engine's rules, which are verified.
        needs = ["rules"] if level != "clean" else []
        needs += ["docker"] if docker else []
        needs += [f"runtime:{placement.runtime}", _NEEDS.get(level, f"network:{level}")]
        needs += [f"storage:{placement.storage}"] if placement.storage else []
        needs += ["realtime"] if placement.limits.fifo else []
        needs += ["network:nat"] if level == "nat" and not docker else []
        return next((self.missing[name] for name in needs if name in self.missing), None)

    def cpus(self, role: str, affinity: str) -> str:
        """Return the CPU list of a role under an affinity of `AFFINITIES`."""
        if affinity not in AFFINITIES:
            raise UsageError(
                f"unknown affinity {affinity!r}", remedy=suggestion(affinity, AFFINITIES)
            )
        if affinity == "free":
            return self.cpu_map["all" if self.shared_kernel else f"all.{role}"]
        return self.cpu_map["sut" if affinity == "same" else role]

    def cache_line(self) -> dict[str, float]:
        """Return how long a cache line takes from the generator's CPU to the SUT's and back.

        ``cache_line_ns``, and ``cache_line_ratio`` to the least of the campaign. Empty where the
        two are separate machines or one CPU, where the kernel does not say that they share a cache,
        or where a time would not tell it (`labkit.hosts.cache_line`).
        """
        argv = self.cache_line_command()
        return self.cache_line_of(self.hosts["sut"].run(*argv, check=False).stdout) if argv else {}

    def cache_line_command(self, period: float = 0.0) -> list[str]:
        """Return the command that times it, once or again and again; empty if nothing is timed."""
        ends = [parse_cpus(self.cpu_map.get(role, ""))[:1] for role in ("generator", "sut")]
        if not self.shared_kernel or "sut" not in self.hosts or not all(ends) or ends[0] == ends[1]:
            return []
        return command((ends[0][0], ends[1][0]), period)

    def cache_line_of(self, text: str) -> dict[str, float]:
        """Return the longest time that the command has printed, as `cache_line` does."""
        found = timings(text)
        if not found:
            return {}
        self.nearest_ns = max(min(*found, self.nearest_ns), LEAST_NS)
        return {"cache_line_ns": max(found), "cache_line_ratio": max(found) / self.nearest_ns}

    def owns(self, address: str) -> bool:
        """Tell whether an address belongs to a host or a network of this rig."""
        try:
            wanted = ipaddress.ip_address(address)
        except ValueError:
            return False
        subnets = [text for texts in self.addresses.values() for text in texts]
        for target in self.targets.values():
            subnets += [network.subnet for network in target.networks.values()]
        return any(wanted in ipaddress.ip_network(text) for text in subnets)

    def check_target(self, address: str) -> None:
        """Raise `FenceError` unless load may be sent to the address."""
        if not self.owns(address):
            raise FenceError(
                f"no load is sent to {address!r}",
                where=f"rig {self.name}",
                why="no host of the rig has this address",
                remedy="use the address of a server that the rig placed",
            )

    def silent(self) -> dict[str, HostUnreachable]:
        """Return the hosts that do not answer, each with an error that waiting may change."""
        errors = {}
        for role, host in self.hosts.items():
            try:
                host.run("true")
            except HostUnreachable as error:
                if error.lasting:
                    raise
                errors[role] = error
        return errors

    def boots(self) -> dict[str, str]:
        """Return the boot identifier of each host."""
        return {role: host.run("cat", BOOT_ID).stdout.strip() for role, host in self.hosts.items()}

    def remove_trial(self, label: str) -> None:
        """Remove what a trial left on the hosts, since the connection was lost before it could."""
        for role, host in self.hosts.items():
            stop_labelled(host, label)
            restore(host, label=label)
            socket = self.targets[role].engine if role in self.targets else None
            if socket:
                withdraw(host, label)
                engine.remove_containers(host, socket, f"name={PREFIX}{label}", check=True)

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
        with ThreadPoolExecutor(max(1, len(self.hosts))) as pool:
            found = dict(zip(self.hosts, pool.map(self._facts_of, self.hosts), strict=True))
        for role, facts in found.items():
            target, answer = self.targets.get(role), facts["stable"]["engine"]
            if target and target.engine and not _answers(answer):
                where = f"host {role}: {target.engine}"
                raise RigError("the engine does not answer", where=where, remedy="start it")
        return found

    def _facts_of(self, role: str) -> dict[str, Any]:
        target = self.targets.get(role)
        return collect_facts(
            self.hosts[role],
            interfaces=self.interfaces.get(role, ()),
            engine_socket=target.engine if target else None,
            directory=target.disk if target else "",
        )

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
            "cpu_map": {**self.cpu_map, **self.cpu_notes},
            "shared_kernel": self.shared_kernel,
            "capabilities": dict(self.missing),
            "caveats": list(self.caveats),
        }

    @contextmanager
    def peer(self, images: Sequence[str], *, clean: bool = False) -> Iterator[None]:
        """Add a second host with an engine, ``peer``, for the duration of a ``with`` block.

        It is for clients in containers: the generator stays without firewall rules. Where a rig
        cannot have one, what needs it is infeasible.

        Parameters
        ----------
        images : sequence of str
            Names of ``containers/`` that its engine needs.
        clean : bool
            Whether a second host without an engine is added too, ``clean-peer``: there a clean
            baseline goes that is placed at ``peer``. Only the virtual rig can add it.
        """
        yield

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Add a host that captures the traffic of roles (``sut``) for a ``with`` block.

        Where a rig cannot have one, `missing` has the reason, and what needs it is infeasible.
        """
        yield

    @contextmanager
    def mirror(self) -> Iterator[None]:
        """Mirror ports to the collector inside a ``with`` block, if labkit controls the mirror."""
        yield

    @contextmanager
    def networks(self, names: Sequence[str]) -> Iterator[None]:
        """Create networks between containers for the duration of a ``with`` block.

        Networks that this rig cannot have are left out; `missing` has the reason, and what needs
        them is infeasible. Add a peer whose containers use them first: ``with lab.peer(...):``.

        Parameters
        ----------
        names : sequence of str
            Of ``labkit.placement.NETWORKS``; ``nat`` is for engines that publish no ports.
        """
        with networks.created(self, names):
            yield

    @contextmanager
    def interrupts(self, policy: str) -> Iterator[list[str]]:
        """Keep interrupts off the server's CPU ("moved"), or not ("as found"); yield notes."""
        if policy not in ("as found", "moved"):
            raise UsageError(f"unknown interrupt policy {policy!r}", remedy='"as found" or "moved"')
        roles = ["sut"] if self.shared_kernel else [r for r in ("sut", "clean") if r in self.hosts]
        lines: list[str] = []
        with ExitStack() as stack:
            for role in roles:
                others = cpu_set(self.cpus(role, "free")) - cpu_set(self.cpus(role, "split"))
                if policy == "as found" or not others:
                    why = "" if others else ", since there is one CPU only"
                    lines.append(f"{role}: interrupts as found{why}")
                    continue
                # By its label `restore` finds a trial's settings after a kill.
                tuning = stack.enter_context(Settings(self.hosts[role], "trial-interrupts"))
                cpus = ",".join(map(str, sorted(others)))
                lines.append(f"{role}: {tuning.move_irqs(cpus)} interrupts on CPUs {cpus}")
                lines += [f"{role}: {note}" for note in tuning.notes]
            yield lines

    @contextmanager
    def storage(
        self, wanted: Mapping[str, Sequence[LayeredImage]], *, say: Say = announce
    ) -> Iterator[None]:
        """Prepare storages of containers for the duration of a ``with`` block.

        Storages that this rig cannot have are left out; `missing` has the reason, and what needs
        them is infeasible.

        Parameters
        ----------
        wanted : mapping of str to sequence of LayeredImage
            Storages of ``labkit.placement.STORAGES``, each with the images of its containers.
        say : callable
            Receives a line before each step that takes seconds.
        """
        able = {name: wanted[name] for name in wanted if f"storage:{name}" not in self.missing}
        if not able:
            yield
            return
        with (
            storage.ready(self.targets["sut"], able, say) as target,
            self.changed(targets={**self.targets, "sut": target}),
        ):
            yield

    def close(self) -> None:
        """Undo what only this rig needed, and close the connections."""
        with ExitStack() as stack:
            for host in self.hosts.values():
                stack.callback(host.close)
            for undo in self.at_close:
                stack.callback(undo)


def _answers(engine: Mapping[str, Any] | None) -> bool:
    """Tell whether an engine answers, with its containerd where it is Docker's."""
    components = (engine or {}).get("components", {})
    return engine is not None and ("Engine" not in components or "containerd" in components)
