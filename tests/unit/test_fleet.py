"""A campaign over simulated rigs: a real scheduler, and workers that are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fleet_tasks import STUDY, failing_block, simulated_block, study

from labkit import fleet
from labkit.data import campaigns, load
from labkit.errors import DatasetError, LabkitError, PlanMismatch, UsageError
from labkit.fleet import Block, measure, measured_blocks, store_block
from labkit.process import BLOCKS as BLOCKS_VARIABLE
from labkit.rig import Rig
from labkit.rig.simulated import CAVEAT, Model, SimulatedRig
from labkit.tools import sfnt_pingpong

BLOCKS, TRIALS = 24, 6


@dataclass
class Dask:
    """A scheduler and its workers, each a process."""

    address: str
    folder: Path
    environment: dict[str, str]
    options: tuple[str, ...] = ()
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, rig: str) -> None:
        argv = fleet.worker_argv(self.address, rig, self.options)
        env = self.environment | {fleet.RIG: rig}
        log = (self.folder / f"{rig}.log").open("ab")
        self.workers[rig] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def kill(self, rig: str) -> None:
        self.workers[rig].kill()
        self.workers[rig].wait()

    def end_workers(self) -> None:
        for rig in self.workers:
            self.kill(rig)
        self.workers.clear()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    """Run a scheduler that takes encrypted connections only."""
    from distributed.security import Security

    folder, made = tmp_path_factory.mktemp("scheduler"), Security.temporary()
    pairs = (made.tls_ca_file, made.tls_scheduler_cert, made.tls_scheduler_key)
    for name, text in zip(("ca", "cert", "key"), pairs, strict=True):
        (folder / f"{name}.pem").write_text(text)
    options = ["--tls-ca-file", str(folder / "ca.pem"), "--tls-cert", str(folder / "cert.pem")]
    yield from running(folder, *options, "--tls-key", str(folder / "key.pem"))


@pytest.fixture
def dask(scheduler: Dask) -> Iterator[Dask]:
    """Return the scheduler, which has the workers that a test starts; they end with it."""
    yield scheduler
    scheduler.end_workers()


def running(folder: Path, *options: str) -> Iterator[Dask]:
    file = folder / "scheduler.json"
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    argv = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    argv += ["--protocol", "tls", "--port", "0", "--no-dashboard"]
    argv += ["--scheduler-file", str(file), *options]
    with (folder / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
    try:
        for _ in range(1200):
            if file.exists() and '"address"' in file.read_text():
                break
            time.sleep(0.1)
        yield Dask(json.loads(file.read_text())["address"], folder, environment, options)
    finally:
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait()


def client(dask: Dask) -> Any:
    from distributed import Client

    from labkit.cli.fleet import tls

    files = [str(dask.folder / f"{name}.pem") for name in ("ca", "cert", "key")]
    return Client(dask.address, timeout="60s", security=tls(files))


def check_blocks(folder: Path, blocks: int) -> None:
    """Assert that every block is there once, whole, of one rig, with that rig's numbers."""
    data = campaigns(folder)
    conditions = {
        (*map(str, dict(condition.levels).values()), condition.repeat): condition
        for condition in study().plan(SimulatedRig.named(), blocks=1, seed=1).design.conditions
    }
    by_block: dict[int, set[str]] = {}
    for one in data:
        for row in one.trials.to_dict("records"):
            by_block.setdefault(row["block"], set()).add(one.rig["name"])
            condition = conditions[row["placement"], row["wait"], row["repeat"]]
            drawn = Model(samples=50).draw(one.rig["name"], condition, row["block"])
            assert row["rtt_ns_median"] == float(np.median(drawn.samples["rtt_ns"]))
    assert sorted(by_block) == list(range(1, blocks + 1))
    assert all(len(rigs) == 1 for rigs in by_block.values())
    assert sum(len(one.trials) for one in data) == TRIALS * blocks
    assert len({one.rig["name"] for one in data}) >= 2


