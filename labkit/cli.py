"""The command line. Exit codes: 0 success, 1 failure, 2 wrong use."""

import functools
import os
import sys
from pathlib import Path
from typing import Any

import click

from labkit.errors import Interrupted, LabkitError, RigError, TimeOver, UsageError
from labkit.paths import SHIPPED, project, relative
from labkit.process import ended_as_by_ctrl_c, say

# Commands import what they need: pandas takes a second.

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_OUTPUT = click.Path(path_type=Path)

# Resolved, as commands read it from the project's folder.
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)
DATA = click.argument("data", required=False, type=click.Path(path_type=Path, exists=True))
MACHINES = click.option("--rig", "path", type=_FILE, help="The machines of a rig.toml, not this.")
PROFILES = "tiny, ask (minutes), quick (hours), decide (a day), paper (weeks), why, or a YAML file."
PROFILE = functools.partial(click.option, "--profile", "-P", help=PROFILES)


def _read_rig(_: Any, __: Any, rig: str | None) -> dict[str, str]:
    """Return the parameter of a rig, if any; a rig.toml is one of the working directory."""
    from labkit.rig import opener

    if rig is None:
        return {}
    if rig.endswith(".toml"):
        rig = str(relative(Path(rig).resolve(), project().resolve()))
    opener(rig)  # checks it, and connects to nothing
    return {"rig": rig}


RIG_HELP = "The path of a rig.toml, virtual or auto (this machine), or virtual:1gbit."
RIG = click.option("--rig", callback=_read_rig, help=RIG_HELP)
NEW = click.option("--new", is_flag=True, help="Begin a new campaign instead of resuming one.")
WAIT = click.option("--wait", is_flag=True, help="Wait while another process uses the rig.")


