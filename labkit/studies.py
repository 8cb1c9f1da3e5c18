"""The studies of a project: finding their notebooks, measuring them, building the report."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import notebooks, status
from labkit.campaign.store import newest
from labkit.data import Campaign, load
from labkit.errors import LabkitError, Rebooted, RigError, TimeOver, UsageError, suggestion
from labkit.paths import project
from labkit.process import TERMINAL, WAIT, seconds_left, selected_blocks

Say = Callable[[str], None]
#: The profile of `labkit ask`, and of a report that measures.
ASK = "ask"
#: Seconds between two questions whether the rig is free, and between two lines about it.
_PAUSE, _SAY = 1.0, 60.0
#: How often a study is executed where hosts reboot.
_REBOOTS = 10


#: What PyYAML raises for text that is not YAML, such as ``!!timestamp x`` or a thousand brackets.
UNREADABLE = (
    *(OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError),
    yaml.YAMLError,
)


def name_of(notebook: Path) -> str:
    """Return a study's name: that of its notebook without the leading number."""
    return re.sub(r"^\d+-", "", notebook.stem)


def folder_of(study: str, parameters: Mapping[str, Any]) -> Path:
    """Return the folder of a study's campaigns with these parameters."""
    return project(parameters.get("data", "data/local")) / study


def find(names: Iterable[str]) -> list[Path]:
    """Return the notebooks of the studies, named with or without number, or of all in order."""
    paths = sorted(project("notebooks/studies").glob("[0-9]*.ipynb"))
    by_name = {name_of(path): path for path in paths} | {path.stem: path for path in paths}
    by_name |= {path.stem.partition("-")[0]: path for path in paths}
    if unknown := [name for name in names if name not in by_name]:
        remedy = suggestion(unknown[0], map(name_of, paths))
        raise UsageError(f"no study called {', '.join(map(repr, unknown))}", remedy=remedy)
    return [by_name[name] for name in names] or paths


def profile_of(notebook: Path, profile: str) -> dict[str, Any]:
    """Return the parameters of a profile of a study."""
    path = project("notebooks/profiles") / f"{notebook.stem}.{profile}.yaml"
    if not path.is_file():
        names = _profiles(notebook.stem)
        raise UsageError(
            f"{name_of(notebook)} has no profile {profile!r}", remedy=suggestion(profile, names)
        )
    return dict(yaml.safe_load(path.read_text()) or {})


def _profiles(stem: str = "*") -> list[str]:
    """Return the names of the profiles of a study, or of all."""
    found = project("notebooks/profiles").glob(f"{stem}.*.yaml")
    return sorted({path.name.split(".")[1] for path in found})


def check_profile(profile: str | None) -> None:
    """Raise `UsageError` for a profile that no study has."""
    known = _profiles()
    if profile is not None and profile not in known:
        raise UsageError(f"no profile {profile!r}", remedy=suggestion(profile, known))


def parameters(pairs: Iterable[tuple[str, str]], *, new: bool) -> dict[str, Any]:
    """Return parameters from the command line, whose values are YAML as for papermill."""
    values = {}
    for name, value in pairs:
        try:
            values[name] = yaml.safe_load(value)
        except UNREADABLE as error:
            raise UsageError(
                f"the parameter {name} has a value that is not YAML: {value!r}",
                why=" ".join(str(error).split()),
                remedy='write for example 5, spin, [host, bridge] or "{kind: none}"',
            ) from None
    return values | ({"new": True} if new else {})


def measure(
    notebook: Path, parameters: Mapping[str, Any], *, called: str, seconds: float, say: Say
) -> Path:
    """Execute a study notebook, and return the executed one; `called` names the parameters."""
    if seconds_left() < 0:
        raise TimeOver("not begun: the time is over", remedy="the same command goes on")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{notebook.stem}.ipynb"
    _wait_for_rig(say)
    say(f"measuring {name_of(notebook)} ({called})")
    # The kernel writes its progress to this process's standard error between trials; passing it
    # through papermill would wake this process inside windows.
    os.environ[TERMINAL] = f"/proc/{os.getpid()}/fd/2"
    _append_to_stderr()
    try:
        _execute(notebook, output, parameters, seconds, say)
    finally:
        os.environ.pop(TERMINAL, None)
    check_complete(folder_of(name_of(notebook), parameters))
    return output


def _execute(
    notebook: Path, output: Path, parameters: Mapping[str, Any], seconds: float, say: Say
) -> None:
    """Execute a study notebook, again where a host has rebooted: the campaign goes on then."""
    for left in reversed(range(_REBOOTS)):
        try:
            notebooks.execute(notebook, output, parameters, timeout=seconds, cwd=project())
            return
        except Rebooted as error:
            if not left:
                raise
            say(f"{error.what}; the rig is opened again, and the campaign goes on")
            parameters = {name: value for name, value in parameters.items() if name != "new"}


def _wait_for_rig(say: Say) -> None:
    """Return when no process uses this machine's rig, if that was asked for (`WAIT`).

    Says every minute how long it may take.
    """
    if not os.environ.get(WAIT):
        return
    from labkit.rig import lock

    said = -_SAY
    while (user := lock.current_holder()) is not None:
        if time.monotonic() - said >= _SAY:
            said = time.monotonic()
            left = [one.left_seconds for one in status.find([project("data/local")]) if one.process]
            longest = max((seconds for seconds in left if seconds is not None), default=None)
            rest = "" if longest is None else f", about {status.duration_text(longest)} left"
            say(f"waiting for the rig, which {lock.describe_process(user)} uses{rest}")
        time.sleep(_PAUSE)


