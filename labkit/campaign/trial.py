"""One trial: the protocol of a study runs against this, and everything it did is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from labkit.benchmarks.base import Client, Reading
from labkit.campaign import accounting, ahead, capturing, evidence, steered, visits
from labkit.campaign.outcome import brief
from labkit.campaign.placing import Placing
from labkit.campaign.window import Load, Seen, Window, host_of, thinned
from labkit.design import Condition
from labkit.errors import RigError, UsageError
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import Runtime, Server


class Trial(Placing):
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
        super().__init__(rig, label, runtimes, self._values.get("affinity", "split"))
        self.turn = turn

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

        Trials at the level ``off`` of a factor ``capture`` are left unobserved. `expression` says
        which packets are kept, as tcpdump takes it.
        """
        if self._values.get("capture") == "off":
            yield capturing.Captured()
            return
        role, rig = "collector", self._rig
        if role not in rig.sites:
            raise RigError(
                "the rig has no collector", remedy="with lab.collector(): ... has one listen"
            )
        cpus = rig.cpu_map[role]
        where = (rig.sites[role], rig.interfaces[role][0], f"{self._label}-capture", cpus)
        with rig.mirror(), capturing.listening(*where, expression) as captured:
            yield captured

    @contextmanager
    def steer(self, level: str, *, cpus: str = "own") -> Iterator[None]:
        """Have what both hosts receive handed to CPUs, for the duration of a ``with`` block.

        `level` is of `labkit.hosts.steering.LEVELS`, `cpus` a CPU list: "own" for the CPUs of the
        receiving host, "all" for those of its machine. Windows of a trial whose factor ``rps`` is
        not "off" must show that packets were steered.
        """
        with steered.held(self._rig, level, cpus, self._label) as found:
            self.record["steering"] = found
            yield

    def prepare(self, client: Client, *, name: str) -> AbstractContextManager[ahead.Ahead]:
        """Start a client on the generator, and hold it while it sleeps before its first packet.

        For what sleeps before it begins: ``prepared.ready()`` is the client that its window runs.
        """
        accounting.check_target(self._rig, self._servers.values(), client, None)
        self.record["commands"].append(brief(client.argv))
        site, label = self._rig.sites["generator"], f"{self._label}-{name}"
        command = ["taskset", "-c", self.cpus("generator"), *client.argv]
        return ahead.held(site.host, f"{site.directory}/{label}", label, client, command)

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
            accounting.check_target(self._rig, self._servers.values(), client, inside)
        if not self._servers:
            raise UsageError(
                "measure needs a placement", remedy="call it inside `with trial.serve(...)`"
            )
        host, directory = host_of(self._rig.sites, [inside for _, inside in clients.values()])
        window = Window(host, f"{directory}/{self._label}-client", self._label)
        loads = [self._load(window, name, *pair) for name, pair in clients.items()]
        main = accounting.aimed_at([client for client, _ in clients.values()], self._servers)
        shared = self._rig.shared_kernel
        here, *others = accounting.kernels(self._servers, main, host, shared=shared)
        before = [accounting.snapshot(evidence.BEFORE, one) for one in others]
        try:
            seen = window.run(loads, here.places)
            after = [accounting.snapshot(evidence.AFTER, one) for one in others]
            readings = self._read(seen, loads)
        finally:
            window.close()
        # What the window's own snapshots hold is the closest to it.
        own = evidence.parse(self.logs.pop("before")), evidence.parse(self.logs.pop("after"))
        seen_by = zip((here, *others), (own, *zip(before, after, strict=True)), strict=True)
        inner = next((inside for _, inside in clients.values() if inside), None)
        cpus = (inner.cpus if inner else self.cpus("generator"), main.cpus)
        ends = accounting.Ends(tuple(seen_by), *cpus)
        accounting.account(self.record, ends, readings.values(), self._values)
        self.record["readback"] = main.readback
        self._check_published(main, [client for client, _ in clients.values()])
        return readings

    def _check_published(self, main: Server, clients: Sequence[Client]) -> None:
        for name, server in self._servers.items():
            site, placement = self._places[name]
            # Not one that a container of its own host reaches by its own address.
            aiming = [one for one in clients if server is main and one.target == server.address]
            if placement.network == "nat" and aiming and server.port:
                used = dict.fromkeys(way for one in aiming for way in one.protocols)
                accounting.check_published(site, server, used)

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
