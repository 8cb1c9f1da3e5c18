"""The execution of a plan: every trial once, failures kept, nothing lost whatever is killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.campaign.record import failure
from labkit.campaign.run_log import RunLog
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Trial
from labkit.campaign.window import drivers
from labkit.design import Condition, Design, level_label, trial_name
from labkit.errors import HostUnreachable, LabkitError
from labkit.paths import PROGRESS
from labkit.placement import parse_cpus
from labkit.rig import Rig
from labkit.runtimes import Runtime
from labkit.tools.base import Measurement

#: A trial that failed is tried once more; both attempts are rows.
ATTEMPTS = 2
#: So many planned trials that fail in a row are a broken rig, not bad luck.
GIVE_UP = 5


@dataclass
class Runner:
    """Runs the trials of a plan.

    Parameters
    ----------
    study : str
        Its name.
    rig : Rig
        Where.
    design : Design
        Conditions and order.
    protocol : callable
        Runs one trial.
    settings : mapping
        The plan's.
    treatments : mapping of str to Treatment
        The study's.
    """

    study: str
    rig: Rig
    design: Design
    protocol: Callable[[Trial], Measurement]
    settings: Mapping[str, Any]
    treatments: Mapping[str, Treatment]
    _runtimes: dict[str, Runtime] = field(default_factory=dict)

    def run(self, store: Store, facts: Mapping[str, Any]) -> None:
        """Run every trial of the plan that has not succeeded yet."""
        attempts = store.attempts()
        outcomes = {name: "ok" in statuses for name, statuses in attempts.items()}
        log = RunLog(self.study, self.rig, self.design, store.path, outcomes)
        todo = [
            (block, position, condition)
            for block, position, condition in self.design.trials()
            if not outcomes.get(trial_name(block, position))
        ]
        if not todo:
            if not (store.path / PROGRESS).exists():
                log.write_progress()
            return
        boots = {str(one.get("volatile", {}).get("boot_id", "")) for one in facts.values()}
        session = store.session(facts, " ".join(sorted(boots)))
        failed = 0
        with log.begin(session), off_the_sut(self.rig):
            for block, position, condition in todo:
                name = trial_name(block, position)
                place = {"trial": name, "block": block, "position": position, "session": session}
                error = self._run_planned(store, condition, place, log)
                failed = failed + 1 if error else 0
                log.over()
                if isinstance(error, HostUnreachable):
                    raise error
                if failed >= GIVE_UP:
                    raise LabkitError(
                        f"{failed} planned trials failed one after the other",
                        where=str(store.path),
                        why=str(error),
                        remedy="see the trials' records there; `labkit doctor` checks the machine",
                    )

    def _run_planned(
        self, store: Store, condition: Condition, place: dict[str, Any], log: RunLog
    ) -> Exception | None:
        """Try one planned trial until it succeeds, or there is no use; each attempt is stored.

        Returns the error of the last attempt, or None where one succeeded.
        """
        error: Exception | None = None
        last = store.last_attempt(place["trial"])
        for attempt in range(last + 1, last + ATTEMPTS + 1):
            log.begins(place["trial"], place["block"], attempt, condition)
            record = {
                **place,
                "attempt": attempt,
                "levels": {name: level_label(level) for name, level in condition.levels},
                "replicate": condition.replicate,
                "started_ns": time.time_ns(),
            }
            label = f"trial-{os.getpid()}-{place['trial']}-a{attempt}"
            began = time.monotonic()
            trial, measurement, error = self.attempt(condition, label, place["block"])
            record |= {"seconds": time.monotonic() - began, "status": "failed" if error else "ok"}
            record["error"] = failure(error) if error else None
            samples = measurement.samples if measurement else {}
            record["n_samples"] = max(map(len, samples.values()), default=0)
            record["metrics"] = metrics_of(measurement) if measurement else {}
            kept = trial.record["flags"]  # those of what was measured; a protocol may add its own
            kept += [
                flag for flag in (measurement.flags if measurement else ()) if flag not in kept
            ]
            record["also"] = [
                {"levels": {n: level_label(x) for n, x in levels.items()}, "metrics": dict(metrics)}
                for levels, metrics in (measurement.also if measurement else ())
            ]
            store.add(record | trial.record, samples, trial.logs)
            log.ended(record | trial.record, condition.label, error)
            if not error or isinstance(error, HostUnreachable):
                break
        return error

    def attempt(
        self, condition: Condition, label: str, block: int = 0
    ) -> tuple[Trial, Measurement | None, Exception | None]:
        """Run the protocol once; return the trial, with what it measured or why it failed."""
        trial = Trial(
            self.rig, condition, self.settings, label, self._runtimes, block, self.treatments
        )
        try:
            measurement = self.protocol(trial)
        except Exception as error:  # whatever a protocol does wrong is a failed row
            return trial, None, error
        if problem := _wrong_result(measurement):
            return trial, None, problem
        return trial, measurement, None


def _wrong_result(measurement: Any) -> LabkitError | None:
    """Return what is wrong with what a protocol returned, or None."""
    if not isinstance(measurement, Measurement):
        return LabkitError(
            f"the protocol returned {type(measurement).__name__}",
            remedy="return what trial.measure(...) returned",
        )
    arrays = measurement.samples.values()
    if any(array.dtype != np.int64 for array in arrays) or len({len(one) for one in arrays}) > 1:
        shown = ", ".join(f"{k}: {v.dtype} x {len(v)}" for k, v in measurement.samples.items())
        return LabkitError("samples must be int64 columns of one length", why=shown)
    return None


def metrics_of(measurement: Measurement) -> dict[str, float]:
    """Return the tool's numbers and the quantiles that planning and quick looks need."""
    metrics = dict(measurement.metrics)
    for name, values in measurement.samples.items():
        if len(values):
            for label, q in (("median", 0.5), ("p99", 0.99)):
                metrics[f"{name}_{label}"] = float(np.quantile(values, q))
    return metrics


@contextmanager
def off_the_sut(rig: Rig) -> Iterator[None]:
    """Keep the harness off the CPU of the system under test, where the two share a machine.

    The processes that drive this one (papermill, ``labkit run``) go with it.
    """
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
    """Set the affinity of every thread of a process; one that ended meanwhile needs none."""
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.sched_setaffinity(int(task.name), cpus)