def _append_to_stderr() -> None:
    """Append to the file of standard error, as the kernel writes to it too."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)


def newest_campaign(folder: Path) -> Campaign:
    """Return the newest campaign in a study's folder; raise `DatasetError` without one."""
    return load(newest(folder) or folder)


def check_complete(folder: Path) -> None:
    """Raise `LabkitError` if planned trials of the newest campaign in a folder did not succeed."""
    campaign, only = newest_campaign(folder), selected_blocks()
    planned = sum(
        count for block, count in campaign.planned.items() if only is None or block in only
    )
    attempts = campaign.trials[~campaign.trials["trial"].str.contains("/", regex=False)]
    if only is not None:
        attempts = attempts[attempts["block"].isin(only)]
    done = attempts.loc[attempts["status"] == "ok", "trial"].nunique()
    if done == planned:
        return
    failed = attempts.groupby("trial").filter(lambda rows: (rows["status"] != "ok").all())
    numbers = {"failed": failed["trial"].nunique()}
    numbers["are left"] = planned - done - numbers["failed"]
    counts = [f"{count} {words}" for words, count in numbers.items() if count]
    over = failed.empty and seconds_left() < math.inf
    raise (TimeOver if over else LabkitError)(
        f"of {planned} planned trials {' and '.join(counts)}",
        where=str(campaign.path),
        why="; ".join(sorted(set(failed["problem"])))[:600],
        remedy="the same command goes on with them; measured trials are kept",
    )


@dataclass(frozen=True)
class Run:
    """A campaign to measure: a study's notebook with its parameters.

    `called` is the name of the profile or of the parameter file.
    """

    notebook: Path
    called: str
    parameters: Mapping[str, Any]

    @property
    def study(self) -> str:
        """The study's name."""
        return name_of(self.notebook)

    @property
    def folder(self) -> Path:
        """The folder of the study's campaigns."""
        return folder_of(self.study, self.parameters)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a `Run`: its start, its seconds, the executed notebook or the error."""

    run: Run
    began_ns: int
    seconds: float
    output: Path | None = None
    error: LabkitError | None = None


def plan_runs(
    names: Sequence[str], profile: str, files: Sequence[Path], parameters: Mapping[str, Any]
) -> list[Run]:
    """Return the campaigns to measure, after checking all parameters.

    Each of `files` replaces parameters of the profile, and is a campaign; `parameters` replace
    those of both.
    """
    runs: list[Run] = []
    for notebook in find(names):
        base = profile_of(notebook, profile)
        variants = [
            (path.stem, {"data": f"data/local/{path.stem}"} | read_parameters(path))
            for path in files
        ]
        for called, variant in variants or [(profile, {})]:
            runs.append(Run(notebook, called, {**base, **variant, **parameters}))
            notebooks.check(notebook, runs[-1].parameters)
            check_rig(str(runs[-1].parameters.get("rig", "auto")))
    folders = [run.folder for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                "two campaigns of a study would go to one folder",
                where=str(folder),
                remedy="set `data` in each file",
            )
    return runs


def check_rig(spec: str) -> None:
    """Raise `UsageError` for a rig that does not exist; connects to nothing."""
    from labkit.rig import kind_of

    if spec != "auto":
        kind_of(spec).check(spec)


def read_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters of a YAML file; raise `UsageError` if it has none."""
    try:
        parameters = yaml.safe_load(path.read_text())
    except UNREADABLE as error:
        raise UsageError(
            "a parameter file cannot be read", where=str(path), why=str(error)
        ) from None
    if not isinstance(parameters, dict) or not all(isinstance(name, str) for name in parameters):
        raise UsageError(
            "a parameter file has no parameters",
            where=str(path),
            remedy="write lines such as `messages: 5000`, as in notebooks/profiles",
        )
    return parameters


def measure_all(runs: Sequence[Run], *, seconds: float, say: Say) -> Iterator[Outcome]:
    """Measure runs in turn, and yield the outcome of each, also after one has failed."""
    for run in runs:
        began_ns, began = time.time_ns(), time.monotonic()
        output = error = None
        try:
            output = measure(
                run.notebook, run.parameters, called=run.called, seconds=seconds, say=say
            )
        except LabkitError as caught:
            error = caught
        yield Outcome(run, began_ns, time.monotonic() - began, output, error)


def run_table(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table with a line for each run: result, counts, time and campaign."""
    rows = [("study", "parameters", "result", "trials", "failed", "time", "campaign")]
    for number, run in enumerate(runs):
        if number >= len(outcomes):
            rows.append((run.study, run.called, "not measured", "-", "-", "-", "-"))
            continue
        outcome = outcomes[number]
        result, took = "failed" if outcome.error else "ok", status.duration_text(outcome.seconds)
        counts = ("-", "-", took, "-")
        for campaign in status.find([run.folder]):
            if outcome.error and (campaign.ended_ns or 0) < outcome.began_ns:
                continue  # an earlier campaign: this run failed before its first trial
            trials = f"{campaign.done}/{campaign.planned}"
            counts = (trials, str(campaign.failed), took, status.short_path(campaign.path))
        rows.append((run.study, run.called, result, *counts))
    return status.aligned(rows)


def rig_here() -> tuple[str, str]:
    """Return the rig that this user can have on this machine, or why there is none."""
    from labkit.rig import auto

    try:
        return auto(), ""
    except RigError as error:
        return "", error.why
