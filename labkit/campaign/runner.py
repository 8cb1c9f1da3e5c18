"""Running the trials of a plan, each until it succeeds once, or a single trial."""

from __future__ import annotations

import contextlib
import html
import math
import os
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.analysis.trials import statistics_of
from labkit.campaign.looks import Questions
from labkit.campaign.record import failure
from labkit.campaign.run_log import RunLog
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Trial
from labkit.campaign.window import drivers
from labkit.dataset import dropped_before, load
from labkit.dataset.files import read_looks
from labkit.design import Condition, Design, flatten, level_label, trial_name
from labkit.errors import CpusDisturbed, HostUnreachable, LabkitError, Rebooted
from labkit.paths import PROGRESS
from labkit.placement import parse_cpus
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
#: Seconds between two looks whether a host answers again.
_LOOK_SECONDS = 5.0
#: Lines of a tool's output that `OneTrial` shows, and bins of its histogram.
_HEAD, _BINS = 12, 12


@dataclass
class Runner:
    """Runs the trials of a plan."""

    study: str
    rig: Rig
    design: Design
    protocol: Callable[[Trial], Measurement]
    settings: Mapping[str, Any]
    treatments: Mapping[str, Treatment]
    questions: Questions | None = None
    #: The only blocks to run; None for all.
    blocks: frozenset[int] | None = None
    _runtimes: dict[str, Runtime] = field(default_factory=dict)
    #: The boot identifiers of the hosts.
    _boots: dict[str, str] = field(default_factory=dict)

    def run(self, store: Store, facts: Mapping[str, Any]) -> None:
        """Run every trial of the plan that has not succeeded yet."""
        attempts = store.attempts()
        outcomes = {name: "ok" in statuses for name, statuses in attempts.items()}
        log = RunLog(self.study, self.rig, self.design, store.path, outcomes)
        todo = deque(
            (block, position, condition)
            for block, position, condition in self.design.trials()
            if not outcomes.get(trial_name(block, position))
            and (self.blocks is None or block in self.blocks)
        )
        self._look(store, log, todo)
        if not todo:
            # A run of some blocks takes no looks, so it does not know which trials were dropped.
            if self.blocks is None or not (store.path / PROGRESS).exists():
                log.complete()
            return
        boots = {str(one.get("volatile", {}).get("boot_id", "")) for one in facts.values()}
        session = store.session(facts, " ".join(sorted(boots)))
        self._boots = {
            role: boot
            for role, one in facts.items()
            if (boot := str(one.get("volatile", {}).get("boot_id") or ""))
        }
        # A session that begins with the CPUs apart has nothing else to compare them with.
        self.rig.nearest_ns = min(self.rig.nearest_ns, load(store.path).nearest_ns)
        failed, longest, began = 0, 0.0, time.monotonic()
        with log.begin(session), off_the_sut(self.rig):
            while todo:
                block, position, condition = todo.popleft()
                name = trial_name(block, position)
                planned = {"trial": name, "block": block, "position": position, "session": session}
                error = self._run_planned(store, condition, planned, log)
                failed = failed + 1 if error else 0
                log.over()
                if not todo or todo[0][0] != block:
                    self._look(store, log, todo)
                    longest, began = max(longest, time.monotonic() - began), time.monotonic()
                    # A block in two sessions is in no paired comparison.
                    if todo and seconds_left() < longest:
                        announce(f"stopped after block {block}: the next would take too long")
                        return
                if failed >= GIVE_UP:
                    raise LabkitError(
                        f"{failed} planned trials failed one after the other",
                        where=str(store.path),
                        why="; ".join(_said(error)),
                        remedy="see the trials' records there; `labkit doctor` checks the machine",
                    )

    def _look(self, store: Store, log: RunLog, todo: deque[tuple[int, int, Condition]]) -> None:
        """Take the looks that are due before the next trial, and drop what they drop from `todo`.

        A look is taken once, also when the campaign was interrupted at it.
        """
        if self.questions is None:
            return
        looks = read_looks(store.path)
        at = {look["blocks"] for look in looks}
        done = todo[0][0] - 1 if todo else len(self.design.order)
        for blocks in [n for n in self.questions.looks.blocks if n <= done and n not in at]:
            looks.append(self.questions.take(load(store.path), blocks))
            store.write_looks(looks)
            log.looked(looks[-1])
        left = [trial for trial in todo if trial[2].label not in dropped_before(looks, trial[0])]
        if len(left) < len(todo):
            log.drop(
                {trial_name(*trial[:2]) for trial in todo} - {trial_name(*t[:2]) for t in left}
            )
            todo.clear()
            todo.extend(left)

    def _run_planned(
        self, store: Store, condition: Condition, planned: dict[str, Any], log: RunLog
    ) -> Exception | None:
        """Run a planned trial until an attempt succeeds; return the last attempt's error."""
        error: Exception | None = None
        attempt = store.last_attempt(planned["trial"])
        failures = losses = 0
        while failures < ATTEMPTS and losses < LOSSES:
            attempt += 1
            log.begins(planned["trial"], planned["block"], attempt, condition)
            record = {
                **planned,
                "attempt": attempt,
                "levels": {name: level_label(level) for name, level in condition.levels},
                "replicate": condition.replicate,
                "started_ns": time.time_ns(),
            }
            label = f"trial-{os.getpid()}-{planned['trial']}-a{attempt}"
            trial = Trial(
                self.rig,
                condition,
                self.settings,
                label,
                self._runtimes,
                planned["block"],
                self.treatments,
            )
            began = time.monotonic()
            protocol = self.rig.protocol(self.protocol, condition, planned["block"])
            measurement, error = run_protocol(protocol, trial)
            record |= {"seconds": time.monotonic() - began, "status": "failed" if error else "ok"}
            record["error"] = failure(error) if error else None
            result = measurement or Measurement({})
            record["n_samples"] = max(map(len, result.samples.values()), default=0)
            record["metrics"] = metrics_of(result)
            flags = trial.record["flags"]  # of the windows; a protocol may add others
            flags += [f"afterwards {text}" for text in self._mend(error)]
            flags += [flag for flag in result.flags if flag not in flags]
            record["also"] = [
                {"levels": {n: level_label(x) for n, x in levels.items()}, "metrics": dict(metrics)}
                for levels, metrics in result.also
            ]
            store.add(record | trial.record, result.samples, trial.logs)
            log.ended(record | trial.record, condition.label, error)
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
            time.sleep(min(_LOOK_SECONDS, left))
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


