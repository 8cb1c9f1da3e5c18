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
    help="tiny (a pilot), quick or paper (hours).",
)
MEASURED = click.option(
    "--profile",
    "-P",
    default=None,
    help="Whose campaigns: tiny, quick or paper; by default each study's most thorough.",
)
NEW = click.option("--new", is_flag=True, help="Begin another campaign instead of resuming.")


def say(text: str) -> None:
    """Print a line of progress, with the time, apart from results."""
    click.echo(f"labkit: {time_text(time.time_ns())} {text}", err=True)


def interruptible() -> None:
    """Have what schedulers and closed terminals send end this command as Ctrl-C does."""
    stops = ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
    click.get_current_context().with_resource(stops)
