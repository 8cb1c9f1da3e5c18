"""One trial: the protocol of a study runs against this, and everything it did is kept."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.benchmarks.base import Client, Reading
from labkit.campaign import evidence
from labkit.design import Condition
from labkit.errors import LabkitError, ManipulationError, UsageError
from labkit.hosts import Host, Job, script, start_job
from labkit.placement import Placement, Workload
from labkit.rig import Rig
from labkit.runtimes import RUNTIMES, Runtime, Server, placed

# A tool that runs for a set time may log far more than was asked for. What is kept is spread evenly
# over the window, which the evidence covers too; the first part of it would be a sample of its own.
_THIN = """
[ -e "$1" ] || exit 0
[ "$2" -gt 0 ] || exec cat "$1"
rows=$(grep -c '^[0-9]' "$1" || true)
awk -v want="$2" -v rows="$rows" '
    BEGIN { step = int(rows / want); if (step < 1) step = 1 }
    !/^[0-9]/ { print; next }
    seen++ % step == 0 && kept < want { print; kept++ }
' "$1"
"""


class Trial:
    """What a protocol sees: the levels of its condition, the settings, and two verbs.

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
    """

    def __init__(
        self,
        rig: Rig,
        condition: Condition,
        settings: Mapping[str, Any],
        label: str,
        runtimes: dict[str, Runtime],
    ) -> None:
        self._values = {**settings, **dict(condition.levels)}
        self._rig, self._label, self._runtimes = rig, label, runtimes
        self._server: Server | None = None
        self.record: dict[str, Any] = {"commands": [], "flags": [], "mechanisms": {}}
        self.logs: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(
                f"a trial has no {name!r}; this study declares {', '.join(sorted(values))}"
            )
        return values[name]

    def cpus(self, role: str) -> str:
        """Return the CPU list of a role under this trial's affinity."""
        return self._rig.cpus(role, self._values.get("affinity", "split"))

    @contextmanager
    def serve(self, workload: Workload, placement: Placement) -> Iterator[Server]:
        """Place a server, ready and verified, for the duration of a ``with`` block."""
        site = self._rig.site(placement)
        role = "clean" if site is self._rig.sites.get("clean") else "sut"
        runtime = self._runtimes.setdefault(placement.runtime, RUNTIMES[placement.runtime]())
        self.record["commands"].append(list(workload.argv))
        try:
            with placed(
                runtime,
                site,
                placement,
                workload,
                cpus=self.cpus(role),
                label=self._label,
                logs=self.logs,
            ) as server:
                self.record["readback"] = server.readback
                self._server = server
                yield server
        finally:
            self._server = None

    def measure(self, client: Client) -> Reading:
        """Send the load from the generator as a detached job, and sleep until it has ended.

        Raises
        ------
        FenceError
            The target is not an address of the rig.
        CommandFailed, CommandTimeout, ToolOutput
            The tool failed, took too long, or printed what cannot be read.
        """
        self._rig.check_target(client.target)
        if self._server is None:
            raise UsageError(
                "measure needs a server", remedy="call it inside `with trial.serve(...)`"
            )
        host = self._rig.sites["generator"].host
        folder = f"{self._rig.sites['generator'].directory}/{self._label}-client"
        argv = [part.replace("{log}", f"{folder}/tool.log") for part in client.argv]
        self.record["commands"].append(argv)
        pids = str(self._server.pid) if self._rig.shared_kernel else ""
        window = script(evidence.WINDOW, folder, self.cpus("generator"), pids, *argv)
        remote_before = self._snapshot(evidence.BEFORE)
        job = Job(host, folder)
        try:
            job = start_job(host, window, directory=folder, label=self._label)
            wakeups, began = harness_switches(), time.monotonic()
            result = job.wait(timeout=2 * client.seconds + 20)
            self.record["window_seconds"] = time.monotonic() - began
            self.record["mechanisms"]["harness_wakeups"] = harness_switches() - wakeups
            remote_after = self._snapshot(evidence.AFTER)
            self._collect(host, folder, client.log_rows)
            result.check("see tool.out and tool.err of the trial")
            reading = client.parse(self.logs["tool.out"], self.logs.pop("tool.log", ""))
            self._account(reading, remote_before, remote_after)
            return reading
        finally:
            job.stop()
            host.run("rm", "-rf", "--", folder)

    def _snapshot(self, text: str) -> dict[str, Any] | None:
        """Read the evidence of a server under another kernel than the generator's."""
        server = self._server
        if self._rig.shared_kernel or server is None:
            return None
        return evidence.parse(server.host.run(*script(text, str(server.pid))).stdout)

    def _check_idle(self, found: Mapping[str, float]) -> None:
        """Raise where the idle policy that the plan states did not hold to the end."""
        request = found.get("latency_request_us")
        if self._values.get("idle") == "held" and request is not None and request > 0:
            raise ManipulationError(
                "the idle policy was not held",
                why=f"the machine was allowed {request:.0f} us to wake up",
                remedy="did another program end the hold? labkit clean, then run again",
            )

    def _collect(self, host: Host, folder: str, rows: int | None) -> None:
        for name in ("before", "after", "tool.out", "tool.err"):
            self.logs[name] = host.run("cat", f"{folder}/{name}", check=False).stdout
        thin = script(_THIN, f"{folder}/tool.log", str(rows or 0))
        self.logs["tool.log"] = host.run(*thin, check=False, timeout=600).stdout

    def _account(
        self, reading: Reading, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        # With one kernel the generator's snapshots hold the server too, and are the closer ones.
        here = [evidence.parse(self.logs.pop(name)) for name in ("before", "after")]
        pair = (before, after) if before and after else (here[0], here[1])
        found = evidence.mechanisms(*pair, reading.messages)
        self.record["evidence"] = {"before": pair[0], "after": pair[1]}
        if pair[0] is not here[0]:
            self.record["evidence"]["generator"] = {"before": here[0], "after": here[1]}
        self._check_idle(found)
        self.record["mechanisms"] |= found
        self.record["flags"] += [*reading.flags, *validity(found, self._values)]


#: Steal on one CPU, as a share of a window whose load is about a third of it.
_STEAL = 0.003


def validity(found: Mapping[str, float], values: Mapping[str, Any]) -> list[str]:
    """Return the validity rules that a measured trial breaks; it is flagged, never dropped."""
    flags = []
    if values.get("affinity") in ("split", "same") and found.get("migrations", 0) > 0:
        flags.append(f"server migrated {found['migrations']:.0f} times")
    if found.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {found['steal_worst']:.1%} of a CPU")
    if found.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{found['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    if values.get("wait") == "busy_poll" and not found.get("TcpExt.BusyPollRxPackets"):
        flags.append("busy polling took no packet")
    return flags


def drivers() -> list[int]:
    """Return the processes that drive this one, nearest first: papermill, ``labkit run``."""
    found = []
    parent = os.getppid()
    while parent > 1:
        status = Path(f"/proc/{parent}/status").read_text()
        name = _field(status, "Name")
        if not name.startswith(("python", "papermill", "labkit")):
            break
        found.append(parent)
        parent = int(_field(status, "PPid"))
    return found


def harness_switches() -> int:
    """Return how often this process and those that drive it were put on a CPU so far."""
    total = resource.getrusage(resource.RUSAGE_SELF)
    count = total.ru_nvcsw + total.ru_nivcsw
    for pid in drivers():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                lines = (task / "status").read_text()
                count += int(_field(lines, "voluntary_ctxt_switches"))
                count += int(_field(lines, "nonvoluntary_ctxt_switches"))
    return count


def _field(status: str, name: str) -> str:
    for line in status.splitlines():
        head, _, value = line.partition(":")
        if head == name:
            return value.strip()
    return "0"


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as the record of a failed trial keeps it."""
    if isinstance(error, LabkitError):
        return error.as_record()
    return {
        "type": type(error).__name__,
        "what": str(error) or type(error).__name__,
        "evidence": {},
    }