def metrics_of(measurement: Measurement) -> dict[str, float]:
    """Return the tool's numbers, with median and p99 of each column that has enough samples."""
    metrics = dict(measurement.metrics)
    for name, values in measurement.samples.items():
        statistics = statistics_of(values, ["median", "p99"])
        metrics |= {f"{name}_{key}": x for key, x in statistics.items() if not math.isnan(x)}
    return metrics


@contextmanager
def off_the_sut(rig: Rig) -> Iterator[None]:
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
    """One trial, run by `Study.try_one`; display it to see all that it did.

    Parameters
    ----------
    condition : str
        Its label.
    measurement : Measurement
        What its protocol returned.
    record : mapping
        As a campaign would store it: commands, verification, mechanisms, flags.
    logs : mapping of str to str
        The output of everything that ran, by file name.
    """

    condition: str
    measurement: Measurement
    record: Mapping[str, Any]
    logs: Mapping[str, str]

    def sections(self) -> dict[str, str]:
        """Return the text of each section by its title."""
        verification = flatten(self.record.get("verification", {}))
        texts = {
            "commands": "\n".join(" ".join(argv) for argv in self.record["commands"]),
            "verification": "\n".join(
                f"{name}: {value}"
                for name, value in verification.items()
                if value not in ("", None, [], {})
            ),
            **{f"output {name}": _head(text) for name, text in sorted(self.logs.items()) if text},
            "metrics": "\n".join(f"{k}: {x:.6g}" for k, x in metrics_of(self.measurement).items()),
            # Those of the measurement are in the record already, unless the trial had no window.
            "flags": "\n".join(dict.fromkeys([*self.record["flags"], *self.measurement.flags])),
        }
        texts |= {
            f"samples of {name}": histogram(values)
            for name, values in self.measurement.samples.items()
        }
        return {title: text for title, text in texts.items() if text}

    def __str__(self) -> str:
        parts = [
            f"{title}\n{textwrap.indent(text, '    ')}" for title, text in self.sections().items()
        ]
        return "\n\n".join([self.condition, *parts])

    def _repr_html_(self) -> str:
        parts = [
            f"<details{' open' if title != 'verification' else ''}><summary>{html.escape(title)}"
            f"</summary><pre>{html.escape(text)}</pre></details>"
            for title, text in self.sections().items()
        ]
        return f"<p><b>{html.escape(self.condition)}</b></p>{''.join(parts)}"


def _head(text: str) -> str:
    lines = text.strip().splitlines()
    more = [f"... and {len(lines) - _HEAD} lines more"] if len(lines) > _HEAD else []
    return "\n".join([*lines[:_HEAD], *more])


def histogram(values: Sequence[int] | np.ndarray[Any, Any]) -> str:
    """Return a histogram in text, whose last row counts samples above the 99th percentile."""
    values = np.asarray(values)
    if not len(values):
        return "no samples"
    high = np.quantile(values, 0.99)
    counts, edges = np.histogram(values[values <= high], bins=_BINS)
    rows = [(f"{edge:.6g}", int(count)) for edge, count in zip(edges, counts, strict=False)]
    above = int((values > high).sum())
    rows += [(f"> {high:.6g}", above)] if above else []
    width, most = max(len(text) for text, _ in rows), max(count for _, count in rows)
    lines = [f"{text:>{width}} {'#' * round(40 * n / most):<40} {n}" for text, n in rows]
    return "\n".join([f"{len(values)} samples; from", *(line.rstrip() for line in lines)])


def _said(error: Exception | None) -> list[str]:
    """Return what went wrong, and why as far as it is known."""
    if isinstance(error, LabkitError):
        return [text for text in (error.what, error.why) if text]
    return [str(error)]
