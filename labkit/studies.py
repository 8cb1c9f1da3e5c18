"""The studies of this clone: find their notebooks, measure them, and report on what there is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import report as pages
from labkit import status
from labkit.analysis.power import least_blocks
from labkit.campaign.run_log import VARIABLE
from labkit.dataset import campaigns, load
from labkit.errors import DatasetError, LabkitError, RigError, UsageError
from labkit.paths import ROOT, project

Say = Callable[[str], None]


class NothingMeasured(DatasetError):
    """There is no campaign of a study, neither measured here nor the reference one."""


NOTEBOOKS = ROOT / "notebooks"
#: The profiles of every study, the most thorough first.
PROFILES = ("paper", "quick", "tiny")


def name_of(notebook: Path) -> str:
    """Return a study's name: its notebook's, without the number that orders them."""
    return re.sub(r"^\d+-", "", notebook.stem)


def find(names: Iterable[str]) -> list[Path]:
    """Return the study notebooks with these names (all for none), in order."""
    found = {name_of(path): path for path in sorted((NOTEBOOKS / "studies").glob("[0-9]*.ipynb"))}
    wanted = {path.stem: path for path in found.values()} | found
    unknown = [name for name in names if name not in wanted]
    if unknown:
        raise UsageError(f"no study called {unknown}", remedy=f"there is {', '.join(found)}")
    return [wanted[name] for name in names] or list(found.values())


def profile_of(notebook: Path, profile: str) -> dict[str, Any]:
    """Return the parameters of a profile of a study."""
    folder = NOTEBOOKS / "profiles"
    path = folder / f"{notebook.stem}.{profile}.yaml"
    if not path.is_file():
        there = [one.name.split(".")[1] for one in sorted(folder.glob(f"{notebook.stem}.*.yaml"))]
        raise UsageError(f"no profile {profile!r}", remedy=f"one of {', '.join(there)}")
    return dict(yaml.safe_load(path.read_text()) or {})


def parameters(pairs: Iterable[tuple[str, str]], *, new: bool) -> dict[str, Any]:
    """Return parameters from the command line; values are read as YAML, as papermill does."""
    found = {name: yaml.safe_load(value) for name, value in pairs}
    return found | ({"new": True} if new else {})


def measure(
    notebook: Path, chosen: Mapping[str, Any], *, called: str, seconds: float, say: Say
) -> Path:
    """Execute a study notebook, and return the executed one."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{notebook.stem}.ipynb"
    say(f"measuring {name_of(notebook)} ({called})")
    # The kernel draws its progress here, between trials; passing it through papermill would wake
    # this process inside the windows.
    os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/2"
    _append()
    try:
        pages.execute(notebook, output, chosen, timeout=seconds, cwd=ROOT)
    finally:
        os.environ.pop(VARIABLE, None)
    check_complete(project(chosen.get("data", "data/local")) / name_of(notebook))
    return output


def _append() -> None:
    """Have what this process says go to the end of its file, where the kernel writes too."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)


def check_complete(folder: Path) -> None:
    """Raise `LabkitError` when trials of the newest campaign in a folder failed for good."""
    found = load(folder)
    planned = sum(len(order) for order in found.plan["order"])
    done = len({one["trial"] for one in found.records if one["status"] == "ok"})
    if done < planned:
        problems = sorted(set(found.trials.loc[found.trials["status"] != "ok", "problems"]))
        raise LabkitError(
            f"{planned - done} of {planned} planned trials failed",
            where=str(found.path),
            why="; ".join(problems)[:600],
            remedy="the same command tries them again; what was measured is kept",
        )


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
        return name_of(self.notebook)

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


def plan_runs(
    names: Sequence[str], profile: str, files: Sequence[Path], given: Mapping[str, Any]
) -> list[Run]:
    """Return what is to be measured, checked: nothing has run where this raises."""
    found: list[Run] = []
    for notebook in find(names):
        base = profile_of(notebook, profile)
        sets = [
            (one.stem, {"data": f"data/local/{one.stem}"} | read_parameters(one)) for one in files
        ]
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


def read_parameters(path: Path) -> dict[str, Any]:
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


def measure_all(runs: Sequence[Run], *, seconds: float, say: Say) -> Iterator[Outcome]:
    """Measure runs in turn, and yield what became of each; one that fails does not end the rest."""
    for one in runs:
        began_ns, began = time.time_ns(), time.monotonic()
        output = error = None
        try:
            output = measure(
                one.notebook, one.parameters, called=one.called, seconds=seconds, say=say
            )
        except LabkitError as caught:
            error = caught
        yield Outcome(one, began_ns, time.monotonic() - began, output, error)


def run_table(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line a run: what became of it, how much was measured, and where it is."""
    rows = [("study", "parameters", "result", "trials", "failed", "time", "campaign")]
    for number, one in enumerate(runs):
        outcome = outcomes[number] if number < len(outcomes) else None
        if outcome is None:
            rows.append((one.study, one.called, "not measured", "-", "-", "-", "-"))
            continue
        result, took = "failed" if outcome.error else "ok", status.duration_text(outcome.seconds)
        counts = ("-", "-", took, "-")
        for found in status.look([one.folder]):
            if outcome.error and (found.ended_ns or 0) < outcome.began_ns:
                continue  # an earlier campaign: this one failed before its first trial
            trials = f"{found.done}/{found.planned}"
            counts = (trials, str(found.failed), took, status.short_path(found.path))
        rows.append((one.study, one.called, result, *counts))
    return status.aligned(rows)


