"""The verbs of a trial that place workloads: one, or several at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from labkit.campaign.outcome import brief
from labkit.campaign.together import at_once
from labkit.errors import UsageError
from labkit.hosts.site import Site
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Runtime, Server, placed
from labkit.runtimes.networks import reached_at


class Placing:
    """What stands in a trial, and how it comes to stand; see `labkit.campaign.trial.Trial`."""

    def __init__(self, rig: Rig, label: str, runtimes: dict[str, Runtime], affinity: str) -> None:
        self._rig, self._label, self._runtimes = rig, label, runtimes
        self._affinity, self._placed = affinity, 0
        self._servers: dict[str, Server] = {}
        self._places: dict[str, tuple[Site, Placement]] = {}
        self.record: dict[str, Any] = {"commands": [], "flags": [], "mechanisms": {}}
        self.logs: dict[str, str] = {}

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role under this trial's affinity; "all" is every CPU."""
        if role == "all":
            return self._rig.cpu_map["all" if self._rig.shared_kernel else "all.sut"]
        return self._rig.cpus(role, self._affinity)

    @contextmanager
    def serve(
        self,
        workload: Workload,
        placement: Placement,
        *,
        name: str = "server",
        cpus: str | None = None,
        at: str = "",
    ) -> Iterator[Server]:
        """Place a workload, ready and verified, for the duration of a ``with`` block.

        Parameters
        ----------
        workload, placement : Workload, Placement
            What, and where.
        name : str
            Tells several that stand at once apart. Evidence of the first at which a client aims
            is the trial's own; columns of the others begin with their name.
        cpus : str, optional
            CPU list of its affinity; the role's own otherwise.
        at : str, optional
            The role of another host than the placement's own, such as ``peer`` (`Rig.peer`).
        """
        with self._placing(workload, placement, name=name, cpus=cpus, at=at) as server:
            self._keep(name, server)
            yield server

    @contextmanager
    def serve_all(self, wanted: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time; each of `wanted` holds the arguments of `serve`.

        All are ready and verified before the block begins. Their addresses are known beforehand:
        see `address`.
        """
        names = [one.get("name", "server") for one in wanted]
        with at_once([self._placing(**one) for one in wanted]) as servers:
            for name, server in zip(names, servers, strict=True):
                self._keep(name, server)
            yield servers

    def address(self, placement: Placement, *, after: int = 0, at: str = "") -> str:
        """Return where a placement will be reached that is placed after so many others."""
        return reached_at(self._site(placement, at, after), placement)

    def _site(self, placement: Placement, at: str, after: int = 0) -> Site:
        # Each of several has an address of its own where its network gives it one.
        return replace(self._rig.site(placement, at), place=self._placed + after)

    def _placing(
        self,
        workload: Workload,
        placement: Placement,
        *,
        name: str = "server",
        cpus: str | None = None,
        at: str = "",
    ) -> AbstractContextManager[Server]:
        """Number a placement, and return the context in which it stands."""
        if name in self._servers:
            raise UsageError(f"two placements called {name!r} at once", remedy="name one of them")
        site = self._site(placement, at)
        self._placed += 1
        self.record["commands"].append(brief(workload.argv))
        where = cpus or self.cpus(self._role(site))
        return self._standing(name, site, placement, workload, where)

    @contextmanager
    def _standing(
        self, name: str, site: Site, placement: Placement, workload: Workload, cpus: str
    ) -> Iterator[Server]:
        runtime = self._runtime(placement)
        label = self._label if name == "server" else f"{self._label}-{name}"
        logs: dict[str, str] = {}
        try:
            with placed(
                runtime, site, placement, workload, cpus=cpus, label=label, logs=logs
            ) as server:
                self._places[name] = site, placement
                yield server
        finally:
            self._servers.pop(name, None)
            self._places.pop(name, None)
            self.logs |= {f"{name}.log": text for text in logs.values()}

    def _keep(self, name: str, server: Server) -> None:
        """Keep that a placement stands, and what proves where."""
        if self._servers:
            self.record.setdefault("readbacks", {})[name] = server.readback
        else:
            self.record["readback"] = server.readback
        self._servers[name] = server

    def _runtime(self, placement: Placement) -> Runtime:
        return self._runtimes.setdefault(placement.runtime, RUNTIMES[placement.runtime]())

    def _role(self, site: Site) -> str:
        roles = (role for role, host in self._rig.hosts.items() if host is site.host)
        return next(roles, "sut")
