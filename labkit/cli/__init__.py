"""The command line. Exit codes: 0 success, 1 failure, 2 wrong use."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import click

from labkit.cli import ask, campaigns, dataset, fleet, folder, lab, machine, reports
from labkit.errors import Interrupted, LabkitError
from labkit.paths import VARIABLE
from labkit.version import VERSION


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples: labkit ask cpu-quota | labkit run affinity-spinning -P quick "
    "| labkit report --measure | labkit ledger",
)
@click.version_option(VERSION, prog_name="labkit")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help=f"A clone, or a folder that `labkit init` made; {VARIABLE} names one too. "
    "The nearest from the working directory upwards when omitted.",
)
def app(project: Path | None) -> None:
    """Measure the performance of containers on this machine, and evaluate published claims."""
    if project is not None:
        os.environ[VARIABLE] = str(project.resolve())  # kernels inherit it


for _module in (ask, folder, machine, reports, campaigns, dataset, lab, fleet):
    for _command in _module.COMMANDS:
        app.add_command(_command)


def main(argv: list[str] | None = None) -> Any:
    """Run the command line, turning errors into a message and an exit code."""
    # Reference cycles are rare here, and looking for them took a tenth of the time of a command.
    gc.set_threshold(100_000, 50, 50)
    try:
        app.main(args=argv, prog_name="labkit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except LabkitError as error:
        click.echo(f"labkit: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a full or read-only disk, a folder that is missing
        where = f"\n  where: {error.filename}" if error.filename else ""
        click.echo(f"labkit: {error.strerror or error}{where}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"labkit: {Interrupted()}", err=True)
        sys.exit(1)
