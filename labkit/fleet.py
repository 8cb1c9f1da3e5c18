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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from labkit.data import campaigns, load
from labkit.errors import LabkitError
from labkit.paths import project
from labkit.process import BLOCKS

if TYPE_CHECKING:
    from distributed import Client

#: Environment variable of a worker: the rig that it offers.
RIG = "LABKIT_RIG"
#: The need of a task: a rig, which has one task at a time.
RESOURCE = "rig"
#: Where campaigns are collected, and in ``worker`` where workers keep theirs.
FOLDER = "data/local/fleet"
#: The command line that measures a block.
COMMAND = (sys.executable, "-m", "labkit.cli")


@dataclass(frozen=True)
class Block:
    """One measured block: its rig, and a tar archive of its files in its campaign's folder."""

    rig: str
    archive: bytes


def worker_argv(scheduler: str, rig: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a worker that offers a rig; `options` are those of `dask worker`."""
    argv = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-dashboard"]
    # No nanny: a worker that is killed is lost at once.
    argv += ["--no-nanny", "--nthreads", "1", "--resources", f"{RESOURCE}=1"]
    return [*argv, "--name", f"{Path(rig).stem}-{os.uname().nodename}-{os.getpid()}", *options]


def measure_block(
    number: int, *, study: str, profile: str, parameters: Mapping[str, Any], name: str
) -> Block:
    """Measure one block on this worker's rig by `labkit run`, in a campaign that has `name`."""
    spec = os.environ.get(RIG, "auto")
    rig = f"{Path(spec).stem.replace(':', '-')}-{os.uname().nodename}"
    folder = project(FOLDER) / "worker" / rig / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{study}.yaml"
    file.write_text(yaml.safe_dump({**parameters, "rig": spec, "data": str(folder)}))
    # A worker that is killed must not leave a process that has the rig.
    argv = ["setpriv", "--pdeathsig", "TERM", *COMMAND, "run", study, "--wait"]
    argv += ["--profile", profile, "--file", str(file)]
    environment = {**os.environ, BLOCKS: str(number)}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        what, why = f"block {number} of {study} failed on rig {rig}", ended.stderr.strip()[-1500:]
        raise LabkitError(what, why=why)
    return pack(load(folder / study).path, number, rig)


def pack(campaign: Path, number: int, rig: str) -> Block:
    """Return one block of a campaign, with the plan and the sessions."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in sorted(campaign.rglob("*")):
            name = path.relative_to(campaign).as_posix()
            wanted = name in ("plan.json", "sessions.json") or f"/b{number:02d}-" in f"/{name}"
            if wanted and path.is_file():
                archive.add(path, f"{campaign.name}/{name}")
    return Block(rig, content.getvalue())


def store(block: Block, folder: Path) -> None:
    """Write the files of a block; a trial is complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as name,
        tarfile.open(fileobj=io.BytesIO(block.archive)) as archive,
    ):
        archive.extractall(name, filter="data")
        files = [path for path in Path(name).rglob("*") if path.is_file()]
        # A trial is there when its trial.json is.
        for path in sorted(files, key=lambda path: path.name == "trial.json"):
            target = folder / block.rig / path.relative_to(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Sessions are added to, and blocks may come out of order.
            if not target.exists() or target.stat().st_size <= path.stat().st_size:
                path.replace(target)


def measured_blocks(folder: Path) -> set[int]:
    """Return the blocks of which one of the rigs has measured every trial."""
    done: set[int] = set()
    for one in campaigns(folder):
        counts = one.ok.drop_duplicates(["block", "position"]).groupby("block").size()
        done |= {block for block, planned in one.planned.items() if counts.get(block, 0) >= planned}
    return done


def measure(
    client: Client,
    task: Callable[[int], Block],
    blocks: Iterable[int],
    *,
    folder: Path,
    say: Callable[[str], None] = print,
) -> list[int]:
    """Send the blocks that `folder` lacks to workers with rigs; store each, return their numbers.

    Blocks that fail are an error after the others were stored.
    """
    from distributed import as_completed

    todo = sorted(set(blocks) - measured_blocks(folder))
    futures = client.map(task, todo, resources={RESOURCE: 1}, retries=1, pure=False)
    numbers = {future.key: number for future, number in zip(futures, todo, strict=True)}
    came: list[int] = []
    failed: dict[int, Any] = {}
    try:
        for future in as_completed(futures):
            number = numbers[future.key]
            if future.status != "finished":
                failed[number] = future.exception()
                continue
            block = future.result()
            store(block, folder)
            came.append(number)
            say(f"block {number} was measured on {block.rig}; {len(todo) - len(came)} are left")
    finally:
        client.cancel(futures)
    if failed:
        raise LabkitError(
            f"{len(failed)} of {len(todo)} blocks failed",
            where=str(folder),
            why="; ".join(f"block {number}: {error}" for number, error in failed.items())[:1500],
            remedy="the same command measures the rest",
        )
    return came
