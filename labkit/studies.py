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

import pandas as pd
import yaml

from labkit import notebooks, status
from labkit.analysis.power import least_blocks
from labkit.campaign.budget import plan_budget
from labkit.campaign.store import write_json
from labkit.chosen import REFERENCE, Chosen, choose, choose_all
from labkit.claims.schema import Claims, load_claims
from labkit.dataset import Dataset, campaigns, load
from labkit.dataset.files import read_json
from labkit.errors import LabkitError, Rebooted, RigError, TimeOver, UsageError, suggestion
from labkit.paths import project, relative
from labkit.process import TERMINAL, WAIT, chosen_blocks, ending_after, seconds_left
from labkit.questions import candidate, load_questions

Say = Callable[[str], None]
#: The folder of campaigns that were planned for a time.
BRIEF = "brief"
#: Numbers of blocks in which a question may be asked.
QUESTION_BLOCKS = (6, 12, 24)
#: Claims that are named as left out.
LEFT_OUT = 5
#: Seconds between two looks at the rig of one who waits for it, and between two lines about it.
_LOOK, _SAY = 1.0, 60.0
#: How often a study is executed where hosts reboot.
_REBOOTS = 10
#: A plan for a time is an estimate, and on a busy machine trials are repeated: no block begins that
#: would end after so many times the planned time.
_LATEST = 2.0


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
    known = [*_profiles(), BRIEF, REFERENCE]
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
            said, now = time.monotonic(), time.time_ns()
            left = [one.left(now) for one in status.look([project("data/local")])]
            longest = max((seconds for seconds in left if seconds is not None), default=None)
            rest = "" if longest is None else f", about {status.duration_text(longest)} left"
            say(f"waiting for the rig, which {lock.describe_process(user)} uses{rest}")
        time.sleep(_LOOK)


