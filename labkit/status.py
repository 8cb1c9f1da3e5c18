"""What campaigns there are and how far they are, as files tell that lie beside a measurement.

No host and no engine is asked, nothing is written or locked, and of a trial only the first lines
are read, once: whoever looks is not to be seen in what is measured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from labkit.paths import RUNNING
from labkit.process import runs

#: What a campaign can be, with what it means.
STATES = {
    "running": "its process lives",
    "elsewhere": "a process of another machine runs it, or was killed there",
    "finished": "every planned trial was measured",
    "failed": "every planned trial was tried, and some did not succeed",
    "stopped": "it was interrupted or gave up, and trials are left",
    "dead": "its process was killed, and trials are left",
    "unreadable": "its plan cannot be read",
}
#: The states that nobody has to look after.
_GOOD = ("running", "elsewhere", "finished")
#: What a run says of itself.
_SAID = (
    *("host", "boot", "pid", "started", "log", "began_ns"),
    *("trial", "attempt", "condition", "trial_began_ns", "left_seconds"),
)
#: Where the part of a trial's record ends that says which it is, when it ran and what came of it;
#: and how much of the file that part nearly always fits in.
_END, _HEAD = '\n "error"', 4096


@dataclass(frozen=True)
class Campaign:
    """How far a campaign is.

    Parameters
    ----------
    path : Path
        Its folder.
    study, state : str
        The study's name; one of `STATES`.
    planned, done, failed : int
        Trials: planned, measured, and tried without success.
    blocks, whole : int
        Blocks: planned, and measured completely.
    ended_ns : int or None
        When the last attempt ended, in nanoseconds since 1970.
    run : mapping or None
        What the run that goes on, or was killed, said last.
    cpus : str
        The harness's CPUs, where the hosts share a kernel with it; "" elsewhere.
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
        """Whether nothing has failed, and nothing was left that no process goes on with."""
        return self.state in _GOOD and not self.failed and not self.problems

    def left(self, now_ns: int) -> float | None:
        """Return the seconds that the run's progress line says are left, or None."""
        if self.run is None or self.state == "dead" or self.run["left_seconds"] is None:
            return None
        passed = (now_ns - int(self.run["trial_began_ns"])) / 1e9
        return max(0.0, float(self.run["left_seconds"]) - passed)

    def as_record(self, now_ns: int) -> dict[str, Any]:
        """Return it as JSON data."""
        found = {**vars(self), "path": str(self.path), "left_seconds": self.left(now_ns)}
        del found["cpus"]
        return found


def look(folders: Iterable[Path], *, every: bool = False) -> list[Campaign]:
    """Return the campaigns in folders, at any depth: of a study's folder the newest, and what runs.

    Parameters
    ----------
    folders : iterable of Path
        Where to look; each may be a campaign itself.
    every : bool
        Also those that a newer campaign stands beside.
    """
    paths: set[Path] = set()
    closed: list[OSError] = []
    for top in folders:
        for folder, inside, files in os.walk(top, onerror=closed.append):
            if "plan.json" in files:
                paths.add(Path(folder))
                inside.clear()
    newest = {path.parent: path for path in sorted(paths)}.values()
    found = [
        campaign
        for path in sorted(paths)
        if every or path in newest or (path / RUNNING).exists()
        for campaign in [_campaign(path)]
        if every or path in newest or campaign.state in ("running", "elsewhere")
    ]
    gone = FileNotFoundError  # nothing was measured yet, or it was removed meanwhile
    closed = [error for error in closed if not isinstance(error, gone)]
    return found + [_unreadable(Path(str(error.filename)), error) for error in closed]


def _unreadable(path: Path, error: Exception) -> Campaign:
    return Campaign(path, path.parent.name, "unreadable", problems=(_why(path, error),))


