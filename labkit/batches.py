"""Several campaigns one after the other: checked before the first, and told where one failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import report as pages
from labkit import status, studies
from labkit.errors import LabkitError, UsageError
from labkit.paths import project


@dataclass(frozen=True)
class Run:
    """A campaign that is to be measured: a study's notebook with its parameters.

    Parameters
    ----------
    notebook : Path
        The study's.
    called : str
        The profile, or the name of the parameter file.
    parameters : mapping
        All that the notebook is given.
    """

    notebook: Path
    called: str
    parameters: Mapping[str, Any]

    @property
    def study(self) -> str:
        """The study's name."""
        return studies.name_of(self.notebook)

    @property
    def folder(self) -> Path:
        """Where the study's campaigns go."""
        return project(self.parameters.get("data", "data/local")) / self.study


@dataclass(frozen=True)
class Outcome:
    """What became of a `Run`: when it began, its seconds, the executed notebook or the error."""

    run: Run
    began_ns: int
    seconds: float
    output: Path | None = None
    error: LabkitError | None = None


def plan(
    names: Sequence[str], profile: str, files: Sequence[Path], given: Mapping[str, Any]
) -> list[Run]:
    """Return what is to be measured, checked: nothing has run where this raises.

    Parameters
    ----------
    names : sequence of str
        Studies; all for none.
    profile : str
        Whose parameters every run begins with.
    files : sequence of Path
        Parameter files (YAML); each is a campaign of each study. Its parameters replace the
        profile's, and its data go to ``data/local/NAME`` unless it says where.
    given : mapping
        Parameters that replace all others.

    Raises
    ------
    UsageError
        No such study or profile, a file that holds no parameters, a parameter that a notebook does
        not declare, or two runs whose data would go to one folder.
    """
    found: list[Run] = []
    for notebook in studies.find(names):
        base = studies.profile_of(notebook, profile)
        sets = [(one.stem, {"data": f"data/local/{one.stem}"} | read(one)) for one in files]
        for called, own in sets or [(profile, {})]:
            found.append(Run(notebook, called, {**base, **own, **given}))
            pages.check_parameters(notebook, found[-1].parameters)
    folders = [one.folder for one in found]
    for one in found:
        if folders.count(one.folder) > 1:
            raise UsageError(
                "two campaigns of a study would go to one folder",
                where=str(one.folder),
                remedy="have each file say its own `data`",
            )
    return found


def read(path: Path) -> dict[str, Any]:
    """Return the parameters of a YAML file; raise `UsageError` where it holds something else."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            "a parameter file cannot be read", where=str(path), why=str(error)
        ) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UsageError(
            "a parameter file holds no parameters",
            where=str(path),
            remedy="write it as those in notebooks/profiles: `messages: 5000`, one a line",
        )
    return found


def measure(runs: Sequence[Run], *, seconds: float, say: studies.Say) -> Iterator[Outcome]:
    """Measure runs in turn, and yield what became of each; one that fails does not end the rest."""
    for one in runs:
        began_ns, began = time.time_ns(), time.monotonic()
        output = error = None
        try:
            output = studies.measure(
                one.notebook, one.parameters, called=one.called, seconds=seconds, say=say
            )
        except LabkitError as caught:
            error = caught
        yield Outcome(one, began_ns, time.monotonic() - began, output, error)


def table(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line a run: what became of it, how much was measured, and where it is."""
    rows = [("study", "parameters", "result", "trials", "failed", "time", "campaign")]
    for number, one in enumerate(runs):
        outcome = outcomes[number] if number < len(outcomes) else None
        if outcome is None:
            rows.append((one.study, one.called, "not measured", "-", "-", "-", "-"))
            continue
        result, took = "failed" if outcome.error else "ok", status.lasting(outcome.seconds)
        counts = ("-", "-", took, "-")
        for found in status.look([one.folder]):
            if outcome.error and (found.ended_ns or 0) < outcome.began_ns:
                continue  # an earlier campaign: this one failed before its first trial
            trials = f"{found.done}/{found.planned}"
            counts = (trials, str(found.failed), took, status.shown(found.path))
        rows.append((one.study, one.called, result, *counts))
    return status.aligned(rows)
