"""Commands of a fleet: a worker that offers a rig, and a study on the rigs of a scheduler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.design import digest
from labkit.errors import LabkitError
from labkit.paths import project

if TYPE_CHECKING:
    from labkit.studies import Run


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: labkit worker --scheduler tcp://lab.example:8786 --rig rig.toml",
)
@click.option("--scheduler", required=True, metavar="ADDRESS", help="As tcp://HOST:8786.")
@click.option("--rig", default="auto", show_default=True, help="A rig.toml, auto, virtual.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def worker(scheduler: str, rig: str, options: Sequence[str]) -> None:
    """Offer a rig to a Dask scheduler, until Ctrl-C; OPTIONS are those of `dask worker`.

    `labkit run STUDY --scheduler ADDRESS` then measures blocks on it, one at a time.
    """
    from labkit import fleet
    from labkit.studies import check_rig

    # The worker may run in another folder than this.
    offered = str(Path(rig).resolve()) if rig.endswith(".toml") else rig
    check_rig(offered)
    argv = fleet.worker_argv(scheduler, offered, options)
    os.execvpe(argv[0], argv, {**os.environ, fleet.RIG: offered})


def measure(run: Run, profile: str, scheduler: str, *, say: Any) -> Path:
    """Measure a study on the rigs of a scheduler, and return the folder of their campaigns."""
    try:
        from distributed import Client
    except ImportError:
        raise LabkitError(
            "Dask is not installed", remedy="make setup; or pip install 'PATH-OF-THE-CLONE[fleet]'"
        ) from None
    from labkit import fleet

    kept = {key: value for key, value in run.parameters.items() if key not in ("rig", "data")}
    # Blocks of other parameters are another campaign.
    name = f"{run.called}-{digest(kept)}"
    task = partial(
        fleet.measure_block, study=run.study, profile=profile, parameters=kept, name=name
    )
    folder = project(fleet.FOLDER) / name / run.study
    try:
        client = Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        raise LabkitError(
            f"the scheduler {scheduler} cannot be reached",
            why=str(error),
            remedy="start one with `dask scheduler`, and workers with `labkit worker`",
        ) from None
    with client:
        say(f"blocks go to the workers of {scheduler}; dashboard: {client.dashboard_link}")
        fleet.measure(client, task, range(1, kept["blocks"] + 1), folder=folder, say=say)
    return folder


COMMANDS = (worker,)
