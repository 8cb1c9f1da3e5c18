"""A campaign over several rigs: a real scheduler, and workers that are killed."""

import os
import random
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest
from made_up import write

from labkit import cli, studies
from labkit.data import campaigns
from labkit.errors import LabkitError
from labkit.paths import MARK

BLOCKS, TRIALS, NAME = 12, 3, "20260101-000000-abc"

#: `labkit run` without a rig: copies what is missing of a block, trial by trial.
RUN = """
import os, pathlib, shutil, sys, time, yaml
given = yaml.safe_load(pathlib.Path(sys.argv[sys.argv.index("-P") + 1]).read_text())
if given["rig"] == "broken":
    sys.exit("the rig is on fire")
source = pathlib.Path(given["source"])
folder = pathlib.Path(given["data"], source.parent.name, source.name)
(folder / "trials").mkdir(parents=True, exist_ok=True)
shutil.copy(source / "plan.json", folder)
with (folder / "processes").open("a") as file:
    file.write(f"{os.getpid()} ")
for trial in sorted(source.glob("trials/b%02d-*" % given["only"][0])):
    if not (folder / "trials" / trial.name).exists():
        time.sleep(0.1)
        shutil.copytree(trial, folder / str(os.getpid()))
        (folder / str(os.getpid())).rename(folder / "trials" / trial.name)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The trials that the workers measure."""
    folder = tmp_path_factory.mktemp("source") / "made-up" / NAME
    write(folder, {"n": [*range(TRIALS)]}, lambda *at: {"ns": 1.0}, blocks=BLOCKS)
    return folder


@pytest.fixture
def workers(tmp_path):
    """A client with the address of its scheduler, the folder of workers, and how to start one."""
    from distributed import Client, LocalCluster

    home, started = tmp_path / "project", {}
    (home / MARK).parent.mkdir(parents=True)
    (home / MARK).touch()
    command = (sys.executable, "-c", RUN)
    (home / "stub.py").write_text(f"from labkit import studies\nstudies.COMMAND = {command!r}\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}

    def start(rig):
        """Start a worker, in place of the one that has the rig."""
        if rig in started:
            started[rig].kill()
            started[rig].wait()
        argv = studies.worker_argv(cluster.scheduler_address, rig, ["--preload", "stub.py"])
        with (home / f"{rig}.log").open("ab") as log:
            started[rig] = subprocess.Popen(argv, env=env, cwd=home, stdout=log, stderr=log)

    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        try:
            yield client, home, start
        finally:
            for process in started.values():
                process.kill()
                process.wait()


def task(source):
    parameters = {"source": str(source)}
    return partial(studies.measure_block, study="made-up", parameters=parameters, name="tiny")


def test_blocks_of_killed_workers_are_measured_once_by_others(workers, source, tmp_path):
    client, home, start = workers
    rigs, over, kills = ("a", "b", "c"), threading.Event(), []
    folder, numbers, lines = tmp_path / "all" / "made-up", range(1, BLOCKS + 1), []
    drawn = random.Random(5)

    def kill():
        while not over.wait(drawn.uniform(0.2, 0.6)) and len(kills) < 4:
            kills.append(drawn.choice(rigs))
            start(kills[-1])

    for rig in rigs:
        start(rig)
    client.wait_for_workers(3, timeout=120)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        studies.distribute(client, task(source), numbers, folder, lines.append)
    finally:
        over.set()
        killer.join()
    assert len(lines) == BLOCKS and lines[-1].endswith("0 are left") and kills
    studies.distribute(client, task(source), numbers, folder, lines.append)
    assert len(lines) == BLOCKS, "a block was measured again"
    rows = [
        (one.path.parent.name, *row)
        for one in campaigns(folder)
        for row in one.ok[["block", "trial"]].itertuples(index=False)
    ]
    assert len(rows) == len(set(rows)) == BLOCKS * TRIALS
    assert len({(rig, block) for rig, block, _ in rows}) == BLOCKS
    # The processes of killed workers have ended too.
    files = (home / studies.FLEET).rglob("processes")
    left = {int(pid) for file in files for pid in file.read_text().split()}
    deadline = time.monotonic() + 60
    while left := {*filter(psutil.pid_exists, left)}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_block_that_fails_is_an_error_with_its_reason(workers, source, tmp_path):
    client, _, start = workers
    start("broken")
    with pytest.raises(LabkitError, match="2 of 2") as caught:
        studies.distribute(client, task(source), [1, 2], tmp_path / "x", print)
    assert "the rig is on fire" in caught.value.why


def test_a_block_is_whole_or_measured_again(source, tmp_path):
    folder = tmp_path / "all" / "made-up"
    for text in ("short", "much longer", "short"):  # sessions of later blocks are added
        (source / "sessions.json").write_text(text)
        studies.store(("rig", studies.files_of(source, 2)), folder)
    assert (folder / "rig" / NAME / "sessions.json").read_text() == "much longer"
    assert studies.measured_blocks(folder) == {2}
    next(folder.rglob("b02-p03-*/trial.json")).unlink()
    assert studies.measured_blocks(folder) == set()
    studies.store(("rig", studies.files_of(source, 2)), folder)
    assert studies.measured_blocks(folder) == {2}


def test_a_scheduler_that_does_not_answer_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "rps", "-P", "tiny", "--scheduler", "nonsense://127.0.0.1:9"])
    assert stop.value.code == 1
    assert "nonsense://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
