"""A campaign over many rigs: workers of Dask offer rigs, and whole blocks are their tasks.

A block never spans rigs, so trials are paired as on one rig, and each rig has a campaign of its
own with the blocks that it measured. Dask gives the block of a worker that is lost to another one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from labkit import status
from labkit.data import load
from labkit.design import digest
from labkit.errors import LabkitError
from labkit.paths import project

if TYPE_CHECKING:
    from distributed import Client

    from labkit.studies import Run, Say

#: Where campaigns are collected, and in ``worker`` where workers keep theirs.
FOLDER = "data/local/fleet"
#: The command line that measures a block.
COMMAND = (sys.executable, "-m", "labkit.cli")
#: A measured block: its rig, and a tar archive of its files in its campaign's folder.
Block = tuple[str, bytes]


def worker_argv(scheduler: str, rig: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a worker that offers a rig; `options` are those of `dask worker`."""
    argv = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-dashboard"]
    # No nanny: a worker that is killed is lost at once. One task at a time has the rig.
    argv += ["--no-nanny", "--nthreads", "1", "--resources", "rig=1"]
    return [*argv, "--name", f"{rig}@{os.uname().nodename}-{os.getpid()}", *options]


def measure_block(number: int, *, study: str, parameters: Mapping[str, Any], name: str) -> Block:
    """Measure one block on this worker's rig by `labkit run`, in a campaign that has `name`."""
    from distributed import get_worker

    spec = str(get_worker().name).rpartition("@")[0]
    rig = f"{Path(spec).stem.replace(':', '-')}-{os.uname().nodename}"
    folder = project(FOLDER) / "worker" / rig / name
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / f"{study}.yaml"
    given = {**parameters, "rig": spec, "data": str(folder), "only": [number]}
    profile.write_text(yaml.safe_dump(given))
    # A worker that is killed must not leave a process that has the rig.
    argv = ["setpriv", "--pdeathsig", "TERM", *COMMAND, "run", study, "--wait", "-P", str(profile)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        what, why = f"block {number} of {study} failed on rig {rig}", ended.stderr.strip()[-1500:]
        raise LabkitError(what, why=why)
    return rig, pack(load(folder / study).path, number)


def pack(campaign: Path, number: int) -> bytes:
    """Return an archive of one block of a campaign, with the plan and the sessions."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in sorted(campaign.rglob("*")):
            name = path.relative_to(campaign).as_posix()
            wanted = name in ("plan.json", "sessions.json") or f"/b{number:02d}-" in f"/{name}"
            if wanted and path.is_file():
                archive.add(path, f"{campaign.name}/{name}")
    return content.getvalue()


def store(block: Block, folder: Path) -> None:
    """Write the files of a block; a trial is complete or absent."""
    rig, content = block
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as name,
        tarfile.open(fileobj=io.BytesIO(content)) as archive,
    ):
        archive.extractall(name, filter="data")
        files = [path for path in Path(name).rglob("*") if path.is_file()]
        # A trial is there when its trial.json is.
        for path in sorted(files, key=lambda path: path.name == "trial.json"):
            target = folder / rig / path.relative_to(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Sessions are added to, and blocks may come out of order.
            if not target.exists() or target.stat().st_size <= path.stat().st_size:
                path.replace(target)


def measured_blocks(folder: Path) -> set[int]:
    """Return the blocks of which one of the rigs has measured every trial."""
    counts = [status.blocks(plan.parent) for plan in folder.glob("*/*/plan.json")]
    return {n for found in counts for n, (planned, done, _) in found.items() if done == planned}


def measure(run: Run, scheduler: str, *, say: Say) -> Path:
    """Measure a study on the rigs of a scheduler, and return the folder of their campaigns."""
    try:
        from distributed import Client
    except ImportError:
        raise LabkitError("Dask is not installed", remedy="make setup") from None
    kept = {key: value for key, value in run.parameters.items() if key not in ("rig", "data")}
    # Blocks of other parameters are another campaign.
    name = f"{Path(run.profile).stem}-{digest(kept)}"
    folder = project(FOLDER) / name / run.study
    try:
        client = Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        what = f"the scheduler {scheduler} cannot be reached"
        remedy = "start one with `dask scheduler`, and workers with `labkit worker`"
        raise LabkitError(what, why=str(error), remedy=remedy) from None
    with client:
        say(f"blocks go to the workers of {scheduler}; dashboard: {client.dashboard_link}")
        task = partial(measure_block, study=run.study, parameters=kept, name=name)
        distribute(client, task, range(1, kept["blocks"] + 1), folder, say)
    return folder


def distribute(
    client: Client, task: Callable[[int], Block], blocks: Iterable[int], folder: Path, say: Say
) -> None:
    """Send the blocks that `folder` lacks to workers with rigs, and store each.

    Blocks that fail are an error after the others were stored.
    """
    from distributed import as_completed

    todo = sorted(set(blocks) - measured_blocks(folder))
    futures = client.map(task, todo, resources={"rig": 1}, retries=1, pure=False)
    numbers = {future.key: number for future, number in zip(futures, todo, strict=True)}
    failed = []
    try:
        for future in as_completed(futures):
            number = numbers.pop(future.key)
            # A block that was lost with its worker by now is measured again: this waits for it.
            if error := "cancelled" if future.cancelled() else future.exception():
                failed.append(f"block {number}: {error}")
                continue
            block = future.result()
            store(block, folder)
            say(f"block {number} was measured on {block[0]}; {len(numbers)} are left")
    finally:
        client.cancel(futures)
    if failed:
        what, why = f"{len(failed)} of {len(todo)} blocks failed", "; ".join(failed)[:1500]
        raise LabkitError(what, where=str(folder), why=why, remedy="the same command goes on")
