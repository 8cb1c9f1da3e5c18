"""The trial that a protocol runs: it places, treats and measures, and keeps a record of it."""

from __future__ import annotations

import hashlib
import html
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from labkit.campaign import background, counters, ends, window
from labkit.campaign.rows import make_rows
from labkit.campaign.treatments import AS_FOUND, IdlePolicy, PacketCapture, Pinning, Treatment
from labkit.campaign.window import Load, Window
from labkit.design import Condition, call
from labkit.errors import CpusDisturbed, FenceError, LabkitError, UsageError
from labkit.hosts import Host
from labkit.hosts.cache_line import PERIOD
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Instance, Server, placed
from labkit.runtimes.base import reached_at
from labkit.runtimes.docker import churning
from labkit.runtimes.verify import COUNTED, check_translated, check_unchanged
from labkit.tools.base import Client, Measurement
from labkit.tools.parsing import paused

T = TypeVar("T")

#: Contexts that are entered at the same time; an SSH server allows ten sessions a connection.
AT_ONCE = 4
#: So often a window is measured at most (`Trial.repeated`); after that the whole trial is repeated.
WINDOW_ATTEMPTS = 10
#: Longer arguments are labkit's own scripts.
_LONGEST = 1000


@dataclass(frozen=True)
class Attempt:
    """One attempt at a trial; display it to see its record.

    `record` is as a campaign stores it: rows, commands, verification, evidence, error. `logs` has
    the output of everything that ran, by file name. `measurement` has no samples after an error.
    """

    condition: str
    measurement: Measurement
    record: Mapping[str, Any]
    logs: Mapping[str, str]
    error: Exception | None = None

    def __str__(self) -> str:
        return json.dumps({**self.record, "logs": self.logs}, indent=1, default=str)

    def _repr_html_(self) -> str:
        label, text = html.escape(self.condition), html.escape(str(self))
        return f"<details><summary>{label}</summary><pre>{text}</pre></details>"


