"""Commands of campaigns: `run` measures them, `status` shows their progress.

Imports are light, as `status` shares the machine with a running measurement.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from labkit import status as progress
from labkit.cli.options import NEW, PROFILE, STOP_AFTER, WAIT, interruptible, rig_spec, say
from labkit.errors import UsageError
from labkit.paths import project
from labkit.placement import parse_cpus
from labkit.process import UNTIL


@click.command(
    epilog="Examples: labkit run --profile tiny | labkit run affinity-spinning -p blocks 10 --new "
    "| labkit run application-networks --rig rig.toml "
    "| labkit run cpu-quota -f low.yaml -f high.yaml"
)
@click.argument("studies", nargs=-1)
@PROFILE
@click.option(
    "--parameter",
    "-p",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="Set a parameter of the notebooks.",
)
@click.option(
    "--rig",
    default="",
    help="A rig.toml of the working directory, virtual or auto (this machine), or virtual:1gbit.",
)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="YAML file with parameters that replace the profile's; each file is a campaign.",
)
@NEW
@WAIT
@STOP_AFTER
@click.option("--scheduler", default="", help="A Dask scheduler, whose workers offer the rigs.")
@click.option(
    "--time-limit", default=1440.0, show_default=True, help="Minutes that a notebook may take."
)
def run(
    studies: tuple[str, ...],
    profile: str,
    parameter: tuple[tuple[str, str], ...],
    rig: str,
    files: tuple[Path, ...],
    new: bool,
    scheduler: str,
    time_limit: float,
) -> None:
    """Measure STUDIES (all when omitted) by executing their notebooks with a profile's parameters.

    A study is named as affinity-spinning, 10-affinity-spinning or 10.

    With -f, each FILE is a campaign of each study; its data go to data/local/NAME-OF-FILE unless it
    sets `data`. When one of several campaigns fails, the others are still measured, and a table of
    all is printed at the end. Parameters are checked before the first campaign begins.

    With --scheduler whole blocks are sent to the rigs of workers (`labkit worker`); each rig has a
    campaign of its own in data/local/fleet. It goes without --new, --rig and --stop-after.

    Ctrl-C, SIGTERM and SIGHUP end a run cleanly: the rig is taken down, measured trials are kept,
    and the same command resumes with the rest.

    Exit codes: 0 everything was measured; 1 something failed or was interrupted; 2 wrong use,
    nothing was measured.
    """
    from labkit import studies as library

    parameter += (("rig", rig_spec(rig)),) if rig else ()
    parameters = library.parameters(parameter, new=new)
    runs = library.plan_runs(studies, profile, files, parameters)
    if scheduler and (new or rig or os.environ.get(UNTIL)):
        raise UsageError("--scheduler goes without --new, --rig and --stop-after")
    interruptible()
    if scheduler:
        from labkit.cli import fleet

        for one in runs:
            folder = fleet.measure(one, profile, scheduler, say=say)
            click.echo(f"{one.study}: {folder}")
        return
    outcomes: list[library.Outcome] = []
    try:
        for outcome in library.measure_all(runs, seconds=60 * time_limit, say=say):
            outcomes.append(outcome)
            if outcome.output:
                click.echo(f"{outcome.run.study}: {outcome.output}")
            elif len(runs) > 1:
                say(f"{outcome.run.study} ({outcome.run.called}) failed: {outcome.error}")
    finally:
        if len(runs) > 1:
            click.echo(library.run_table(runs, outcomes))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors and len(runs) == 1:
        raise errors[0]
    if errors:
        raise SystemExit(1)


@click.command(epilog="Examples: labkit status | labkit status data/local/quick")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True))
def status(folders: tuple[Path, ...]) -> None:
    """Show the campaigns in FOLDERS (data/local when omitted) and how long running ones will take.

    This reads a few files at low priority, away from the CPU of the system under test, so that it
    does not disturb a running measurement.

    Exit codes: 0 nothing has failed; 1 a campaign has failed trials, or is unfinished and no
    process continues it; 2 wrong use.
    """
    os.nice(19)
    campaigns = progress.find(folder.resolve() for folder in folders or [project("data/local")])
    for cpus in (one.cpus for one in campaigns if one.process and one.cpus):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parse_cpus(cpus))
    click.echo("\n".join(progress.lines(campaigns)) if campaigns else "no campaign here")
    if any(one.failed or one.state == "stopped" for one in campaigns):
        raise SystemExit(1)


COMMANDS = (run, status)