def test_blocks_of_killed_workers_are_measured_once_by_others(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "AHEAD", 7)
    folder, over = tmp_path / "collected", threading.Event()
    for rig in ("a", "b", "c"):
        dask.start(rig)
    rng, kills = random.Random(5), []

    def kill() -> None:
        while not over.wait(rng.uniform(0.5, 2.0)) and len(kills) < 4:
            rig = rng.choice(list(dask.workers))
            dask.kill(rig)
            kills.append(rig)
            dask.start(rig)

    task = partial(simulated_block, data=str(tmp_path / "own"), blocks=BLOCKS, seconds=0.05)
    with client(dask) as connection:
        connection.wait_for_workers(3, timeout=120)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            came = measure(connection, task, range(1, BLOCKS + 1), folder=folder, study=STUDY)
        finally:
            over.set()
            killer.join()
        assert sorted(came) == list(range(1, BLOCKS + 1))
        # What is there already is not measured again.
        again = measure(connection, task, range(1, BLOCKS + 1), folder=folder, study=STUDY)
    assert again == [] and kills
    check_blocks(folder, BLOCKS)


def test_a_block_that_fails_everywhere_is_an_error_with_its_reason(
    dask: Dask, tmp_path: Path
) -> None:
    dask.start("a")
    with (
        client(dask) as connection,
        pytest.raises(LabkitError, match="2 of 2 blocks failed") as caught,
    ):
        measure(connection, failing_block, [1, 2], folder=tmp_path / "x", study=STUDY)
    assert "no block" in caught.value.why


def test_files_of_a_worker_are_those_of_a_campaign(tmp_path: Path) -> None:
    for name in ("../plan.json", "/etc/passwd", "trials/../../x", "trials/b01-p01-a1/../../y"):
        block = Block("rig", "20260101-000000-abc", {name: b"x"})
        with pytest.raises(DatasetError, match="no campaign has"):
            store_block(block, tmp_path, STUDY)
    for campaign in ("../../x", "..", ""):
        with pytest.raises(DatasetError, match="invalid name"):
            store_block(Block("rig", campaign, {"plan.json": b"x"}), tmp_path, STUDY)
    stored = store_block(Block("..", "20260101-000000-abc", {"plan.json": b"x"}), tmp_path, STUDY)
    assert list(tmp_path.rglob("*.json")) == [stored / "plan.json"]


def test_blocks_of_other_parameters_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    fleet.keep_parameters(folder, STUDY, {"blocks": 3, "levels": ["x"]})
    fleet.keep_parameters(folder, STUDY, {"blocks": 3, "levels": ("a",)})  # nothing was measured
    assert measured_blocks(folder, STUDY) == set()
    plan = folder / "rig" / STUDY / "20260101-000000-abc" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("{}")
    fleet.keep_parameters(folder, STUDY, {"blocks": 3, "levels": ["a"]})
    with pytest.raises(PlanMismatch) as caught:
        fleet.keep_parameters(folder, STUDY, {"blocks": 4, "levels": ["b"]})
    assert caught.value.why == "blocks, levels"


def test_a_block_is_whole_or_measured_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(fleet.RIG, "a")
    monkeypatch.setenv(BLOCKS_VARIABLE, "")  # what the task sets is undone at the end
    block = simulated_block(2, str(tmp_path / "own"), 3, 0.0)
    store_block(block, tmp_path / "all", STUDY)
    assert measured_blocks(tmp_path / "all", STUDY) == {2}
    torn = next((tmp_path / "all").rglob("b02-p03-*/trial.json"))
    torn.unlink()
    assert measured_blocks(tmp_path / "all", STUDY) == set()
    store_block(block, tmp_path / "all", STUDY)
    assert measured_blocks(tmp_path / "all", STUDY) == {2}


def test_sessions_of_later_blocks_are_added(tmp_path: Path) -> None:
    long, short = ({"sessions.json": b"x" * n} for n in (9, 4))
    for files in (short, long, short):
        stored = store_block(Block("rig", "20260101-000000-abc", files), tmp_path, STUDY)
        kept = (stored / "sessions.json").read_bytes()
    assert kept == long["sessions.json"]


def test_a_simulated_campaign_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(BLOCKS_VARIABLE, raising=False)
    with Rig.open("simulated:class", say=lambda text: None) as rig:
        data = study().plan(rig, blocks=6, seed=1).run(tmp_path)
    assert data.rig["kind"] == "simulated" and data.rig["caveats"] == [CAVEAT]
    assert len(data.ok) == 36


def test_a_study_that_needs_hosts_is_refused_on_a_simulated_rig() -> None:
    rig = SimulatedRig.named()
    with pytest.raises(UsageError, match="no network 'overlay'"), rig.networks(["overlay"]):
        pass
    with pytest.raises(UsageError, match="no host for storage"), rig.storage({"volume": ["apps"]}):
        pass
    assert sfnt_pingpong.lacking(rig.targets) == {}


