"""A rig: the hosts of an experiment by role, their CPU map, and what they can and cannot do."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import FenceError, RigError, UsageError
from labkit.hosts import Host, collect_facts
from labkit.hosts.site import Network, Site
from labkit.placement import Placement
from labkit.rig import idling, networks, refusing, storage
from labkit.rig.layers import LayeredImage

#: How the two ends are pinned: left to the scheduler, a CPU each, or both on the server's CPU.
AFFINITIES = ("free", "split", "same")


def _nothing(rig: Rig, wanted: Sequence[str]) -> AbstractContextManager[None]:
    """Return a context for what a rig does not have; `Rig.missing` says why."""
    return nullcontext()


@dataclass
class Rig:
    """Hosts by role, as every kind of rig gives them.

    Parameters
    ----------
    name, kind : str
        What the user called it, and ``virtual``, ``inventory`` or ``one-host``.
    hosts : mapping of str to Host
        ``generator`` sends the load, ``sut`` holds the engine, ``clean`` has none.
    sites : mapping of str to Site
        Places for workloads, by role.
    addresses : mapping of str to tuple of str
        Lab addresses of each role.
    interfaces : mapping of str to tuple of str
        Lab interfaces of each role.
    cpu_map : mapping of str to str
        CPU list of ``generator``, ``sut``, ``clean``, ``softirq`` and ``harness``; and, for ends
        that the scheduler places, ``all``, or ``all.<role>`` where the hosts have a kernel each.
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
    mirror : callable
        Returns a context in which the collector is shown what passes, where the rig does that.
    rate : str
        The rate that labkit gave to its links, as ``tc`` writes it; "" for none.
    layable : mapping of str to Network
        What can be laid between its containers, by name, with this rig's addresses.
    second, listening : callable
        How it has a peer, with images, and a collector, for roles.
    mirrored : mapping of str to tuple of str
        For a host that listens at the switch, the roles whose ports are mirrored to it.
    """

    name: str
    kind: str
    hosts: Mapping[str, Host]
    sites: Mapping[str, Site]
    addresses: Mapping[str, tuple[str, ...]]
    cpu_map: Mapping[str, str]
    shared_kernel: bool
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    at_close: tuple[Callable[[], object], ...] = ()
    mirror: Callable[[], AbstractContextManager[None]] = nullcontext
    rate: str = ""
    layable: Mapping[str, Network] = field(default_factory=dict)
    second: Callable[[Rig, Sequence[str]], AbstractContextManager[None]] = _nothing
    listening: Callable[[Rig, Sequence[str]], AbstractContextManager[None]] = _nothing
    mirrored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def open(spec: str | Path = "virtual", **options: Any) -> AbstractContextManager[Rig]:
        """Return a context in which the rig stands; see `labkit.rig.open_rig`."""
        from labkit.rig import open_rig

        return open_rig(spec, **options)

    def site(self, placement: Placement, at: str = "") -> Site:
        """Return where a placement goes: a clean baseline has a host without an engine.

        Parameters
        ----------
        placement : Placement
            What is to be placed.
        at : str, optional
            The role of another host to place it on, such as ``peer``.
        """
        if at:
            return self._site_at(placement, at)
        role = "clean" if placement.rung == "clean" else "sut"
        # Where a published port needs another address than the host's own (one-host).
        role = "nat" if placement.network == "nat" and "nat" in self.sites else role
        reason = self.refusal(placement)
        if reason:
            raise RigError(f"{placement.label} is not possible here", why=reason)
        if placement.storage and placement.storage not in self.sites[role].storages:
            raise RigError(
                f"the storage {placement.storage} does not stand",
                remedy=f'with lab.storage(["{placement.storage}"], images=[...]): ...',
            )
        site = self.sites[role]
        return site.with_storage(placement.storage) if placement.storage else site

    def _site_at(self, placement: Placement, role: str) -> Site:
        reason = self.refusal(placement)
        clean = placement.rung == "clean" and role in self.sites and not self.sites[role].engine
        # Any host without an engine is a clean one; what is placed there is checked to be beside
        # no rules.
        reason = None if clean else reason
        if role not in self.sites:
            reason = f"the rig has no host {role!r}; with lab.peer(...): ... makes a second one"
        elif placement.runtime != "bare" and not self.sites[role].engine:
            reason = f"{role} has no engine"
        if reason:
            raise RigError(f"{placement.label} is not possible on {role}", why=reason)
        return self.sites[role]

    def refusal(self, placement: Placement) -> str | None:
        """Return why this rig cannot run a placement, or None."""
        return refusing.placement(self, placement)

    def refuse(self, levels: Mapping[str, Any]) -> str | None:
        """Return why this rig cannot run a condition, or None; the planner asks this.

        It reads the factors that every rig has an answer to: ``placement``, ``affinity``, ``wait``,
        ``storage``, ``cache``, ``scheduling``, ``sides`` (``both`` ends in containers),
        ``hosts`` (how many of them placements are on) and ``capture``.
        """
        return refusing.condition(self, levels)

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
        subnets = {one.subnet for site in self.sites.values() for one in site.networks.values()}
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
        for role, site in self.sites.items():
            for name, image in site.images.items():
                other = found.get(name, image.digest) != image.digest
                found[f"{name} on {role}" if other else name] = image.digest
        return found

    def facts(self) -> dict[str, Any]:
        """Return the facts of every host, by role."""
        return {
            role: collect_facts(
                host,
                interfaces=self.interfaces.get(role, ()),
                engine_socket=self.sites[role].engine if role in self.sites else None,
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
                    "engine": bool(role in self.sites and self.sites[role].engine),
                    **({"mirrors": list(self.mirrored[role])} if role in self.mirrored else {}),
                }
                for role in self.hosts
            },
            "links": list(self.links),
            "cpu_map": dict(self.cpu_map),
            "shared_kernel": self.shared_kernel,
            "capabilities": dict(self.missing),
            "caveats": list(self.caveats),
        }

    def peer(self, images: Sequence[str]) -> AbstractContextManager[None]:
        """Have a second host with an engine, ``peer``, for the duration of a ``with`` block.

        For placements of clients, beside a generator that stays without firewall rules. Where a
        rig cannot have one, plans refuse what needs it.

        Parameters
        ----------
        images : sequence of str
            Names of ``containers/`` that its engine is to have.
        """
        return self.second(self, images)

    def collector(self, *roles: str) -> AbstractContextManager[None]:
        """Have a host that can listen to the traffic of roles (``sut``) inside a ``with`` block.

        Where a rig cannot have one, `missing` says why, and plans refuse what needs it.
        """
        return self.listening(self, roles or ("sut",))

    def networks(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Have networks for containers stand for the duration of a ``with`` block.

        Those that this rig cannot have are left out; `missing` says why, and plans refuse them. A
        peer whose containers are to be on them has to stand before: ``with lab.peer(...):`` first.

        Parameters
        ----------
        names : sequence of str
            Of ``labkit.placement.NETWORKS``; ``nat`` is the one for engines that publish no ports
            by themselves.
        """
        return networks.laid(self, names)

    def idle(self, policy: str) -> AbstractContextManager[None]:
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
        return idling.held(self, policy)

    @contextmanager
    def storage(
        self,
        wanted: Mapping[str, Sequence[LayeredImage | str]],
        *,
        say: Callable[[str], None] = print,
    ) -> Iterator[None]:
        """Have storages for containers stand for the duration of a ``with`` block.

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
        before, own = self.sites, self.kind == "virtual"
        with storage.ready(before["sut"], able, own_daemons=own, say=say) as site:
            self.sites = {**self.sites, "sut": site}
            try:
                yield
            finally:
                self.sites = {**self.sites, "sut": before["sut"]}

    def close(self) -> None:
        """Undo what only this rig needed, and drop the connections."""
        with ExitStack() as stack:
            for host in self.hosts.values():
                stack.callback(host.close)
            for undo in self.at_close:
                stack.callback(undo)