def _read_values(_: Any, __: Any, pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return parameters, whose values are YAML as for papermill."""
    from labkit import notebooks

    if len(dict(pairs)) < len(pairs):
        raise click.BadParameter("a parameter is given twice")
    try:
        return {name: notebooks.values(value) for name, value in pairs}
    except ValueError as error:
        remedy = 'write for example 5, spin, [host, bridge] or "{kind: none}"'
        raise click.BadParameter(f"{error}\n{remedy}") from None


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Examples: labkit ask cpu-quota | labkit report --measure | labkit ledger",
)
@click.version_option(package_name="labkit", prog_name="labkit")
def app() -> None:
    """Measure the performance of containers on this machine, and evaluate published claims.

    Exit codes: 0 success; 1 something failed, is missing or was interrupted; 2 wrong use.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line, turning errors into a message and an exit code."""
    try:
        with ended_as_by_ctrl_c():
            app.main(args=argv, prog_name="labkit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (LabkitError, OSError) as error:  # such as a full or read-only disk
        click.echo(f"labkit: {error}", err=True)
        sys.exit(getattr(error, "exit_code", 1))
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"labkit: {Interrupted()}", err=True)
        sys.exit(1)


@app.command(epilog="Examples: labkit run -P tiny | labkit run rps -p blocks 10 --rig rig.toml")
@click.argument("studies", nargs=-1)
@PROFILE(default="quick")
@click.option(
    "--parameter",
    "-p",
    "parameters",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    callback=_read_values,
    help="Set a parameter of the notebooks.",
)
@RIG
@NEW
@WAIT
@click.option("--scheduler", default="", help="A Dask scheduler, whose workers offer the rigs.")
def run(
    studies: tuple[str, ...],
    profile: str,
    parameters: dict[str, Any],
    rig: dict[str, str],
    new: bool,
    wait: bool,
    scheduler: str,
) -> None:
    """Measure STUDIES (all when omitted) by executing their notebooks with a profile's parameters.

    A study is named as affinity-spinning, 10-affinity-spinning or 10. When one fails, the others
    are still measured. With --scheduler whole blocks go to the rigs of workers (`labkit worker`).

    Ctrl-C, SIGTERM and SIGHUP end a run cleanly: the rig is taken down, measured trials are kept,
    and the same command resumes with the rest. With `-p minutes 60` a study begins no block that
    would end later; planned trials that are left are exit code 1, too.
    """
    from labkit import studies as library

    runs = library.plan_runs(studies, profile, {"new": new} | rig | parameters)
    if scheduler and (new or rig):
        raise UsageError("--scheduler goes without --new and --rig")
    if scheduler:
        for one in runs:
            click.echo(f"{one.study}: {library.measure_on_rigs(one, scheduler)}")
        return
    codes = []
    for one, outcome in library.measure_all(runs, wait):
        click.echo(f"{one.study}: {outcome}", err=isinstance(outcome, LabkitError))
        codes += [outcome.exit_code] if isinstance(outcome, LabkitError) else []
    sys.exit(min(codes, default=0))


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: labkit worker --scheduler tcp://lab.example:8786 --rig rig.toml",
)
@click.option("--scheduler", required=True, metavar="ADDRESS", help="As tcp://HOST:8786.")
@RIG
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def worker(scheduler: str, rig: dict[str, str], options: tuple[str, ...]) -> None:
    """Offer a rig to `labkit run --scheduler`, until Ctrl-C; OPTIONS are those of `dask worker`."""
    from labkit.studies import worker_argv

    argv = worker_argv(scheduler, rig.get("rig", "auto"), options)
    os.execv(argv[0], argv)


@app.command(epilog="Examples: labkit ask affinity-spinning | labkit ask cpu-quota --new")
@click.argument("study")
@RIG
@NEW
@WAIT
def ask(study: str, rig: dict[str, str], new: bool, wait: bool) -> None:
    """Measure a few conditions of STUDY in about two minutes, and print how they compare.

    After Ctrl-C the same command measures the rest; then it prints the answers again.
    """
    from labkit import studies

    runs = studies.plan_runs([study], "ask", {"new": new} | rig)
    for run, outcome in studies.measure_all(runs, wait):
        _show_answers(run.folder, outcome)


def _show_answers(campaigns: Path, outcome: Path | LabkitError) -> Path:
    """Print the answers of a study that was measured and their page; return the campaign's path."""
    from labkit.analysis import publish
    from labkit.data import load

    if isinstance(outcome, TimeOver):
        say(outcome.what)
    elif isinstance(outcome, LabkitError):
        raise outcome
    say("analysing")
    campaign = load(campaigns)
    answers = publish.study_pages(project("reports"), campaign)
    if not answers:
        remedy = "write a notebook with its r.summary(...), as docs/extend.md says"
        raise LabkitError(f"nothing answers {campaigns.name}", remedy=remedy)
    for answer in answers:
        if "error" in answer:
            raise LabkitError(f"the page {answer['page']} failed", why=answer["error"])
        _show(answer)
        click.echo(f"page: {project('reports') / answer['page']}")
    return campaign.path


def _show(answer: dict[str, Any]) -> None:
    """Print the sentences of a page on what was measured, or why nothing was."""
    source = " (reference)" if answer.get("source") == "reference" else ""
    measured = [row for row in answer["rows"] if row["verdict"] != "not measured"]
    for row in measured or answer["rows"]:
        click.echo(f"{row['sentence']}{source}")


@app.command(epilog="Examples: labkit report data/reference | labkit report --measure -P quick")
@click.option("--measure", is_flag=True, help="Measure every study first.")
@PROFILE(default="ask")
@NEW
@WAIT
@DATA
def report(measure: bool, profile: str, new: bool, wait: bool, data: Path | None) -> None:
    """Analyse the campaigns in DATA, and write a page a study, the ledger and the index.

    Without DATA a study is shown as measured here if 6 blocks or more are complete, else with the
    reference. Prints the answers and the path of the index, reports/index.html.
    """
    from labkit import studies
    from labkit.analysis import publish
    from labkit.rig import opener

    runs, done, failures, folder = [], [], [], project("reports")
    if measure:
        try:
            opener("auto")
            runs = studies.plan_runs([], profile, {"new": new})
        except RigError as error:
            say(f"cannot measure here: {error.why}")
    for run, outcome in studies.measure_all(runs, wait):
        try:
            done.append(_show_answers(run.folder, outcome))
        except LabkitError as error:
            failures.append(f"{run.study} failed: {error}")
    for answer in publish.report(folder, data, done=done):
        if "error" in answer:
            failures.append(f"{answer['page']} failed: {answer['error']}")
        elif "rows" in answer and (not runs or answer["source"] == "reference"):
            _show(answer)
    for failure in failures:
        say(failure)
    click.echo(f"report: {folder / 'index.html'}")
    sys.exit(bool(failures))


@app.command(epilog="Examples: labkit ledger --paper struye2017 | labkit ledger --csv ledger.csv")
@DATA
@click.option("--paper", multiple=True, metavar="KEY", help="Only of this paper, such as jha2018.")
@click.option("--csv", type=_OUTPUT, help="Write the claims to a file.")
def ledger(data: Path | None, paper: tuple[str, ...], csv: Path | None) -> None:
    """Evaluate the papers' claims on the campaigns in DATA; print the findings.

    Without DATA a finding is judged by the reference, or by a campaign measured here once that has
    12 blocks of all its claims.
    """
    import pandas as pd

    from labkit.analysis import claims
    from labkit.data import refuse_unknown

    known = list(dict.fromkeys(one.source for one in claims.load_claims()))
    refuse_unknown("paper", paper, known)
    folders = [data] if data else [project("data/reference"), project("data/local")]
    rows = claims.ledger(*folders)
    rows = rows[rows["source"].isin(paper or known)]
    if csv is not None:
        rows.to_csv(csv, index=False, lineterminator="\n")
    for finding in claims.findings(rows).to_dict("records"):
        click.echo(f"{finding['verdict']:18}  {finding['says']} ({finding['source']})")
        click.echo(f"{'':18}  {finding['needs'] or finding['why']}")
    counts = pd.crosstab(rows["verdict"], rows["source"], rownames=[""], colnames=["claims"])
    click.echo(f"\n{counts.to_string()}")


@app.command(epilog="Examples: labkit doctor | labkit doctor --rig rig.toml")
@MACHINES
def doctor(path: Path | None) -> None:
    """Say what this machine can and cannot do, each fault with a remedy.

    With --rig, the hosts of the file; nothing is changed there, but that the file's scratch
    directory is made. Exit code 1: something that all studies need is missing.
    """
    from labkit.rig import machines
    from labkit.rig.virtual import check_machine

    results = machines.check(path) if path else {"": check_machine()}
    for role, found in results.items():
        click.echo("\n".join([f"\n{role}"] * bool(role) + [check.line() for check in found]))
    sys.exit(any(one.needed and not one.ok for found in results.values() for one in found))


@app.command(epilog="Examples: labkit clean | labkit clean --rig rig.toml")
@MACHINES
def clean(path: Path | None) -> None:
    """Remove what a killed campaign left on this machine, and restore the settings it changed.

    With --rig, on the hosts of the file. No other machine may be measuring on them.
    """
    from labkit.rig import clean as remove
    from labkit.rig import locked, machines

    if path is None and os.geteuid() != 0:
        click.echo("not root: no rig was made from here")
        return
    with locked():
        by_role = machines.each(path, machines.sweep) if path else {"": remove()}
    errors = [one for one in by_role.values() if isinstance(one, LabkitError)]
    for role, lines in by_role.items():
        texts = [f"{lines.what}: {lines.why}"] if lines in errors else lines or ["nothing was left"]
        click.echo("\n".join(f"{role}: {text}".removeprefix(": ") for text in texts))
    if errors:
        raise errors[0]


@app.group()
def dataset() -> None:
    """Pack a dataset into a few files, or verify its files."""


@dataset.command(epilog="Example: labkit dataset verify data/reference")
@click.argument("folder", type=_FOLDER)
def verify(folder: Path) -> None:
    """Check every file of FOLDER, a described dataset, and print each problem."""
    from labkit.analysis import package

    problems = package.verify(folder)
    click.echo("\n".join(problems or ["no problem"]))
    sys.exit(bool(problems))


@dataset.command(epilog="Example: labkit dataset pack data/local -o data/mine")
@click.argument("folder", type=_FOLDER)
@click.option("--output", "-o", type=_OUTPUT, required=True, help="A new folder.")
def pack(folder: Path, output: Path) -> None:
    """Pack each campaign in FOLDER, packed or not, into a few files, and describe them."""
    from labkit.analysis import package

    package.pack(folder, output)
    click.echo(f"packed: {output}")


@app.command(epilog="Examples: labkit cite | labkit cite data/reference | labkit cite --check")
@click.argument("folder", type=_FOLDER, default=SHIPPED)
@click.option("--check", is_flag=True, help="Print what a release still lacks.")
def cite(folder: Path, check: bool) -> None:
    """Print CITATION.cff: how to cite labkit and the repeated studies, or a dataset."""
    from labkit.analysis import package

    if check:
        missing = package.missing(folder)
        click.echo("\n".join(missing or ["nothing is missing"]))
        sys.exit(bool(missing))
    click.echo(package.cite(folder / "CITATION.cff"), nl=False)


if __name__ == "__main__":
    main()
