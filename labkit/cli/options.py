"""Options and messages that several commands share."""

from __future__ import annotations

import signal
import time

import click

from labkit.process import ended_as_by_ctrl_c
from labkit.status import time_text

PROFILE = click.option(
    "--profile",
    "-P",
    default="quick",
    show_default=True,
    help="tiny (a pilot of minutes), quick or paper (hours).",
)
MEASURED = click.option(
    "--profile",
    "-P",
    default=None,
    help="Take campaigns of this profile (tiny, quick, paper); the most thorough by default.",
)
NEW = click.option("--new", is_flag=True, help="Begin a new campaign instead of resuming one.")


def say(text: str) -> None:
    """Print a line of progress with the time to standard error."""
    click.echo(f"labkit: {time_text(time.time_ns())} {text}", err=True)


def interruptible() -> None:
    """Make SIGTERM and SIGHUP end this command as Ctrl-C does."""
    stops = ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    click.get_current_context().with_resource(stops)
