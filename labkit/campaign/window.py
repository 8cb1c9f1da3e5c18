"""The measured window: a detached job of snapshot, loads, snapshot."""

from __future__ import annotations

import contextlib
import re
import resource
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.campaign import evidence
from labkit.errors import UsageError
from labkit.hosts import Host, Job, Result, script, start_job
from labkit.hosts.target import Target
from labkit.runtimes import Server
from labkit.tools.base import Client

# A tool that runs for a set time may log far more rows than are needed. The rows that are kept are
# spread evenly over the window, as the evidence covers all of it.
_THIN = """
[ -e "$1" ] || exit 0
[ "$2" -gt 0 ] || exec cat "$1"
rows=$(grep -c '^[0-9]' "$1" || true)
awk -v want="$2" -v rows="$rows" '
    BEGIN { if (want > rows) want = rows }
    !/^[0-9]/ { print; next }
    { seen++ }
    int(seen * want / rows) > int((seen - 1) * want / rows) { print }
' "$1"
"""


#: Seconds after a window's end within which labkit knows of it, also on a busy machine.
LATE = 10.0


@dataclass(frozen=True)
class Load:
    """A client, the command that runs it on its host, and the command that prints its log.

    `cpus` is the CPU list that it must keep to.
    """

    name: str
    client: Client
    argv: Sequence[str]
    log: Sequence[str]
    cpus: str


@dataclass(frozen=True)
class WindowResult:
    """The job's result (the status of the first load that failed), its files, and its cost.

    `texts` are the snapshots ``before`` and ``after``, what timed a cache line printed (``line``,
    empty where nothing did), and ``NAME.out``, ``NAME.err`` and ``NAME.log`` of each load;
    `wakeups` says how often the harness ran meanwhile.
    """

    job: Result
    texts: Mapping[str, str]
    seconds: float
    wakeups: int
    #: What befell labkit's own machine meanwhile, in words.
    flags: tuple[str, ...] = ()


def thinned(log: str, rows: int | None) -> list[str]:
    """Return the command that prints `rows` rows of a log, or all for None."""
    return list(script(_THIN, log, str(rows or 0)))


def host_of(targets: Mapping[str, Target], inside: Sequence[Server | None]) -> tuple[Host, str]:
    """Return the host on which clients run, and the lab's directory there."""
    hosts = [targets["generator"].host if one is None else one.host for one in inside]
    if any(host is not hosts[0] for host in hosts):
        raise UsageError(
            "clients of one window run on one host",
            why=", ".join(sorted({host.name for host in hosts})),
        )
    target = next(target for target in targets.values() if target.host is hosts[0])
    return target.host, target.directory


class Window:
    """A window on a host; `folder` is a directory there that exists during the window."""

    def __init__(self, host: Host, folder: str, label: str) -> None:
        self.host, self.folder, self.label = host, folder, label
        self._job = Job(host, folder)

    def log(self, name: str) -> str:
        """Return the path of a load's own log."""
        return f"{self.folder}/{name}.log"

    def run(
        self,
        loads: Sequence[Load],
        processes: Sequence[str],
        networks: Sequence[str] = (),
        cache_line: Sequence[str] = (),
    ) -> WindowResult:
        """Run the loads at the same time and sleep until all have ended.

        Evidence is taken of `processes` and `networks`, as in `labkit.campaign.record.Kernel`.
        `cache_line` is the command that times a cache line until SIGTERM (`labkit.Rig`).
        """
        commands = [text for load in loads for text in (load.name, shlex.join(load.argv))]
        words = " ".join(processes), " ".join(networks)
        argv = script(evidence.WINDOW, self.folder, *words, shlex.join(cache_line), *commands)
        self._job = start_job(self.host, argv, directory=self.folder, label=self.label)
        wakeups, began = harness_switches(), time.monotonic()
        longest = max(load.client.seconds for load in loads)
        slept = _suspended()
        result = self._job.wait(timeout=2 * longest + 20)
        seconds, wakeups = time.monotonic() - began, harness_switches() - wakeups
        late = seconds - result.seconds if result.status is not None else 0.0
        flags = interruptions(_suspended() - slept, late)
        return WindowResult(result, self._collect(loads), seconds, wakeups, flags)

    def close(self) -> None:
        """End what still runs, and remove the folder."""
        self._job.stop()
        self.host.run("rm", "-rf", "--", self.folder)

    def _collect(self, loads: Sequence[Load]) -> dict[str, str]:
        names = ["before", "after", "line"]
        names += [f"{one.name}.{x}" for one in loads for x in ("out", "err")]
        commands = {name: ["cat", f"{self.folder}/{name}"] for name in names}
        commands |= {f"{load.name}.log": list(load.log) for load in loads}
        return {
            name: self.host.run(*command, check=False, timeout=600).stdout
            for name, command in commands.items()
        }


def _suspended() -> float:
    """Return for how many seconds this machine was suspended since its boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def interruptions(slept: float, late: float) -> tuple[str, ...]:
    """Return the flags of a window that ended `late` seconds before labkit knew of it.

    `slept` is for how many seconds this machine was suspended meanwhile.
    """
    flags = [f"this machine was suspended for {slept:.0f} s in the window"] if slept > 0.5 else []
    if late > LATE:
        flags.append(f"labkit was stopped for {late:.0f} s in the window or just after it")
    return tuple(flags)


def drivers() -> list[int]:
    """Return the parents that wait for this process: papermill, ``labkit run``."""
    pids = []
    for process in psutil.Process().parents():
        if not process.name().startswith(("python", "papermill", "labkit")):
            break
        pids.append(process.pid)
    return pids


def harness_switches() -> int:
    """Return how often this process and its drivers were put on a CPU so far."""
    total = resource.getrusage(resource.RUSAGE_SELF)
    count = total.ru_nvcsw + total.ru_nivcsw
    for pid in drivers():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                status = (task / "status").read_text()
                count += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
    return count
