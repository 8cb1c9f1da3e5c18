"""Running the trials of a plan: each until an attempt succeeds, each attempt stored whole."""

import json
import math
import operator
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import tqdm.auto

from labkit.campaign.trial import Trial
from labkit.data import FORMAT, load
from labkit.design import Condition, digest, refuse_to_mix
from labkit.errors import CpusDisturbed, HostLost, HostUnreachable, LabkitError, UsageError
from labkit.placement import format_cpus
from labkit.process import announce, locked, open_progress
from labkit.rig import Rig
from labkit.tools.base import Column

if TYPE_CHECKING:
    from labkit.campaign.study import Plan

#: Attempts at a trial in one run, each a row, and those besides that may end with a lost connection
#: or disturbed CPUs.
ATTEMPTS, LOSSES = 2, 10
#: Failed trials in a row after which a run ends; seconds of a pause that begins another session.
GIVE_UP, PAUSE = 5, 1800
_TIME = "%Y%m%d-%H%M%S"  # names sort as campaigns were begun
Samples = Mapping[str, Column]
Show = Callable[[str, bool], None]


def run(plan: "Plan", path: Path, blocks: Collection[int] = (), seconds: float = 0.0) -> None:
    """Run the trials of a plan that have not succeeded yet, by default of all blocks."""
    rows = attempts(path)
    measured = {row["trial"] for row in rows if row["status"] == "ok"}
    left = [one for one in plan.design.trials() if one[0]["trial"] not in measured]
    todo = [one for one in left if not blocks or one[0]["block"] in blocks]
    if not todo:
        return
    session = session_of(path, plan.facts, " ".join(sorted({*_boots(plan).values()})))
    # One that begins with disturbed CPUs has nothing else to compare them with.
    for treatment in plan.study.treatments.values():
        treatment.resume(rows)
    total, done, tried = len(plan.design), len(measured), Counter(row["trial"] for row in rows)
    failed, current, longest = 0, 0, 0.0
    began = time.monotonic()
    end = began + (seconds or math.inf)
    with progress(plan.study.name, total, done) as (bar, show), pinned_to_harness(plan.rig):
        try:
            for keys, condition in todo:
                now, needed = time.monotonic(), 0.0
                if keys["block"] != current:
                    # A block in two sessions is in no paired comparison.
                    needed = longest = max(longest, now - began)
                    current, began = keys["block"], now
                if now + needed > end:
                    announce(f"stopped before {keys['trial']}, by `minutes`: run the same again")
                    return
                keys |= {"attempt": tried[keys["trial"]], "session": session}
                error = _run_planned(plan, path, condition, keys, show)
                failed = failed + 1 if error else 0
                if failed >= GIVE_UP:
                    what = f"{failed} planned trials failed one after the other"
                    where, why = str(path), _line(error)
                    remedy = "see the trials' records there; `labkit doctor` checks the machine"
                    raise LabkitError(what, where=where, why=why, remedy=remedy)
                if not error:
                    done += 1
                    bar.update()
        except KeyboardInterrupt as interrupt:
            # A notebook shows only the error, and a traceback some wait deep in labkit.
            kept = f"{done} of {total} trials are measured and kept"
            interrupt.args = (f"{kept}; run the same again to measure the rest",)
            interrupt.__traceback__ = None
            raise


def _run_planned(
    plan: "Plan", path: Path, condition: Condition, keys: dict[str, Any], show: Show
) -> Exception | None:
    """Run a planned trial until an attempt succeeds; return the last attempt's error."""
    values, failures, losses = {**plan.settings, **condition.levels}, 0, 0
    while failures < ATTEMPTS and losses < LOSSES:
        keys["attempt"] += 1
        if not plan.rig.shared_kernel:  # a host may have rebooted between two trials
            _check_hosts(plan)
        name = f"{keys['trial']}-a{keys['attempt']}"
        label = f"trial-{os.getpid()}-{name}"
        trial = Trial(plan.rig, values, label, keys["block"], plan.study.treatments)
        done = trial.attempt(plan.study.protocol, condition, keys)
        add(path, done.record, done.measurement.samples, done.logs)
        row, error = done.record["rows"][0], done.error
        said = f"failed: {_line(error)}" if error else f"ok: {row['n_samples']} samples"
        said += f"; flags: {row['flags']}" if row["flags"] else ""
        show(f"{name} ({condition.label}) {row['seconds']:.1f} s, {said}", error is None)
        if error is None:
            return None
        lost = isinstance(error, HostUnreachable | CpusDisturbed)
        losses, failures = losses + lost, failures + (not lost)
        _check_hosts(plan)
    return done.error


def _boots(plan: "Plan") -> dict[str, str]:
    """Return the boot identifier of each host when the facts were read."""
    return {role: of["volatile"]["boot_id"] for role, of in plan.facts.items()}


def _check_hosts(plan: "Plan") -> None:
    """Raise `HostLost` unless every host answers and runs since the session began."""
    remedy = "`labkit run` opens the rig again and goes on; in JupyterLab, run it again"
    try:
        boots = plan.rig.boots()
    except HostUnreachable as error:
        what = f"{error.where} does not answer"
        raise HostLost(what, why=error.why, remedy=remedy) from error
    if changed := [role for role, boot in _boots(plan).items() if boots.get(role, boot) != boot]:
        what = f"host {' and '.join(changed)} has rebooted"
        raise HostLost(what, why="the rig is gone with it", remedy=remedy)


def _line(error: Exception | None) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