class Trial:
    """One trial, as its protocol sees it.

    Parameters
    ----------
    rig : Rig
        Where it runs.
    values : mapping
        Its levels and the plan's settings, by name.
    label : str
        Marks everything that is started; unique to the attempt.
    turn : int
        The number of its block, for what alternates between blocks without being a factor.
    treatments : mapping of str to Treatment
        By the name of their factor or setting.
    """

    def __init__(
        self,
        rig: Rig,
        values: Mapping[str, Any],
        label: str,
        *,
        turn: int = 0,
        treatments: Mapping[str, Treatment] | None = None,
    ) -> None:
        # As the hosts count: also while this machine sleeps.
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._rig, self._values, self._label, self.turn = rig, values, label, turn
        #: The treatments with their levels in this trial.
        self._treatments = {
            name: (treatment, values[name])
            for name, treatment in (treatments or {}).items()
            if name in values
        }
        self._affinity = str(self._level(Pinning, "split"))
        self._placed = 0
        self._servers: dict[str, Server] = {}
        self._targets: dict[str, tuple[Target, Placement]] = {}
        #: The last observation, as long as nothing else was set up.
        self._seen: dict[str, dict[str, str]] = {}
        # What the record is built from.
        self._commands: list[list[str]] = []
        self._flags: list[str] = []
        self._counters: dict[str, float] = {}
        self._repeated: dict[str, float] = {}
        self._verified: dict[str, Mapping[str, Any]] = {}
        self._main = ""
        self._kept: dict[str, Any] = {}
        #: The output of everything that ran, by file name.
        self.logs: dict[str, str] = {}

    def _level(self, kind: type[Treatment], default: Any) -> Any:
        """Return the level of the study's treatment of a kind, or a default."""
        pairs = self._treatments.values()
        return next((level for one, level in pairs if isinstance(one, kind)), default)

    @property
    def mechanisms(self) -> dict[str, float]:
        """The counters of the measured windows, per operation where they are rates."""
        return dict(self._counters)

    def flag(self, *texts: str) -> None:
        """Flag the trial with reasons; it is kept."""
        self._flags += texts

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role at this trial's affinity; "all" is every CPU."""
        if role == "all":
            return self._rig.cpu_map["all" if self._rig.shared_kernel else "all.sut"]
        return self._rig.cpus(role, self._affinity)

    # Running it whole.

    def attempt(
        self, protocol: Callable[..., Measurement], condition: Condition, keys: Mapping[str, Any]
    ) -> Attempt:
        """Run a protocol, and return all that is to be stored of it; `keys` begin the rows."""
        measurement, error = Measurement({}), None
        started_ns, began = time.time_ns(), time.monotonic()
        try:
            with self.treated():
                found = _checked(call(protocol, self._values, self))
            measurement = found
        except Exception as caught:  # any mistake of a protocol is a failed row
            error = caught
        seconds = time.monotonic() - began
        self.flag(*(flag for flag in measurement.flags if flag not in self._flags))
        why = _error_record(error) if error else None
        outcome = {
            "status": "failed" if error else "ok",
            "problem": why["what"] if why else "",
            "started_ns": started_ns,
            "seconds": seconds,
        }
        record = self.record
        rows = make_rows(keys, condition, outcome, record, measurement)
        # Flags and counters are in the rows.
        kept = {name: one for name, one in record.items() if name not in ("flags", "mechanisms")}
        record = {"rows": rows, "error": why, **kept}
        return Attempt(condition.label, measurement, record, self.logs, error)

    @contextmanager
    def treated(self) -> Iterator[None]:
        """Apply the levels of the study's treatments during a ``with`` block."""
        with ExitStack() as stack:
            for name, (treatment, level) in self._treatments.items():
                found = stack.enter_context(treatment.apply(self._rig, level, self._label))
                if found:
                    self._kept["treatments"] = self._kept.get("treatments", {}) | {name: found}
            yield

    @property
    def record(self) -> dict[str, Any]:
        """The record of the trial so far; what was verified of the server aimed at comes first."""
        others = dict(self._verified)
        main = others.pop(self._main or next(iter(others), ""), None)
        return {
            "commands": self._commands,
            "flags": self._flags,
            "mechanisms": self._counters | self._repeated,
            **({"verification": main} if main is not None else {}),
            **({"verifications": others} if others else {}),
            **self._kept,
        }

    # Placing workloads.

    @contextmanager
    def serve(self, workload: Workload, placement: Placement, **options: str) -> Iterator[Server]:
        """Place a workload, ready and verified, for the duration of a ``with`` block.

        Parameters
        ----------
        workload, placement : Workload, Placement
            What runs, and where.
        name : str
            Unique among the placements of the trial, by default ``server``. The columns of the
            placement at which a client aims have no prefix; those of others begin with their name.
        cpus : str
            CPU list; by default that of the host's role.
        at : str
            The role of another host than the placement's, such as ``peer``.
        """
        with self._placement(workload, placement, **options) as server:
            self._keep(options.get("name", "server"), server)
            yield server

    @contextmanager
    def serve_all(self, placements: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time, each with the arguments of `serve`, ready and verified.

        `address` returns their addresses before.
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
        cpus: str = "",
        at: str = "",
    ) -> AbstractContextManager[Server]:
        """Count a placement, and return the context that makes it."""
        if name in self._servers:
            raise UsageError(f"two placements called {name!r} at once", remedy="name one of them")
        target = self._target(placement, at)
        self._placed += 1
        self._commands.append(brief(workload.argv))
        return self._make(name, target, placement, workload, cpus or self.cpus(self._role(target)))

    @contextmanager
    def _make(
        self, name: str, target: Target, placement: Placement, workload: Workload, cpus: str
    ) -> Iterator[Server]:
        label = self._label if name == "server" else f"{self._label}-{name}"
        logs: dict[str, str] = {}
        try:
            options: dict[str, Any] = {"cpus": cpus, "label": label, "logs": logs}
            runtime = RUNTIMES[placement.runtime]
            with placed(runtime, target, placement, workload, **options) as server:
                for treatment, level in self._treatments.values():
                    treatment.placed(level, server)
                self._targets[name] = target, placement
                yield server
        finally:
            self._servers.pop(name, None)
            self._targets.pop(name, None)
            self._seen = {}
            self.logs |= {f"{name}.log": text for text in logs.values()}

    def _keep(self, name: str, server: Server) -> None:
        self._servers[name] = server
        self._verified[name] = server.verification
        self._seen = {}

    def _role(self, target: Target) -> str:
        roles = (role for role, host in self._rig.hosts.items() if host is target.host)
        return next(roles, "sut")

    # Background jobs.

    def capture(self, expression: str = "udp") -> AbstractContextManager[background.Captured]:
        """Capture the packets of a filter of tcpdump at the switch during a ``with`` block.

        Nothing is captured at the level "off" of the study's treatment `PacketCapture`.
        """
        if self._level(PacketCapture, "on") == "off":
            return nullcontext(background.Captured())
        return background.capture(self._rig, self._label, expression)

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
        if placement.runtime != "docker":
            raise UsageError(
                f"{placement.label} cannot be started in a loop", remedy="use Docker: docker(...)"
            )
        target, runtime = self._rig.target(placement), RUNTIMES[placement.runtime]
        self._commands.append(brief(workload.argv))
        label, cpus = f"{self._label}-{name}", cpus or self.cpus(self._role(target))
        instance = Instance(target, placement, workload, cpus, label)
        argv = churning(instance)
        # The loop itself, outside the containers, runs on the harness's CPUs.
        argv = ["taskset", "-c", self._outside(), *argv]
        with background.churn(runtime, instance, argv) as churn:
            yield churn
        self._counters[f"{name}_containers"] = float(churn.count)
        if not churn.count or churn.why:
            self.flag(f"{name}: {churn.count} containers started; {churn.why}")

    def prepare(
        self, client: Client, *, name: str
    ) -> AbstractContextManager[background.Prestarted]:
        """Start a client that first sleeps on the generator, and stop it during its sleep.

        ``prepared.ready()`` returns the client to measure, which continues it.
        """
        self._check_target(client, None)
        self._commands.append(brief(client.argv))
        target, label = self._rig.targets["generator"], f"{self._label}-{name}"
        command = ["taskset", "-c", self.cpus("generator"), *_in_class(client, client.argv)]
        directory = f"{target.directory}/{label}"
        return background.prestart(target.host, directory, label, client, command)

    # Measuring.

    def measure(self, client: Client, *, inside: Server | None = None) -> Measurement:
        """Run a client inside a placement, or on the generator, and sleep until it has ended.

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
        """Run clients, each inside a placement or None, at the same time on one host.

        Rates per operation count the messages of all. Returned are measurements by the names.
        """
        for client, inside in clients.values():
            self._check_target(client, inside)
        if not self._servers:
            raise UsageError(
                "measure needs a placement", remedy="call it inside `with trial.serve(...)`"
            )
        host, directory = self._host_of([inside for _, inside in clients.values()])
        folder = f"{directory}/{self._label}-client"
        loads = [self._load(folder, name, *pair) for name, pair in clients.items()]
        self._main = self._aimed_at(next(iter(clients.values()))[0])
        main = self._servers[self._main]
        shared = self._rig.shared_kernel
        kernels = counters.kernels(self._servers, main, host, shared=shared)
        readings = self._readings(host)
        first = self._seen or self._observe(readings)
        for treatment, level in self._treatments.values():
            treatment.ready(self._rig, level)
        for treatment, level in self._treatments.values():
            treatment.begin(self._rig, level)
        timing = self._rig.cache_line_command(PERIOD)
        unseen = {name: reading for name, reading in readings.items() if name not in first}
        found = window.measure(
            loads,
            kernels,
            folder=folder,
            label=self._label,
            cache_line=timing,
            readings=(unseen, readings),
        )
        self._keep_output(found)
        before, after = found.seen
        self._seen = {**after, **self._observe(readings)}
        self._check_unchanged({**before, **first}, host)
        for load in loads:
            if end := found.ends.get(load.name):
                problems = ends.problems_of(end, load.name, load.cpus, load.client.fifo)
                ends.raise_changed(problems, "the window")
        measurements = self._read(found)
        enclosing = next((inside for _, inside in clients.values() if inside), None)
        cpus = enclosing.cpus if enclosing else self.cpus("generator"), main.cpus
        self._account(found, list(measurements.values()), cpus)
        self._check_time(found, clients)
        self._check_published([client for client, _ in clients.values()])
        return measurements

    def repeated(self, measure: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function that measures, again where the CPUs were disturbed meanwhile.

        For a trial of several windows, which otherwise are all measured again for one of them. The
        function starts what ends with a window, such as a prepared client or a capture. The column
        ``windows_repeated`` counts in how many calls the CPUs were disturbed.
        """
        count = self._repeated.setdefault("windows_repeated", 0.0)
        # CPUs that are held from sleeping are not moved together again, until the trial ends.
        idle_is_held = self._level(IdlePolicy, AS_FOUND) == "held"
        for number in range(1, 1 if idle_is_held else WINDOW_ATTEMPTS):
            flags = list(self._flags)
            try:
                return measure(*arguments, **options)
            except CpusDisturbed:
                self._flags = flags
                self._repeated["windows_repeated"] = count + number
        return measure(*arguments, **options)

    def _check_target(self, client: Client, inside: Server | None) -> None:
        """Raise unless the load goes to an address of the rig, or of a placement of the trial."""
        if not client.target and inside is None:
            raise FenceError(
                "a client on the generator has no target",
                remedy="name the address that it sends to",
            )
        own = {server.own_address for server in self._servers.values()}
        if client.target and (inside is None or client.target not in own):
            self._rig.check_target(client.target)

    def _host_of(self, inside: Sequence[Server | None]) -> tuple[Host, str]:
        """Return the host on which clients run, and the lab's directory there."""
        targets = self._rig.targets
        hosts = [targets["generator"].host if one is None else one.host for one in inside]
        if any(host is not hosts[0] for host in hosts):
            raise UsageError(
                "clients of one window run on one host",
                why=", ".join(sorted({host.name for host in hosts})),
            )
        return hosts[0], next(one.directory for one in targets.values() if one.host is hosts[0])

    def _aimed_at(self, client: Client) -> str:
        """Return the placement that a client aims at, by address and port, or the first."""
        same = [name for name, one in self._servers.items() if one.address == client.target]
        ports = {name: self._servers[name].port for name in same}
        own = [name for name, port in ports.items() if port and str(port) in client.argv]
        return [*own, *same, *self._servers][0]

    def _keep_output(self, found: Window) -> None:
        self._kept["window_seconds"] = found.job.seconds
        self._counters["harness_wakeups"] = found.wakeups
        self._counters |= self._rig.cache_line_of(found.texts["line"])
        self.flag(*found.flags)
        self.logs |= {
            name: text for name, text in found.texts.items() if name.endswith((".out", ".err"))
        }

    def _readings(self, window: Host) -> dict[str, dict[str, Any]]:
        """Return what a window's host can observe by itself: its own, and this machine's."""
        found: dict[str, dict[str, Any]] = {_of(window): {}}
        for name, server in self._servers.items():
            if server.host is window:
                found[name] = server.reading
            elif server.host.namespace and window.namespace:
                found[name] = {**server.reading, "namespace": server.host.namespace}
        return found

    def _observe(self, others: Collection[str]) -> dict[str, dict[str, str]]:
        """Observe the placements, by name, each on its own host, without some others."""
        servers = {name: one for name, one in self._servers.items() if name not in others}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(lambda server: server.observe(), servers.values())
            return dict(zip(servers, answers, strict=True))

    def _check_unchanged(self, first: Mapping[str, dict[str, str]], window: Host) -> None:
        """Raise `ManipulationError` unless all that was set up held to the end of the window."""
        check_unchanged("the clients' host", first[_of(window)], self._seen[_of(window)])
        for name, server in self._servers.items():
            # What was set up since it was verified changes the host.
            own = {fact: text for fact, text in server.verification.items() if _is_own(fact)}
            check_unchanged(name, own, first[name])
            last = self._seen[name]
            if not server.ends_with_client or last["state"] != "ended":
                check_unchanged(name, first[name], last)

    def _read(self, found: Window) -> dict[str, Measurement]:
        """Parse the output of a window's clients."""
        errors = [found.job.stderr, *(found.texts[f"{load.name}.err"] for load in found.loads)]
        names = ", ".join(load.name for load in found.loads)
        replace(found.job, stderr="\n".join(filter(None, errors)).strip()).check(
            f"see {names} (.out and .err) of the trial"
        )
        measurements = {}
        for load in found.loads:
            texts = found.texts[f"{load.name}.out"], found.texts[f"{load.name}.log"]
            measurements[load.name] = load.client.parse(*texts)
            if load.client.samples_in_stdout:
                self.logs.pop(f"{load.name}.out")
        return measurements

    def _account(
        self, found: Window, measurements: Sequence[Measurement], cpus: tuple[str, str]
    ) -> None:
        """Keep the counters and evidence of a window, and flag the rules that it breaks."""
        counted, self._kept["evidence"], flags = counters.account(
            found.snapshots,
            messages=sum(one.messages for one in measurements),
            cpus=cpus,
            seconds=found.ended - self._began,
        )
        self._counters |= counted
        for measurement in measurements:
            self._counters |= measurement.mechanisms
            times = (measurement.samples.get(name) for name in ("start_ns", "end_ns"))
            self.flag(*measurement.flags)
            self.flag(*(flag for column in times if column is not None for flag in paused(column)))
        for treatment, level in self._treatments.values():
            self.flag(*treatment.check(level, self._counters))
        self.flag(*flags, *counters.validity(self._counters))

    def _check_time(
        self, found: Window, clients: Mapping[str, tuple[Client, Server | None]]
    ) -> None:
        """Raise where more CPU time was used inside a placement than its control group counted."""
        for name, server in self._servers.items():
            placement = self._targets[name][1]
            if placement.runtime == "bare" and placement.baseline_level != "cgroup":
                continue
            prefix = "" if name == self._main else f"{name}_"
            used = self._counters.get(f"{prefix}cpu_ns", 0.0) + sum(
                found.ends[key].cpu_ns
                for key, (_, inside) in clients.items()
                if inside is server and key in found.ends
            )
            lost = ends.lost_time(name, self._counters.get(f"{prefix}group_cpu_ns"), used)
            ends.raise_changed(lost, f"host {server.host.name}")

    def _check_published(self, clients: Sequence[Client]) -> None:
        """Raise `ManipulationError` where no flow of a window took the rules of a published port.

        The engine's proxy answers on the port too, and its traffic is not translated. There must
        be a flow of each transport of the clients. The verification keeps the counters.
        """
        server, (_, placement) = self._servers[self._main], self._targets[self._main]
        # A client on the server's own host aims at the container's address, not at the port.
        aiming = [one for one in clients if one.target == server.address]
        if placement.network == "nat" and aiming and server.port:
            observed = self._seen[self._main]
            protocols = dict.fromkeys(name for client in aiming for name in client.protocols)
            check_translated(server.verification, observed, protocols)
            flows = {name: count for name, count in observed.items() if name.startswith(COUNTED)}
            server.verification.update(flows)

    def _load(self, folder: str, name: str, client: Client, inside: Server | None) -> Load:
        placements = [self._targets[key][1] for key, one in self._servers.items() if one is inside]
        shares_files = all(one.baseline_level in ("clean", "rules") for one in placements)
        own = "" if shares_files or inside is None else f"/run/{self._label}-{name}"
        log = f"{own}/log" if own else f"{folder}/{name}.log"
        argv = [part.replace("{log}", log) for part in client.argv]
        self._commands.append(brief(argv))
        if inside is None:
            return Load(name, client, _in_class(client, argv), log, self.cpus("generator"))
        if client.fifo:
            raise UsageError(
                "a client inside a placement has the scheduling class of that",
                remedy='place it with limited(fifo=...), or give the client "fifo" 0',
            )
        # What enters the placement runs on the harness's CPUs; the command is pinned inside.
        command = inside.enter(ends.guarded(argv))
        root = f"/proc/{inside.pid}/root" if own else ""
        made = f"{root}{own}" if argv != list(client.argv) else ""
        return Load(name, client, command, f"{root}{log}", inside.cpus, made, self._outside())

    def _outside(self) -> str:
        cpus = self._rig.cpu_map
        return cpus["harness"] if self._rig.shared_kernel else cpus["all.sut"]


