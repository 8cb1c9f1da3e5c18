"""The studies of a project: their notebooks with parameters, measured in turn."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from labkit import notebooks
from labkit.data import load
from labkit.errors import LabkitError, Rebooted, RigError, TimeOver, UsageError, suggestion
from labkit.paths import project
from labkit.process import TERMINAL, seconds_left, selected_blocks

Say = Callable[[str], None]
#: The profile of `labkit ask`, and of a report that measures.
ASK = "ask"
#: How often a study is executed where hosts reboot.
_REBOOTS = 10


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
        """Name of the study."""
        return name_of(self.notebook)

    @property
    def folder(self) -> Path:
        """Folder of the study's campaigns."""
        return project(self.parameters.get("data", "data/local")) / self.study


@dataclass(frozen=True)
class Outcome:
    """The outcome of a `Run`: its seconds, and the executed notebook or the error."""

    run: Run
    seconds: float
    output: Path | None = None
    error: LabkitError | None = None


def name_of(notebook: Path) -> str:
    """Return a study's name: that of its notebook without the leading number."""
    return re.sub(r"^\d+-", "", notebook.stem)


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
    folder = project("notebooks/profiles")
    names = [path.name.split(".")[1] for path in sorted(folder.glob(f"{notebook.stem}.*.yaml"))]
    if profile not in names:
        raise UsageError(
            f"{name_of(notebook)} has no profile {profile!r}", remedy=suggestion(profile, names)
        )
    return read_parameters(folder / f"{notebook.stem}.{profile}.yaml")


def read_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters of a YAML file; raise `UsageError` if it has none."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = "a parameter file cannot be read"
        raise UsageError(what, where=str(path), why=str(error)) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError(
            "a parameter file has no parameters",
            where=str(path),
            remedy="write lines such as `messages: 5000`, as in notebooks/profiles",
        )
    return found


def parameters(pairs: Iterable[tuple[str, str]], *, new: bool) -> dict[str, Any]:
    """Return parameters from the command line, whose values are YAML as for papermill."""
    values: dict[str, Any] = {"new": True} if new else {}
    for name, value in pairs:
        try:
            values[name] = yaml.safe_load(value)
        except (ValueError, yaml.YAMLError) as error:
            raise UsageError(
                f"the parameter {name} has a value that is not YAML: {value!r}",
                why=" ".join(str(error).split()),
                remedy='write for example 5, spin, [host, bridge] or "{kind: none}"',
            ) from None
    return values


def plan_runs(
    names: Sequence[str], profile: str, files: Sequence[Path], parameters: Mapping[str, Any]
) -> list[Run]:
    """Return the campaigns to measure, after checking all parameters.

    Each of `files` replaces parameters of the profile, and is a campaign; `parameters` replace
    those of both.
    """
    variants = [
        (path.stem, {"data": f"data/local/{path.stem}"} | read_parameters(path)) for path in files
    ]
    runs = [
        Run(notebook, called, {**profile_of(notebook, profile), **variant, **parameters})
        for notebook in find(names)
        for called, variant in variants or [(profile, {})]
    ]
    for run in runs:
        notebooks.check(run.notebook, run.parameters)
        check_rig(str(run.parameters.get("rig", "auto")))
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


def rig_here() -> tuple[str, str]:
    """Return the rig that this user can have on this machine, or why there is none."""
    from labkit.rig import auto

    try:
        return auto(), ""
    except RigError as error:
        return "", error.why


def measure(run: Run, *, seconds: float, say: Say) -> Path:
    """Execute a study's notebook with its parameters, and return the executed one."""
    if seconds_left() < 0:
        raise TimeOver("not begun: the time is over", remedy="the same command goes on")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{run.notebook.stem}.ipynb"
    say(f"measuring {run.study} ({run.called})")
    # The kernel writes its progress to this process's standard error between trials; passing it
    # through papermill would wake this process inside windows.
    os.environ[TERMINAL] = f"/proc/{os.getpid()}/fd/2"
    with contextlib.suppress(OSError):  # two processes write to one file then
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    given = run.parameters
    for left in reversed(range(_REBOOTS)):
        try:
            notebooks.execute(run.notebook, output, given, timeout=seconds, cwd=project())
            break
        except Rebooted as error:
            if not left:
                raise
            say(f"{error.what}; the rig is opened again, and the campaign goes on")
            given = {name: value for name, value in given.items() if name != "new"}
    check_complete(run.folder)
    return output


def check_complete(folder: Path) -> None:
    """Raise `LabkitError` if planned trials of the newest campaign in a folder did not succeed."""
    campaign, only = load(folder), selected_blocks()
    planned = {block: n for block, n in campaign.planned.items() if only is None or block in only}
    attempts = campaign.trials[~campaign.trials["trial"].str.contains("/", regex=False)]
    attempts = attempts[attempts["block"].isin(planned)]
    failed = attempts.groupby("trial").filter(lambda rows: (rows["status"] != "ok").all())
    numbers = {"failed": failed["trial"].nunique()}
    numbers["are left"] = sum(planned.values()) - attempts["trial"].nunique()
    if not any(numbers.values()):
        return
    counts = [f"{count} {words}" for words, count in numbers.items() if count]
    over = failed.empty and seconds_left() < math.inf
    raise (TimeOver if over else LabkitError)(
        f"of {sum(planned.values())} planned trials {' and '.join(counts)}",
        where=str(campaign.path),
        why="; ".join(sorted(set(failed["problem"])))[:600],
        remedy="the same command goes on with them; measured trials are kept",
    )


def measure_all(runs: Sequence[Run], *, seconds: float, say: Say) -> Iterator[Outcome]:
    """Measure runs in turn, and yield the outcome of each, also after one has failed."""
    for run in runs:
        began, output, error = time.monotonic(), None, None
        try:
            output = measure(run, seconds=seconds, say=say)
        except LabkitError as caught:
            error = caught
        yield Outcome(run, time.monotonic() - began, output, error)


def run_table(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row a run: parameters, result, minutes, and the campaigns' folder."""
    table = pd.DataFrame(
        {
            "study": [run.study for run in runs],
            "parameters": [run.called for run in runs],
            "result": "not measured",
            "minutes": "",
            "folder": [str(run.folder) for run in runs],
        }
    )
    for place, outcome in enumerate(outcomes):
        table.loc[place, "result"] = outcome.error.what if outcome.error else "ok"
        table.loc[place, "minutes"] = f"{outcome.seconds / 60:.1f}"
    return table.to_string(index=False)
