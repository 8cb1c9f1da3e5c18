"""The state of campaigns, from the progress files that runs write.

Only one small file of each campaign is read, so that this does not disturb a measurement: no
host or engine is asked, and nothing is written or locked.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from labkit.paths import PROGRESS, relative
from labkit.process import boot

#: States that need no action.
_GOOD = ("running", "elsewhere", "finished", "unknown")
#: What a progress file says of a run, besides its process.
_RUN = ("log", "began_ns", "trial", "attempt", "condition", "trial_began_ns", "left_seconds")


def process_identity() -> dict[str, Any]:
    """Return host, boot, process id and start, which together identify this process."""
    pid = os.getpid()
    return {"host": platform.node(), "boot": boot(), "pid": pid, "started": _started(pid)}


def is_running(identity: Mapping[str, Any]) -> bool | None:
    """Return whether a process is running, or None for a process of another host."""
    if identity["host"] != platform.node():
        return None
    started = _started(identity["pid"])
    return identity["boot"] == boot() and started is not None and started == identity["started"]


def _started(pid: int) -> float | None:
    """Return the start of a running process in seconds since the boot, or None."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return round(process.create_time() - psutil.boot_time(), 2)
    except psutil.Error:
        return None


@dataclass(frozen=True)
class Campaign:
    """The state and progress of a campaign.

    Parameters
    ----------
    path : Path
        Its folder.
    study : str
        The study's name.
    state : str
        - ``running``: its process is running
        - ``elsewhere``: a process of another machine runs it, or was killed there
        - ``finished``: every planned trial was measured
        - ``failed``: every planned trial was attempted, and some did not succeed
        - ``stopped``: it was interrupted or gave up before all trials were attempted
        - ``dead``: its process was killed before all trials were attempted
        - ``unknown``: it has no progress file; running it again writes one
        - ``unreadable``: its progress file cannot be read
    planned, done, failed : int
        Numbers of trials: planned, measured, attempted without success.
    blocks, whole : int
        Numbers of blocks: planned, completely measured.
    ended_ns : int or None
        When the last attempt ended, in nanoseconds since 1970.
    run : mapping or None
        The last message of the run that is going on, or was killed.
    cpus : str
        The harness's CPUs where the hosts share a kernel with it, else "".
    problems : tuple of str
        What could not be read, and why.
    """

    path: Path
    study: str
    state: str
    planned: int = 0
    done: int = 0
    failed: int = 0
    blocks: int = 0
    whole: int = 0
    ended_ns: int | None = None
    run: Mapping[str, Any] | None = None
    cpus: str = ""
    problems: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing failed, and no trials are left without a process that measures them."""
        return self.state in _GOOD and not self.failed and not self.problems

    def left(self, now_ns: int) -> float | None:
        """Return the seconds left at `now_ns` by the run's estimate, or None."""
        if self.run is None or self.state == "dead" or self.run["left_seconds"] is None:
            return None
        passed = (now_ns - int(self.run["trial_began_ns"])) / 1e9
        return max(0.0, float(self.run["left_seconds"]) - passed)

    def as_record(self, now_ns: int) -> dict[str, Any]:
        """Return it as JSON data."""
        record = {**vars(self), "path": str(self.path), "left_seconds": self.left(now_ns)}
        del record["cpus"]
        return record


def find(folders: Iterable[Path], *, every: bool = False) -> list[Campaign]:
    """Return the newest campaign of each study and all running ones, in folders at any depth.

    `every` adds the older campaigns.
    """
    paths: set[Path] = set()
    errors: list[OSError] = []
    for top in folders:
        for folder, inside, files in os.walk(top, onerror=errors.append):
            if "plan.json" in files:
                paths.add(Path(folder))
                inside.clear()
    newest = {path.parent: path for path in sorted(paths)}.values()
    campaigns = [
        campaign
        for path in sorted(paths)
        for campaign in [_campaign(path)]
        if every or path in newest or campaign.state in ("running", "elsewhere")
    ]
    # Before the first campaign, or after a folder was removed meanwhile, there is nothing to say.
    errors = [error for error in errors if not isinstance(error, FileNotFoundError)]
    return campaigns + [_unreadable(Path(str(error.filename)), error) for error in errors]


