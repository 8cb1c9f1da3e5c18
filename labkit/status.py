"""The progress of campaigns: their trials on disk, counted against their plans."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from labkit.process import holder

#: The file that the process which measures a campaign locks, and writes its name into.
LOCK = ".lock"
#: So much of a record has its status; the latest attempts, whose distance says what is left.
_HEAD, _RECENT = 8192, 30


class Campaign(NamedTuple):
    """The progress of one campaign."""

    path: Path
    study: str
    #: One of running (by a process), finished, failed (all trials were attempted) and stopped.
    state: str
    process: str
    planned: int
    done: int
    failed: int
    #: When the last attempt ended, and how long those that are left will take; "-" if not known.
    ended: str
    minutes_left: str


def find(folders: Iterable[Path]) -> list[Campaign]:
    """Return the newest campaign of each study and those that are measured now, at any depth."""
    paths = sorted({plan.parent for top in folders for plan in top.rglob("plan.json")})
    newest = {path.parent: path for path in paths}.values()
    return [_campaign(path) for path in paths if path in newest or holder(path / LOCK)]


def blocks(campaign: Path) -> dict[int, tuple[int, int, int]]:
    """Return how many trials of each block are planned, are measured, and only failed."""
    plan = json.loads((campaign / "plan.json").read_text())
    planned = {number: len(block) for number, block in enumerate(plan["order"], start=1)}
    if (campaign / "trials.parquet").is_file():  # it was packed when it was complete
        return {number: (count, count, 0) for number, count in planned.items()}
    succeeded: dict[int, dict[str, bool]] = {number: {} for number in planned}
    for record in campaign.glob("trials/*/trial.json"):
        trial = record.parent.name.rpartition("-a")[0]
        of_block = succeeded[int(trial[1:].partition("-")[0])]
        with record.open() as file:
            of_block[trial] = '"status": "ok"' in file.read(_HEAD) or of_block.get(trial, False)
    done = {number: sum(found.values()) for number, found in succeeded.items()}
    return {n: (count, done[n], len(succeeded[n]) - done[n]) for n, count in planned.items()}


def _campaign(path: Path) -> Campaign:
    study, process = json.loads((path / "plan.json").read_text())["study"], holder(path / LOCK)
    planned, done, failed = map(sum, zip(*blocks(path).values(), strict=True))
    state = "failed" if done + failed == planned else "stopped"
    state = "running" if process else "finished" if done == planned else state
    ends = sorted(record.stat().st_mtime for record in path.glob("trials/*/trial.json"))
    steps = [after - before for before, after in pairwise(ends[-_RECENT:])]
    ended, left = time_text(ends[-1]) if ends else "-", "-"
    if process and steps:
        left = f"{(planned - done) * statistics.median(steps) / 60:.1f}"
    return Campaign(path, study, state, process, planned, done, failed, ended, left)


def table(campaigns: Sequence[Campaign]) -> str:
    """Return a table of campaigns; pandas would take a second from a machine that measures."""
    rows = [("state", "study", "trials", "failed", "last trial ended", "minutes left", "campaign")]
    for one in campaigns:
        state = f"{one.state} ({one.process})" if one.process else one.state
        counts, path = (f"{one.done}/{one.planned}", str(one.failed)), os.path.relpath(one.path)
        rows.append((state, one.study, *counts, one.ended, one.minutes_left, path))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def time_text(seconds: float) -> str:
    """Return a time (UTC, ISO 8601) to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