def test_two_names_are_two_rigs_and_one_name_is_one() -> None:
    (condition, *_) = study().plan(SimulatedRig.named(), blocks=1, seed=1).design.conditions
    draws = [Model().draw(name, condition, 1).samples["rtt_ns"] for name in ("a", "a", "b")]
    assert (draws[0] == draws[1]).all() and not (draws[0] == draws[2]).all()


LABKIT = (sys.executable, "-m", "labkit.cli")
_PEM = {"ca-file": "ca", "cert": "cert", "key": "key"}
TLS = [text for name, file in _PEM.items() for text in (f"--tls-{name}", f"{file}.pem")]


def new_project(dask: Dask, home: Path) -> Path:
    subprocess.run([*LABKIT, "init", str(home)], check=True, capture_output=True)
    for name in _PEM.values():
        shutil.copy(dask.folder / f"{name}.pem", home)
    return home


def start_worker(dask: Dask, home: Path) -> None:
    argv = [*LABKIT, "worker", "--scheduler", dask.address, "--rig", "simulated:one", *TLS]
    with (home.parent / "worker.log").open("ab") as log:
        dask.workers["one"] = subprocess.Popen(argv, cwd=home, stdout=log, stderr=log)


def run_argv(dask: Dask, blocks: int) -> list[str]:
    run = [*LABKIT, "run", "affinity-spinning", "-P", "tiny", "-p", "blocks", str(blocks)]
    return [*run, "--scheduler", dask.address, *TLS]


def test_nothing_of_dask_is_imported_without_a_scheduler() -> None:
    code = (
        "import sys, labkit, labkit.fleet, labkit.cli.fleet, labkit.studies\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('dask', 'distributed')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "[]\n"


def test_the_command_line_measures_a_notebooks_blocks_on_workers(
    dask: Dask, tmp_path: Path
) -> None:
    """As a user does it: `labkit worker`, then `labkit run --scheduler`; a worker is killed."""
    home, here = new_project(dask, tmp_path / "project"), os.uname().nodename
    start_worker(dask, home)
    with (tmp_path / "run.log").open("wb") as log:
        first = subprocess.Popen(run_argv(dask, 1), cwd=home, stdout=log, stderr=log)
    worker, children = psutil.Process(dask.workers["one"].pid), []
    try:
        for _ in range(1200):
            children = [one for one in worker.children() if "affinity-spinning" in one.cmdline()]
            if children or first.poll() is not None:
                break
            time.sleep(0.1)
        assert children, (tmp_path / "run.log").read_text()
        dask.kill("one")
        # What it ran ends, and another worker measures the block.
        gone, alive = psutil.wait_procs(children, timeout=120)
        assert gone and not alive
        start_worker(dask, home)
        assert first.wait(timeout=1800) == 0, (tmp_path / "run.log").read_text()
    finally:
        first.kill()
        first.wait()
    folder = home / fleet.FOLDER / "tiny" / f"simulated-one-{here}" / "affinity-spinning"
    data = load(folder)
    assert len(data.ok) == sum(data.planned.values())
    # Another number of blocks is another campaign, which the same worker can measure too.
    run = run_argv(dask, 2)
    ended = subprocess.run(run, cwd=home, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 2 and "other parameters" in ended.stderr
    (home / fleet.FOLDER / "tiny").rename(home / "kept")
    ended = subprocess.run(run, cwd=home, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 0, ended.stderr + (tmp_path / "worker.log").read_text()
    assert "dashboard" in ended.stderr and f"simulated one {here}: 2" in ended.stderr
    data = load(folder)
    assert sorted(set(data.trials["block"])) == [1, 2]
    assert len(data.ok) == sum(data.planned.values())
    # Samples stay where they were drawn.
    assert not list(folder.rglob("*.parquet"))
    assert list((home / fleet.FOLDER / "worker").rglob("*.parquet"))


def test_a_scheduler_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit import cli
    from labkit.cli import fleet as commands

    monkeypatch.setattr(commands, "_CONNECT", "1s")
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "rps", "-P", "tiny", "--scheduler", "tcp://127.0.0.1:9"])
    assert stop.value.code == 1
    assert "tcp://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