@contextmanager
def pinned_to_harness(rig: Rig) -> Iterator[None]:
    """Pin this process, and those that drive it, to the harness's CPUs on a shared machine."""
    names = ("python", "papermill", "labkit")
    parents = takewhile(lambda one: one.name().startswith(names), psutil.Process().parents())
    pids = [os.getpid(), *(one.pid for one in parents)] if rig.shared_kernel else []
    before = {pid: format_cpus(os.sched_getaffinity(pid)) for pid in pids}
    harness = rig.cpu_map.get("harness", "")  # a rig.toml names none

    def pin(lists: Mapping[int, str]) -> None:
        for pid, cpus in lists.items():
            # All of its threads, unless it has ended or is another user's.
            subprocess.run(["taskset", "-apc", cpus, str(pid)], capture_output=True, check=False)

    try:
        pin(dict.fromkeys(pids, harness))
        yield
    finally:
        pin(before)


@contextmanager
def progress(title: str, total: int, done: int) -> Iterator[tuple[Any, Show]]:
    """Yield a bar of trials, and a function that writes lines: of all trials, or of failed ones."""
    # A terminal and a notebook show the bar, and above it what failed; a file has a line a trial.
    # tqdm's monitor is a thread that would wake up inside windows.
    tqdm.tqdm.monitor_interval = 0
    terminal = open_progress()
    file = terminal or sys.stderr
    notebook = terminal is None and "ipykernel" in sys.modules
    lines = not notebook and not file.isatty()

    def show(text: str, ok: bool) -> None:
        if lines or not ok:
            tqdm.tqdm.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=file)
            file.flush()

    options = {"total": total, "initial": done, "desc": title, "unit": "trial", "file": file}
    options |= {"disable": lines, "mininterval": 0, "smoothing": 0.1, "dynamic_ncols": True}
    bars = tqdm.auto.tqdm if notebook else tqdm.tqdm
    with terminal or nullcontext(), bars(**options) as bar:
        yield bar, show


def sync(path: Path) -> None:
    """Write a file or directory through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with the format's version."""
    # Numbers of numpy are not JSON.
    text = json.dumps({"format": FORMAT, **data}, indent=1, default=operator.methodcaller("item"))
    write(path, f"{text}\n".encode())


@contextmanager
def opened(folder: Path, plan: Mapping[str, Any], *, new: bool) -> Iterator[Path]:
    """Yield the newest campaign in a study's folder, if its plan is the same, or a new one."""
    what, remedy = "another process measures this study", "let it end, or set another `data`"
    with locked(folder / ".lock", UsageError(what, where=str(folder), remedy=remedy)):
        path = max((plan.parent for plan in folder.glob("*/plan.json")), default=None)
        if path is None or new:
            now = datetime.now()
            if path is not None:  # it is later than that, whatever the clock says
                with suppress(ValueError):  # somebody has named it otherwise
                    after = datetime.strptime(path.name[:15], _TIME)
                    now = max(now, after + timedelta(seconds=1))
            path = folder / f"{now:{_TIME}}-{digest(plan['identity'])}"
            write_json(path / "plan.json", plan)
        refuse_to_mix(load(path).plan["identity"], plan["identity"], str(path))
        if (path / "trials.parquet").is_file():
            what, remedy = "a packed campaign cannot be continued", "begin another: --new"
            raise UsageError(what, where=str(path), remedy=remedy)
        # Files of interrupted writes.
        shutil.rmtree(path / ".attempt", ignore_errors=True)
        stored = {one.name for one in path.glob("trials/*")}
        for file in [*path.rglob(".*.tmp"), *path.glob("samples.parquet/*")]:
            if file.stem not in stored:
                file.unlink(missing_ok=True)
        yield path


def attempts(path: Path) -> list[dict[str, Any]]:
    """Return the first row of every attempt."""
    records = path.glob("trials/*/trial.json")
    return [json.loads(one.read_text())["rows"][0] for one in records]


def session_of(path: Path, facts: Mapping[str, Any], boot: str) -> int:
    """Return the session's number; a boot, or a pause, begins another one."""
    sessions = load(path).sessions
    ends = [one.stat().st_mtime for one in path.glob("trials/*")]
    paused = time.time() - max(ends, default=math.inf) > PAUSE
    if not sessions or sessions[-1]["boot"] != boot or paused:
        begun = {"session": len(sessions) + 1, "boot": boot, "facts": facts}
        sessions.append(begun | {"began": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        write_json(path / "sessions.json", {"sessions": sessions})
    return int(sessions[-1]["session"])


def add(path: Path, record: Mapping[str, Any], samples: Samples, logs: Mapping[str, str]) -> None:
    """Store an attempt: its record with its rows, its samples, the output of its programs."""
    trial, attempt = (record["rows"][0][key] for key in ("trial", "attempt"))
    # It is gathered in a folder, and then renamed.
    name, part, trials = f"{trial}-a{attempt}", path / ".attempt", path / "trials"
    if samples:
        count, buffer = max(map(len, samples.values())), BytesIO()
        keys = pa.array([trial] * count, pa.string()), pa.array([attempt] * count, pa.int32())
        table = pa.table({"trial": keys[0], "attempt": keys[1], **samples})
        # Deltas compress well.
        encoding = dict.fromkeys(["attempt", *samples], "DELTA_BINARY_PACKED")
        options = {"compression": "zstd", "use_dictionary": ["trial"]}
        parquet.write_table(table, buffer, column_encoding=encoding, **options)
        write(path / f"samples.parquet/{name}.parquet", buffer.getvalue())
    for log, text in logs.items():
        if text:
            write(part / log, text.encode())
    write_json(part / "trial.json", record)
    trials.mkdir(exist_ok=True)
    part.rename(trials / name)
    sync(trials)
    sync(path)
