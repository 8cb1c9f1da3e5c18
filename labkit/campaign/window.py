"""The measured window: one detached job that takes a snapshot, runs the loads, takes another."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.campaign import evidence
from labkit.errors import UsageError
from labkit.hosts import Host, Job, Result, script, start_job
from labkit.hosts.target import Target
from labkit.runtimes import Server
from labkit.tools.base import Client

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


@dataclass(frozen=True)
class Load:
    """A client; the command of its host that runs it, CPUs and placement included; its log's."""

    name: str
    client: Client
    argv: Sequence[str]
    log: Sequence[str]


@dataclass(frozen=True)
class WindowResult:
    """What a window left.

    Parameters
    ----------
    job : Result
        Of the job; its status is that of the first load that failed, or 0.
    texts : dict of str to str
        ``before`` and ``after``, the snapshots; ``NAME.out``, ``NAME.err`` and ``NAME.log``.
    seconds : float
        From the start of the job to its end, by the harness's clock.
    wakeups : int
        How often the harness ran meanwhile.
    """

    job: Result
    texts: Mapping[str, str]
    seconds: float
    wakeups: int


def thinned(log: str, rows: int | None) -> list[str]:
    """Return the command that prints a log where it is: so many rows of it, all for None."""
    return list(script(_THIN, log, str(rows or 0)))


def host_of(targets: Mapping[str, Target], inside: Sequence[Server | None]) -> tuple[Host, str]:
    """Return where the clients of a window run, each in a placement or on the generator."""
    hosts = [targets["generator"].host if one is None else one.host for one in inside]
    if any(host is not hosts[0] for host in hosts):
        raise UsageError(
            "clients of one window run on one host",
            why=", ".join(sorted({host.name for host in hosts})),
        )
    return hosts[0], next(one.directory for one in targets.values() if one.host is hosts[0])


class Window:
    """A window on a host; `folder` is a directory there for the time of it."""

    def __init__(self, host: Host, folder: str, label: str) -> None:
        self.host, self.folder, self.label = host, folder, label
        self._job = Job(host, folder)

    def log(self, name: str) -> str:
        """Return the path of a load's own log."""
        return f"{self.folder}/{name}.log"

    def run(self, loads: Sequence[Load], places: Sequence[str]) -> WindowResult:
        """Run the loads at once and sleep until all have ended.

        Evidence is taken of `places`: ``PID`` of the server, ``NAME=PID`` of other placements.
        """
        lines = [text for one in loads for text in (one.name, shlex.join(one.argv))]
        argv = script(evidence.WINDOW, self.folder, " ".join(places), *lines)
        self._job = start_job(self.host, argv, directory=self.folder, label=self.label)
        wakeups, began = harness_switches(), time.monotonic()
        longest = max(one.client.seconds for one in loads)
        result = self._job.wait(timeout=2 * longest + 20)
        seconds, wakeups = time.monotonic() - began, harness_switches() - wakeups
        return WindowResult(result, self._collect(loads), seconds, wakeups)

    def close(self) -> None:
        """End what still runs, and remove the folder."""
        self._job.stop()
        self.host.run("rm", "-rf", "--", self.folder)

    def _collect(self, loads: Sequence[Load]) -> dict[str, str]:
        names = ["before", "after", *(f"{one.name}.{x}" for one in loads for x in ("out", "err"))]
        found = {
            name: self.host.run("cat", f"{self.folder}/{name}", check=False, timeout=600).stdout
            for name in names
        }
        for one in loads:
            text = self.host.run(*one.log, check=False, timeout=600).stdout
            found[f"{one.name}.log"] = text
        return found


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
