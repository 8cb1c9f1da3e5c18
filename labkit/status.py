"""The progress of campaigns: their trials on disk, counted against their plans."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import psutil

from labkit.paths import relative

#: The file that the process which measures a campaign locks, and writes its name into.
LOCK = ".lock"
#: So much of a record has the status of its attempt.
_HEAD = 8192
#: The latest trials, whose distance in time says how long the others will take.
_RECENT = 30


@dataclass(frozen=True)
class Campaign:
    """The progress of one campaign; `process` measures it now, and is "" where none does."""

    path: Path
    study: str
    planned: int
    done: int
    failed: int
    process: str
    #: When the last attempt ended, in ns since 1970, and an estimate for the trials that are left.
    ended_ns: int | None
    left_seconds: float | None
    #: The CPUs of the harness where a measurement shares the machine with it, else "".
    cpus: str = ""

    @property
    def state(self) -> str:
        """One of running, finished, failed (all trials were attempted) and stopped."""
        if self.process:
            return "running"
        if self.done == self.planned:
            return "finished"
        return "failed" if self.done + self.failed == self.planned else "stopped"


def find(folders: Iterable[Path]) -> list[Campaign]:
    """Return the newest campaign of each study and those that are measured now, at any depth."""
    paths: set[Path] = set()
    for top in folders:
        for folder, inside, files in os.walk(top):
            if "plan.json" in files:
                paths.add(Path(folder))
                inside.clear()  # it has a folder a trial
    newest = {path.parent: path for path in sorted(paths)}.values()
    found = map(_campaign, sorted(paths))
    return [one for one in found if one.path in newest or one.process]


def _campaign(path: Path) -> Campaign:
    plan = json.loads((path / "plan.json").read_text())
    planned = sum(map(len, plan["order"]))
    rig = plan.get("rig", {})
    cpus = rig.get("cpu_map", {}).get("harness", "") if rig.get("shared_kernel") else ""
    process = _process(path / LOCK)
    if (path / "trials.parquet").is_file():  # it was packed when it was complete
        return Campaign(path, plan["study"], planned, planned, 0, process, None, None)
    records = list(path.glob("trials/*/trial.json"))
    attempted = {_trial(record) for record in records}
    done = len({_trial(record) for record in records if _succeeded(record)})
    ends = sorted(record.stat().st_mtime_ns for record in records)
    steps = [(after - before) / 1e9 for before, after in pairwise(ends[-_RECENT:])]
    left = (planned - done) * statistics.median(steps) if steps else None
    failed, ended = len(attempted) - done, ends[-1] if ends else None
    return Campaign(path, plan["study"], planned, done, failed, process, ended, left, cpus)


def _trial(record: Path) -> str:
    return record.parent.name.rpartition("-a")[0]


def _succeeded(record: Path) -> bool:
    with record.open() as file:
        return '"status": "ok"' in file.read(_HEAD)


def _process(lock: Path) -> str:
    """Return the process that measures a campaign; one of another machine is believed."""
    text = lock.read_text() if lock.is_file() else ""
    named = re.fullmatch(r"process (\d+) on (.*)", text)
    if named is None or named[2] != platform.node():
        return text
    try:
        files = [file.path for file in psutil.Process(int(named[1])).open_files()]
        return text if str(lock.resolve()) in files else ""
    except psutil.AccessDenied:
        return text
    except psutil.Error:
        return ""


def lines(campaigns: Sequence[Campaign]) -> list[str]:
    """Return a table of campaigns."""
    rows = [("state", "study", "trials", "failed", "last trial ended", "left", "campaign")]
    for one in campaigns:
        ended = time_text(one.ended_ns) if one.ended_ns else "-"
        known = one.process and one.left_seconds is not None
        left = duration_text(one.left_seconds or 0.0) if known else "-"
        state = f"{one.state} ({one.process})" if one.process else one.state
        counts = (f"{one.done}/{one.planned}", str(one.failed))
        rows.append((state, one.study, *counts, ended, left, short_path(one.path)))
    return aligned(rows)


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
