"""The command of a worker that offers a rig, and a campaign over the rigs of a scheduler."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.errors import LabkitError, UsageError

if TYPE_CHECKING:
    from labkit.fleet import Block
    from labkit.studies import Run

#: Seconds to reach a scheduler.
_CONNECT = "20s"


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: labkit worker --scheduler tcp://lab.example:8786 --rig rig.toml "
    "| labkit worker --scheduler tls://lab.example:8786 --rig auto --tls-ca-file ca.pem "
    "--tls-cert me.pem --tls-key me.key",
)
@click.option("--scheduler", required=True, metavar="ADDRESS", help="As tcp://HOST:8786.")
@click.option("--rig", default="auto", show_default=True, help="A rig.toml, auto, virtual.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def worker(scheduler: str, rig: str, options: Sequence[str]) -> None:
    """Offer a rig to a Dask scheduler, until Ctrl-C; OPTIONS are those of `dask worker`.

    `labkit run STUDY --scheduler ADDRESS` then measures blocks on it, one at a time.
    """
    from labkit import fleet
    from labkit.rig import kind_of

    _require_dask()
    # What measures the blocks may run in another folder.
    offered = str(Path(rig).resolve()) if rig.endswith(".toml") else rig
    if offered != "auto":
        kind_of(offered).check(offered)
    argv = fleet.worker_argv(scheduler, fleet.slug(rig), options)
    os.execvpe(argv[0], argv, {**os.environ, fleet.RIG: offered})


def _require_dask() -> None:
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise LabkitError(
            "Dask is not installed", remedy="make setup; or pip install 'PATH-OF-THE-CLONE[fleet]'"
        ) from None


def tls(options: Sequence[str | None]) -> Any:
    """Return what a client needs for TLS: from the files of the authority, certificate, and key."""
    if not any(options):
        return None
    _require_dask()
    from distributed.security import Security

    if not all(options):
        raise UsageError("TLS takes three files", remedy="--tls-ca-file, --tls-cert and --tls-key")
    ca, cert, key = options
    return Security(
        tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True
    )


def measure(
    run: Run, profile: str, scheduler: str, security: Any, *, samples: bool, say: Any
) -> Path:
    """Measure a study on the rigs of a scheduler, and return the folder of their campaigns."""
    _require_dask()
    import tqdm
    from distributed import Client

    from labkit import fleet
    from labkit.paths import project

    left_out = ("rig", "data", "new")
    parameters = {name: x for name, x in run.parameters.items() if name not in left_out}
    blocks = int(parameters["blocks"])
    folder = project(fleet.FOLDER) / run.called
    try:
        client = Client(scheduler, security=security, timeout=_CONNECT)
    except (OSError, ValueError) as error:
        raise LabkitError(
            f"the scheduler {scheduler} cannot be reached",
            why=str(error),
            remedy="start one with `dask scheduler`, and workers with `labkit worker`",
        ) from None
    with client:
        fleet.keep_parameters(folder, run.study, parameters)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        rigs = [one for one in workers if fleet.RESOURCE in one.get("resources", {})]
        say(f"{len(rigs)} rigs; dashboard: {client.dashboard_link}")
        if not rigs:
            say("waiting for a worker: labkit worker --scheduler ADDRESS --rig FILE")
        counts: Counter[str] = Counter()
        with tqdm.tqdm(total=blocks, desc=run.study, unit="block") as bar:

            def show(block: Block, done: int) -> None:
                counts[block.rig] += 1
                bar.n = done
                bar.set_postfix_str(", ".join(f"{rig}: {n}" for rig, n in sorted(counts.items())))

            task = partial(
                fleet.notebook_block,
                study=run.study,
                profile=profile,
                parameters=parameters,
                samples=samples,
            )
            numbers = range(1, blocks + 1)
            fleet.measure(client, task, numbers, folder=folder, study=run.study, say=show)
    return folder


COMMANDS = (worker,)
