"""A campaign over many rigs: workers of Dask offer rigs, and whole blocks are their tasks.

A block never spans rigs, so trials are paired as on one rig. Each rig has a campaign of its own,
with the blocks that it measured; `labkit compare-datasets` compares them. Dask schedules: it gives
the blocks of a worker that is lost to another one, and shows what runs on its dashboard.

Workers send the records of trials, with their metrics; samples and logs stay with them unless they
are asked for.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from labkit.campaign.store import newest, write
from labkit.data import campaigns, load
from labkit.errors import DatasetError, LabkitError, PlanMismatch
from labkit.paths import project
from labkit.process import BLOCKS

if TYPE_CHECKING:
    from distributed import Client

#: Environment variable of a worker: the rig that it offers.
RIG = "LABKIT_RIG"
#: What a task needs of a worker: a rig, which has one task at a time.
RESOURCE = "rig"
#: How often Dask retries a failed block, and how often blocks are submitted at most: Dask gives up
#: on a block after losing several workers to it.
RETRIES, ROUNDS = 1, 20
#: Blocks that a scheduler knows of at once, or twice its workers if that is more: each takes about
#: 8 kB of its memory.
AHEAD = 4_000
#: Where workers keep what they measured, and where it is collected.
FOLDER = "data/local/fleet"
#: The names of the campaigns and files that a worker may send.
_CAMPAIGN = re.compile(r"\w[\w.-]{0,100}", re.ASCII)
_FILE = re.compile(
    r"(plan|sessions)\.json|samples\.parquet/b\d+-p\d+-a\d+\.parquet"
    r"|trials/b\d+-p\d+-a\d+/[\w-][\w.-]{0,100}",
    re.ASCII,
)


@dataclass(frozen=True)
class Block:
    """One block as a worker measured it.

    Parameters
    ----------
    rig : str
        The name of the rig, which tells it apart from the others.
    campaign : str
        The name of the campaign's folder.
    files : mapping of str to bytes
        Its files, by their paths below the campaign's folder.
    """

    rig: str
    campaign: str
    files: Mapping[str, bytes]


def worker_argv(scheduler: str, rig: str, more: Sequence[str] = ()) -> list[str]:
    """Return the command of a worker that offers a rig; `more` are options of ``dask worker``."""
    argv = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler]
    # No nanny: a worker that is killed is lost at once. The name tells the rigs apart.
    argv += ["--no-nanny", "--nthreads", "1", "--resources", f"{RESOURCE}=1", "--no-dashboard"]
    return [*argv, "--name", f"{rig}-{os.uname().nodename}-{os.getpid()}", *more]


def notebook_block(
    number: int, study: str, profile: str, parameters: Mapping[str, Any], samples: bool
) -> Block:
    """Measure one block on this worker's rig, by executing the study's notebook.

    A process of its own runs it, since notebooks and signals need a main thread.
    """
    rig = os.environ.get(RIG, "auto")
    # A campaign has the parameters that it began with.
    kept = json.dumps(parameters, sort_keys=True, default=str)
    folder = f"{profile}-{hashlib.sha256(kept.encode()).hexdigest()[:8]}"
    data = project(FOLDER) / "worker" / slug(rig) / folder
    # A worker that is killed would leave a process that has the rig.
    argv = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "labkit.cli"]
    argv += ["run", study, "--wait", "--rig", rig, "-P", profile]
    for name, value in {**parameters, "data": str(data)}.items():
        argv += ["-p", name, yaml.safe_dump(value, default_flow_style=True).split("\n...")[0]]
    env = {**os.environ, BLOCKS: str(number)}
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LabkitError(
            f"block {number} of {study} failed on rig {rig}", why=ended.stderr.strip()[-1500:]
        )
    block = read_block(newest(data / study) or data / study, number, samples=samples)
    # Files of one rig may be copied to describe another.
    return replace(block, rig=f"{block.rig} {os.uname().nodename}")


def read_block(campaign: Path, number: int, *, samples: bool) -> Block:
    """Return the files of one block of a campaign, and those that belong to every block."""
    paths = [campaign / "plan.json", campaign / "sessions.json"]
    trials = f"trials/b{number:02d}-*"
    if samples:
        paths += campaign.glob(f"samples.parquet/b{number:02d}-*")
        paths += campaign.glob(f"{trials}/*.*")
    else:
        paths += campaign.glob(f"{trials}/trial.json")
    files = {str(path.relative_to(campaign)): path.read_bytes() for path in sorted(paths)}
    return Block(str(load(campaign).rig["name"]), campaign.name, files)


def store_block(block: Block, folder: Path, study: str) -> Path:
    """Write a block to ``<folder>/<rig>/<study>/<campaign>``; a trial is complete or absent."""
    # Names come from another machine.
    if not _CAMPAIGN.fullmatch(block.campaign):
        raise DatasetError(f"a worker sent a campaign with an invalid name: {block.campaign!r}")
    for name in block.files:
        if not _FILE.fullmatch(name):
            raise DatasetError(f"a worker sent a file that no campaign has: {name!r}")
    campaign = folder / slug(block.rig) / study / block.campaign
    # A trial is there when its trial.json is.
    for name in sorted(block.files, key=lambda name: name.endswith("/trial.json")):
        path, content = campaign / name, block.files[name]
        # Sessions are added to; blocks may come out of order.
        if not path.exists() or path.stat().st_size < len(content):
            write(path, content)
    return campaign


def slug(rig: str) -> str:
    """Return the name of a rig as the name of a folder."""
    name = Path(rig).stem if rig.endswith(".toml") else rig
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".") or "rig"


def keep_parameters(folder: Path, study: str, parameters: Mapping[str, Any]) -> None:
    """Write a study's parameters beside its blocks.

    Raises
    ------
    PlanMismatch
        Blocks were measured with other parameters than these.
    """
    path, given = folder / f"{study}.parameters.json", json.loads(json.dumps(parameters))
    measured = path.is_file() and any(folder.glob(f"*/{study}/*/plan.json"))
    if measured and (kept := json.loads(path.read_text())) != given:
        changed = sorted(one for one in kept | given if kept.get(one) != given.get(one))
        raise PlanMismatch(
            "the blocks that are here were measured with other parameters",
            where=str(folder),
            why=", ".join(changed),
            remedy="measure with the same ones, or move the folder away",
        )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(given, indent=1))


def measured_blocks(folder: Path, study: str) -> set[int]:
    """Return the blocks of which some rig has measured every trial."""
    done: set[int] = set()
    rigs = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    for rig in sorted(rigs):
        for campaign in campaigns(rig / study):
            ok = campaign.ok.drop_duplicates(["block", "position"])
            counts = ok.groupby("block").size()
            done |= {block for block, n in campaign.planned.items() if counts.get(block, 0) >= n}
    return done


def measure(
    client: Client,
    task: Callable[[int], Block],
    blocks: Iterable[int],
    *,
    folder: Path,
    study: str,
    say: Callable[[Block, int], None] = lambda block, done: None,
) -> list[int]:
    """Send blocks to the workers that offer rigs, and store each as it comes.

    Parameters
    ----------
    client : distributed.Client
        Connected to the scheduler.
    task : callable
        Takes the number of a block and returns it, on the worker.
    blocks : iterable of int
        Numbers of blocks; those that are in `folder` already are not measured again.
    folder : Path
        Where the rigs' campaigns are stored.
    study : str
        The study's name.
    say : callable
        Receives each block, and how many are done.

    Returns
    -------
    list of int
        The blocks that were measured now, in the order in which they came.

    Raises
    ------
    LabkitError
        Blocks failed, or lost their workers too often; the others are stored.
    """
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    wanted = sorted(set(blocks))
    done = measured_blocks(folder, study)
    todo = [block for block in wanted if block not in done]
    came: list[int] = []
    errors: dict[int, BaseException] = {}
    for _ in range(ROUNDS):
        errors = {}
        for number, outcome in _round(client, task, [b for b in todo if b not in came], study):
            if isinstance(outcome, BaseException):
                errors[number] = outcome
                continue
            store_block(outcome, folder, study)
            came.append(number)
            say(outcome, len(wanted) - len(todo) + len(came))
        if not errors:
            return came
        # What failed on a worker that lived would fail again.
        if not any(
            isinstance(error, (KilledWorker, FutureCancelledError)) for error in errors.values()
        ):
            break
    number, error = next(iter(errors.items()))
    raise LabkitError(
        f"{len(errors)} of {len(todo)} blocks failed",
        where=str(folder),
        why=f"block {number}: {error}"[-1500:],
        remedy="the same command measures the rest",
    ) from error


def _round(
    client: Client, task: Callable[[int], Block], todo: Sequence[int], study: str
) -> Iterator[tuple[int, Block | BaseException]]:
    """Yield each block as it comes, or why it failed."""
    from distributed import as_completed

    # With a key of its own each block is a task of its own, whatever the scheduler remembers.
    keys = {f"{study}-{uuid4().hex}-block-{block}": block for block in todo}
    tasks = (
        client.submit(task, block, key=key, resources={RESOURCE: 1}, retries=RETRIES, pure=False)
        for key, block in keys.items()
    )
    ahead = max(AHEAD, 2 * len(client.scheduler_info(n_workers=-1)["workers"]))
    running = {future.key: future for future in itertools.islice(tasks, ahead)}
    try:
        pool = as_completed(running.values())
        for future in pool:
            finished = future.status == "finished"
            outcome = future.result() if finished else future.exception()
            yield keys[future.key], outcome or RuntimeError(future.status)
            del running[future.key]
            for more in itertools.islice(tasks, 1):
                running[more.key] = more
                pool.add(more)
    finally:
        client.cancel(list(running.values()))
