"""The studies of this clone: parameters, and campaigns measured here or on many rigs."""

import os
import random
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from made_up import write
from processes import wait_for

from labkit import cli, studies
from labkit.data import campaigns
from labkit.errors import HostLost, LabkitError, RigInUse, TimeOver, UsageError
from labkit.paths import MARK, project

DONE = "ok,ok,ok,ok,ok,"


def campaign(folder, outcomes=""):
    """Write a campaign of three blocks of two trials, as far as `outcomes` has their attempts."""
    trials = [
        [{"ns": 1} if word == "ok" else None for word in one.split()] for one in outcomes.split(",")
    ]
    trials += [[]] * 6
    levels = {"n": [0, 1]}
    write(folder, levels, lambda at, block: trials[2 * block - 2 + at["n"]], blocks=3)


def test_parameters_of_a_profile_a_file_and_the_command_line(tmp_path):
    runs = studies.plan_runs([], "tiny", {"blocks": 3})
    assert len(runs) == len(list(project("notebooks/studies").glob("*.ipynb")))
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")
    assert [runs[0]] * 2 == studies.plan_runs(["10", "10-affinity-spinning"], "tiny", {"blocks": 3})
    (tmp_path / "low.yaml").write_text("messages: 7\nseed: 1\n")
    (run,) = studies.plan_runs(["affinity-spinning"], str(tmp_path / "low.yaml"), {"seed": 9})
    assert run.parameters == {"messages": 7, "seed": 9, "data": "data/local/low"}


@pytest.mark.parametrize("text", ["sed: 1", "- seed", "", "seed: [1"])
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError):
        studies.plan_runs(["rps"], str(tmp_path / "a.yaml"), {})


