"""The trial that a protocol runs: it places, treats and measures, and keeps a record of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from labkit.campaign import background, evidence, held
from labkit.campaign.record import (
    Kernel,
    account,
    aimed_at,
    brief,
    check_held,
    check_published,
    check_target,
    kernels,
    snapshot,
)
from labkit.campaign.treatments import (
    AS_FOUND,
    IdlePolicy,
    PacketCapture,
    PacketSteering,
    Pinning,
    Treatment,
)
from labkit.campaign.window import Load, Window, WindowResult, host_of, thinned
from labkit.design import Condition
from labkit.errors import CpusDisturbed, UsageError
from labkit.hosts import Host, script
from labkit.hosts.cache_line import PERIOD
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Engine, Instance, Server, placed
from labkit.runtimes.networks import reached_at
from labkit.tools.base import Client, Measurement

T = TypeVar("T")

#: Contexts that are entered at the same time; an SSH server allows ten sessions a connection.
AT_ONCE = 4
#: So often a window is measured at most (`Trial.repeated`); after that the whole trial is repeated.
WINDOW_ATTEMPTS = 10
_REPEATED = "windows_repeated"

# The folder for the log of a client that sees other files than its host. It must not exist yet, and
# is removed once the log was read.
_MAKE = 'mkdir -m 700 "$1"; shift; exec "$@"'
_REMOVE = 'trap \'rm -rf "$1"\' EXIT; (shift; exec "$@")'


class Trial:
    """One trial, as its protocol sees it.

    Levels and settings are attributes, such as ``trial.placement`` and ``trial.messages``. A
    protocol reads nothing else, so that a trial depends on its plan alone.

    Parameters
    ----------
    rig : Rig
        Where it runs.
    condition : Condition
        Its levels.
    settings : mapping
        The plan's settings.
    label : str
        Marks everything that is started; unique to the attempt.
    runtimes : dict of str to Engine
        The campaign's runtimes by name; those that are missing are added.
    turn : int
        The number of its block, for what alternates between blocks without being a factor.
    treatments : mapping of str to Treatment, optional
        The study's treatments, by the name of their factor or setting.
    """

    def __init__(
        self,
        rig: Rig,
        condition: Condition,
        settings: Mapping[str, Any],
        label: str,
        runtimes: dict[str, Engine],
        turn: int = 0,
        treatments: Mapping[str, Treatment] | None = None,
    ) -> None:
        # As the hosts count: also while this machine sleeps.
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._values = {**settings, **dict(condition.levels)}
        self._rig, self._label, self._runtimes = rig, label, runtimes
        self.turn = turn
        #: The study's treatments with their levels in this trial.
        self._treatments = {
            name: (treatment, self._values[name])
            for name, treatment in (treatments or {}).items()
            if name in self._values
        }
        self._affinity = str(self._declared(Pinning, "split")[1])
        self._placed = 0
        self._servers: dict[str, Server] = {}
        self._targets: dict[str, tuple[Target, Placement]] = {}
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
        """Return the study's treatment of a kind with its level, or a new one with the default."""
        pairs = (pair for pair in self._treatments.values() if isinstance(pair[0], kind))
        return next(pairs, (kind(), default))

    @property
    def mechanisms(self) -> dict[str, float]:
        """The mechanisms of the measured window, per operation where they are rates."""
        return {key: x for key, x in self.record["mechanisms"].items() if key != _REPEATED}

    def flag(self, *texts: str) -> None:
        """Flag the trial with reasons; it is kept."""
        self.record["flags"] += texts

    def note(self, **details: Any) -> None:
        """Keep JSON data with the trial, under ``details``."""
        self.record.setdefault("details", {}).update(details)

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role at this trial's affinity; "all" is every CPU."""
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
            What runs, and where.
        name : str
            Unique among the placements of the trial. The columns of the placement at which a
            client aims have no prefix; those of the others begin with their name.
        cpus : str, optional
            CPU list; that of the host's role when omitted.
        at : str, optional
            The role of another host than the placement's, such as ``peer`` (`Rig.peer`).
        """
        with self._placement(workload, placement, name=name, cpus=cpus, at=at) as server:
            self._keep(name, server)
            yield server

    @contextmanager
    def serve_all(self, placements: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time; each of `placements` has the arguments of `serve`.

        All are ready and verified when the block begins. `address` returns their addresses
        before.
        """
        names = [arguments.get("name", "server") for arguments in placements]
        with at_once([self._placement(**arguments) for arguments in placements]) as servers:
            for name, server in zip(names, servers, strict=True):
                self._keep(name, server)
            yield servers

    def address(self, placement: Placement, *, after: int = 0, at: str = "") -> str:
        """Return the address that a placement will have, `after` further ones."""
        return reached_at(self._target(placement, at, after), placement)

    def _target(self, placement: Placement, at: str, after: int = 0) -> Target:
        # The number of the placement decides its address.
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
        """Count a placement, and return the context that makes it."""
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
                for treatment, level in self._treatments.values():
                    treatment.placed(level, server)
                self._targets[name] = target, placement
                yield server
        finally:
            self._servers.pop(name, None)
            self._targets.pop(name, None)
            self.logs |= {f"{name}.log": text for text in logs.values()}

    def _keep(self, name: str, server: Server) -> None:
        """Record a placement and its verification."""
        if self._servers:
            self.record.setdefault("verifications", {})[name] = server.verification
        else:
            self.record["verification"] = server.verification
        self._servers[name] = server

    def _runtime(self, placement: Placement) -> Engine:
        return self._runtimes.setdefault(placement.runtime, RUNTIMES[placement.runtime])

    def _role(self, target: Target) -> str:
        roles = (role for role, host in self._rig.hosts.items() if host is target.host)
        return next(roles, "sut")

    # Treatments and background jobs.

    def apply(self, name: str, **options: Any) -> AbstractContextManager[Any]:
        """Return the context in which the treatment of a factor or setting is applied."""
        if name not in self._treatments:
            declared = ", ".join(self._treatments) or "none"
            raise UsageError(
                f"{name!r} has no treatment", remedy=f"the study's treatments are: {declared}"
            )
        treatment, level = self._treatments[name]
        return treatment.apply(self._rig, level, self._label, **options)

    def capture(self, expression: str = "udp") -> AbstractContextManager[background.Captured]:
        """Capture packets at the switch, on the collector, during a ``with`` block.

        Nothing is captured at the level "off" of the study's treatment `PacketCapture`.
        `expression` is a filter of tcpdump.
        """
        treatment, level = self._declared(PacketCapture, "on")
        return treatment.apply(self._rig, level, self._label, expression=expression)

    @contextmanager
    def steer(self, level: str, *, cpus: str = "own") -> Iterator[None]:
        """Steer received packets to CPUs on both hosts, during a ``with`` block.

        `level` is one of `labkit.hosts.packet_steering.LEVELS`, `cpus` a CPU list: "own" for the
        CPUs of the receiving host, "all" for those of its machine. If the study declares the
        treatment `PacketSteering`, a window in which no packet was steered is an error.
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
        """Start containers in a loop, one after the other, during a ``with`` block.

        The workload must end by itself. The block begins when the first container has started.
        The column ``NAME_containers`` counts them; none, or an error, is a flag.
        """
        target, runtime = self._rig.target(placement), self._runtime(placement)
        self.record["commands"].append(brief(workload.argv))
        label, cpus = f"{self._label}-{name}", cpus or self.cpus(self._role(target))
        instance = Instance(target, placement, workload, cpus, label)
        argv = runtime.churn(instance)
        # The loop itself, outside the containers, runs on the harness's CPUs.
        argv = ["taskset", "-c", self._outside(), *argv]
        with background.churn(runtime, instance, argv) as churn:
            yield churn
        self.record["mechanisms"][f"{name}_containers"] = float(churn.count)
        if not churn.count or churn.why:
            self.flag(f"{name}: {churn.count} containers started; {churn.why}")

    def prepare(
        self, client: Client, *, name: str
    ) -> AbstractContextManager[background.Prestarted]:
        """Start a client that first sleeps on the generator, and stop it during its sleep.

        ``prepared.ready()`` returns the client to measure, which continues it.
        """
        check_target(self._rig, self._servers.values(), client, None)
        self.record["commands"].append(brief(client.argv))
        target, label = self._rig.targets["generator"], f"{self._label}-{name}"
        command = self._on_generator(client, client.argv)
        directory = f"{target.directory}/{label}"
        return background.prestart(target.host, directory, label, client, command)

    # Measuring.

    def measure(self, client: Client, *, inside: Server | None = None) -> Measurement:
        """Run a client as a detached job, and sleep until it has ended.

        Parameters
        ----------
        client : Client
            The load.
        inside : Server, optional
            The placement that it runs in, on its CPUs; the generator when omitted.

        Raises
        ------
        FenceError
            The target is no address of the rig or of a placement of the trial.
        CommandFailed, CommandTimeout, ToolOutput
            The tool failed, took too long, or its output cannot be read.
        """
        return self.measure_all({"tool": (client, inside)})["tool"]

    def measure_all(
        self, clients: Mapping[str, tuple[Client, Server | None]]
    ) -> dict[str, Measurement]:
        """Run clients at the same time in one window, on one host.

        Each runs inside a placement or, for None, on the generator. Rates per operation count the
        messages of all clients.

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
        own, *others = self._kernels(main, host)
        for treatment, level in self._treatments.values():
            treatment.ready(self._rig, level)
        for treatment, level in self._treatments.values():
            treatment.begin(self._rig, level)
        before = [snapshot(evidence.BEFORE, kernel) for kernel in others]
        try:
            timing = self._rig.cache_line_command(PERIOD)
            result = window.run(loads, own.processes, own.networks, timing)
            self.flag(*result.flags)
            after = [snapshot(evidence.AFTER, kernel) for kernel in others]
            seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - self._began
        finally:
            window.close()
        result, ends = self._keep_output(result, loads)
        self.record["mechanisms"] |= self._rig.cache_line_of(self.logs.pop("line"))
        texts = [(result.texts["before"], result.texts["after"]), *zip(before, after, strict=True)]
        pairs = list(zip([own, *others], texts, strict=True))
        lasting = (
            self._check_held(pairs, main, ends, loads) if all(map(held.complete, texts)) else {}
        )
        measurements = self._read(result, loads)
        for name in ("before", "after"):
            self.logs.pop(name)
        enclosing = next((inside for _, inside in clients.values() if inside), None)
        cpus = enclosing.cpus if enclosing else self.cpus("generator"), main.cpus
        account(
            self.record,
            pairs,
            cpus,
            list(measurements.values()),
            self._treatments.values(),
            seconds,
        )
        self.record["held"] = lasting
        self._check_time(main, ends, clients)
        self._keep_verifications(main)
        self._check_published(main, [client for client, _ in clients.values()])
        return measurements

    def repeated(self, measure: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function that measures, again where the CPUs were disturbed meanwhile.

        For a trial of several windows, which otherwise are all measured again for one of them
        (`labkit.errors.CpusDisturbed`). The function starts what ends with a window, such as a
        prepared client or a capture. The column ``windows_repeated`` counts in how many calls the
        CPUs were disturbed.
        """
        mechanisms = self.record["mechanisms"]
        mechanisms.setdefault(_REPEATED, 0.0)
        # CPUs that are held from sleeping are not moved together again, until the trial ends.
        held = self._declared(IdlePolicy, AS_FOUND)[1] == "held"
        for _ in range(0 if held else WINDOW_ATTEMPTS - 1):
            flags = list(self.record["flags"])
            try:
                return measure(*arguments, **options)
            except CpusDisturbed:
                self.record["flags"] = flags
                mechanisms[_REPEATED] += 1
        return measure(*arguments, **options)

    def _keep_verifications(self, main: Server) -> None:
        """Record the verification of the server that a load aimed at first, beside the others'."""
        others = self.record.get("verifications", {}) | {
            name: server.verification
            for name, server in self._servers.items()
            if server is not main
        }
        self.record["verification"] = main.verification
        self.record.pop("verifications", None)
        if rest := {name: one for name, one in others.items() if one is not main.verification}:
            self.record["verifications"] = rest

    def _check_published(self, main: Server, clients: Sequence[Client]) -> None:
        for name, server in self._servers.items():
            placement = self._targets[name][1]
            # A client on the server's own host aims at the container's address, not at the port.
            aiming = [one for one in clients if server is main and one.target == server.address]
            if placement.network == "nat" and aiming and server.port:
                protocols = dict.fromkeys(name for client in aiming for name in client.protocols)
                check_published(server, protocols)

    def _kernels(self, main: Server, window: Host) -> list[Kernel]:
        networks = self._rig.networks_of([window, *(one.host for one in self._servers.values())])
        shared = self._rig.shared_kernel
        return kernels(self._servers, main, window, shared=shared, networks=networks)

    def _keep_output(
        self, result: WindowResult, loads: list[Load]
    ) -> tuple[WindowResult, dict[str, held.End]]:
        """Keep a window's output; return it with how its clients ended, as far as that is known."""
        self.record["window_seconds"] = result.seconds
        self.record["mechanisms"]["harness_wakeups"] = result.wakeups
        texts, ends = dict(result.texts), dict[str, held.End]()
        for load in loads:
            texts[f"{load.name}.err"], end = held.take_end(texts[f"{load.name}.err"])
            ends |= {load.name: end} if end else {}
        kept = {name: text for name, text in texts.items() if name[-4:] != ".log"}
        # The two are kept of a trial that fails.
        kept |= {name: evidence.without_programs(kept[name]) for name in ("before", "after")}
        self.logs |= kept
        return replace(result, texts=texts), ends

    def _check_held(
        self,
        pairs: list[tuple[Kernel, tuple[str, str]]],
        main: Server,
        ends: Mapping[str, held.End],
        loads: list[Load],
    ) -> dict[str, Any]:
        """Return what held to the end of the window; raise `ManipulationError` if not all did."""
        name = next(name for name, server in self._servers.items() if server is main)
        links = {link for links in self._rig.interfaces.values() for link in links}
        lasting = check_held(pairs, self._servers, name, links)
        for load in loads:
            if end := ends.get(load.name):
                held.raise_changed(held.problems_of(end, load.name, load.cpus), "the window")
        return lasting

    def _check_time(
        self,
        main: Server,
        ends: Mapping[str, held.End],
        clients: Mapping[str, tuple[Client, Server | None]],
    ) -> None:
        """Raise where more CPU time was used inside a placement than its control group counted."""
        mechanisms = self.record["mechanisms"]
        for name, server in self._servers.items():
            placement = self._targets[name][1]
            if placement.runtime == "bare" and placement.baseline_level != "cgroup":
                continue
            prefix = "" if server is main else f"{name}_"
            used = mechanisms.get(f"{prefix}cpu_ns", 0.0) + sum(
                ends[key].cpu_ns
                for key, (_, inside) in clients.items()
                if inside is server and key in ends
            )
            lost = held.lost_time(name, mechanisms.get(f"{prefix}group_cpu_ns"), used)
            held.raise_changed(lost, f"host {server.host.name}")

    def _read(self, result: WindowResult, loads: list[Load]) -> dict[str, Measurement]:
        """Parse the output of a window's clients."""
        errors = "\n".join(result.texts[f"{load.name}.err"] for load in loads).strip()
        names = ", ".join(load.name for load in loads)
        replace(result.job, stderr=errors).check(f"see {names} (.out and .err) of the trial")
        measurements = {}
        for load in loads:
            texts = result.texts[f"{load.name}.out"], result.texts[f"{load.name}.log"]
            measurements[load.name] = load.client.parse(*texts)
            if load.client.samples_in_stdout:
                self.logs.pop(f"{load.name}.out")
        return measurements

    def _load(self, window: Window, name: str, client: Client, inside: Server | None) -> Load:
        placements = [self._targets[key][1] for key, one in self._servers.items() if one is inside]
        shares_files = all(one.baseline_level in ("clean", "rules") for one in placements)
        folder = "" if shares_files else f"/run/{self._label}-{name}"
        log = f"{folder}/log" if folder else window.log(name)
        argv = [part.replace("{log}", log) for part in client.argv]
        self.record["commands"].append(brief(argv))
        show = thinned(log, client.log_rows)
        if folder and argv != list(client.argv):
            argv, show = [*script(_MAKE, folder), *argv], [*script(_REMOVE, folder), *show]
        if inside is None:
            command = self._on_generator(client, held.guarded(argv))
            return Load(name, client, command, show, self.cpus("generator"))
        if client.fifo:
            raise UsageError(
                "a client inside a placement has the scheduling class of that",
                remedy='place it with limited(fifo=...), or give the client "fifo" 0',
            )
        # What enters the placement runs on the harness's CPUs; the command is pinned inside.
        command = ["taskset", "-c", self._outside(), *inside.enter(held.guarded(argv))]
        return Load(name, client, command, inside.enter(show), inside.cpus)

    def _on_generator(self, client: Client, argv: Sequence[str]) -> list[str]:
        real_time = ["chrt", "--fifo", str(client.fifo)] if client.fifo else []
        return ["taskset", "-c", self.cpus("generator"), *real_time, *argv]

    def _outside(self) -> str:
        cpus = self._rig.cpu_map
        return cpus["harness"] if self._rig.shared_kernel else cpus["all.sut"]


@contextmanager
def at_once(contexts: Sequence[AbstractContextManager[T]]) -> Iterator[list[T]]:
    """Enter and leave contexts several at a time, and yield their values in order.

    After an error of one, all that were entered are left before it is raised.
    """
    stacks = [ExitStack() for _ in contexts]
    try:
        # The pool's end waits for all, also where one has failed.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            entered = list(pool.map(ExitStack.enter_context, stacks, contexts))
        yield entered
    finally:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            leaving = [pool.submit(stack.close) for stack in stacks]
        for future in leaving:
            future.result()
