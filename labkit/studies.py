"""The studies of this clone: finding their notebooks, measuring them, building the report."""

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
    """A study has neither a campaign measured here nor a reference campaign."""


NOTEBOOKS = ROOT / "notebooks"
#: The profiles of every study, the most thorough first.
PROFILES = ("paper", "quick", "tiny")


def name_of(notebook: Path) -> str:
    """Return a study's name: that of its notebook without the leading number."""
    return re.sub(r"^\d+-", "", notebook.stem)


def find(names: Iterable[str]) -> list[Path]:
    """Return the notebooks of the named studies, or of all studies in order."""
    paths = sorted((NOTEBOOKS / "studies").glob("[0-9]*.ipynb"))
    by_name = {name_of(path): path for path in paths} | {path.stem: path for path in paths}
    if unknown := [name for name in names if name not in by_name]:
        remedy = f"one of {', '.join(map(name_of, paths))}"
        raise UsageError(f"no study called {unknown}", remedy=remedy)
    return [by_name[name] for name in names] or paths


def profile_of(notebook: Path, profile: str) -> dict[str, Any]:
    """Return the parameters of a profile of a study."""
    folder = NOTEBOOKS / "profiles"
    path = folder / f"{notebook.stem}.{profile}.yaml"
    if not path.is_file():
        names = [path.name.split(".")[1] for path in sorted(folder.glob(f"{notebook.stem}.*.yaml"))]
        raise UsageError(f"no profile {profile!r}", remedy=f"one of {', '.join(names)}")
    return dict(yaml.safe_load(path.read_text()) or {})


def parameters(pairs: Iterable[tuple[str, str]], *, new: bool) -> dict[str, Any]:
    """Return parameters from the command line, whose values are YAML as for papermill."""
    values = {name: yaml.safe_load(value) for name, value in pairs}
    return values | ({"new": True} if new else {})


def measure(
    notebook: Path, parameters: Mapping[str, Any], *, called: str, seconds: float, say: Say
) -> Path:
    """Execute a study notebook, and return the executed one; `called` names the parameters."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{notebook.stem}.ipynb"
    say(f"measuring {name_of(notebook)} ({called})")
    # The kernel writes its progress to this process's standard error between trials; passing it
    # through papermill would wake this process inside windows.
    os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/2"
    _append_to_stderr()
    try:
        pages.execute(notebook, output, parameters, timeout=seconds, cwd=ROOT)
    finally:
        os.environ.pop(VARIABLE, None)
    check_complete(project(parameters.get("data", "data/local")) / name_of(notebook))
    return output


def _append_to_stderr() -> None:
    """Append to the file of standard error, as the kernel writes to it too."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)


def check_complete(folder: Path) -> None:
    """Raise `LabkitError` if planned trials of the newest campaign in a folder did not succeed."""
    campaign = load(folder)
    planned = sum(map(len, campaign.plan["order"]))
    done = len({record["trial"] for record in campaign.records if record["status"] == "ok"})
    if done < planned:
        failed = campaign.trials[campaign.trials["status"] != "ok"]
        raise LabkitError(
            f"{planned - done} of {planned} planned trials failed",
            where=str(campaign.path),
            why="; ".join(sorted(set(failed["problems"])))[:600],
            remedy="the same command tries them again; measured trials are kept",
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
        return project(self.parameters.get("data", "data/local")) / self.study


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
            pages.check_parameters(notebook, runs[-1].parameters)
    folders = [run.folder for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                "two campaigns of a study would go to one folder",
                where=str(folder),
                remedy="set `data` in each file",
            )
    return runs


def read_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters of a YAML file; raise `UsageError` if it has none."""
    try:
        parameters = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
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
        for campaign in status.look([run.folder]):
            if outcome.error and (campaign.ended_ns or 0) < outcome.began_ns:
                continue  # an earlier campaign: this run failed before its first trial
            trials = f"{campaign.done}/{campaign.planned}"
            counts = (trials, str(campaign.failed), took, status.short_path(campaign.path))
        rows.append((run.study, run.called, result, *counts))
    return status.aligned(rows)


def dataset_of(name: str, profile: str | None = None) -> Path:
    """Return the newest campaign of a study that was measured here, or the reference campaign.

    Without a profile, campaigns of the most thorough one are taken.
    """
    profiles = [profile] if profile else PROFILES
    for folder in [*(project(f"data/local/{one}") for one in profiles), project("data/local")]:
        measured = [path for path in campaigns(folder / name) if len(load(path).ok)]
        if measured:
            return measured[-1]
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
    """Build every page and the index; return the index, lines to print, and failures by study."""
    failures: dict[str, str] = {}
    built: dict[Path, Path] = {}
    reason = cannot_measure() if measure else ""
    if reason:
        say(f"cannot measure here: {reason}. The report shows the reference dataset.")
    for study in find([]):
        name = name_of(study)
        # A study that could not be measured still has a page, of earlier data.
        if measure and not reason:
            with _noting(failures, name, say):
                _measure_profile(study, profile or "quick", new, say)
        with _noting(failures, name, say):
            page = _page(study, profile, folder, say)
            built[page] = dataset_of(name, profile)
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


@contextlib.contextmanager
def _noting(failures: dict[str, str], name: str, say: Say) -> Iterator[None]:
    """Note an error of labkit as a study's failure."""
    try:
        yield
    except LabkitError as error:
        failures[name] = str(error)
        say(f"{name} failed: {error}")


def _pilots(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return lines that name the pilots and the command for enough blocks."""
    names = [str(one["study"]) for one in summaries if int(one.get("blocks") or 0) < least_blocks()]
    if not names:
        return []
    return [
        f"pilots, too few blocks for any verdict: {', '.join(names)}",
        "for verdicts: make report PROFILE=quick, or one study: "
        f"labkit run {names[0]} --profile quick, then labkit report",
    ]


def measured_here(profile: str | None, names: Iterable[str]) -> list[Path]:
    """Return the campaigns that `dataset_of` finds for these studies."""
    paths = []
    for name in names:
        with contextlib.suppress(NothingMeasured):
            paths.append(dataset_of(name, profile))
    return paths


def _ledger(
    folder: Path, profile: str | None, failures: dict[str, str], say: Say
) -> dict[str, dict[str, int]]:
    """Write the ledger's page; return the number of claims by source and result."""
    from labkit.claims.ledger import ledger
    from labkit.claims.schema import load_claims
    from labkit.claims.stated import recompute

    say("evaluating the claims")
    claims = load_claims()
    rows = ledger(measured_here(profile, claims.studies), claims=claims)
    pages.build_ledger(rows, recompute(), folder / "ledger.html")
    if wrong := list(rows.loc[rows["result"] == "error", "id"]):
        failures["ledger"] = f"claims whose evaluation failed: {', '.join(wrong)}"
        say(f"ledger: {failures['ledger']}")
    return pages.counted(rows)


def cannot_measure() -> str:
    """Return why this user cannot have a rig on this machine, or an empty string."""
    from labkit.rig import auto

    try:
        auto()
    except RigError as error:
        return error.why
    return ""


def _measure_profile(study: Path, profile: str, new: bool, say: Say) -> None:
    chosen = profile_of(study, profile) | {"rig": "auto"} | ({"new": True} if new else {})
    output = measure(study, chosen, called=profile, seconds=24 * 3600, say=say)
    say(f"executed: {output}")


def _page(study: Path, profile: str | None, folder: Path, say: Say) -> Path:
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
