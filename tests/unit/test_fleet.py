"""A campaign over made-up rigs: a real scheduler, and workers that are killed."""

from __future__ import annotations

import json
import os
import random
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
import pytest
from fleet_tasks import STUDY, draw, drawn_block, failing_block

from labkit import fleet
from labkit.data import campaigns
from labkit.errors import DatasetError, LabkitError, PlanMismatch
from labkit.fleet import Block, measure, measured_blocks, store_block
from labkit.process import BLOCKS as BLOCKS_VARIABLE

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
    by_block: dict[int, set[str]] = {}
    for one in data:
        for row in one.trials.to_dict("records"):
            by_block.setdefault(row["block"], set()).add(one.rig["name"])
            drawn = draw(one.rig["name"], row["block"], row["placement"], row["wait"])
            assert row["rtt_ns_median"] == float(np.median(drawn))
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

    task = partial(drawn_block, data=str(tmp_path / "own"), blocks=BLOCKS, seconds=0.05)
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
    block = drawn_block(2, str(tmp_path / "own"), 3, 0.0)
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


def test_nothing_of_dask_is_imported_without_a_scheduler() -> None:
    code = (
        "import sys, labkit, labkit.fleet, labkit.cli.fleet, labkit.studies\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('dask', 'distributed')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "[]\n"


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
