"""The progress of campaigns: their trials on disk, counted against their plans."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from labkit.process import holder

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

    @property
    def state(self) -> str:
        """One of running, finished, failed (all trials were attempted) and stopped."""
        if self.process:
            return "running"
        if self.done == self.planned:
            return "finished"
        return "failed" if self.done + self.failed == self.planned else "stopped"

    def as_row(self) -> tuple[str, ...]:
        """Return the campaign as a row of the table."""
        left = self.left_seconds if self.process else None
        return (
            f"{self.state} ({self.process})" if self.process else self.state,
            self.study,
            f"{self.done}/{self.planned}",
            str(self.failed),
            time_text(self.ended_ns) if self.ended_ns else "-",
            "-" if left is None else f"{left / 60:.1f}",
            os.path.relpath(self.path),
        )


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


def blocks(campaign: Path) -> dict[int, tuple[int, int, int]]:
    """Return how many trials of each block are planned, are measured, and only failed."""
    plan = json.loads((campaign / "plan.json").read_text())
    planned = {number: len(block) for number, block in enumerate(plan["order"], start=1)}
    if (campaign / "trials.parquet").is_file():  # it was packed when it was complete
        return {number: (count, count, 0) for number, count in planned.items()}
    attempted: Counter[int] = Counter()
    done: Counter[int] = Counter()
    records = sorted(campaign.glob("trials/*/trial.json"))
    for trial, attempts in groupby(records, lambda path: path.parent.name.rpartition("-a")[0]):
        number = int(trial[1:].partition("-")[0])
        attempted[number] += 1
        done[number] += any(map(_succeeded, attempts))
    return {n: (count, done[n], attempted[n] - done[n]) for n, count in planned.items()}


def _succeeded(record: Path) -> bool:
    with record.open() as file:
        return '"status": "ok"' in file.read(_HEAD)


def _campaign(path: Path) -> Campaign:
    plan = json.loads((path / "plan.json").read_text())
    planned, done, failed = map(sum, zip(*blocks(path).values(), strict=True))
    ends = sorted(record.stat().st_mtime_ns for record in path.glob("trials/*/trial.json"))
    steps = [(after - before) / 1e9 for before, after in pairwise(ends[-_RECENT:])]
    left = (planned - done) * statistics.median(steps) if steps else None
    ended, process = ends[-1] if ends else None, holder(path / LOCK)
    return Campaign(path, plan["study"], planned, done, failed, process, ended, left)


def table(campaigns: Sequence[Campaign]) -> str:
    """Return a table of campaigns; pandas would take a second from a machine that measures."""
    head = ("state", "study", "trials", "failed", "last trial ended", "minutes left", "campaign")
    rows = [head, *(one.as_row() for one in campaigns)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def time_text(time_ns: int) -> str:
    """Return a time (UTC, ISO 8601) to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ns // 10**9))