def _unreadable(path: Path, error: Exception) -> Campaign:
    reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return Campaign(path, path.parent.name, "unreadable", problems=(f"{path.name}: {reason}",))


def _campaign(path: Path) -> Campaign:
    try:
        progress = json.loads((path / PROGRESS).read_text())
        run = progress["run"]
        planned, done, failed = (int(progress[name]) for name in ("planned", "done", "failed"))
        alive = is_running(run) if run else False
        return Campaign(
            path,
            str(progress["study"]),
            _state(run is not None, alive, planned, done, failed),
            planned,
            done,
            failed,
            blocks=int(progress["blocks"]),
            whole=int(progress["whole"]),
            ended_ns=progress["ended_ns"],
            run={**run, **{name: run[name] for name in _RUN}} if run else None,
            cpus=str(progress["cpus"]),
        )
    except FileNotFoundError:
        return _without_progress(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return _unreadable(path, error)


def _without_progress(path: Path) -> Campaign:
    try:
        return Campaign(path, str(json.loads((path / "plan.json").read_text())["study"]), "unknown")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _unreadable(path, error)


def _state(begun: bool, alive: bool | None, planned: int, done: int, failed: int) -> str:
    if begun and alive is not False:
        return "running" if alive else "elsewhere"
    if done == planned:
        return "finished"
    if begun:
        return "dead"
    return "failed" if done + failed == planned else "stopped"


_COLUMNS = ("state", "study", "trials", "failed", "blocks", "last trial ended", "campaign")


def lines(campaigns: Sequence[Campaign], now_ns: int) -> list[str]:
    """Return a table of campaigns, and remarks on those that are running or need action."""
    rows = [_COLUMNS]
    remarks = []
    for one in campaigns:
        trials, blocks = f"{one.done}/{one.planned}", f"{one.whole}/{one.blocks}"
        if one.state in ("unknown", "unreadable"):
            trials = blocks = "-"
        ended = time_text(one.ended_ns) if one.ended_ns else "-"
        path = short_path(one.path)
        rows.append((one.state, one.study, trials, str(one.failed), blocks, ended, path))
        remarks += [f"{one.study}: {text}" for text in [*_run_text(one, now_ns), *one.problems]]
    return [*aligned(rows), *([""] if remarks else []), *remarks]


def _run_text(one: Campaign, now_ns: int) -> list[str]:
    if one.run is None or one.state not in ("running", "elsewhere", "dead"):
        return []
    run, log = one.run, short_path(one.path / "logs" / one.run["log"])
    where = f" on {run['host']}" if one.state == "elsewhere" else ""
    process = f"process {run['pid']}{where}"
    trial = f"{run['trial']}, attempt {run['attempt']} ({run['condition']})"
    if one.state == "dead":
        return [f"{process} was killed in {trial}; the same command resumes it. {log}"]
    since, taken = (
        duration_text((now_ns - run[key]) / 1e9) for key in ("began_ns", "trial_began_ns")
    )
    left = one.left(now_ns)
    rest = "the time left is known after the first trial"
    if left is not None:
        end = time_text(now_ns + round(left * 1e9))
        rest = f"about {duration_text(left)} left, until {end}"
    return [
        f"{process} for {since}, in {trial} for {taken}; {rest}",
        f"`kill {run['pid']}`{where} ends it as Ctrl-C does; {log}",
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def time_text(time_ns: int) -> str:
    """Return a time (UTC, ISO 8601) to the second."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(seconds: float) -> str:
    """Return a duration with its unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def short_path(path: Path) -> str:
    """Return a path, relative to the working directory if it is inside."""
    return str(relative(path, Path.cwd()))
