"""The execution of a plan: every trial once, failures kept, nothing lost whatever is killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.benchmarks.base import Reading
from labkit.campaign.harness import drivers
from labkit.campaign.outcome import failure
from labkit.campaign.running import Running
from labkit.campaign.store import Store
from labkit.campaign.trial import Trial
from labkit.design import Condition, level_label
from labkit.errors import HostUnreachable, LabkitError
from labkit.rig import Rig
from labkit.runtimes import Runtime

if TYPE_CHECKING:
    from labkit.campaign.study import Plan

#: A trial that failed is tried once more; both attempts are rows.
ATTEMPTS = 2
#: So many planned trials that fail in a row are a broken rig, not bad luck.
GIVE_UP = 5


def run(plan: Plan, store: Store) -> None:
    """Run every trial of the plan that has not succeeded yet.

    Raises
    ------
    LabkitError
        `GIVE_UP` planned trials failed one after the other, or a host cannot be reached.
    KeyboardInterrupt
        On Ctrl-C, once the trial that ran was taken down; finished trials are kept.
    """
    attempts = store.attempts()
    todo = [
        (block, position, condition)
        for block, position, condition in plan.design.trials()
        if "ok" not in attempts.get(trial_name(block, position), [])
    ]
    if not todo:
        return
    facts = plan.facts()
    boots = {str(one.get("volatile", {}).get("boot_id", "")) for one in facts.values()}
    boot = " ".join(sorted(boots))
    session = store.session(facts, boot)
    runtimes: dict[str, Runtime] = {}
    failed = 0
    done = len(plan.design) - len(todo)
    with Running(plan, store, session, done) as running, off_the_sut(plan.rig):
        for block, position, condition in todo:
            name = trial_name(block, position)
            before = store.last_attempt(name)
            place = {"trial": name, "block": block, "position": position, "session": session}
            error = _planned(plan, store, condition, place, before, runtimes, running)
            failed = failed + 1 if error else 0
            running.over(ok=error is None)
            if isinstance(error, HostUnreachable):
                raise error
            if failed >= GIVE_UP:
                raise LabkitError(
                    f"{failed} planned trials failed one after the other",
                    where=str(store.path),
                    why=str(error),
                    remedy="see the trials' records there; `labkit doctor` checks the machine",
                )


def trial_name(block: int, position: int) -> str:
    """Return the name of a planned trial, which sorts as the plan runs."""
    return f"b{block:02d}-p{position:02d}"


def _planned(
    plan: Plan,
    store: Store,
    condition: Condition,
    place: dict[str, Any],
    before: int,
    runtimes: dict[str, Runtime],
    running: Running,
) -> Exception | None:
    """Try one planned trial until it succeeds, or there is no use; each attempt is stored.

    Returns the error of the last attempt, or None where one succeeded.
    """
    error: Exception | None = None
    for attempt in range(before + 1, before + ATTEMPTS + 1):
        running.begins(place["trial"], attempt, condition)
        label = f"trial-{os.getpid()}-{place['trial']}-a{attempt}"
        trial = Trial(plan.rig, condition, plan.settings, label, runtimes, place["block"])
        record = {
            **place,
            "attempt": attempt,
            "levels": {name: level_label(level) for name, level in condition.levels},
            "copy": condition.copy,
            "started_ns": time.time_ns(),
        }
        began = time.monotonic()
        reading, error = _attempt(plan, trial)
        record |= {"seconds": time.monotonic() - began, "status": "failed" if error else "ok"}
        record["error"] = failure(error) if error else None
        samples = reading.samples if reading else {}
        record["n_samples"] = max(map(len, samples.values()), default=0)
        record["metrics"] = _metrics(reading)
        said = trial.record["flags"]  # those of what was measured; a protocol may add its own
        said += [flag for flag in (reading.flags if reading else ()) if flag not in said]
        record["also"] = [
            {"levels": {n: level_label(x) for n, x in levels.items()}, "metrics": dict(metrics)}
            for levels, metrics in (reading.also if reading else ())
        ]
        store.add(record | trial.record, samples, trial.logs)
        running.ended(record | trial.record, condition.label, error)
        if not error or isinstance(error, HostUnreachable):
            break
    return error


def _attempt(plan: Plan, trial: Trial) -> tuple[Reading | None, Exception | None]:
    try:
        reading = plan.study.protocol(trial)
    except Exception as error:  # whatever a protocol does wrong is a failed row, with its evidence
        return None, error
    if not isinstance(reading, Reading):
        return None, LabkitError(
            f"the protocol returned {type(reading).__name__}",
            remedy="it returns what trial.measure(...) returned",
        )
    arrays = reading.samples.values()
    if any(array.dtype != np.int64 for array in arrays) or len({len(one) for one in arrays}) > 1:
        shown = ", ".join(f"{k}: {v.dtype} x {len(v)}" for k, v in reading.samples.items())
        return None, LabkitError("samples are int64 columns of one length", why=shown)
    return reading, None


def _metrics(reading: Reading | None) -> dict[str, float]:
    """Return the tool's numbers and the quantiles that planning and quick looks need."""
    if reading is None:
        return {}
    found = dict(reading.metrics)
    for name, values in reading.samples.items():
        if len(values):
            for label, q in (("median", 0.5), ("p99", 0.99)):
                found[f"{name}_{label}"] = float(np.quantile(values, q))
    return found


@contextmanager
def off_the_sut(rig: Rig) -> Iterator[None]:
    """Keep the harness off the CPU of the system under test, where the two share a machine.

    The processes that drive this one (papermill, ``labkit run``) go with it.
    """
    if not rig.shared_kernel:
        yield
        return
    cpus = {int(cpu) for cpu in rig.cpu_map["harness"].split(",")}
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
