"""Running the trials of a plan, each until it succeeds once, or a single trial."""

from __future__ import annotations

import contextlib
import html
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.campaign.record import failure
from labkit.campaign.rows import make_rows
from labkit.campaign.run_log import RunLog
from labkit.campaign.store import Store
from labkit.campaign.treatments import CpuSpeed, Treatment
from labkit.campaign.trial import Trial
from labkit.campaign.window import drivers
from labkit.design import Condition, Design, trial_name
from labkit.errors import CpusDisturbed, HostUnreachable, LabkitError, Rebooted
from labkit.placement import least_read, parse_cpus
from labkit.process import announce, seconds_left
from labkit.rig import Rig
from labkit.runtimes import Runtime
from labkit.tools.base import Measurement

#: Attempts at a trial in one run; each is a row.
ATTEMPTS = 2
#: Planned trials failed in a row after which a run ends: the rig is broken.
GIVE_UP = 5
#: Attempts at a trial that may end with a lost connection or disturbed CPUs, besides `ATTEMPTS`.
LOSSES = 10
#: Seconds between two questions whether a host answers again.
_PAUSE_SECONDS = 5.0
#: Entries of a trial's record that are in its rows.
_IN_ROWS = ("flags", "mechanisms")


@dataclass
class Runner:
    """Runs the trials of a plan."""

    study: str
    rig: Rig
    design: Design
    protocol: Callable[[Trial], Measurement]
    settings: Mapping[str, Any]
    treatments: Mapping[str, Treatment]
    #: The only blocks to run; None for all.
    blocks: frozenset[int] | None = None
    _runtimes: dict[str, Runtime] = field(default_factory=dict)
    #: The boot identifiers of the hosts.
    _boots: dict[str, str] = field(default_factory=dict)

    def run(self, store: Store, facts: Mapping[str, Any]) -> None:
        """Run every trial of the plan that has not succeeded yet."""
        attempts = store.attempts()
        outcomes = {row["trial"]: row["status"] == "ok" for row in attempts}
        log = RunLog(self.study, self.rig, self.design, store.path, outcomes)
        todo = deque(
            (block, position, condition)
            for block, position, condition in self.design.trials()
            if not outcomes.get(trial_name(block, position))
            and (self.blocks is None or block in self.blocks)
        )
        if not todo:
            log.complete()
            return
        self._boots = {
            role: boot
            for role, one in facts.items()
            if (boot := str(one.get("volatile", {}).get("boot_id") or ""))
        }
        session = store.session(facts, " ".join(sorted(set(self._boots.values()))))
        self._compare_with(attempts)
        failed, longest, began = 0, 0.0, time.monotonic()
        with log.begin(session), pinned_to_harness(self.rig):
            while todo:
                block, position, condition = todo.popleft()
                name = trial_name(block, position)
                keys = {"trial": name, "block": block, "position": position, "session": session}
                error = self._run_planned(store, condition, keys, log)
                failed = failed + 1 if error else 0
                log.over()
                if todo and todo[0][0] != block:
                    longest, began = max(longest, time.monotonic() - began), time.monotonic()
                    # A block in two sessions is in no paired comparison.
                    if seconds_left() < longest:
                        announce(f"stopped after block {block}: the next would take too long")
                        return
                if failed >= GIVE_UP:
                    raise LabkitError(
                        f"{failed} planned trials failed one after the other",
                        where=str(store.path),
                        why="; ".join(_reasons(error)),
                        remedy="see the trials' records there; `labkit doctor` checks the machine",
                    )

    def _compare_with(self, attempts: Sequence[Mapping[str, Any]]) -> None:
        """Let a session tell disturbed CPUs by the least times of the whole campaign.

        One that begins with disturbed CPUs has nothing else to compare them with.
        """
        self.rig.nearest_ns = min(self.rig.nearest_ns, least_read(attempts))
        times = [row["reference_ns"] for row in attempts if "reference_ns" in row]
        for treatment in self.treatments.values():
            if isinstance(treatment, CpuSpeed):
                treatment.least_ns = min([treatment.least_ns, *times])

    def _run_planned(
        self, store: Store, condition: Condition, keys: Mapping[str, Any], log: RunLog
    ) -> Exception | None:
        """Run a planned trial until an attempt succeeds; return the last attempt's error."""
        error: Exception | None = None
        attempt = store.last_attempt(keys["trial"])
        failures = losses = 0
        while failures < ATTEMPTS and losses < LOSSES:
            attempt += 1
            log.begins(keys["trial"], keys["block"], attempt, condition)
            label = f"trial-{os.getpid()}-{keys['trial']}-a{attempt}"
            trial = Trial(
                self.rig,
                condition,
                self.settings,
                label,
                self._runtimes,
                keys["block"],
                self.treatments,
            )
            started_ns, began = time.time_ns(), time.monotonic()
            result, error = run_protocol(self.protocol, trial)
            why = failure(error) if error else None
            outcome = {
                "status": "failed" if error else "ok",
                "problem": why["what"] if why else "",
                "started_ns": started_ns,
                "seconds": time.monotonic() - began,
            }
            measurement = result or Measurement({})
            flags = trial.record["flags"]  # of the windows; a protocol may add others
            flags += [f"afterwards {text}" for text in self._mend(error)]
            flags += [flag for flag in measurement.flags if flag not in flags]
            numbered = {"trial": keys["trial"], "attempt": attempt, **keys}
            rows = make_rows(numbered, condition, outcome, trial.record, measurement)
            record = {name: x for name, x in trial.record.items() if name not in _IN_ROWS}
            store.add(rows, {"error": why, **record}, measurement.samples, trial.logs)
            log.ended(rows[0], condition.label, error)
            if not error:
                break
            lost = self._await_hosts(label, log) or isinstance(
                error, (HostUnreachable, CpusDisturbed)
            )
            losses, failures = losses + lost, failures + (not lost)
        return error

    def _await_hosts(self, label: str, log: RunLog) -> bool:
        """Wait for hosts that do not answer after a failed attempt; tell whether there were any.

        What the attempt left on them is removed.

        Raises
        ------
        HostUnreachable
            A host did not answer within the rig's patience.
        Rebooted
            A host has started anew.
        """
        deadline = time.monotonic() + self.rig.patience
        waited = False
        while True:
            waited = self._await_answers(deadline, log) or waited
            try:
                self._check_boots()
                if waited:
                    self.rig.remove_trial(label)
            except HostUnreachable:  # lost again
                if time.monotonic() > deadline:
                    raise
                waited = True
                continue
            if waited:
                log.answered()
            return waited

    def _await_answers(self, deadline: float, log: RunLog) -> bool:
        """Wait until all hosts answer; tell whether any did not."""
        waited = False
        while silent := self.rig.silent():
            waited, left = True, deadline - time.monotonic()
            if left <= 0:
                error = next(iter(silent.values()))
                if self.rig.patience:
                    error.remedy = (
                        f"it was waited for {self.rig.patience:.0f} s (patience in rig.toml); the "
                        "same command measures the rest"
                    )
                raise error
            log.waits(list(silent), left)
            time.sleep(min(_PAUSE_SECONDS, left))
        return waited

    def _check_boots(self) -> None:
        boots = self.rig.boots() if self._boots else {}
        changed = [role for role, boot in self._boots.items() if boots.get(role, boot) != boot]
        if changed:
            raise Rebooted(
                f"host {' and '.join(changed)} has rebooted",
                why="networks, images and settings of the rig are gone with it",
                remedy="`labkit run` opens the rig again and goes on by itself; in JupyterLab, run "
                "the notebook again",
            )

    def _mend(self, error: Exception | None) -> list[str]:
        """Return what was started again of the rig after a trial that failed."""
        if error is None or isinstance(error, HostUnreachable):
            return []
        try:
            return self.rig.mend()
        except LabkitError as problem:  # the next attempt says more
            return [f"the rig could not be mended: {problem.what}"]


