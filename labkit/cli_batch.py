"""Commands for batches: measure one campaign or several, and look at what runs; `labkit.cli` adds.

Both are light to import: whoever looks shares the machine with what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from labkit import standing
from labkit import status as campaigns
from labkit.paths import ROOT, project
from labkit.process import ended_as_by_ctrl_c

PROFILE = click.option(
    "--profile",
    "-P",
    default="quick",
    show_default=True,
    help="tiny (a pilot), quick or paper (hours).",
)
NEW = click.option("--new", is_flag=True, help="Begin another campaign instead of resuming.")
#: Looking costs CPU time of the machine that measures: no oftener than this, in seconds.
OFTEN = 5.0


def say(text: str) -> None:
    """Print a line of what is going on, with the time, apart from results."""
    click.echo(f"labkit: {campaigns.moment(time.time_ns())} {text}", err=True)


def interruptible() -> None:
    """Have what schedulers and closed terminals send end this command as Ctrl-C does."""
    stops = ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    click.get_current_context().with_resource(stops)


@click.command(
    epilog="Examples: labkit run --profile tiny | labkit run affinity-spinning -p blocks 10 --new "
    "| labkit run application-networks -p rig virtual:1gbit "
    "| labkit run cpu-quota -f low.yaml -f high.yaml --background"
)
@click.argument("studies", nargs=-1)
@PROFILE
@click.option(
    "--parameter",
    "-p",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="Set a parameter.",
)
@click.option(
    "--file",
    "-f",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Parameters (YAML) that replace the profile's; of several each is a campaign.",
)
@NEW
@click.option(
    "--time-limit", default=1440.0, show_default=True, help="Minutes a notebook may take."
)
@click.option("--background", is_flag=True, help="Go on without this terminal.")
def run(
    studies: tuple[str, ...],
    profile: str,
    parameter: tuple[tuple[str, str], ...],
    files: tuple[Path, ...],
    new: bool,
    time_limit: float,
    background: bool,
) -> None:
    """Measure STUDIES (all when omitted): execute their notebooks with a profile's parameters.

    With -f each FILE is a campaign of each study; its data go to data/local/NAME-OF-FILE unless it
    says `data`. Of several campaigns one that fails does not end the rest, and a table of all comes
    last. Parameters are checked before the first begins.

    Ctrl-C, SIGTERM and SIGHUP end a run cleanly: what it put up is taken down, what was measured is
    kept, and the same command goes on with the rest.

    Exit codes: 0 all was measured; 1 something failed or was interrupted; 2 wrong use, and nothing
    was begun.
    """
    from labkit import batches
    from labkit.studies import parameters

    runs = batches.plan(studies, profile, files, parameters(parameter, new=new))
    if background:
        _detach(_again(studies, profile, parameter, files, new, time_limit))
        return
    interruptible()
    outcomes: list[batches.Outcome] = []
    try:
        for one in batches.measure(runs, seconds=60 * time_limit, say=say):
            outcomes.append(one)
            if one.output:
                click.echo(f"{one.run.study}: {one.output}")
            elif len(runs) > 1:
                say(f"{one.run.study} ({one.run.called}) failed: {one.error}")
    finally:
        if len(runs) > 1:
            click.echo("\n".join(batches.table(runs, outcomes)))
    errors = [one.error for one in outcomes if one.error]
    if errors and len(runs) == 1:
        raise errors[0]
    if errors:
        raise SystemExit(1)


def _again(
    studies: Sequence[str],
    profile: str,
    parameter: Sequence[tuple[str, str]],
    files: Sequence[Path],
    new: bool,
    time_limit: float,
) -> list[str]:
    """Return the arguments of the same run, for a process that stands in the project's folder."""
    given = [word for name, value in parameter for word in ("-p", name, value)]
    given += [word for one in files for word in ("-f", str(one.resolve()))]
    given += ["--new"] if new else []
    limit = ["--time-limit", str(time_limit)]
    return ["run", "--profile", profile, *given, *limit, "--", *studies]


def _detach(argv: Sequence[str]) -> None:
    """Start labkit in a session of its own, which no terminal ends, and say how to follow it."""
    log = project("data/local/logs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # A shell's background job ignores it, and what is ignored is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit.cli", *argv],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    click.echo(f"process: {process.pid}\nlog: {log}")
    say(f"`labkit status` says how far it is, and `kill {process.pid}` ends it as Ctrl-C does")


@click.command(
    epilog="Examples: labkit status | labkit status --watch 30 | labkit status data/local/quick "
    "--json"
)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--all", "every", is_flag=True, help="Also campaigns that a newer one followed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; one line a look with --watch.")
@click.option(
    "--watch",
    type=click.FloatRange(min=OFTEN),
    metavar="SECONDS",
    help=f"Look again so often ({OFTEN:g} or more), until nothing runs.",
)
def status(folders: tuple[Path, ...], every: bool, as_json: bool, watch: float | None) -> None:
    """Say which campaigns FOLDERS have (data/local when omitted), what runs, and how long yet.

    Only small files are read, behind everything else, and beside the CPU of the system under test:
    no host and no engine is asked, and no lock is taken. A look takes some 0.1 s of CPU time.

    Exit codes: 0 nothing has failed; 1 a campaign has failed trials, or was left unfinished and no
    process goes on with it; 2 wrong use.
    """
    os.nice(19)
    where = [one.resolve() for one in folders] or [project("data/local")]
    while True:
        found, now = campaigns.look(where, every=every), time.time_ns()
        running = [one for one in found if one.state == "running"]
        _make_way(running)
        if as_json:
            _print_json(found, now, None if watch else 1)
        else:
            click.echo("\n".join(campaigns.lines(found, now) if found else ["no campaign here"]))
            click.echo(f"rig: {_rig_text(_rig())}")
        if not (watch and running):
            break
        time.sleep(watch)
    if not all(one.good for one in found):
        raise SystemExit(1)


def _make_way(running: Sequence[campaigns.Campaign]) -> None:
    """Keep this process where the harness of a campaign is, which is off what it measures."""
    for one in running:
        with contextlib.suppress(OSError, ValueError):
            os.sched_setaffinity(0, {int(cpu) for cpu in one.cpus.split(",")})


def _print_json(found: Sequence[campaigns.Campaign], now: int, indent: int | None) -> None:
    record = {
        "at": campaigns.moment(now),
        "campaigns": [one.as_record(now) for one in found],
        "rig": _rig(),
    }
    click.echo(json.dumps(record, indent=indent))


def _rig() -> dict[str, Any]:
    """Return whether the virtual rig stands, and which process holds this machine's rig."""
    found = standing.read()
    stands = "no" if found is None else "yes" if found.get("ready") else "being made"
    return {"virtual": stands, "used_by": standing.user()}


def _rig_text(found: Mapping[str, Any]) -> str:
    words = {"yes": "the virtual rig stands", "no": "no virtual rig stands"}
    stands = words.get(found["virtual"], "the virtual rig is being made, or was left half made")
    user = found["used_by"]
    return f"{stands}, used by {f'process {user}' if user else 'nobody'}"


COMMANDS = (run, status)