def _campaign(path: Path) -> Campaign:
    try:
        plan = json.loads((path / "plan.json").read_text())
        study, rig = str(plan["study"]), plan["rig"]
        cpus = str(rig["cpu_map"].get("harness", "")) if rig.get("shared_kernel") else ""
        sizes = [len(block) for block in plan["order"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return _unreadable(path, error)
    attempts, problems = _attempts(path / "trials")
    mark, amiss = _mark(path / RUNNING)
    alive = runs(mark) if mark else False
    done = {trial for trial, ok, _ in attempts if ok}
    failed = {trial for trial, _, _ in attempts} - done
    if mark and alive is not False:
        failed.discard(mark["trial"])  # it is tried again
    state = _state(mark, alive, sum(sizes), len(done), len(failed))
    names = [[f"b{b:02d}-p{p:02d}" for p in range(1, n + 1)] for b, n in enumerate(sizes, start=1)]
    return Campaign(
        path,
        study,
        state,
        sum(sizes),
        len(done),
        len(failed),
        len(sizes),
        sum(done.issuperset(block) for block in names),
        max((ended for _, _, ended in attempts), default=None),
        mark if state in ("running", "elsewhere", "dead") else None,
        cpus,
        (*problems, *amiss),
    )


def _state(
    mark: Mapping[str, Any] | None, alive: bool | None, planned: int, done: int, failed: int
) -> str:
    if mark and alive is not False:
        return "running" if alive else "elsewhere"
    if done == planned:
        return "finished"
    if mark:
        return "dead"
    return "failed" if done + failed == planned else "stopped"


def _mark(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what a run says of itself, and what is wrong with that; neither where none runs."""
    try:
        found = json.loads(path.read_text())
        return {name: found[name] for name in _SAID}, []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, [_why(path, error)]


def _attempts(folder: Path) -> tuple[list[tuple[str, bool, int]], list[str]]:
    """Return trial, success and end (ns) of every attempt, and what could not be read."""
    found, problems = [], []
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        names = []
    except OSError as error:
        return [], [_why(folder, error)]
    for name in filter(re.compile(r"b\d+-p\d+-a\d+$").match, names):
        try:
            found.append(_attempt(folder / name / "trial.json"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(_why(Path(name), error))
    return found, problems


@cache  # an attempt never changes once it is there
def _attempt(path: Path) -> tuple[str, bool, int]:
    with path.open() as file:
        text = file.read(_HEAD)
        text += "" if _END in text else file.read()
    head, whole, _ = text.partition(_END)
    data = json.loads(head.rstrip(",") + "}" if whole else text)
    ended = data["started_ns"] + round(data["seconds"] * 1e9)
    return str(data["trial"]), data["status"] == "ok", ended


def _why(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return f"{path.name}: {reason}"


_COLUMNS = ("state", "study", "trials", "failed", "blocks", "last trial ended", "campaign")


def lines(campaigns: Sequence[Campaign], now_ns: int) -> list[str]:
    """Return a table of campaigns, and below it what is said of those that run or need somebody."""
    rows = [_COLUMNS]
    said = []
    for one in campaigns:
        trials, blocks = f"{one.done}/{one.planned}", f"{one.whole}/{one.blocks}"
        ended = moment(one.ended_ns) if one.ended_ns else "-"
        rows.append((one.state, one.study, trials, str(one.failed), blocks, ended, shown(one.path)))
        said += [f"{one.study}: {text}" for text in [*_run(one, now_ns), *one.problems]]
    return [*aligned(rows), *([""] if said else []), *said]


def _run(one: Campaign, now_ns: int) -> list[str]:
    if one.run is None:
        return []
    run, log = one.run, shown(one.path / "logs" / one.run["log"])
    there = f" on {run['host']}" if one.state == "elsewhere" else ""
    who = f"process {run['pid']}{there}"
    at = f"{run['trial']}, attempt {run['attempt']} ({run['condition']})"
    if one.state == "dead":
        return [f"{who} was killed in {at}; the same command goes on. {log}"]
    since, trial = (lasting((now_ns - run[key]) / 1e9) for key in ("began_ns", "trial_began_ns"))
    left = one.left(now_ns)
    rest = "how long yet is known after a trial"
    if left is not None:
        rest = f"about {lasting(left)} left, until {moment(now_ns + round(left * 1e9))}"
    said = f"{who} for {since}, in {at} for {trial}; {rest}"
    return [said, f"`kill {run['pid']}`{there} ends it as Ctrl-C does; {log}"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def moment(time_ns: int) -> str:
    """Return a time (UTC, ISO 8601) to the second."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lasting(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def shown(path: Path) -> str:
    """Return a path as short as it can be typed here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
