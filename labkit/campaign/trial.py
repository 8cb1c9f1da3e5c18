"""One trial: the protocol of a study runs against this, and everything it did is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from labkit.benchmarks.base import Client, Reading
from labkit.campaign import accounting, capturing, evidence, visits
from labkit.campaign.outcome import brief
from labkit.campaign.window import Load, Seen, Window, thinned
from labkit.design import Condition
from labkit.errors import FenceError, RigError, UsageError
from labkit.hosts import Host
from labkit.hosts.site import Site
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Runtime, Server, placed


class Trial:
    """What a protocol sees: the levels of its condition, the settings, and a few verbs.

    Levels and settings are attributes: ``trial.placement``, ``trial.messages``. A protocol reads
    nothing else, so that the plan is all that a trial depends on.

    Parameters
    ----------
    rig : Rig
        Where it runs.
    condition : Condition
        Its levels.
    settings : mapping
        The plan's settings.
    label : str
        Marks whatever is started; unique to the attempt.
    runtimes : dict of str to Runtime
        The campaign's engines.
    turn : int
        The number of its block: for what is taken in turns from block to block, such as which of
        two CPUs, because it is to be balanced and is no factor.
    """

    def __init__(
        self,
        rig: Rig,
        condition: Condition,
        settings: Mapping[str, Any],
        label: str,
        runtimes: dict[str, Runtime],
        turn: int = 0,
    ) -> None:
        self._values = {**settings, **dict(condition.levels)}
        self._rig, self._label, self._runtimes = rig, label, runtimes
        self.turn = turn
        self._servers: dict[str, Server] = {}
        self._placed = 0
        self._places: dict[str, tuple[Site, Placement]] = {}
        self.record: dict[str, Any] = {"commands": [], "flags": [], "mechanisms": {}}
        self.logs: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(
                f"a trial has no {name!r}; this study declares {', '.join(sorted(values))}"
            )
        return values[name]

    @property
    def mechanisms(self) -> dict[str, float]:
        """What the evidence says of the window, once it was measured."""
        return dict(self.record["mechanisms"])

    def flag(self, *texts: str) -> None:
        """Flag the trial: it is kept, and shown with what is said of it."""
        self.record["flags"] += texts

    def note(self, **details: Any) -> None:
        """Keep JSON data with the trial, under ``details``."""
        self.record.setdefault("details", {}).update(details)

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role under this trial's affinity; "all" is every CPU."""
        if role == "all":
            return self._rig.cpu_map["all" if self._rig.shared_kernel else "all.sut"]
        return self._rig.cpus(role, self._values.get("affinity", "split"))

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
        if name in self._servers:
            raise UsageError(f"two placements called {name!r} at once", remedy="name one of them")
        # Each of several has an address of its own where its network gives it one.
        site = replace(self._rig.site(placement, at), place=self._placed)
        self._placed += 1
        runtime = self._runtime(placement)
        label = self._label if name == "server" else f"{self._label}-{name}"
        self.record["commands"].append(brief(workload.argv))
        logs: dict[str, str] = {}
        where = cpus or self.cpus(self._role(site))
        try:
            with placed(
                runtime, site, placement, workload, cpus=where, label=label, logs=logs
            ) as server:
                if self._servers:
                    self.record.setdefault("readbacks", {})[name] = server.readback
                else:
                    self.record["readback"] = server.readback
                self._servers[name], self._places[name] = server, (site, placement)
                yield server
        finally:
            self._servers.pop(name, None)
            self.logs |= {f"{name}.log": text for text in logs.values()}

    @contextmanager
    def come_and_go(
        self,
        workload: Workload,
        placement: Placement,
        *,
        name: str = "visitor",
        cpus: str | None = None,
    ) -> Iterator[visits.Visits]:
        """Let containers come and go, one after the other, for the duration of a ``with`` block.

        The workload ends by itself. The block begins when the first has come; how many did is the
        column ``NAME_visits``, and none is a flag.
        """
        site, runtime = self._rig.site(placement), self._runtime(placement)
        where = cpus or self.cpus(self._role(site))
        self.record["commands"].append(brief(workload.argv))
        label = f"{self._label}-{name}"
        argv = runtime.come_and_go(site, placement, workload, where, label)
        # The loop that asks the engine for them stays beside the harness.
        argv = ["taskset", "-c", self._outside(), *argv]
        with visits.coming(runtime, site, argv, label) as seen:
            yield seen
        self.record["mechanisms"][f"{name}_visits"] = float(seen.count)
        if not seen.count or seen.why:
            self.record["flags"].append(f"{name}: {seen.count} came; {seen.why}")

    @contextmanager
    def capture(self, expression: str = "udp") -> Iterator[capturing.Captured]:
        """Capture at the switch, on the collector, for the duration of a ``with`` block.

        Parameters
        ----------
        expression : str
            Which packets are kept, as tcpdump takes it.
        """
        role, rig = "collector", self._rig
        if role not in rig.sites:
            raise RigError(
                "the rig has no collector", remedy="with lab.collector(): ... has one listen"
            )
        cpus = rig.cpu_map.get(role) or rig.cpu_map["harness"]
        where = (rig.sites[role], rig.interfaces[role][0], f"{self._label}-capture", cpus)
        with rig.mirror(), capturing.listening(*where, expression) as captured:
            yield captured

    def measure(self, client: Client, *, inside: Server | None = None) -> Reading:
        """Run a client as a detached job, and sleep until it has ended.

        Parameters
        ----------
        client : Client
            What runs.
        inside : Server, optional
            A placement that it runs in, on its CPUs; the generator otherwise.

        Raises
        ------
        FenceError
            The target is neither an address of the rig nor of a placement that stands.
        CommandFailed, CommandTimeout, ToolOutput
            The tool failed, took too long, or printed what cannot be read.
        """
        return self.measure_all({"tool": (client, inside)})["tool"]

    def measure_all(
        self, clients: Mapping[str, tuple[Client, Server | None]]
    ) -> dict[str, Reading]:
        """Run clients at once in one window, each inside a placement or on the generator.

        All run on one host. Evidence per message counts the messages of all of them.

        Returns
        -------
        dict of str to Reading
            By the clients' names.
        """
        for client, inside in clients.values():
            self._check_target(client, inside)
        if not self._servers:
            raise UsageError(
                "measure needs a placement", remedy="call it inside `with trial.serve(...)`"
            )
        host, directory = self._window_host(clients)
        window = Window(host, f"{directory}/{self._label}-client", self._label)
        loads = [self._load(window, name, *pair) for name, pair in clients.items()]
        main = accounting.aimed_at([client for client, _ in clients.values()], self._servers)
        near = self._near(main, host)
        places = [
            str(one.pid) if one is main else f"{name}={one.pid}"
            for name, one in self._servers.items()
            if self._near(one, host)
        ]
        before = None if near else accounting.snapshot(evidence.BEFORE, main)
        try:
            seen = window.run(loads, places)
            after = None if near else accounting.snapshot(evidence.AFTER, main)
            readings = self._read(seen, loads)
        finally:
            window.close()
        # With one kernel the window's snapshots hold the server too, and are the closer ones.
        here = evidence.parse(self.logs.pop("before")), evidence.parse(self.logs.pop("after"))
        there = (before, after) if before and after else here
        inner = next((inside for _, inside in clients.values() if inside), None)
        cpus = (inner.cpus if inner else self.cpus("generator"), main.cpus)
        ends = accounting.Ends(here, there, *cpus)
        accounting.account(self.record, ends, readings.values(), self._values)
        self.record["readback"] = main.readback
        self._check_published(main, {client.target for client, _ in clients.values()})
        return readings

    def _check_published(self, main: Server, targets: set[str]) -> None:
        for name, server in self._servers.items():
            site, placement = self._places[name]
            # Not one that a container of its own host reaches by its own address.
            aimed = server is main and server.address in targets
            if placement.network == "nat" and aimed and server.port:
                accounting.check_published(site, server)

    def _read(self, seen: Seen, loads: list[Load]) -> dict[str, Reading]:
        """Keep what was seen, and read what the clients printed."""
        self.record["window_seconds"] = seen.seconds
        self.record["mechanisms"]["harness_wakeups"] = seen.wakeups
        self.logs |= {name: text for name, text in seen.texts.items() if name[-4:] != ".log"}
        told = "\n".join(seen.texts[f"{one.name}.err"] for one in loads).strip()
        names = ", ".join(one.name for one in loads)
        replace(seen.result, stderr=told).check(f"see {names} (.out and .err) of the trial")
        readings = {}
        for one in loads:
            texts = seen.texts[f"{one.name}.out"], seen.texts[f"{one.name}.log"]
            readings[one.name] = one.client.parse(*texts)
            if one.client.bulky:
                self.logs.pop(f"{one.name}.out")
        return readings

    def _runtime(self, placement: Placement) -> Runtime:
        return self._runtimes.setdefault(placement.runtime, RUNTIMES[placement.runtime]())

    def _role(self, site: Site) -> str:
        roles = (role for role, host in self._rig.hosts.items() if host is site.host)
        return next(roles, "sut")

    def _near(self, server: Server, host: Host) -> bool:
        """Tell whether a snapshot on the host sees the server's process."""
        return self._rig.shared_kernel or server.host is host

    def _check_target(self, client: Client, inside: Server | None) -> None:
        """Raise unless the load goes to an address of the rig, or of a placement that stands."""
        if not client.target and inside is None:
            raise FenceError("no load is sent to nowhere", remedy="name a target on the generator")
        standing = {one.own_address for one in self._servers.values()}
        if client.target and not (inside is not None and client.target in standing):
            self._rig.check_target(client.target)

    def _window_host(self, clients: Mapping[str, tuple[Client, Server | None]]) -> tuple[Host, str]:
        generator = self._rig.sites["generator"]
        hosts = [generator.host if one is None else one.host for _, one in clients.values()]
        if any(host is not hosts[0] for host in hosts):
            raise UsageError(
                "clients of one window run on one host",
                why=", ".join(sorted({host.name for host in hosts})),
            )
        sites = self._rig.sites.values()
        return hosts[0], next(one.directory for one in sites if one.host is hosts[0])

    def _load(self, window: Window, name: str, client: Client, inside: Server | None) -> Load:
        log = window.log(name) if inside is None else f"/tmp/{self._label}-{name}.log"
        argv = [part.replace("{log}", log) for part in client.argv]
        self.record["commands"].append(brief(argv))
        show = thinned(log, client.log_rows)
        if inside is None:
            return Load(name, client, ["taskset", "-c", self.cpus("generator"), *argv], show)
        # What brings the command in stays beside the harness; the command itself is pinned inside.
        command = ["taskset", "-c", self._outside(), *inside.enter(argv)]
        return Load(name, client, command, inside.enter(show))

    def _outside(self) -> str:
        cpus = self._rig.cpu_map
        return cpus["harness"] if self._rig.shared_kernel else cpus["all.sut"]
