"""The trial that a protocol runs: it places, treats and measures, and keeps a record of it."""

from __future__ import annotations

import hashlib
import html
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from labkit.campaign import background, counters, window
from labkit.campaign.counters import Kernel
from labkit.campaign.rows import make_rows
from labkit.campaign.treatments import AS_FOUND, IdlePolicy, Pinning, Treatment
from labkit.campaign.window import Facts, Load, Window
from labkit.design import Condition, call
from labkit.errors import CpusDisturbed, FenceError, LabkitError, UsageError
from labkit.hosts.cache_line import PERIOD
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Server, placed
from labkit.runtimes.base import reached_at
from labkit.runtimes.verify import COUNTED, check_translated
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
        self.rig, self.values, self.label, self.turn = rig, values, label, turn
        #: The treatments with their levels in this trial.
        self._treatments = {
            name: (treatment, values[name])
            for name, treatment in (treatments or {}).items()
            if name in values
        }
        self._affinity = str(self.level(Pinning, "split"))
        self._placed = 0
        self._servers: dict[str, Server] = {}
        #: The last observation, as long as nothing else was set up.
        self._seen: Facts = {}
        # What the record is built from.
        self._commands: list[list[str]] = []
        self._flags: list[str] = []
        self.counters: dict[str, float] = {}
        self._repeated: dict[str, float] = {}
        self._verified: dict[str, Mapping[str, Any]] = {}
        self._main = ""
        self._kept: dict[str, Any] = {}
        #: The output of everything that ran, by file name.
        self.logs: dict[str, str] = {}

    capture = background.capture
    churn = background.churn
    prepare = background.prepare

    def level(self, kind: type[Treatment], default: Any) -> Any:
        """Return the level of the study's treatment of a kind, or a default."""
        pairs = self._treatments.values()
        return next((level for one, level in pairs if isinstance(one, kind)), default)

    @property
    def mechanisms(self) -> dict[str, float]:
        """The counters of the measured windows, per operation where they are rates."""
        return dict(self.counters)

    def flag(self, *texts: str) -> None:
        """Flag the trial with reasons; it is kept."""
        self._flags += texts

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role at this trial's affinity; "all" is every CPU."""
        if role == "all":
            return self.rig.cpu_map["all" if self.rig.shared_kernel else "all.sut"]
        return self.rig.cpus(role, self._affinity)

    @property
    def outside(self) -> str:
        """The CPUs of what belongs to no placement and is no client."""
        return self.rig.cpu_map["harness" if self.rig.shared_kernel else "all.sut"]

    def keep_command(self, argv: Sequence[str]) -> None:
        """Add a command to the record, with length and digest instead of a long argument."""
        self._commands.append([word if len(word) <= _LONGEST else _brief(word) for word in argv])

    # Running it whole.

    def attempt(
        self, protocol: Callable[..., Measurement], condition: Condition, keys: Mapping[str, Any]
    ) -> Attempt:
        """Run a protocol, and return all that is to be stored of it; `keys` begin the rows."""
        measurement, error, why = Measurement({}), None, None
        started_ns, began = time.time_ns(), time.monotonic()
        try:
            with self.treated():
                found = _checked(call(protocol, self.values, self))
            measurement = found
        except Exception as caught:  # any mistake of a protocol is a failed row
            error, kind = caught, type(caught).__name__
            why = {"type": kind, "what": str(caught) or kind, "evidence": {}}
            why |= caught.as_record() if isinstance(caught, LabkitError) else {}
        seconds = time.monotonic() - began
        self.flag(*(flag for flag in measurement.flags if flag not in self._flags))
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
                found = stack.enter_context(treatment.applied(self.rig, level, self.label))
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
            "mechanisms": self.counters | self._repeated,
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
        with self.serve_all([{"workload": workload, "placement": placement, **options}]) as servers:
            yield servers[0]

    @contextmanager
    def serve_all(self, placements: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time, each with the arguments of `serve`, ready and verified.

        `address` returns their addresses before.
        """
        names = [arguments.get("name", "server") for arguments in placements]
        for name in names:
            if name in self._servers or names.count(name) > 1:
                what = f"two placements called {name!r} at once"
                raise UsageError(what, remedy="name one of them")
        contexts = [self._place(**arguments) for arguments in placements]
        try:
            with at_once(contexts) as servers:
                self._servers |= dict(zip(names, servers, strict=True))
                self._verified |= {name: self._servers[name].verification for name in names}
                self._seen = {}
                yield servers
        finally:
            for name in names:
                self._servers.pop(name, None)
            self._seen = {}

    def address(self, placement: Placement, *, after: int = 0, at: str = "") -> str:
        """Return the address that a placement will have, `after` further ones."""
        return reached_at(self._target(placement, at, after), placement)

    def _target(self, placement: Placement, at: str, after: int = 0) -> Target:
        # The number of the placement decides its address.
        return replace(self.rig.target(placement, at), place=self._placed + after)

    def _place(
        self,
        workload: Workload,
        placement: Placement,
        name: str = "server",
        cpus: str = "",
        at: str = "",
    ) -> AbstractContextManager[Server]:
        """Count a placement, and return the context that makes it."""
        target = self._target(placement, at)
        self._placed += 1
        self.keep_command(workload.argv)
        roles = (role for role, host in self.rig.hosts.items() if host is target.host)
        cpus = cpus or self.cpus(next(roles, "sut"))
        label = self.label if name == "server" else f"{self.label}-{name}"

        @contextmanager
        def made() -> Iterator[Server]:
            logs: dict[str, str] = {}
            runtime = RUNTIMES[placement.runtime]
            try:
                with placed(
                    runtime, target, placement, workload, cpus=cpus, label=label, logs=logs
                ) as server:
                    for treatment, level in self._treatments.values():
                        treatment.placed(level, server)
                    yield server
            finally:
                self.logs |= {f"{name}.log": text for text in logs.values()}

        return made()

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
            self.check_target(client, inside)
        if not self._servers:
            raise UsageError(
                "measure needs a placement", remedy="call it inside `with trial.serve(...)`"
            )
        generator = self.rig.targets["generator"].host
        hosts = {inside.host if inside else generator for _, inside in clients.values()}
        if len(hosts) > 1:
            names = ", ".join(sorted(host.name for host in hosts))
            raise UsageError("clients of one window run on one host", why=names)
        (host,) = hosts
        targets = self.rig.targets.values()
        directory = next(one.directory for one in targets if one.host is host)
        folder = f"{directory}/{self.label}-client"
        loads = [self._load(folder, name, *pair) for name, pair in clients.items()]
        self._main = self._aimed_at(loads[0].client)
        main = self._servers[self._main]
        kernels = {host: Kernel(host, readings={f"the clients' host {host.name}": {}})}
        for name, server in self._servers.items():
            # With a shared kernel one host sees all.
            where = host if self.rig.shared_kernel else server.host
            kernel = kernels.setdefault(where, Kernel(where))
            kernel.places["" if server is main else name] = server.pid
            namespace = {} if where is server.host else {"namespace": server.host.namespace}
            kernel.readings[name] = {**server.reading, **namespace}
        for treatment, level in self._treatments.values():
            treatment.ready(self.rig, level)
        for treatment, level in self._treatments.values():
            treatment.begin(self.rig, level)
        found = window.measure(
            loads,
            [*kernels.values()],
            folder=folder,
            label=self.label,
            cache_line=self.rig.cache_line_command(PERIOD),
            seen=self._seen,
        )
        self._kept["window_seconds"] = found.job.seconds
        self.flag(*found.flags)
        self.logs |= {n: text for n, text in found.texts.items() if n.endswith((".out", ".err"))}
        self._seen = found.after
        window.check_unchanged(found, loads, self._servers)
        found.job.check(f"see {', '.join(clients)} (.out and .err) of the trial")
        measurements = {}
        for load in loads:
            texts = (found.texts[f"{load.name}.{end}"] for end in ("out", "log"))
            measurements[load.name] = load.client.parse(*texts)
            if load.client.samples_in_stdout:
                self.logs.pop(f"{load.name}.out")
        enclosing = next((inside for _, inside in clients.values() if inside), None)
        cpus = enclosing.cpus if enclosing else self.cpus("generator"), main.cpus
        self._account(found, [*kernels.values()], [*measurements.values()], cpus)
        self._check_used(found, clients)
        return measurements

    def repeated(self, measure: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function that measures, again where the CPUs were disturbed meanwhile.

        For a trial of several windows, which otherwise are all measured again for one of them. The
        function starts what ends with a window, such as a prepared client or a capture. The column
        ``windows_repeated`` counts in how many calls the CPUs were disturbed.
        """
        count = self._repeated.setdefault("windows_repeated", 0.0)
        # CPUs that are held from sleeping are not moved together again, until the trial ends.
        idle_is_held = self.level(IdlePolicy, AS_FOUND) == "held"
        for number in range(1, 1 if idle_is_held else WINDOW_ATTEMPTS):
            flags = list(self._flags)
            try:
                return measure(*arguments, **options)
            except CpusDisturbed:
                self._flags = flags
                self._repeated["windows_repeated"] = count + number
        return measure(*arguments, **options)

    def check_target(self, client: Client, inside: Server | None) -> None:
        """Raise unless the load goes to an address of the rig, or of a placement of the trial."""
        if not client.target and inside is None:
            raise FenceError(
                "a client on the generator has no target",
                remedy="name the address that it sends to",
            )
        own = {server.own_address for server in self._servers.values()}
        if client.target and (inside is None or client.target not in own):
            self.rig.check_target(client.target)

    def _aimed_at(self, client: Client) -> str:
        """Return the placement that a client aims at, by address and port, or the first."""
        same = [name for name, one in self._servers.items() if one.address == client.target]
        ports = {name: self._servers[name].port for name in same}
        own = [name for name, port in ports.items() if port and str(port) in client.argv]
        return [*own, *same, *self._servers][0]

    def _load(self, folder: str, name: str, client: Client, inside: Server | None) -> Load:
        shares_files = inside is None or inside.placement.baseline_level in ("clean", "rules")
        own = "" if shares_files else f"/run/{self.label}-{name}"
        log = f"{own}/log" if own else f"{folder}/{name}.log"
        argv = [part.replace("{log}", log) for part in client.argv]
        self.keep_command(argv)
        if inside is None:
            return Load(
                name, client, background.in_class(client, argv), log, self.cpus("generator")
            )
        if client.fifo:
            raise UsageError(
                "a client inside a placement has the scheduling class of that",
                remedy='place it with limited(fifo=...), or give the client "fifo" 0',
            )
        # What enters the placement runs on the harness's CPUs; the command is pinned inside.
        command = inside.enter(window.guarded(argv))
        root = f"/proc/{inside.pid}/root" if own else ""
        made = f"{root}{own}" if argv != list(client.argv) else ""
        return Load(name, client, command, f"{root}{log}", inside.cpus, made, self.outside)

    def _account(
        self,
        found: Window,
        kernels: Sequence[Kernel],
        measurements: Sequence[Measurement],
        cpus: tuple[str, str],
    ) -> None:
        """Keep the counters and evidence of a window, and flag the rules that it breaks."""
        counted, self._kept["evidence"], flags = counters.account(
            kernels,
            messages=sum(one.messages for one in measurements),
            cpus=cpus,
            seconds=found.ended - self._began,
        )
        self.counters |= {"harness_wakeups": found.wakeups} | counted
        self.counters |= self.rig.cache_line_of(found.texts["line"])
        for measurement in measurements:
            self.counters |= measurement.mechanisms
            times = (measurement.samples.get(name) for name in ("start_ns", "end_ns"))
            self.flag(*measurement.flags)
            self.flag(*(flag for column in times if column is not None for flag in paused(column)))
        for treatment, level in self._treatments.values():
            self.flag(*treatment.check(level, self.counters))
        self.flag(*flags, *counters.validity(self.counters))

    def _check_used(
        self, found: Window, clients: Mapping[str, tuple[Client, Server | None]]
    ) -> None:
        """Raise where a window did not use what it should have: a control group, a published port.

        The engine's proxy answers on the port too, and its traffic is not translated. There must be
        a flow of each transport of the clients. The verification keeps the counters.
        """
        for name, server in self._servers.items():
            prefix = "" if name == self._main else f"{name}_"
            used = self.counters.get(f"{prefix}cpu_ns", 0.0)
            used += sum(end.cpu_ns for key, end in found.ends.items() if clients[key][1] is server)
            group = self.counters.get(f"{prefix}group_cpu_ns")
            if server.placement.baseline_level in ("", "cgroup") and group is not None:
                window.check_group(name, group, used)
        server = self._servers[self._main]
        # A client on the server's own host aims at the container's address, not at the port.
        aiming = [client for client, _ in clients.values() if client.target == server.address]
        if server.placement.network == "nat" and aiming and server.port:
            observed = found.after[self._main]
            protocols = dict.fromkeys(name for client in aiming for name in client.protocols)
            check_translated(server.verification, observed, protocols)
            flows = {name: count for name, count in observed.items() if name.startswith(COUNTED)}
            server.verification.update(flows)


def _brief(word: str) -> str:
    return f"<{len(word)} characters, sha256 {hashlib.sha256(word.encode()).hexdigest()[:16]}>"


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
