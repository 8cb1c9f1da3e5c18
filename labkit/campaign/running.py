"""What a run says of itself: its log, its mark for ``labkit status``, and its progress line.

All of it is written between trials, and is on the disk before the next one begins.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from labkit import process
from labkit.campaign.progress import Progress
from labkit.campaign.store import Store, write_json
from labkit.design import Condition
from labkit.paths import RUNNING
from labkit.version import VERSION

if TYPE_CHECKING:
    from labkit.campaign.study import Plan

LOG = logging.getLogger("labkit.campaign")


class Running:
    """A run over the trials of a campaign, for the duration of a ``with`` block.

    Parameters
    ----------
    plan, store : Plan, Store
        What is run, and where it is kept.
    session : int
        The session's number.
    done : int
        How many planned trials an earlier run has measured.
    """

    def __init__(self, plan: Plan, store: Store, session: int, done: int) -> None:
        self._plan, self._mark = plan, store.path / RUNNING
        self._session, self._done, self._began = session, done, time.time_ns()
        folder = store.path / "logs"
        folder.mkdir(exist_ok=True)
        number = max((int(path.stem) for path in folder.glob("[0-9]*.log")), default=0) + 1
        self._path = folder / f"{number:02d}.log"
        self._trial = ""

    def __enter__(self) -> Running:
        plan, rig = self._plan, self._plan.rig
        self._progress = Progress(len(plan.design), self._done, plan.study.name)
        self._handlers: list[logging.Handler] = [_Kept(self._path, "x", encoding="utf-8")]
        if self._progress.lines:
            self._handlers.append(logging.StreamHandler(self._progress.lines))
        LOG.setLevel(logging.INFO)
        for one in self._handlers:
            one.setFormatter(_formatter())
            LOG.addHandler(one)
        self._progress.note(f"log: {self._path}")
        LOG.info("session %d: labkit %s, process %d", self._session, VERSION, os.getpid())
        hosts = (f"{role} {', '.join(rig.addresses.get(role, ()))}" for role in rig.hosts)
        LOG.info("rig %s: %s", rig.name, "; ".join(hosts) or "no hosts")
        counts = f"{len(plan.design.conditions)} conditions x {plan.blocks} blocks"
        refused = f"{len(plan.design.refusals)} refused"
        planned = f"{len(plan.design)} trials, {self._done} measured before, {refused}"
        LOG.info("%s: %s = %s", plan.study.name, counts, planned)
        return self

    def begins(self, trial: str, attempt: int, condition: Condition) -> None:
        """Say which trial comes next; the mark appears complete or not at all."""
        self._trial = trial
        self._progress.before(f"block {int(trial[1:3])}: {condition.label}")
        LOG.info("%s attempt %d begins: %s", trial, attempt, condition.label)
        mark = {
            **process.identity(),
            "log": self._path.name,
            "began_ns": self._began,
            "trial": trial,
            "attempt": attempt,
            "condition": condition.label,
            "trial_began_ns": time.time_ns(),
            "left_seconds": self._progress.left(),
        }
        write_json(self._mark, mark)

    def ended(self, record: Mapping[str, Any], label: str, error: Exception | None) -> None:
        """Say what came of an attempt, which is stored."""
        what, seconds = f"{record['trial']} attempt {record['attempt']}", record["seconds"]
        flags = f"; flags: {', '.join(record['flags'])}" if record.get("flags") else ""
        if error is None:
            LOG.info("%s ok: %.1f s, %d samples%s", what, seconds, record["n_samples"], flags)
            return
        LOG.warning("%s failed after %.1f s: %s", what, seconds, _line(error))
        if not self._progress.lines:
            self._progress.note(f"{record['trial']} ({label}) failed: {error}", bad=True)

    def over(self, *, ok: bool) -> None:
        """Count a planned trial as over."""
        self._done += ok
        self._trial = ""
        self._progress.after()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        where = f" in {self._trial}" if self._trial else ""
        if isinstance(error, KeyboardInterrupt):
            LOG.warning("interrupted%s", where)
            self._tell(error)
        elif error is not None:
            LOG.error("gave up%s: %s", where, _line(error))
        took = (time.time_ns() - self._began) / 1e9
        LOG.info("end: %d of %d trials measured, %.0f s", self._done, len(self._plan.design), took)
        self._mark.unlink(missing_ok=True)
        for one in self._handlers:
            LOG.removeHandler(one)
            one.close()
        self._progress.close()

    def _tell(self, error: KeyboardInterrupt) -> None:
        """Have an interrupt say what is kept and how to go on; a notebook shows nothing else."""
        kept = f"{self._done} of {len(self._plan.design)} trials are measured and kept"
        error.args = (f"{kept}; the same again goes on with the rest",)
        # Where in a wait it came, deep in what measures, says nothing; the log names the trial.
        error.__traceback__ = None


class _Kept(logging.FileHandler):
    """A log on the disk, line by line: the system is to write nothing back during a window."""

    def flush(self) -> None:
        super().flush()
        if self.stream:
            os.fsync(self.stream.fileno())


def _formatter() -> logging.Formatter:
    """Return the form of a line: the time (UTC, ISO 8601), how grave it is, what happened."""
    form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s"
    found = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
    found.converter = time.gmtime
    return found


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    return text or type(error).__name__
