"""The trial that a protocol runs: it places, treats and measures, and keeps a record of it."""

import base64
import gzip
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labkit.campaign import window
from labkit.campaign.treatments import PacketCapture, Pinning, Treatment
from labkit.campaign.window import Kernel, Load, Window
from labkit.design import Condition, Levels, call, level_label
from labkit.errors import CpusDisturbed, LabkitError, RigError, ToolOutput, UsageError
from labkit.hosts import Host, Settings, script
from labkit.placement import Placement, Workload
from labkit.rig import Rig, netns
from labkit.runtimes import RUNTIMES, Instance, Server, placed
from labkit.runtimes.base import COUNTED, check_translated, raise_different, reached_at
from labkit.runtimes.docker import churning
from labkit.tools.base import NOT_REACHED, Client, Measurement, paused

T = TypeVar("T")
#: Clients by name, each inside a placement, or on the generator.
Clients = Mapping[str, tuple[Client, Server | None]]

#: Contexts that are entered at the same time; an SSH server allows ten sessions a connection.
AT_ONCE = 4
#: So often a window is measured at most (`Trial.repeated`); after that the whole trial is repeated.
WINDOW_ATTEMPTS = 10
#: Samples of a trial that a quantile needs, so that one is expected beyond it.
_QUANTILES = {"p95": (0.95, 20), "p99": (0.99, 100), "p999": (0.999, 1000)}
#: A load generator may be the bottleneck that used more than this of its CPUs, reached less than
#: this of its rate, or waited for its own CPU for more than this.
SATURATED, REACHED, WAITED = 0.9, 0.95, 0.05
#: Runs a client, and writes its process and its status.
_CLIENT = '"$@" & echo "$!" >client; wait "$!" && echo 0 >status || echo "$?" >status'
#: Continues a client that the agent's ``hold`` has stopped, and ends as it does.
_RESUME = """kill -CONT "$(cat "$1/client")"
flock -s "$1/lock" cat "$1/stdout"
cat "$1/stderr" >&2
exit "$(cat "$1/status")"
"""
#: The prefix of columns of a window with a capture, at the rate that is offered; and columns of
#: samples that are points in time, or their distance from the schedule.
_LOADED, _TIMES = "loaded_", ("start_ns", "end_ns", "lateness_ns")


@dataclass
class Captured:
    """tcpdump's file, and its last messages with counts; both are set when the block ends."""

    packets: bytes = b""
    summary: str = ""


@dataclass(frozen=True, repr=False)
class Attempt:
    """One attempt at a trial; display it to see its record, which is as a campaign stores it."""

    #: It is empty after an error.
    measurement: Measurement
    record: Mapping[str, Any]
    #: The output of everything that ran, by file name.
    logs: Mapping[str, str]
    error: Exception | None = None

    def __repr__(self) -> str:
        return json.dumps({**self.record, "logs": self.logs}, indent=1, default=str)


