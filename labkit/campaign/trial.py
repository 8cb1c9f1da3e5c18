"""One trial: the protocol of a study runs against this, and everything it did is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from labkit.campaign import background, evidence
from labkit.campaign.record import (
    Snapshots,
    account,
    aimed_at,
    brief,
    check_published,
    check_target,
    kernels,
    snapshot,
)
from labkit.campaign.treatments import PacketCapture, PacketSteering, Pinning, Treatment
from labkit.campaign.window import Load, Window, WindowResult, host_of, thinned
from labkit.design import Condition
from labkit.errors import UsageError
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Runtime, Server, placed
from labkit.runtimes.networks import reached_at
from labkit.tools.base import Client, Measurement

T = TypeVar("T")

#: Contexts that are entered at the same time: an SSH server lets ten sessions into one connection.
AT_ONCE = 4


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
    treatments : mapping of str to Treatment, optional
        The study's, by the name of their factor or setting.
    """

    def __init__(
        self,
        rig: Rig,
        condition: Condition,
        settings: Mapping[str, Any],
        label: str,
        runtimes: dict[str, Runtime],
        turn: int = 0,
        treatments: Mapping[str, Treatment] | None = None,
    ) -> None:
        self._values = {**settings, **dict(condition.levels)}
        self._rig, self._label, self._runtimes = rig, label, runtimes
        self.turn = turn
        #: The treatments of the study with their levels in this trial.
        self._treatments = {
            name: (treatment, self._values[name])
            for name, treatment in (treatments or {}).items()
            if name in self._values
        }
        self._affinity = str(self._declared(Pinning, "split")[1])
        self._placed = 0
        self._servers: dict[str, Server] = {}
        self._places: dict[str, tuple[Target, Placement]] = {}
        self.record: dict[str, Any] = {"commands": [], "flags": [], "mechanisms": {}}
        self.logs: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(
                f"a trial has no {name!r}; this study declares {', '.join(sorted(values))}"
            )
        return values[name]

    def _declared(self, kind: type[Treatment], default: Any) -> tuple[Treatment, Any]:
        """Return the study's treatment of a kind with its level, or one at the default level."""
        pairs = (one for one in self._treatments.values() if isinstance(one[0], kind))
        return next(pairs, (kind(), default))

    @property
    def mechanisms(self) -> dict[str, float]:
        """What the evidence says of the window, once it was measured."""
        return dict(self.record["mechanisms"])

    def flag(self, *texts: str) -> None:
        """Flag the trial: it is kept, and shown with the reason."""
        self.record["flags"] += texts

    def note(self, **details: Any) -> None:
        """Keep JSON data with the trial, under ``details``."""
        self.record.setdefault("details", {}).update(details)

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role under this trial's affinity; "all" is every CPU."""
        if role == "all":
            return self._rig.cpu_map["all" if self._rig.shared_kernel else "all.sut"]
        return self._rig.cpus(role, self._affinity)

    # Placing workloads.

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
            Tells several placements apart. Evidence of the first at which a client aims is the
            trial's own; columns of the others begin with their name.
        cpus : str, optional
            CPU list of its affinity; the role's own otherwise.
        at : str, optional
            The role of another host than the placement's own, such as ``peer`` (`Rig.peer`).
        """
        with self._placement(workload, placement, name=name, cpus=cpus, at=at) as server:
            self._keep(name, server)
            yield server

    @contextmanager
    def serve_all(self, wanted: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time; each of `wanted` holds the arguments of `serve`.

        All are ready and verified before the block begins. Their addresses are known beforehand:
        see `address`.
        """
        names = [one.get("name", "server") for one in wanted]
        with at_once([self._placement(**one) for one in wanted]) as servers:
            for name, server in zip(names, servers, strict=True):
                self._keep(name, server)
            yield servers

    def address(self, placement: Placement, *, after: int = 0, at: str = "") -> str:
        """Return where a placement will be reached that is placed after so many others."""
        return reached_at(self._target(placement, at, after), placement)

    def _target(self, placement: Placement, at: str, after: int = 0) -> Target:
        # Each of several has an address of its own where its network gives it one.
        return replace(self._rig.target(placement, at), place=self._placed + after)

    def _placement(
        self,
        workload: Workload,
        placement: Placement,
        *,
        name: str = "server",
        cpus: str | None = None,
        at: str = "",
    ) -> AbstractContextManager[Server]:
        """Count a placement at once, and return the context that makes it."""
        if name in self._servers:
            raise UsageError(f"two placements called {name!r} at once", remedy="name one of them")
        target = self._target(placement, at)
        self._placed += 1
        self.record["commands"].append(brief(workload.argv))
        return self._make(name, target, placement, workload, cpus or self.cpus(self._role(target)))

    @contextmanager
    def _make(
        self, name: str, target: Target, placement: Placement, workload: Workload, cpus: str
    ) -> Iterator[Server]:
        runtime = self._runtime(placement)
        label = self._label if name == "server" else f"{self._label}-{name}"
        logs: dict[str, str] = {}
        try:
            with placed(
                runtime, target, placement, workload, cpus=cpus, label=label, logs=logs
            ) as server:
                self._places[name] = target, placement
                yield server
        finally:
            self._servers.pop(name, None)
            self._places.pop(name, None)
            self.logs |= {f"{name}.log": text for text in logs.values()}

    def _keep(self, name: str, server: Server) -> None:
        """Record a placement and its verification."""
        if self._servers:
            self.record.setdefault("verifications", {})[name] = server.verification
        else:
            self.record["verification"] = server.verification
        self._servers[name] = server

    def _runtime(self, placement: Placement) -> Runtime:
        return self._runtimes.setdefault(placement.runtime, RUNTIMES[placement.runtime]())

    def _role(self, target: Target) -> str:
        roles = (role for role, host in self._rig.hosts.items() if host is target.host)
        return next(roles, "sut")

    # Treatments and background jobs.

    def apply(self, name: str, **options: Any) -> AbstractContextManager[Any]:
        """Return the context in which the treatment of a factor or setting holds its level."""
        if name not in self._treatments:
            declared = ", ".join(self._treatments) or "none"
            raise UsageError(
                f"{name!r} has no treatment", remedy=f"declare it in the study; there is {declared}"
            )
        treatment, level = self._treatments[name]
        return treatment.apply(self._rig, level, self._label, **options)

    def capture(self, expression: str = "udp") -> AbstractContextManager[background.Captured]:
        """Capture at the switch, on the collector, for the duration of a ``with`` block.

        Nothing is captured where the study declares the treatment `PacketCapture` and the trial is
        at its level "off". `expression` says which packets are kept, as tcpdump takes it.
        """
        treatment, level = self._declared(PacketCapture, "on")
        return treatment.apply(self._rig, level, self._label, expression=expression)

    @contextmanager
    def steer(self, level: str, *, cpus: str = "own") -> Iterator[None]:
        """Have what both hosts receive handed to CPUs, for the duration of a ``with`` block.

        `level` is one of `labkit.hosts.packet_steering.LEVELS`, `cpus` a CPU list: "own" for the
        CPUs of the receiving host, "all" for those of its machine. Where the study declares the
        treatment `PacketSteering`, every window must show that packets were steered.
        """
        treatment, _ = self._declared(PacketSteering, level)
        with treatment.apply(self._rig, level, self._label, cpus=cpus) as steered:
            self.record["steering"] = steered
            yield

    @contextmanager
    def churn(
        self,
        workload: Workload,
        placement: Placement,
        *,
        name: str = "churn",
        cpus: str | None = None,
    ) -> Iterator[background.Churn]:
        """Start containers in a loop, one after the other, for the duration of a ``with`` block.

        The workload ends by itself. The block begins once the first is running; how many there
        were is the column ``NAME_containers``, and none is a flag.
        """
        target, runtime = self._rig.target(placement), self._runtime(placement)
        where = cpus or self.cpus(self._role(target))
        self.record["commands"].append(brief(workload.argv))
        label = f"{self._label}-{name}"
        argv = runtime.churn(target, placement, workload, where, label)
        # The loop that asks the engine for them stays beside the harness.
        argv = ["taskset", "-c", self._outside(), *argv]
        with background.churn(runtime, target, argv, label) as churn:
            yield churn
        self.record["mechanisms"][f"{name}_containers"] = float(churn.count)
        if not churn.count or churn.why:
            self.flag(f"{name}: {churn.count} containers started; {churn.why}")

    def prepare(
        self, client: Client, *, name: str
    ) -> AbstractContextManager[background.Prestarted]:
        """Start a client on the generator, and stop it while it sleeps before its first packet.

        For what sleeps before it begins: ``prepared.ready()`` is the client that its window runs.
        """
        check_target(self._rig, self._servers.values(), client, None)
        self.record["commands"].append(brief(client.argv))
        target, label = self._rig.targets["generator"], f"{self._label}-{name}"
        command = ["taskset", "-c", self.cpus("generator"), *client.argv]
        directory = f"{target.directory}/{label}"
        return background.prestart(target.host, directory, label, client, command)

    # Measuring.

    def measure(self, client: Client, *, inside: Server | None = None) -> Measurement:
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
            The target is neither an address of the rig nor of a placement of the trial.
        CommandFailed, CommandTimeout, ToolOutput
            The tool failed, took too long, or printed what cannot be read.
        """
        return self.measure_all({"tool": (client, inside)})["tool"]

    def measure_all(
        self, clients: Mapping[str, tuple[Client, Server | None]]
    ) -> dict[str, Measurement]:
        """Run clients at once in one window, each inside a placement or on the generator.

        All run on one host. Evidence per message counts the messages of all of them.

        Returns
        -------
        dict of str to Measurement
            By the clients' names.
        """
        for client, inside in clients.values():
            check_target(self._rig, self._servers.values(), client, inside)
        if not self._servers:
            raise UsageError(
                "measure needs a placement", remedy="call it inside `with trial.serve(...)`"
            )
        host, directory = host_of(self._rig.targets, [inside for _, inside in clients.values()])
        window = Window(host, f"{directory}/{self._label}-client", self._label)
        loads = [self._load(window, name, *pair) for name, pair in clients.items()]
        main = aimed_at([client for client, _ in clients.values()], self._servers)
        shared = self._rig.shared_kernel
        here, *others = kernels(self._servers, main, host, shared=shared)
        before = [snapshot(evidence.BEFORE, one) for one in others]
        try:
            result = window.run(loads, here.places)
            after = [snapshot(evidence.AFTER, one) for one in others]
            measurements = self._read(result, loads)
        finally:
            window.close()
        # What the window's own snapshots hold is the closest to it.
        own = evidence.parse(self.logs.pop("before")), evidence.parse(self.logs.pop("after"))
        pairs = zip((here, *others), (own, *zip(before, after, strict=True)), strict=True)
        inner = next((inside for _, inside in clients.values() if inside), None)
        cpus = (inner.cpus if inner else self.cpus("generator"), main.cpus)
        snapshots = Snapshots(tuple(pairs), *cpus)
        treated = self._treatments.values()
        account(self.record, snapshots, list(measurements.values()), treated)
        self.record["verification"] = main.verification
        self._check_published(main, [client for client, _ in clients.values()])
        return measurements

    def _check_published(self, main: Server, clients: Sequence[Client]) -> None:
        for name, server in self._servers.items():
            target, placement = self._places[name]
            # Not one that a container of its own host reaches by its own address.
            aiming = [one for one in clients if server is main and one.target == server.address]
            if placement.network == "nat" and aiming and server.port:
                used = dict.fromkeys(way for one in aiming for way in one.protocols)
                check_published(target, server, used)

    def _read(self, result: WindowResult, loads: list[Load]) -> dict[str, Measurement]:
        """Keep what a window left, and read what the clients printed."""
        self.record["window_seconds"] = result.seconds
        self.record["mechanisms"]["harness_wakeups"] = result.wakeups
        self.logs |= {name: text for name, text in result.texts.items() if name[-4:] != ".log"}
        errors = "\n".join(result.texts[f"{one.name}.err"] for one in loads).strip()
        names = ", ".join(one.name for one in loads)
        replace(result.job, stderr=errors).check(f"see {names} (.out and .err) of the trial")
        measurements = {}
        for one in loads:
            texts = result.texts[f"{one.name}.out"], result.texts[f"{one.name}.log"]
            measurements[one.name] = one.client.parse(*texts)
            if one.client.samples_in_stdout:
                self.logs.pop(f"{one.name}.out")
        return measurements

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


@contextmanager
def at_once(contexts: Sequence[AbstractContextManager[T]]) -> Iterator[list[T]]:
    """Enter contexts several at a time, and leave them so; each is left that was entered.

    Yields what each gave, in their order. The first error of entering is raised, once those that
    were entered are left.
    """
    stacks = [ExitStack() for _ in contexts]
    try:
        # Its end waits for what is under way, also where one has failed.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            entered = list(pool.map(ExitStack.enter_context, stacks, contexts))
        yield entered
    finally:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            leaving = [pool.submit(stack.close) for stack in stacks]
        for one in leaving:
            one.result()
