"""Options and messages that several commands share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from labkit.paths import project, relative
from labkit.process import UNTIL, ended_as_by_ctrl_c
from labkit.process import WAIT as VARIABLE
from labkit.status import time_text

PROFILE = click.option(
    "--profile",
    "-P",
    default="quick",
    show_default=True,
    help="tiny (a pilot of minutes), ask (headlines, minutes), quick (two hours), decide (hours), "
    "paper (weeks), or why (an experiment on a reason; notebooks/profiles).",
)
WAIT = click.option(
    "--wait",
    is_flag=True,
    expose_value=False,
    callback=lambda context, parameter, wait: wait and os.environ.update({VARIABLE: "1"}),
    help="Wait while another process uses the rig.",
)
STOP_AFTER = click.option(
    "--stop-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    expose_value=False,
    callback=lambda context, parameter, minutes: (
        minutes and os.environ.update({UNTIL: str(time.monotonic() + 60 * minutes)})
    ),
    help="Begin no block that would end after these minutes; the same command resumes.",
)


def rig_file(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--rig FILE`."""
    # Resolved: commands read it from the project's folder.
    file = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
    return click.option("--rig", "path", type=file, metavar="FILE", **options)


def rig_spec(text: str) -> str:
    """Return what `--rig` names; a rig.toml is one of the working directory."""
    if not text.endswith(".toml"):
        return text
    return str(relative(Path(text).resolve(), project().resolve()))


RIG = rig_file(help="The machines of a rig.toml instead of this one.")
NEW = click.option("--new", is_flag=True, help="Begin a new campaign instead of resuming one.")


def say(text: str) -> None:
    """Print a line of progress with the time to standard error."""
    click.echo(f"labkit: {time_text(time.time_ns())} {text}", err=True)


def interruptible() -> None:
    """Make SIGTERM and SIGHUP end this command as Ctrl-C does."""
    stops = ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    click.get_current_context().with_resource(stops)