@dataclass(eq=False, repr=False)
class Trial:
    """One trial, as its protocol sees it."""

    rig: Rig
    #: Its levels and the plan's settings.
    values: Mapping[str, Any]
    #: Marks everything that is started; it is unique to the attempt.
    label: str
    #: The number of the block, for what alternates between blocks without being a factor.
    turn: int = 0
    treatments: Mapping[str, Treatment] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    #: The counters of the windows so far, per message where they are rates.
    mechanisms: dict[str, float] = field(default_factory=dict)
    _repeated: dict[str, float] = field(default_factory=dict)
    _commands: list[list[str]] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    _verified: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    #: The name of the server at which the last client aimed.
    _main: str = ""
    _evidence: dict[str, Any] = field(default_factory=dict)
    _servers: dict[str, Server] = field(default_factory=dict)
    _placed: int = 0
    _began: float = field(default_factory=window.boot_time)

    def _applied(self) -> list[tuple[Treatment, Any]]:
        """Return the treatments of the trial, each with its level."""
        known = self.treatments.items()
        return [(one, self.values[name]) for name, one in known if name in self.values]

    def level(self, kind: type[Treatment], default: Any) -> Any:
        """Return the level of the study's treatment of a kind, or a default."""
        levels = (level for one, level in self._applied() if isinstance(one, kind))
        return next(levels, default)

    def flag(self, *texts: str) -> None:
        """Flag the trial with reasons; it is kept."""
        self.flags += texts

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role at this trial's affinity; "all" is every CPU."""
        affinity = "free" if role == "all" else str(self.level(Pinning, "split"))
        return self.rig.cpus("sut" if role == "all" else role, affinity)

    @property
    def outside(self) -> str:
        """The CPUs of what belongs to no placement and is no client."""
        return self.rig.cpu_map["harness" if self.rig.shared_kernel else "all.sut"]

    def keep_command(self, argv: Sequence[str]) -> None:
        """Add a command to the record, with the length of a long argument in place of it."""
        # Longer arguments are labkit's own scripts.
        short = [word if len(word) <= 1000 else f"<{len(word)} characters>" for word in argv]
        self._commands.append(short)

    def attempt(
        self, protocol: Callable[..., Measurement], condition: Condition, keys: Levels
    ) -> Attempt:
        """Run a protocol, and return all that is to be stored of it; `keys` begin the rows."""
        measurement, error, why = Measurement({}), None, None
        started_ns, began = time.time_ns(), time.monotonic()
        try:
            with self.treated():
                found = call(protocol, self.values, self)
            if not isinstance(found, Measurement):
                what = f"the protocol returned {type(found).__name__}"
                raise LabkitError(what, remedy="return what trial.measure(...) returned")
            kinds = {f"{array.dtype} x {len(array)}" for array in found.samples.values()}
            if len(kinds) > 1 or not all(kind.startswith("int64 ") for kind in kinds):
                what = "samples must be int64 columns of one length"
                raise LabkitError(what, why=", ".join(kinds))
            measurement = found
        except Exception as caught:  # any mistake of a protocol is a failed row
            error, kind = caught, type(caught).__name__
            parts = vars(caught) if isinstance(caught, LabkitError) else {}
            why = {"type": kind, "what": str(caught) or kind, **parts}
        outcome: dict[str, Any] = {"status": "failed" if error else "ok"}
        outcome |= {"problem": why["what"] if why else "", "started_ns": started_ns}
        outcome["seconds"] = time.monotonic() - began
        self.flag(*(flag for flag in measurement.flags if flag not in self.flags))
        rows = self.rows(keys, condition, outcome, measurement)
        record = {"rows": rows, "error": why, **self.record}
        return Attempt(measurement, record, self.logs, error)

    def rows(
        self, keys: Levels, condition: Condition, outcome: Levels, measurement: Measurement
    ) -> list[dict[str, Any]]:
        """Return the row of the condition, then those of others that the trial measured."""
        own = dict(measurement.metrics)
        for name, values in measurement.samples.items():
            if name.endswith("_ns") and name not in _TIMES:
                own |= statistics(name, values)
        # The data path of a network's routers, such as Weave's.
        facts = (fact for one in self._verified.values() for fact in one.items())
        paths = {path for name, path in facts if name.startswith("router to ")}
        flags, rows = "; ".join(self.flags), []
        for number, (other, metrics) in enumerate([({}, own), *measurement.also]):
            found = {**self.mechanisms, **self._repeated, **metrics}
            numbers = {name: value for name, value in found.items() if value is not None}
            row = {
                **keys,
                "trial": f"{keys['trial']}/{number}" if number else keys["trial"],
                "repeat": condition.repeat,
                **condition.texts,
                **{name: level_label(level) for name, level in other.items()},
                **outcome,
                "flags": flags,
                "n_samples": max(map(len, measurement.samples.values()), default=0),
                "saturated": saturated(numbers, flags),
                "router": " and ".join(sorted(paths)),
            }
            if any(name.startswith(_LOADED) for name in numbers):
                row[f"{_LOADED}saturated"] = saturated(numbers, flags, _LOADED)
            rows.append(row | numbers)
        return rows

    @contextmanager
    def treated(self) -> Iterator[None]:
        """Apply the levels of the study's treatments during a ``with`` block."""
        with ExitStack() as stack:

            def settings_of(host: Host) -> Settings:
                return stack.enter_context(Settings(host, self.label))

            for treatment, level in self._applied():
                treatment.apply(self.rig, level, settings_of)
            yield

    @property
    def record(self) -> dict[str, Any]:
        """The record of the trial so far; what was verified of the server aimed at comes first."""
        others = dict(self._verified)
        main = others.pop(self._main or next(iter(others), ""), {})
        found = {"commands": self._commands, "verification": main, "verifications": others}
        return found | {"evidence": self._evidence}

    @contextmanager
    def serve(self, workload: Workload, placement: Placement, **options: str) -> Iterator[Server]:
        """Place a workload, ready and verified, for the duration of a ``with`` block.

        Options are a unique `name`, which begins the columns of a placement at which no client
        aims, a CPU list `cpus` in place of its host's, and `at`, the role of another host.
        """
        with self.serve_all([{"workload": workload, "placement": placement, **options}]) as servers:
            yield servers[0]

    @contextmanager
    def serve_all(self, placements: Sequence[Mapping[str, Any]]) -> Iterator[list[Server]]:
        """Place workloads at the same time, each with the arguments of `serve`."""
        names = [arguments.get("name", "server") for arguments in placements]
        for name in names:
            if name in self._servers or names.count(name) > 1:
                what = f"two placements called {name!r} at once"
                raise UsageError(what, remedy="name one of them")
        try:
            with at_once([self._place(**arguments) for arguments in placements]) as servers:
                for name, server in zip(names, servers, strict=True):
                    for treatment, level in self._applied():
                        treatment.placed(level, server)
                    self._servers[name], self._verified[name] = server, server.verification
                yield servers
        finally:
            for name in names:
                self._servers.pop(name, None)

    def address(self, placement: Placement, *, after: int = 0, at: str = "") -> str:
        """Return the address that a placement will have, `after` further ones."""
        target = replace(self.rig.target(placement, at), place=self._placed + after)
        return reached_at(target, placement)

    def _place(
        self,
        workload: Workload,
        placement: Placement,
        name: str = "server",
        cpus: str = "",
        at: str = "",
    ) -> AbstractContextManager[Server]:
        """Count a placement, and return the context that makes it."""
        # The number of the placement decides its address.
        target = replace(self.rig.target(placement, at), place=self._placed)
        self._placed += 1
        self.keep_command(workload.argv)
        roles = (role for role, host in self.rig.hosts.items() if host is target.host)
        label = self.label if name == "server" else f"{self.label}-{name}"
        cpus = cpus or self.cpus(next(roles, "sut"))
        instance = Instance(target, placement, workload, cpus, label)
        return placed(RUNTIMES[placement.runtime], instance, self.logs, name)

    def measure(self, client: Client, *, inside: Server | None = None) -> Measurement:
        """Run a client inside a placement, or on the generator, and sleep until it has ended."""
        return self.measure_all({"tool": (client, inside)})["tool"]

    def measure_all(self, clients: Clients) -> dict[str, Measurement]:
        """Run clients at the same time on one host; rates count the messages of all."""
        for client, inside in clients.values():
            self.check_target(client, inside)
        targets = self.rig.targets
        generator = targets["generator"].host
        host, *others = {inside.host if inside else generator for _, inside in clients.values()}
        if others or not self._servers:
            what = "measure needs a placement, `with trial.serve(...)`, and clients on one host"
            raise UsageError(what, why=", ".join(self._servers) or "nothing is placed")
        directory = next(one.directory for one in targets.values() if one.host is host)
        folder = f"{directory}/{self.label}-client"
        loads = [self._load(folder, name, *pair) for name, pair in clients.items()]
        aiming = loads[0].client
        same = [name for name, one in self._servers.items() if one.address == aiming.target]
        own = [name for name in same if str(self._servers[name].port or None) in aiming.argv]
        self._main = [*own, *same, *self._servers][0]
        main = self._servers[self._main]
        kernels = {host: Kernel(host, readings={f"the clients' host {host.name}": {}})}
        for name, server in self._servers.items():
            # With a shared kernel one host sees all.
            where = host if self.rig.shared_kernel else server.host
            kernel = kernels.setdefault(where, Kernel(where))
            kernel.places["" if server is main else name] = server.pid
            namespace = {} if where is server.host else {"namespace": server.host.namespace}
            kernel.readings[name] = {**server.reading, **namespace}
        line: list[int] = []
        for treatment, level in self._applied():
            line += treatment.ready(self.rig, level)
        for treatment, level in self._applied():
            treatment.begin(self.rig, level)
        hosts = [*kernels.values()]
        found = window.measure(loads, hosts, folder, self.label, line)
        self.flag(*found.flags)
        self.logs |= {n: text for n, text in found.texts.items() if n.endswith((".out", ".err"))}
        window.check_unchanged(found, loads, self._servers)
        found.job.check(f"see {', '.join(clients)} (.out and .err) of the trial")
        measurements, metrics = dict[str, Measurement](), dict[str, float]()
        for load in loads:
            texts = (found.texts[f"{load.name}.{end}"] for end in ("out", "log"))
            measurements[load.name] = one = load.client.parse(*texts)
            metrics |= one.metrics
            times = [one.samples[name] for name in ("start_ns", "end_ns") if name in one.samples]
            self.flag(*one.flags, *(flag for column in times for flag in paused(column)))
            if load.client.samples_in_stdout:
                self.logs.pop(f"{load.name}.out")
        counted, self._evidence, flags = window.account(
            hosts,
            messages=sum(one.messages for one in measurements.values()),
            cpus=(loads[0].cpus, main.cpus),
            seconds=window.boot_time() - self._began,
        )
        for name, server in self._servers.items():
            if server.placement.baseline_level not in ("", "cgroup"):
                # Its control group is the machine's or the harness's, and counts others too.
                prefix = "" if server is main else f"{name}_"
                for column in ("group_cpu_ns", "group_cpu_use"):
                    counted.pop(f"{prefix}{column}", None)
        self.mechanisms |= counted
        for treatment, level in self._applied():
            self.mechanisms |= treatment.timed(found.line)
            self.flag(*treatment.check(level, metrics | self.mechanisms))
        self.flag(*flags, *window.validity(self.mechanisms))
        self._check_used(found, clients)
        return measurements

    def repeated(self, measure: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function that measures one of several windows, again where CPUs were disturbed."""
        count = self._repeated.setdefault("windows_repeated", 0.0)
        for number in range(1, WINDOW_ATTEMPTS):
            flags = list(self.flags)
            try:
                return measure(*arguments, **options)
            except CpusDisturbed:
                self.flags = flags
                self._repeated["windows_repeated"] = count + number
        return measure(*arguments, **options)

    @contextmanager
    def prepare(self, client: Client, *, name: str) -> Iterator[Callable[[], Client]]:
        """Start a client, stop it in its first sleep, and yield what returns one that goes on."""
        self.check_target(client, None)
        self.keep_command(client.argv)
        target, label = self.rig.targets["generator"], f"{self.label}-{name}"
        host, folder = target.host, f"{target.directory}/{label}"
        seconds, message = client.prestart
        argv = ["taskset", "-c", self.cpus("generator"), *in_class(client, client.argv)]
        try:
            locked = ("flock", "--close", f"{folder}/lock", *script(_CLIENT, *argv))
            host.call("start", folder=folder, argv=locked, label=label)
            why = host.call("hold", folder=folder, message=message)
            over = time.monotonic() + seconds

            def ready() -> Client:
                """Wait until the sleep is over."""
                if why:
                    what = "a client did not reach its sleep before the window"
                    raise ToolOutput(what, why=why.strip()[-400:])
                time.sleep(max(0.0, over - time.monotonic()))
                # The shell does not use the client's command, which is for the record and for `ps`.
                return replace(client, argv=tuple(script(_RESUME, folder, *client.argv)))

            yield ready
        finally:
            # A stopped process does not react to SIGTERM.
            host.call("stop", folder=folder, grace=0.0, remove=True)

    @contextmanager
    def churn(self, workload: Workload, placement: Placement) -> Iterator[list[int]]:
        """Start containers of a workload that ends, one after the other, during a ``with`` block.

        When it ends, the list that it yields has the time in ns that each took to start.
        """
        if placement.runtime != "docker":
            what = f"{placement.label} cannot be started in a loop"
            raise UsageError(what, remedy="use docker(...)")
        target, label, starts_ns = self.rig.target(placement), f"{self.label}-churn", list[int]()
        self.keep_command(workload.argv)
        instance = Instance(target, placement, workload, self.cpus("sut"), label)
        host, folder = target.host, instance.folder
        # The loop itself, outside the containers, runs on the harness's CPUs.
        argv = ["taskset", "-c", self.outside, *churning(instance)]
        try:
            host.call("start", folder=folder, argv=argv, label=label, until=".")
            yield starts_ns
            printed = host.call("read", path=f"{folder}/stdout").splitlines()
            starts_ns += [int(ran) - int(began) for began, ran in map(str.split, printed)]
            why = host.call("read", path=f"{folder}/stderr").strip()[-200:]
        finally:
            host.call("stop", folder=folder, remove=True)
            RUNTIMES["docker"].stop(instance)
        self.mechanisms["churn_containers"] = float(len(starts_ns))
        if why or not starts_ns:
            self.flag(f"churn: {len(starts_ns)} containers started; {why}")

    @contextmanager
    def capture(self, expression: str = "udp") -> Iterator[Captured]:
        """Capture packets of a filter of tcpdump at the switch, unless `PacketCapture` is off."""
        captured, rig = Captured(), self.rig
        if self.level(PacketCapture, "on") == "off":
            yield captured
            return
        if "collector" not in rig.targets:
            raise RigError("the rig has no collector", remedy="Rig.open(collector=[...])")
        target, label = rig.targets["collector"], f"{self.label}-capture"
        host, interface = target.host, target.interfaces[0]
        folder, where = f"{target.directory}/{label}", f"host {host.name}, interface {interface}"
        argv = ["taskset", "-c", rig.cpu_map["collector"], "tcpdump", "-i", interface, "-n"]
        # Bytes that are kept of each packet, with its number; KiB of the kernel's buffer.
        argv += ["-s", "96", "-B", "65536", "--time-stamp-precision=nano"]
        # The directory is root's, so that tcpdump must not change its user.
        argv += ["-w", f"{folder}/packets.pcap", "-Z", "root", expression]
        # The switch of machines mirrors to it by itself.
        with netns.mirrored(rig.mirrors) if rig.kind == "virtual" else nullcontext():
            try:
                host.call("start", folder=folder, argv=argv, label=label, until="listening on")
                if "listening on" not in (shown := host.call("read", path=f"{folder}/stderr")):
                    what, remedy = "tcpdump does not capture", "is it installed on the collector?"
                    raise ToolOutput(what, where=where, why=shown.strip()[-400:], remedy=remedy)
                yield captured
                # The kernel hands over every packet within a second; else the last would be lost.
                time.sleep(1.2)
                if not host.call("leader", folder=folder):
                    why = host.call("read", path=f"{folder}/stderr").strip()[-400:]
                    raise ToolOutput("tcpdump ended while it captured", where=where, why=why)
                host.call("stop", folder=folder)
                # The output of a host's command is text.
                fetch = script('gzip -1 -c "$1" | base64 -w 0', f"{folder}/packets.pcap")
                fetched = host.run(*fetch, timeout=600).stdout
                captured.packets = gzip.decompress(base64.b64decode(fetched))
                captured.summary = host.call("read", path=f"{folder}/stderr")
            finally:
                host.call("stop", folder=folder, remove=True)

    def check_target(self, client: Client, inside: Server | None) -> None:
        """Raise unless the load goes to an address of the rig, or of a placement of the trial."""
        own = {"", *(server.own_address for server in self._servers.values())}
        if inside is None or client.target not in own:
            self.rig.check_target(client.target)

    def _load(self, folder: str, name: str, client: Client, inside: Server | None) -> Load:
        # With a root of its own, a placement does not see the folder.
        own = inside is not None and inside.placement.baseline_level not in ("clean", "rules")
        place = f"/run/{self.label}-{name}" if own else folder
        log = f"{place}/{name}.log"
        argv = [part.replace("{log}", log) for part in client.argv]
        self.keep_command(argv)
        if inside is None:
            return Load(name, client, in_class(client, argv), log, self.cpus("generator"))
        # What enters the placement runs on the harness's CPUs; the command is pinned inside.
        command = inside.enter(script(window.GUARD, *argv))
        root = f"/proc/{inside.pid}/root" if own else ""
        made = f"{root}{place}" if own and argv != list(client.argv) else ""
        return Load(name, client, command, f"{root}{log}", inside.cpus, made, self.outside)

    def _check_used(self, found: Window, clients: Clients) -> None:
        """Raise where a window did not use its control groups, or its published port."""
        for name, server in self._servers.items():
            prefix = "" if name == self._main else f"{name}_"
            ends = (end for key, end in found.ends.items() if end and clients[key][1] is server)
            ticks = sum(int(field) for end in ends for field in end["client"][11:15])
            used = self.mechanisms.get(f"{prefix}cpu_ns", 0.0) + ticks * window.TICK_NS
            group = self.mechanisms.get(f"{prefix}group_cpu_ns", used)
            # The allowances are for the ticks of what clients have used.
            if used > 1.05 * group + 5 * window.TICK_NS:
                counted = f"{name}: its control group used {group / 1e9:.2f} s of CPU time"
                ran = f"what ran inside {used / 1e9:.2f} s"
                raise_different(window.CHANGED, [f"{counted}, {ran}"])
        server = self._servers[self._main]
        # A client on the server's own host aims at the container's address, not at the port.
        aiming = [client for client, _ in clients.values() if client.target == server.address]
        if server.placement.network == "nat" and aiming and server.port:
            observed = found.after[self._main]
            protocols = dict.fromkeys(name for client in aiming for name in client.protocols)
            check_translated(server.verification, observed, protocols)
            flows = {name for name in observed if name.startswith(COUNTED)}
            server.verification.update({name: observed[name] for name in flows})


def in_class(client: Client, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a client's scheduling class."""
    return ["chrt", "--fifo", str(client.fifo), *argv] if client.fifo else list(argv)


def statistics(name: str, samples: NDArray[Any]) -> dict[str, float]:
    """Return statistics of one trial's samples, in their unit, as columns of its row."""
    count = len(samples)
    names = ["mean", "median", "min", "max"] if count else []
    found = {one: getattr(np, one)(samples) for one in names}
    found |= {"std": np.std(samples, ddof=1)} if count > 1 else {}
    quantiles = ((one, level) for one, (level, needed) in _QUANTILES.items() if count >= needed)
    found |= {one: np.quantile(samples, level) for one, level in quantiles}
    return {f"{name}_{one}": float(value) for one, value in found.items()}


def saturated(numbers: Mapping[str, float], flags: str, prefix: str = "") -> bool:
    """Tell whether the load generator, and not the server, may have set the value of a window."""
    sent = numbers.get(f"{prefix}sent_per_s", numbers.get("sent_per_s", math.nan))
    offered = numbers.get("offered_per_s", math.nan)
    reached = numbers.get("reached", sent / offered if offered else math.nan)
    return bool(
        numbers.get("tool_cpu", 0.0) > SATURATED
        or numbers.get("client_delay", 0.0) > WAITED
        # A tool's flag allows for what it sends less by chance.
        or (reached < REACHED and NOT_REACHED in flags)
    )


@contextmanager
def at_once(contexts: Sequence[AbstractContextManager[T]]) -> Iterator[list[T]]:
    """Enter and leave contexts several at a time, all of them also after an error of one."""
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