def _in_class(client: Client, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a client's scheduling class."""
    return ["chrt", "--fifo", str(client.fifo), *argv] if client.fifo else list(argv)


def _is_own(fact: str) -> bool:
    return not fact.endswith("of the host") and not fact.startswith("setting ")


def _of(host: Host) -> str:
    """Return the name of the observation of a host on which clients of a window run."""
    return f"host {host.name}"


def brief(argv: Sequence[str]) -> list[str]:
    """Return a command for the record, with length and digest instead of a long argument."""
    return [
        word
        if len(word) <= _LONGEST
        else f"<{len(word)} characters, sha256 {hashlib.sha256(word.encode()).hexdigest()[:16]}>"
        for word in argv
    ]


def _error_record(error: Exception) -> dict[str, Any]:
    if isinstance(error, LabkitError):
        return error.as_record()
    what = str(error) or type(error).__name__
    return {"type": type(error).__name__, "what": what, "evidence": {}}


def _checked(measurement: Any) -> Measurement:
    """Return a protocol's result; raise `LabkitError` if it cannot be stored."""
    if not isinstance(measurement, Measurement):
        raise LabkitError(
            f"the protocol returned {type(measurement).__name__}",
            remedy="return what trial.measure(...) returned",
        )
    arrays = measurement.samples.values()
    if any(array.dtype != np.int64 for array in arrays) or len(set(map(len, arrays))) > 1:
        shown = ", ".join(f"{k}: {v.dtype} x {len(v)}" for k, v in measurement.samples.items())
        raise LabkitError("samples must be int64 columns of one length", why=shown)
    return measurement


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