def _append_to_stderr() -> None:
    """Append to the file of standard error, as the kernel writes to it too."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)


def check_complete(folder: Path) -> None:
    """Raise `LabkitError` if planned trials of the newest campaign in a folder did not succeed."""
    campaign, only = load(folder), chosen_blocks()
    planned = sum(
        count
        for block, count in enumerate(campaign.planned_by_block, start=1)
        if only is None or block in only
    )
    records = [one for one in campaign.records if only is None or one["block"] in only]
    done = {one["trial"] for one in records if one["status"] == "ok"}
    failed = [one for one in records if one["trial"] not in done]
    if len(done) < planned:
        of = {"failed": len({one["trial"] for one in failed})}
        of |= {"are left": planned - len(done) - of["failed"]}
        counts = [f"{count} {what}" for what, count in of.items() if count]
        problems = {(one.get("error") or {}).get("what", "") for one in failed}
        over = not failed and seconds_left() < math.inf
        raise (TimeOver if over else LabkitError)(
            f"of {planned} planned trials {' and '.join(counts)}",
            where=str(campaign.path),
            why="; ".join(sorted(problems))[:600],
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
            _check_rig(str(runs[-1].parameters.get("rig", "auto")))
    folders = [run.folder for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                "two campaigns of a study would go to one folder",
                where=str(folder),
                remedy="set `data` in each file",
            )
    return runs


def _check_rig(spec: str) -> None:
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
        for campaign in status.look([run.folder]):
            if outcome.error and (campaign.ended_ns or 0) < outcome.began_ns:
                continue  # an earlier campaign: this run failed before its first trial
            trials = f"{campaign.done}/{campaign.planned}"
            counts = (trials, str(campaign.failed), took, status.short_path(campaign.path))
        rows.append((run.study, run.called, result, *counts))
    return status.aligned(rows)


def report(
    profile: str | None,
    folder: Path,
    *,
    measure: bool = False,
    budget: float = 0.0,
    new: bool = False,
    say: Say,
) -> tuple[Path, list[str], dict[str, str]]:
    """Build every page and the index; return the index, lines to print, and failures by study.

    With `measure` every study is measured first: with a profile, or else what decides most in
    `budget` seconds, and for at most twice as long.
    """
    check_profile(profile)
    failures: dict[str, str] = {}
    chosen: list[Chosen] = []
    built: dict[Path, Path] = {}
    reason = rig_here()[1] if measure else ""
    if reason:
        say(f"cannot measure here: {reason}. The report shows the reference dataset.")
    if measure and not reason:
        runs = _profile_runs(profile, new) if profile else budget_runs(budget, new, say)
        _wait_for_rig(say)
        with ending_after(math.inf if profile else _LATEST * budget):
            _measure_each(runs, profile or BRIEF, failures, say)
    for study in find([]):
        name = name_of(study)
        with _noting(failures, name, say):
            # Once: pages, index and ledger are of the same campaigns.
            chosen.append(choose(name, profile))
            page = _page(study, chosen[-1], folder, say)
            built[page] = chosen[-1].shown
    from labkit.report import pages, rig_page  # nbformat takes seconds to import

    ledger = _ledger(folder, chosen, failures, say)
    pages.build_glossary(folder / "glossary.html")
    rig_page.build_rig(built, folder / "rig.html", ledger=ledger)
    index = pages.build_index(list(built), folder / "index.html", failures=failures, ledger=ledger)
    summaries = [pages.read_summary(page) for page in built]
    headlines = [
        sentence + (" (from the reference dataset)" if REFERENCE in path.parts else "")
        for summary, path in zip(summaries, built.values(), strict=True)
        for sentence in (summary.get("answer") or {}).get("sentences", [])
    ]
    return index, [*headlines, *_pilots(summaries), *map(str, chosen)], failures


def _measure_each(
    runs: Iterable[tuple[str, dict[str, Any]]], called: str, failures: dict[str, str], say: Say
) -> None:
    """Measure studies in turn until the time is over; note those that fail."""
    for name, parameters in runs:
        # A study that could not be measured still has a page, of earlier data.
        with _noting(failures, name, say):
            (notebook,) = find([name])
            try:
                say(f"executed: {_measured(notebook, parameters, called=called, say=say)}")
            except TimeOver as error:
                say(f"{name}: {error}")
                return


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
        "for verdicts: labkit report --measure --profile quick, or one study: "
        f"labkit run {names[0]} --profile quick, then labkit report",
    ]


def datasets(profile: str | None) -> list[Chosen]:
    """Return the campaigns that count of every study with a claim."""
    check_profile(profile)
    return choose_all(load_claims().studies, profile)


def _ledger(
    folder: Path, chosen: Sequence[Chosen], failures: dict[str, str], say: Say
) -> dict[str, dict[str, int]]:
    """Write the ledger's page; return the number of claims by source and result."""
    from labkit.claims.ledger import ledger
    from labkit.claims.stated import disagreements, recompute
    from labkit.report import ledger_page

    say("evaluating the claims")
    claims = load_claims()
    paths = [path for one in chosen if one.study in claims.studies for path in one.campaigns]
    rows = ledger(paths, claims=claims)
    ledger_page.build_ledger(
        rows,
        recompute(),
        disagreements(),
        folder / "ledger.html",
        campaigns=[str(one) for one in chosen],
    )
    if wrong := list(rows.loc[rows["result"] == "error", "id"]):
        failures["ledger"] = f"claims whose evaluation failed: {', '.join(wrong)}"
        say(f"ledger: {failures['ledger']}")
    return ledger_page.counted(rows)


def rig_here() -> tuple[str, str]:
    """Return the rig that this user can have on this machine, or why there is none."""
    from labkit.rig import auto

    try:
        return auto(), ""
    except RigError as error:
        return "", error.why


def _measured(notebook: Path, parameters: Mapping[str, Any], *, called: str, say: Say) -> Path:
    return measure(notebook, parameters, called=called, seconds=24 * 3600, say=say)