def run_protocol(
    protocol: Callable[[Trial], Measurement], trial: Trial
) -> tuple[Measurement | None, Exception | None]:
    """Return what a protocol measured, or why it failed."""
    try:
        measurement = protocol(trial)
    except Exception as error:  # any mistake of a protocol is a failed row
        return None, error
    problem = _wrong_result(measurement)
    return (None, problem) if problem else (measurement, None)


def _wrong_result(measurement: Any) -> LabkitError | None:
    """Return why a protocol's result cannot be stored, or None."""
    if not isinstance(measurement, Measurement):
        return LabkitError(
            f"the protocol returned {type(measurement).__name__}",
            remedy="return what trial.measure(...) returned",
        )
    arrays = measurement.samples.values()
    if any(array.dtype != np.int64 for array in arrays) or len(set(map(len, arrays))) > 1:
        shown = ", ".join(f"{k}: {v.dtype} x {len(v)}" for k, v in measurement.samples.items())
        return LabkitError("samples must be int64 columns of one length", why=shown)
    return None


@contextmanager
def pinned_to_harness(rig: Rig) -> Iterator[None]:
    """Pin this process, and those that drive it, to the harness's CPUs on a shared machine."""
    if not rig.shared_kernel:
        yield
        return
    cpus = set(parse_cpus(rig.cpu_map["harness"]))
    processes = [os.getpid(), *drivers()]
    before = {pid: os.sched_getaffinity(pid) for pid in processes}
    for pid in processes:
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


@dataclass(frozen=True)
class OneTrial:
    """One trial, run by `Study.try_one`; display it to see its record.

    Parameters
    ----------
    condition : str
        Its label.
    measurement : Measurement
        The result of its protocol.
    record : mapping
        As a campaign would store it: rows, commands, verification, evidence.
    logs : mapping of str to str
        The output of everything that ran, by file name.
    """

    condition: str
    measurement: Measurement
    record: Mapping[str, Any]
    logs: Mapping[str, str]

    def __str__(self) -> str:
        return json.dumps({**self.record, "logs": self.logs}, indent=1, default=str)

    def _repr_html_(self) -> str:
        label, text = html.escape(self.condition), html.escape(str(self))
        return f"<details><summary>{label}</summary><pre>{text}</pre></details>"


def _reasons(error: Exception | None) -> list[str]:
    """Return an error's text, and its cause as far as it is known."""
    if isinstance(error, LabkitError):
        return [text for text in (error.what, error.why) if text]
    return [str(error)]
