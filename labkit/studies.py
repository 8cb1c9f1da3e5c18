"""The studies of a project: their notebooks with the parameters of a profile, measured in turn."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import notebooks, status
from labkit.data import load
from labkit.errors import DryRun, LabkitError, Rebooted, RigInUse, TimeOver, UsageError, suggestion
from labkit.paths import project
from labkit.process import TERMINAL

Say = Callable[[str], None]
#: How often a study is executed where hosts reboot.
_REBOOTS = 10
#: Seconds that a notebook may take: the longest campaigns are measured in pieces.
_LONGEST = 14 * 86_400.0


@dataclass(frozen=True)
class Run:
    """A campaign to measure: a study's notebook with its parameters."""

    notebook: Path
    profile: str
    parameters: Mapping[str, Any]

    @property
    def study(self) -> str:
        """Name of the study."""
        return _name(self.notebook)

    @property
    def folder(self) -> Path:
        """Folder of the study's campaigns."""
        return project(self.parameters.get("data", "data/local")) / self.study


def _name(notebook: Path) -> str:
    """Return a study's name: that of its notebook without the leading number."""
    return re.sub(r"^\d+-", "", notebook.stem)


def plan_runs(names: Sequence[str], profile: str, parameters: Mapping[str, Any]) -> list[Run]:
    """Return the campaigns to measure, after checking all parameters.

    Parameters
    ----------
    names : sequence of str
        Studies, with or without number; all of them when empty.
    profile : str
        Name of a profile in notebooks/profiles, or the path of a YAML file with parameters.
    parameters : mapping
        Replace those of the profile.

    Raises
    ------
    UsageError
        There is no such study, profile or parameter.
    """
    paths = sorted(project("notebooks/studies").glob("[0-9]*.ipynb"))
    known = {name: path for path in paths for name in (path.stem, path.stem[:2], _name(path))}
    if unknown := [name for name in names if name not in known]:
        remedy = suggestion(unknown[0], map(_name, paths))
        raise UsageError(f"no study called {', '.join(map(repr, unknown))}", remedy=remedy)
    runs = []
    for notebook in [known[name] for name in names] or paths:
        given = {**_profile(notebook, profile), **parameters}
        notebooks.check(notebook, given)
        runs.append(Run(notebook, profile, given))
    return runs


def _profile(notebook: Path, profile: str) -> dict[str, Any]:
    """Return the parameters of a profile of a study."""
    path = Path(profile)
    name = path.stem
    if path.suffix not in (".yaml", ".yml"):
        folder = project("notebooks/profiles")
        names = [path.name.split(".")[1] for path in sorted(folder.glob(f"{notebook.stem}.*.yaml"))]
        if profile not in names:
            what = f"{_name(notebook)} has no profile {profile!r}"
            raise UsageError(what, remedy=suggestion(profile, names))
        path = folder / f"{notebook.stem}.{profile}.yaml"
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = "a profile cannot be read"
        raise UsageError(what, where=str(path), why=str(error)) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        remedy = "write lines such as `messages: 5000`, as in notebooks/profiles"
        raise UsageError("a profile has no parameters", where=str(path), remedy=remedy)
    return {"data": f"data/local/{name}"} | found


def measure(run: Run, *, say: Say, wait: bool = False) -> Path:
    """Execute a study's notebook with its parameters, and return the executed one.

    Where hosts reboot it is executed again and resumes; with `wait` it begins when no other process
    uses the rig.

    Raises
    ------
    TimeOver
        The parameter `minutes` ended it, and planned trials are left.
    LabkitError
        The notebook failed, or planned trials did.
    """
    from labkit.rig import lock

    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{run.notebook.stem}.ipynb"
    say(f"measuring {run.study} ({run.profile})")
    # The kernel writes its progress to this process's standard error between trials; passing it
    # through papermill would wake this process inside windows.
    os.environ[TERMINAL] = f"/proc/{os.getpid()}/fd/2"
    with contextlib.suppress(OSError):  # two processes write to one file then
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    given, reboots = dict(run.parameters), 0
    while True:
        while wait and lock.current_holder():
            time.sleep(1)
        try:
            notebooks.execute(run.notebook, output, given, timeout=_LONGEST, cwd=project())
            break
        except DryRun as plan:
            say(plan.what)
            return output
        except RigInUse:
            if not wait:
                raise
        except Rebooted as error:
            reboots += 1
            if reboots == _REBOOTS:
                raise
            say(f"{error.what}; the rig is opened again, and the campaign goes on")
            given.pop("new", None)
    check_complete(run)
    return output


def check_complete(run: Run) -> None:
    """Raise `LabkitError` if planned trials of a run's newest campaign did not succeed."""
    campaign, only = load(run.folder).path, run.parameters.get("only")
    blocks = [n for block, n in status.blocks(campaign).items() if not only or block in only]
    planned, done, failed = map(sum, zip(*blocks, strict=True))
    if done == planned:
        return
    left = planned - done - failed
    counts = [f"{failed} failed"] * (failed > 0) + [f"{left} are left"] * (left > 0)
    over = left and run.parameters.get("minutes")
    raise (TimeOver if over else LabkitError)(
        f"of {planned} planned trials {' and '.join(counts)}",
        where=str(campaign),
        remedy="the same command, without --new, goes on with them; measured trials are kept",
    )


def measure_all(
    runs: Sequence[Run], *, say: Say, wait: bool = False
) -> Iterator[tuple[Run, Path | LabkitError]]:
    """Measure runs in turn, and yield each with its executed notebook, or its error."""
    for run in runs:
        try:
            yield run, measure(run, say=say, wait=wait)
        except LabkitError as error:
            yield run, error
