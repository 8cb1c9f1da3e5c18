"""The log of a run, its progress file for ``labkit status``, and its progress bar.

All are written between trials, and synced before the next one begins.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tqdm
import tqdm.auto

from labkit.campaign.store import write_json
from labkit.design import Condition, Design, trial_name
from labkit.paths import PROGRESS
from labkit.process import open_progress
from labkit.rig import Rig
from labkit.status import process_identity
from labkit.version import VERSION

LOG = logging.getLogger("labkit.campaign")


class RunLog:
    """The log, progress file and progress bar of a run over a campaign's trials.

    `outcomes` has the trials that earlier runs attempted, with whether they were measured.
    """

    def __init__(
        self, study: str, rig: Rig, design: Design, path: Path, outcomes: Mapping[str, bool]
    ) -> None:
        self._study, self._rig, self._design, self._folder = study, rig, design, path
        self._outcomes = dict(outcomes)
        ended = (one.stat().st_mtime_ns for one in (path / "trials").glob("b*"))
        self._ended_ns = max(ended, default=None)
        #: The current run, as `labkit status` shows it; None between runs.
        self._run: dict[str, Any] | None = None
        self._trial = ""
        self._waiting = False

    @property
    def _planned(self) -> int:
        return len(self._design)

    @property
    def _done(self) -> int:
        return sum(self._outcomes.values())

    def begin(self, session: int) -> RunLog:
        """Open the log of a run, to be used as a ``with`` block around it."""
        folder = self._folder / "logs"
        folder.mkdir(exist_ok=True)
        number = max((int(path.stem) for path in folder.glob("[0-9]*.log")), default=0) + 1
        log, self._began_ns = folder / f"{number:02d}.log", time.time_ns()
        self._bar = ProgressBar(self._planned, self._done, self._study)
        self._handlers: list[logging.Handler] = [_SyncedHandler(log, "x", encoding="utf-8")]
        if self._bar.lines:
            self._handlers.append(logging.StreamHandler(self._bar.lines))
        LOG.setLevel(logging.INFO)
        for one in self._handlers:
            one.setFormatter(_formatter())
            LOG.addHandler(one)
        self._run = {**process_identity(), "log": log.name, "began_ns": self._began_ns}
        self._bar.note(f"log: {log}")
        self._log_head(session)
        return self

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._log_error(error)
        took = (time.time_ns() - self._began_ns) / 1e9
        LOG.info("end: %d of %d trials measured, %.0f s", self._done, self._planned, took)
        self._trial, self._run = "", None
        self.write_progress()
        for one in self._handlers:
            LOG.removeHandler(one)
            one.close()
        self._bar.close()

    def _log_head(self, session: int) -> None:
        rig, design = self._rig, self._design
        LOG.info("session %d: labkit %s, process %d", session, VERSION, os.getpid())
        hosts = (f"{role} {', '.join(rig.addresses.get(role, ()))}" for role in rig.hosts)
        LOG.info("rig %s: %s", rig.name, "; ".join(hosts) or "no hosts")
        counts = f"{len(design.conditions)} conditions x {len(design.order)} blocks"
        infeasible = f"{len(design.infeasible)} infeasible"
        planned = f"{self._planned} trials, {self._done} measured before, {infeasible}"
        LOG.info("%s: %s = %s", self._study, counts, planned)

    def _log_error(self, error: BaseException) -> None:
        where = f" in {self._trial}" if self._trial else ""
        if not isinstance(error, KeyboardInterrupt):
            LOG.error("gave up%s: %s", where, _line(error))
            return
        LOG.warning("interrupted%s", where)
        # A notebook shows only the error, so that its message says how to continue.
        kept = f"{self._done} of {self._planned} trials are measured and kept"
        error.args = (f"{kept}; run the same again to measure the rest",)
        # The traceback would show some wait deep in labkit; the log names the trial.
        error.__traceback__ = None

    def begins(self, trial: str, block: int, attempt: int, condition: Condition) -> None:
        """Log the start of an attempt, and write the progress file."""
        self._trial = trial
        self._bar.before(f"block {block}: {condition.label}")
        LOG.info("%s attempt %d begins: %s", trial, attempt, condition.label)
        assert self._run is not None
        self._run |= {
            "trial": trial,
            "attempt": attempt,
            "condition": condition.label,
            "trial_began_ns": time.time_ns(),
            "left_seconds": self._bar.left(),
        }
        self.write_progress()

    def ended(self, row: Mapping[str, Any], label: str, error: Exception | None) -> None:
        """Log how an attempt ended, after it was stored."""
        what, seconds = f"{row['trial']} attempt {row['attempt']}", row["seconds"]
        flags = f"; flags: {row['flags']}" if row["flags"] else ""
        self._outcomes[row["trial"]] = error is None
        self._ended_ns = time.time_ns()
        if error is None:
            LOG.info("%s ok: %.1f s, %d samples%s", what, seconds, row["n_samples"], flags)
            return
        LOG.warning("%s failed after %.1f s: %s", what, seconds, _line(error))
        if not self._bar.lines:
            self._bar.note(f"{row['trial']} ({label}) failed: {error}", bad=True)

    def waits(self, roles: Sequence[str], left: float) -> None:
        """Show that hosts do not answer, and how long they are still waited for."""
        text = f"host {' and '.join(roles)} does not answer"
        if not self._waiting:
            LOG.warning("%s; it is waited for %.0f s", text, left)
        self._waiting = True
        self._bar.before(f"{text}; {left:.0f} s left")

    def answered(self) -> None:
        """Log that all hosts answer again."""
        LOG.info("all hosts answer again")
        self._waiting = False

    def over(self) -> None:
        """Count a planned trial, successful or not."""
        self._trial = ""
        self._bar.after()

    def complete(self) -> None:
        """Write the progress file of a campaign with nothing left, unless it says so already."""
        try:
            kept = json.loads((self._folder / PROGRESS).read_text())
            known = (kept["planned"], kept["done"])
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if known != (self._planned, self._done):
            self.write_progress()

    def write_progress(self) -> None:
        """Write the progress file atomically."""
        sizes = [len(block) for block in self._design.order]
        names = [[trial_name(b, p + 1) for p in range(n)] for b, n in enumerate(sizes, start=1)]
        # The running trial may still succeed.
        failed = [name for name, ok in self._outcomes.items() if not ok and name != self._trial]
        progress = {
            "study": self._study,
            "planned": self._planned,
            "done": self._done,
            "failed": len(failed),
            "blocks": len(sizes),
            "whole": sum(all(self._outcomes.get(name) for name in block) for block in names),
            "ended_ns": self._ended_ns,
            "run": self._run,
            "cpus": self._rig.cpu_map.get("harness", "") if self._rig.shared_kernel else "",
        }
        write_json(self._folder / PROGRESS, progress)


class _SyncedHandler(logging.FileHandler):
    """A log that is synced line by line, so that nothing is written back during a window."""

    def flush(self) -> None:
        super().flush()
        if self.stream:
            os.fsync(self.stream.fileno())


def _formatter() -> logging.Formatter:
    form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s"
    formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    return text or type(error).__name__


class ProgressBar:
    """A bar over the trials of a campaign, drawn between trials."""

    def __init__(self, total: int, done: int, title: str) -> None:
        # tqdm's monitor is a thread that would wake up inside windows.
        tqdm.tqdm.monitor_interval = 0
        self._file = open_progress()
        #: A file or pipe, which gets the log's lines instead of a bar.
        self.lines = self._file if self._file and not self._file.isatty() else None
        self._null = open_progress(os.devnull) if self.lines else None
        bar: Any = tqdm.tqdm if self._file or not _in_notebook() else tqdm.auto.tqdm
        self._bar = bar(
            total=total,
            initial=done,
            desc=title,
            unit="trial",
            file=self._null or self._file or sys.stderr,
            mininterval=0,
            smoothing=0.1,
            dynamic_ncols=True,
        )

    def before(self, text: str) -> None:
        """Show which trial comes next."""
        self._bar.set_postfix_str(text, refresh=True)

    def after(self) -> None:
        """Count a trial that is done."""
        self._bar.update(1)

    def left(self) -> float | None:
        """Return the seconds that are left, or None before the first trial has ended."""
        state = self._bar.format_dict
        measured = state["n"] - state["initial"]
        rate = state["rate"] or (measured / state["elapsed"] if measured else 0)
        return (state["total"] - state["n"]) / rate if rate else None

    def note(self, text: str, *, bad: bool = False) -> None:
        """Print a line without breaking the bar; in a notebook only errors go to stderr."""
        plain = sys.stdout if _in_notebook() and not bad else sys.stderr
        self._bar.write(text, file=self._file or plain)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
        for file in (self._file, self._null):
            if file:
                file.close()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
