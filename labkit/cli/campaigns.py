"""Commands of campaigns: `run` measures them, `status` shows their progress.

Imports are light, as `status` shares the machine with a running measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from labkit import status as progress
from labkit.cli.options import NEW, PROFILE, STOP_AFTER, WAIT, interruptible, rig_spec, say
from labkit.errors import UsageError
from labkit.paths import project
from labkit.placement import parse_cpus
from labkit.process import UNTIL

#: The shortest interval of `status --watch` in seconds, as it costs CPU time.
LEAST_WATCH = 5.0


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
@click.option("--samples", is_flag=True, help="With --scheduler: collect samples and logs too.")
@click.option("--tls-ca-file", help="With --scheduler: the authority's certificate.")
@click.option("--tls-cert", help="With --scheduler: the client's certificate.")
@click.option("--tls-key", help="With --scheduler: the client's key.")
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
    samples: bool,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
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
    if not scheduler and (samples or tls_ca_file or tls_cert or tls_key):
        raise UsageError("--samples and --tls-... go with --scheduler")
    interruptible()
    if scheduler:
        from labkit.cli import fleet

        security = fleet.tls((tls_ca_file, tls_cert, tls_key))
        for one in runs:
            folder = fleet.measure(one, profile, scheduler, security, samples=samples, say=say)
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
            click.echo("\n".join(library.run_table(runs, outcomes)))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors and len(runs) == 1:
        raise errors[0]
    if errors:
        raise SystemExit(1)


@click.command(
    epilog="Examples: labkit status | labkit status --watch 30 | labkit status data/local/quick "
    "--json"
)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--all", "every", is_flag=True, help="Also show older campaigns of a study.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch a line each time.")
@click.option(
    "--watch",
    type=click.FloatRange(min=LEAST_WATCH),
    metavar="SECONDS",
    help=f"Repeat after so many seconds ({LEAST_WATCH:g} or more), until nothing runs.",
)
def status(folders: tuple[Path, ...], every: bool, as_json: bool, watch: float | None) -> None:
    """Show the campaigns in FOLDERS (data/local when omitted) and how long running ones will take.

    This does not disturb a running measurement: it reads a few small files at low priority, keeps
    off the CPU of the system under test, asks no host or engine, and takes no lock. It uses about
    0.1 s of CPU time.

    Exit codes: 0 nothing has failed; 1 a campaign has failed trials, or is unfinished and no
    process continues it; 2 wrong use.
    """
    os.nice(19)
    paths = [folder.resolve() for folder in folders] or [project("data/local")]
    while True:
        campaigns, now = progress.find(paths, every=every), time.time_ns()
        running = [campaign for campaign in campaigns if campaign.state == "running"]
        _leave_sut(running)
        if as_json:
            record = {
                "at": progress.time_text(now),
                "campaigns": [campaign.as_record(now) for campaign in campaigns],
                "rig": _rig(),
            }
            click.echo(json.dumps(record, indent=None if watch else 1))
        else:
            lines = progress.lines(campaigns, now) if campaigns else ["no campaign here"]
            click.echo("\n".join([*lines, f"rig: {_rig_text(_rig())}"]))
        if not (watch and running):
            break
        time.sleep(watch)
    if not all(campaign.good for campaign in campaigns):
        raise SystemExit(1)


def _leave_sut(running: Sequence[progress.Campaign]) -> None:
    """Move to the CPUs of a campaign's harness."""
    for campaign in running:
        if campaign.cpus:
            with contextlib.suppress(OSError, UsageError):
                os.sched_setaffinity(0, parse_cpus(campaign.cpus))


def _rig() -> dict[str, Any]:
    """Return whether the virtual rig is up, and which process uses this machine's rig."""
    from labkit.rig import lock  # not for --help: it imports the rig's package

    state, user = lock.read_state(), lock.current_holder()
    virtual = "no" if state is None else "yes" if state.get("ready") else "being made"
    who = "" if user is None else lock.describe_process(user)
    return {"virtual": virtual, "used_by": user, "user": who}


def _rig_text(rig: Mapping[str, Any]) -> str:
    texts = {"yes": "the virtual rig is up", "no": "the virtual rig is down"}
    state = texts.get(rig["virtual"], "the virtual rig is coming up, or was interrupted doing so")
    user = rig["used_by"]
    return f"{state}, used by {rig['user'] if user else 'nobody'}"


COMMANDS = (run, status)