def dataset_of(name: str, profile: str | None = None) -> Path:
    """Return the newest campaign of a study measured here, or the reference one."""
    wanted = [profile] if profile else PROFILES
    folders = [project(f"data/local/{one}") for one in wanted] + [project("data/local")]
    for folder in folders:
        finished = [path for path in campaigns(folder / name) if len(load(path).ok)]
        if finished:
            return finished[-1]
    reference = project("data/reference") / name
    if (reference / "plan.json").is_file():
        return reference
    raise NothingMeasured(
        f"nothing was measured for {name}",
        where=str(project("data")),
        remedy=f"labkit run {name} --profile {profile or 'quick'}",
    )


def report(
    profile: str | None, folder: Path, *, measure: bool, new: bool, say: Say
) -> tuple[Path, list[str], dict[str, str]]:
    """Build every page and the index."""
    failures: dict[str, str] = {}
    built: dict[Path, Path] = {}
    reason = cannot_measure() if measure else ""
    if reason:
        say(f"nothing is measured here: {reason}. The report shows the reference dataset.")
    for study in find([]):
        name = name_of(study)
        steps = [_page] if reason or not measure else [_measure_or_say, _page]
        for step in steps:
            # A study that could not be measured still has the page of what was measured before.
            try:
                page = step(study, profile, new, folder, say)
                built |= {page: dataset_of(name, profile)} if page else {}
            except LabkitError as error:
                failures[name] = str(error)
                say(f"{name} failed: {error}")
    ledger = _ledger(folder, profile, failures, say)
    pages.build_rig(built, folder / "rig.html", ledger=ledger)
    index = pages.build_index(list(built), folder / "index.html", failures=failures, ledger=ledger)
    summaries = [pages.read_summary(page) for page in built]
    headlines = [
        f"{headline.get('verdict', '')}: {headline.get('text', '')}"
        for summary in summaries
        for headline in summary.get("headlines", [])
    ]
    return index, headlines + _pilots(summaries), failures


def _pilots(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what a reader of pilots is told: which they are, and how the rest is measured."""
    names = [str(one["study"]) for one in summaries if int(one.get("blocks") or 0) < least_blocks()]
    if not names:
        return []
    return [
        f"pilots, too few blocks for any verdict: {', '.join(names)}",
        "for verdicts: make report PROFILE=quick, or one study: "
        f"labkit run {names[0]} --profile quick, then labkit report",
    ]


def measured_here(profile: str | None, names: Iterable[str]) -> list[Path]:
    """Return the campaign that the report shows of each study that has one, by `dataset_of`."""
    found = []
    for name in names:
        try:
            found.append(dataset_of(name, profile))
        except NothingMeasured:
            continue
    return found


def _ledger(
    folder: Path, profile: str | None, failures: dict[str, str], say: Say
) -> dict[str, dict[str, int]]:
    """Write the ledger's page; return how many claims of each source have which result."""
    from labkit.claims.ledger import ledger
    from labkit.claims.schema import load_claims
    from labkit.claims.stated import recompute

    say("holding the claims against what was measured")
    claims = load_claims()
    rows = ledger(measured_here(profile, claims.studies), claims=claims)
    pages.build_ledger(rows, recompute(), folder / "ledger.html")
    if wrong := list(rows.loc[rows["result"] == "error", "id"]):
        failures["ledger"] = f"claims that could not be evaluated: {', '.join(wrong)}"
        say(f"ledger: {failures['ledger']}")
    return pages.counted(rows)


def cannot_measure() -> str:
    """Return why this machine and user can have no rig, or an empty string."""
    from labkit.rig import auto

    try:
        auto()
    except RigError as error:
        return error.why
    return ""


def _measure_or_say(study: Path, profile: str | None, new: bool, folder: Path, say: Say) -> None:
    called = profile or "quick"
    chosen = profile_of(study, called) | {"rig": "auto"} | ({"new": True} if new else {})
    output = measure(study, chosen, called=called, seconds=24 * 3600, say=say)
    say(f"executed: {output}")


def _page(study: Path, profile: str | None, new: bool, folder: Path, say: Say) -> Path:
    name = name_of(study)
    data = dataset_of(name, profile)
    say(f"analysing {data.relative_to(ROOT)}")
    title = name.replace("-", " ").capitalize()
    return pages.build_page(
        NOTEBOOKS / "analysis" / study.name,
        folder / f"{study.stem}.html",
        parameters={"data": str(data.relative_to(ROOT))},
        title=title,
        cwd=ROOT,
    )
