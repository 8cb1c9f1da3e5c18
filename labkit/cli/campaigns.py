"""Commands of campaigns: measure one or several, and look at what runs.

Both are light to import: whoever looks shares the machine with what is measured.
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

from labkit import status as campaigns
from labkit.cli.options import NEW, PROFILE, interruptible, say
from labkit.errors import UsageError
from labkit.paths import project
from labkit.placement import parse_cpus

#: Looking costs CPU time of the machine that measures: no oftener than this, in seconds.
OFTEN = 5.0


@click.command(
    epilog="Examples: labkit run --profile tiny | labkit run affinity-spinning -p blocks 10 --new "
    "| labkit run application-networks -p rig virtual:1gbit "
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
def run(
    studies: tuple[str, ...],
    profile: str,
    parameter: tuple[tuple[str, str], ...],
    files: tuple[Path, ...],
    new: bool,
    time_limit: float,
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
    from labkit import studies as measured

    given = measured.parameters(parameter, new=new)
    runs = measured.plan_runs(studies, profile, files, given)
    interruptible()
    outcomes: list[measured.Outcome] = []
    try:
        for one in measured.measure_all(runs, seconds=60 * time_limit, say=say):
            outcomes.append(one)
            if one.output:
                click.echo(f"{one.run.study}: {one.output}")
            elif len(runs) > 1:
                say(f"{one.run.study} ({one.run.called}) failed: {one.error}")
    finally:
        if len(runs) > 1:
            click.echo("\n".join(measured.run_table(runs, outcomes)))
    errors = [one.error for one in outcomes if one.error]
    if errors and len(runs) == 1:
        raise errors[0]
    if errors:
        raise SystemExit(1)


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
        _leave_sut(running)
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


def _leave_sut(running: Sequence[campaigns.Campaign]) -> None:
    """Run where the harness of a campaign does, off the CPUs that it measures."""
    for one in [one for one in running if one.cpus]:
        with contextlib.suppress(OSError, UsageError):
            os.sched_setaffinity(0, parse_cpus(one.cpus))


def _print_json(found: Sequence[campaigns.Campaign], now: int, indent: int | None) -> None:
    record = {
        "at": campaigns.time_text(now),
        "campaigns": [one.as_record(now) for one in found],
        "rig": _rig(),
    }
    click.echo(json.dumps(record, indent=indent))


def _rig() -> dict[str, Any]:
    """Return whether the virtual rig is up, and which process uses this machine's rig."""
    from labkit.rig import lock  # with the rig's package, which a help text does not need

    state = lock.read_state()
    stands = "no" if state is None else "yes" if state.get("ready") else "being made"
    return {"virtual": stands, "used_by": lock.current_holder()}


def _rig_text(state: Mapping[str, Any]) -> str:
    words = {"yes": "the virtual rig is up", "no": "the virtual rig is down"}
    stands = words.get(state["virtual"], "the virtual rig is coming up, or was left half made")
    user = state["used_by"]
    return f"{stands}, used by {f'process {user}' if user else 'nobody'}"


COMMANDS = (run, status)
