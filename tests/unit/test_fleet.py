"""A campaign over several rigs: a real scheduler, and workers that are killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from fleet_tasks import LEVELS, STUDY, drawn_block, run

from labkit import cli, fleet
from labkit.data import campaigns
from labkit.errors import LabkitError
from labkit.paths import MARK

BLOCKS, PARAMETERS = 20, {"blocks": 20, "seconds": 0.05}


class Dask:
    """A scheduler, and workers that are processes of their own."""

    def __init__(self, address: str, home: Path) -> None:
        self.address, self.home = address, home
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, rig: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        argv = fleet.worker_argv(self.address, rig)
        with (self.home / f"{rig}.log").open("ab") as log:
            self.workers[rig] = subprocess.Popen(
                argv, env=env, cwd=self.home, stdout=log, stderr=log
            )

    def kill(self, rig: str) -> None:
        self.workers[rig].kill()
        self.workers[rig].wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    """Run a scheduler with the workers that a test starts, in a project of its own."""
    from distributed import LocalCluster

    home = tmp_path / "project"
    (home / MARK).parent.mkdir(parents=True)
    (home / MARK).touch()
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        found = Dask(cluster.scheduler_address, home)
        try:
            yield found
        finally:
            for rig in found.workers:
                found.kill(rig)


def test_blocks_of_killed_workers_are_measured_once_by_others(dask: Dask, tmp_path: Path) -> None:
    from distributed import Client

    rigs, over, kills = ("a", "b", "c"), threading.Event(), Counter[str]()
    folder, numbers = tmp_path / "all" / STUDY, range(1, BLOCKS + 1)
    rng, said = random.Random(5), list[str]()

    def kill() -> None:
        while not over.wait(rng.uniform(0.3, 1.5)) and kills.total() < 4:
            rig = rng.choice(rigs)
            dask.kill(rig)
            kills[rig] += 1
            dask.start(rig)

    for rig in rigs:
        dask.start(rig)
    task = partial(drawn_block, parameters=PARAMETERS)
    with Client(dask.address) as client:
        client.wait_for_workers(3, timeout=120)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            fleet.distribute(client, task, numbers, folder, said.append)
        finally:
            over.set()
            killer.join()
        assert len(said) == BLOCKS and said[-1].endswith("0 are left") and kills
        fleet.distribute(client, task, numbers, folder, said.append)
        assert len(said) == BLOCKS, "a block was measured again"
    found = campaigns(folder)
    rows = [
        (one.path.parent.name, *row)
        for one in found
        for row in one.ok[["block", "trial"]].itertuples(index=False)
    ]
    assert len(rows) == len(set(rows)) == BLOCKS * len(LEVELS)
    assert len({(rig, block) for rig, block, _ in rows}) == BLOCKS
    # What a killed worker ran has ended too.
    files = (dask.home / fleet.FOLDER).rglob("processes")
    left = {int(pid) for file in files for pid in file.read_text().split()}
    for _ in range(600):
        left = {pid for pid in left if psutil.pid_exists(pid)}
        if not left:
            break
        time.sleep(0.1)
    assert not left


def test_a_block_that_fails_is_an_error_with_its_reason(dask: Dask, tmp_path: Path) -> None:
    from distributed import Client

    dask.start("broken")
    task = partial(drawn_block, parameters=PARAMETERS)
    with Client(dask.address) as client, pytest.raises(LabkitError, match="2 of 2") as caught:
        fleet.distribute(client, task, [1, 2], tmp_path / "x", print)
    assert "the rig is on fire" in caught.value.why


def test_a_block_is_whole_or_measured_again(tmp_path: Path) -> None:
    folder = tmp_path / "all" / STUDY
    path, _ = (run({**PARAMETERS, "data": tmp_path, "seconds": 0}, block) for block in (1, 2))
    for text in ("short", "much longer", "short"):  # sessions of later blocks are added
        (path / "sessions.json").write_text(text)
        fleet.store(("rig", fleet.pack(path, 2)), folder)
    assert (folder / "rig" / path.name / "sessions.json").read_text() == "much longer"
    assert fleet.measured_blocks(folder) == {2}
    next(folder.rglob("b02-p03-*/trial.json")).unlink()
    assert fleet.measured_blocks(folder) == set()
    fleet.store(("rig", fleet.pack(path, 2)), folder)
    assert fleet.measured_blocks(folder) == {2}


def test_a_scheduler_that_does_not_answer_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "rps", "-P", "tiny", "--scheduler", "nonsense://127.0.0.1:9"])
    assert stop.value.code == 1
    assert "nonsense://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