def _profile_runs(profile: str, new: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every study, with its parameters in a profile."""
    for study in find([]):
        yield name_of(study), profile_of(study, profile) | {"rig": "auto", "new": new}


def budget_runs(seconds: float, new: bool, say: Say) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the studies that decide most in a time, the shortest first, with their parameters.

    What they take is known from the campaigns that count, or from the reference dataset. The plan
    is said before anything is measured, with what is left out and how long that would take. Time
    that is left, since something was decided early, goes to a plan of further studies.

    The plan is kept. For the same time, unless `new`, what was interrupted is resumed, and nothing
    is yielded where all of it was measured.
    """
    from labkit.claims.ledger import ledger

    end = time.monotonic() + seconds
    path = project("data/local") / BRIEF / "runs.json"
    runs = {} if new else _kept_runs(path, seconds)
    left = [name for name, run in runs.items() if not _is_measured(name, run)]
    if runs and not left:
        say(
            f"what decides most in {status.duration_text(seconds)} was measured; another budget, "
            "or --new (make report NEW=1), measures more"
        )
        return
    for name in left:
        say(f"{name}: resumed")
        yield name, _parameters_of(name, runs[name])
    claims = load_claims()
    counted = choose_all(map(name_of, find([])))
    rows = ledger([path for one in counted for path in one.campaigns], claims=claims)
    earlier = {one.study: load(one.shown) for one in counted if one.study not in runs}
    while (rest := end - time.monotonic()) > 0:
        planned = _planned(rest, claims, rows, earlier, say)
        if not planned:
            break
        for name, parameters in planned.items():
            before = len(campaigns(folder_of(name, parameters)))
            runs[name] = {"parameters": parameters, "before": before}
        write_json(path, {"seconds": seconds, "runs": runs})
        for name in planned:
            yield name, _parameters_of(name, runs[name])
            del earlier[name]


def _kept_runs(path: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """Return what was planned for a time: parameters and number of earlier campaigns, by study."""
    kept = read_json(path) if path.is_file() else {}
    runs: dict[str, dict[str, Any]] = kept["runs"] if kept.get("seconds") == seconds else {}
    return runs


def _has_begun(name: str, run: Mapping[str, Any]) -> bool:
    return len(campaigns(folder_of(name, run["parameters"]))) > int(run["before"])


def _is_measured(name: str, run: Mapping[str, Any]) -> bool:
    if not _has_begun(name, run):
        return False
    try:
        check_complete(folder_of(name, run["parameters"]))
    except LabkitError:
        return False
    return True


def _parameters_of(name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that begin the campaign of a planned run, or resume it."""
    return {**run["parameters"], "new": not _has_begun(name, run)}


def _planned(
    seconds: float,
    claims: Claims,
    rows: pd.DataFrame,
    earlier: Mapping[str, Dataset],
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Return the parameters of the studies to measure in a time, of those with a campaign."""
    questions = {
        question.study: question
        for question in (tools[""] for tools in load_questions(rig_here()[0]).values())
        if question.study in earlier
    }
    plan = plan_budget(
        seconds,
        [claim for claim in claims if claim.study in earlier],
        rows,
        earlier,
        [
            candidate(one, earlier[one.study], blocks)
            for one in questions.values()
            for blocks in QUESTION_BLOCKS
        ],
    )
    known = {claim.id for claim in claims}
    runs = {}
    for study in plan.studies:
        (notebook,) = find([study.study])
        names = list(dict.fromkeys(one.name for one in study.candidates))
        say(f"{study.study}: about {status.duration_text(study.seconds)} for {', '.join(names)}")
        question = questions.get(study.study)
        asked = question is not None and question.title in names
        decide: dict[str, Any] = {"looks": study.looks}
        parameters: dict[str, Any] = {}
        if question and asked:
            decide = question.decide(study.blocks)
            # A question's parameters leave out conditions that claims may need.
            parameters = {} if known.intersection(names) else question.parameters
        decide["claims"] = [name for name in plan.names if name in known]
        runs[study.study] = {
            **profile_of(notebook, "quick"),
            **parameters,
            "blocks": study.blocks,
            "decide": decide,
            "data": str(Path("data/local") / BRIEF),
            "earlier": str(earlier[study.study].path),
            "rig": "auto",
        }
    more = [
        f"{one.name} (about {status.duration_text(one.seconds)})"
        for one in plan.left_out[:LEFT_OUT]
    ]
    rest = len(plan.left_out) - len(more)
    if more:
        say(
            f"left out of {status.duration_text(seconds)}: {', '.join(more)}"
            + (f", and {rest} that take longer" if rest > 0 else "")
        )
    return runs


def _page(study: Path, chosen: Chosen, folder: Path, say: Say) -> Path:
    from labkit.report import pages

    say(f"analysing {chosen}")
    home = project()
    return pages.build_page(
        project("notebooks/analysis") / study.name,
        folder / f"{study.stem}.html",
        parameters={"data": str(relative(chosen.shown, home))},
        title=chosen.study.replace("-", " ").capitalize(),
        note=chosen.why,
        cwd=home,
    )