def test_a_study_is_executed_again_where_a_host_rebooted_or_the_rig_was_in_use(
    tmp_path, monkeypatch
):
    errors = [RigInUse("in use"), HostLost("host sut has rebooted")]
    seen, shown, holders = [], [], iter([7, 7, None, None, None])

    def execute(notebook, output, parameters, **more):
        seen.append(dict(parameters))
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(studies, "say", shown.append)
    monkeypatch.setattr(studies, "holder", lambda path: next(holders))
    monkeypatch.setattr(studies.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(studies.notebooks, "execute", execute)
    campaign(tmp_path / "echo", DONE + "ok")
    given = {"data": str(tmp_path), "new": True}
    run = studies.Run(Path("10-echo.ipynb"), "tiny", given)
    studies.measure(run, wait=True)
    # The campaign is resumed, not begun anew.
    assert seen == [given, given, {"data": str(tmp_path)}] and not [*holders]
    assert len(shown) == 2 and "host sut has rebooted" in shown[1]
    for error in (RigInUse("in use"), HostLost("again")):
        errors[:] = [error] * 99
        with pytest.raises(type(error)):
            studies.measure(run)


@pytest.mark.parametrize(
    ("outcomes", "given", "error"),
    [
        (DONE + "failed ok", {}, ""),
        ("ok,failed ok,ok", {"only": [1]}, ""),
        ("ok,failed ok,ok", {}, "of 6 planned trials 3 are left"),
        ("ok,failed ok,ok", {"only": [1, 2]}, "of 4 planned trials 1 are left"),
        ("ok,failed ok,ok,failed", {"minutes": 5}, "of 6 planned trials 1 failed and 2"),
    ],
)
def test_planned_trials_that_failed_or_are_left_are_an_error(tmp_path, outcomes, given, error):
    campaign(tmp_path / "echo", outcomes)
    run = studies.Run(Path("10-echo.ipynb"), "tiny", {"data": str(tmp_path), **given})
    with pytest.raises(LabkitError, match=error) if error else nullcontext() as caught:
        studies.check_complete(run)
    assert not error or isinstance(caught.value, TimeOver) == ("minutes" in given)


# Many rigs: a real scheduler, and workers that are killed.

BLOCKS, TRIALS, NAME = 12, 3, "20260101-000000-abc"

#: `labkit run` without a rig: copies what is missing of a block, trial by trial.
RUN = """
import json, os, pathlib, shutil, sys, time
given = json.loads(pathlib.Path(sys.argv[sys.argv.index("-P") + 1]).read_text())
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
def workers(tmp_path, monkeypatch, source):
    """How to measure blocks on workers in the folder of a project, and how to start one."""
    from distributed import LocalCluster

    started = {}
    (tmp_path / MARK).parent.mkdir(parents=True)
    (tmp_path / MARK).touch()
    command = (sys.executable, "-c", RUN)
    (tmp_path / "stub.py").write_text(f"from labkit import studies\nstudies.COMMAND = {command!r}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    monkeypatch.chdir(tmp_path)

    def start(rig):
        """Start a worker, in place of the one that has the rig."""
        if rig in started:
            started[rig].kill()
            started[rig].wait()
        argv = studies.worker_argv(cluster.scheduler_address, rig, ["--preload", "stub.py"])
        with Path(f"{rig}.log").open("ab") as log:
            started[rig] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def measure(blocks, say=print):
        monkeypatch.setattr(studies, "say", say)
        given = {"blocks": blocks, "source": str(source), "rig": "auto"}
        run = studies.Run(Path("10-made-up.ipynb"), "tiny", given)
        return studies.measure_on_rigs(run, cluster.scheduler_address)

    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        try:
            yield measure, start
        finally:
            for process in started.values():
                process.kill()
                process.wait()


def test_blocks_of_killed_workers_are_measured_once_by_others(workers):
    measure, start = workers
    rigs, over, kills, lines = ("a", "b", "c"), threading.Event(), [], []
    drawn = random.Random(5)

    def kill():
        while not over.wait(drawn.uniform(0.2, 0.6)) and len(kills) < 8:
            if len(lines) > 1:  # a block was measured
                kills.append(drawn.choice(rigs))
                start(kills[-1])

    for rig in rigs:
        start(rig)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        folder = measure(BLOCKS, lines.append)
    finally:
        over.set()
        killer.join()
    assert len(lines) == 1 + BLOCKS and lines[-1].endswith("0 are left") and kills
    measure(BLOCKS, lines.append)
    assert len(lines) == 2 + BLOCKS, "a block was measured again"
    rows = [
        (one.path.parent.name, *row)
        for one in campaigns(folder)
        for row in one.ok[["block", "trial"]].itertuples(index=False)
    ]
    assert len(rows) == len(set(rows)) == BLOCKS * TRIALS
    assert len({(rig, block) for rig, block, _ in rows}) == BLOCKS
    # A block without one of its trials is measured again.
    next(folder.rglob("b02-p03-*/trial.json")).unlink()
    measure(BLOCKS, lines.append)
    assert len(lines) == 4 + BLOCKS and lines[-1].startswith("block 2 was measured")
    # The processes of killed workers have ended too.
    files = Path(studies.FLEET).rglob("processes")
    left = {int(pid) for file in files for pid in file.read_text().split()}
    wait_for(lambda: not any(map(psutil.pid_exists, left)), 60)


def test_a_block_that_fails_is_an_error_with_its_reason(workers):
    measure, start = workers
    start("broken")
    with pytest.raises(LabkitError, match="2 of 2") as caught:
        measure(2)
    assert "the rig is on fire" in caught.value.why


def test_sessions_are_added_to_by_blocks_in_any_order(tmp_path):
    for text in (b"short", b"much longer", b"short"):
        studies.store({"rig/1/sessions.json": text}, tmp_path)
    assert (tmp_path / "rig/1/sessions.json").read_text() == "much longer"


def test_a_scheduler_that_does_not_answer_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "rps", "-P", "tiny", "--scheduler", "nonsense://127.0.0.1:9"])
    assert stop.value.code == 1
    assert "nonsense://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
