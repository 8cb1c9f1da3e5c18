"""Running the trials of a plan: each until an attempt succeeds, each attempt stored whole."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import tqdm
import tqdm.auto

from labkit.campaign.store import Store
from labkit.campaign.treatments import CpuSpeed
from labkit.campaign.trial import Attempt, Trial
from labkit.campaign.window import drivers
from labkit.design import Condition, trial_name
from labkit.errors import CpusDisturbed, HostUnreachable, LabkitError, Rebooted
from labkit.hosts.cache_line import least_read
from labkit.placement import parse_cpus
from labkit.process import announce, open_progress
from labkit.rig import Rig

if TYPE_CHECKING:
    from labkit.campaign.study import Plan

#: At the level INFO it has a line a trial, at WARNING those that failed.
LOG = logging.getLogger("labkit.campaign")
#: Attempts at a trial in one run; each is a row.
ATTEMPTS = 2
#: Planned trials failed in a row after which a run ends: the rig is broken.
GIVE_UP = 5
#: Attempts at a trial that may end with a lost connection or disturbed CPUs, besides `ATTEMPTS`.
LOSSES = 10
#: Seconds between two questions whether a host answers again.
_PAUSE_SECONDS = 5.0

#: Block, position and condition of a planned trial.
Planned = tuple[int, int, Condition]


@dataclass
class Runner:
    """The run of a plan into a locked store."""

    plan: Plan
    store: Store
    #: The only blocks to run, all of them when empty, and seconds for them (0: no limit).
    blocks: Collection[int] = ()
    seconds: float = 0.0
    #: The last attempt at each trial, and the boot identifiers of the hosts.
    _attempts: dict[str, int] = field(default_factory=dict)
    _boots: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run every trial of the plan that has not succeeded yet."""
        rows = self.store.attempts()
        self._attempts = {row["trial"]: row["attempt"] for row in rows}
        measured = {row["trial"] for row in rows if row["status"] == "ok"}
        todo = [
            planned
            for planned in self.plan.design.trials()
            if trial_name(*planned[:2]) not in measured
            and (not self.blocks or planned[0] in self.blocks)
        ]
        if not todo:
            return
        boots = {
            role: str(of.get("volatile", {}).get("boot_id") or "")
            for role, of in self.plan.facts.items()
        }
        self._boots = {role: boot for role, boot in boots.items() if boot}
        boot = " ".join(sorted(set(self._boots.values())))
        session = self.store.session(self.plan.facts, boot)
        self._compare_with(rows)
        total, done = len(self.plan.design), len(measured)
        with progress(self.plan.study.name, total, done) as bar, pinned_to_harness(self.plan.rig):
            try:
                for _ in self._run_all(todo, session):
                    done += 1
                    bar.update()
            except KeyboardInterrupt as error:
                # A notebook shows only the error, so that its message says how to continue.
                kept = f"{done} of {total} trials are measured and kept"
                error.args = (f"{kept}; run the same again to measure the rest",)
                # The traceback would show some wait deep in labkit.
                error.__traceback__ = None
                raise

    def _compare_with(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let a session tell disturbed CPUs by the least times of the whole campaign.

        One that begins with disturbed CPUs has nothing else to compare them with.
        """
        rig = self.plan.rig
        rig.nearest_ns = min(rig.nearest_ns, least_read(rows))
        times = [row["reference_ns"] for row in rows if "reference_ns" in row]
        for treatment in self.plan.study.treatments.values():
            if isinstance(treatment, CpuSpeed):
                treatment.least_ns = min([treatment.least_ns, *times])

    def _run_all(self, todo: Sequence[Planned], session: int) -> Iterator[None]:
        """Run trials block by block; yield after each that succeeded."""
        failed, longest, end = 0, 0.0, time.monotonic() + (self.seconds or math.inf)
        for block, trials in itertools.groupby(todo, key=lambda planned: planned[0]):
            began = time.monotonic()
            # A block in two sessions is in no paired comparison: none begins that would not end.
            if began + longest > end:
                announce(f"stopped before block {block}, by `minutes`: run it again for the rest")
                return
            for _, position, condition in trials:
                if time.monotonic() > end:
                    announce(f"stopped in block {block}, by `minutes`: run it again for the rest")
                    return
                keys = {"trial": trial_name(block, position), "block": block}
                keys |= {"position": position, "session": session}
                error = self._run_planned(condition, keys)
                failed = failed + 1 if error else 0
                if failed >= GIVE_UP:
                    reasons = [getattr(error, name, "") for name in ("what", "why")]
                    raise LabkitError(
                        f"{failed} planned trials failed one after the other",
                        where=str(self.store.path),
                        why="; ".join(filter(None, reasons)) or str(error),
                        remedy="see the trials' records there; `labkit doctor` checks the machine",
                    )
                if not error:
                    yield
            longest = max(longest, time.monotonic() - began)

    def _run_planned(self, condition: Condition, keys: Mapping[str, Any]) -> Exception | None:
        """Run a planned trial until an attempt succeeds; return the last attempt's error."""
        plan, name = self.plan, keys["trial"]
        values = {**plan.settings, **dict(condition.levels)}
        failures = losses = 0
        while failures < ATTEMPTS and losses < LOSSES:
            number = self._attempts[name] = self._attempts.get(name, 0) + 1
            label = f"trial-{os.getpid()}-{name}-a{number}"
            trial = Trial(
                plan.rig, values, label, turn=keys["block"], treatments=plan.study.treatments
            )
            numbered = {"trial": name, "attempt": number, **keys}
            done = trial.attempt(plan.study.protocol, condition, numbered)
            self.store.add(done.record, done.measurement.samples, done.logs)
            _log(done)
            if done.error is None:
                return None
            disturbed = isinstance(done.error, HostUnreachable | CpusDisturbed)
            lost = self._await_hosts(label) or disturbed
            losses, failures = losses + lost, failures + (not lost)
        return done.error

    def _await_hosts(self, label: str) -> bool:
        """Wait for hosts that do not answer after a failed attempt; tell whether there were any.

        What the attempt left on them is removed. Raises `HostUnreachable` when the rig's patience
        ends, and `Rebooted` where a host has started anew.
        """
        rig, waited = self.plan.rig, False
        deadline = time.monotonic() + rig.patience
        while True:
            silent, left = rig.silent(), deadline - time.monotonic()
            try:
                if not silent:
                    self._check_boots()
                    if waited:
                        rig.remove_trial(label)
                        LOG.info("all hosts answer again")
                    return waited
            except HostUnreachable as again:
                silent = {again.where: again}
            if left <= 0:
                error = next(iter(silent.values()))
                if rig.patience:
                    waited_for = f"it was waited for {rig.patience:.0f} s (patience in rig.toml)"
                    error.remedy = f"{waited_for}; the same command measures the rest"
                raise error
            if not waited:
                roles = " and ".join(silent)
                LOG.warning("host %s does not answer; it is waited for %.0f s", roles, left)
            waited = True
            time.sleep(min(_PAUSE_SECONDS, left))

    def _check_boots(self) -> None:
        boots = self.plan.rig.boots() if self._boots else {}
        changed = [role for role, boot in self._boots.items() if boots.get(role, boot) != boot]
        if changed:
            raise Rebooted(
                f"host {' and '.join(changed)} has rebooted",
                why="networks, images and settings of the rig are gone with it",
                remedy="`labkit run` opens the rig again and goes on; in JupyterLab, run it again",
            )


def _log(done: Attempt) -> None:
    row = done.record["rows"][0]
    what = f"{row['trial']} attempt {row['attempt']} ({done.condition})"
    flags = f"; flags: {row['flags']}" if row["flags"] else ""
    if done.error is None:
        LOG.info("%s ok: %.1f s, %d samples%s", what, row["seconds"], row["n_samples"], flags)
    else:
        text = "; ".join(line.strip() for line in str(done.error).splitlines())
        LOG.warning("%s failed after %.1f s: %s", what, row["seconds"], text)


@contextmanager
def pinned_to_harness(rig: Rig) -> Iterator[None]:
    """Pin this process, and those that drive it, to the harness's CPUs on a shared machine."""
    if not rig.shared_kernel:
        yield
        return
    cpus = set(parse_cpus(rig.cpu_map["harness"]))
    before = {pid: os.sched_getaffinity(pid) for pid in [os.getpid(), *drivers()]}
    for pid in before:
        _pin(pid, cpus)
    try:
        yield
    finally:
        for pid, allowed in before.items():
            _pin(pid, allowed)


def _pin(pid: int, cpus: set[int]) -> None:
    """Set the affinity of every thread of a process, unless it has ended."""
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.sched_setaffinity(int(task.name), cpus)


class _AboveBar(logging.Handler):
    """A handler that writes lines without breaking the bar."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.tqdm.write(self.format(record), file=self._file)
        self._file.flush()


@contextmanager
def progress(title: str, total: int, done: int) -> Iterator[Any]:
    """Show the trials of a campaign; yield the bar, to be updated after each of them.

    A terminal and a notebook have a bar, and lines of failed trials. A file has a line a trial.
    """
    # tqdm's monitor is a thread that would wake up inside windows.
    tqdm.tqdm.monitor_interval = 0
    terminal, level = open_progress(), LOG.level
    file = terminal or sys.stderr
    notebook = terminal is None and "ipykernel" in sys.modules
    lines = not notebook and not file.isatty()
    handler = _AboveBar(file)
    LOG.addHandler(handler)
    if lines:
        LOG.setLevel(logging.INFO)
    options = {"total": total, "initial": done, "desc": title, "unit": "trial", "file": file}
    options |= {"disable": lines, "mininterval": 0, "smoothing": 0.1, "dynamic_ncols": True}
    try:
        with (tqdm.auto.tqdm if notebook else tqdm.tqdm)(**options) as bar:
            yield bar
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)
        if terminal:
            terminal.close()
