"""A fleet of made-up rigs: workers killed at random, or many rigs through one scheduler.

`--kills` starts a scheduler and three workers, and kills one of them with SIGKILL again and again
until so many are dead; then every block must be there once, whole, and of one rig. `--rigs` sends
the blocks of many rigs, with 50 conditions each, through a scheduler, and prints its memory and the
seconds a block; trials are drawn and summarised, and nothing is stored.

Examples: .venv/bin/python benchmarks/fleet.py --kills 100
          .venv/bin/python benchmarks/fleet.py --rigs 1000 --blocks 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client, LocalCluster, as_completed

from labkit import fleet
from labkit.data import campaigns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))
from fleet_tasks import STUDY, draw, drawn_block

RIGS = ("a", "b", "c")
#: Conditions of a block that is drawn and not stored.
CONDITIONS = [(f"p{n}", wait) for n in range(25) for wait in ("block", "spin")]
#: With the module of the tasks, which workers import.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def many_trials(number: int, rigs: int) -> tuple[int, list[float]]:
    """Draw a block of one of many rigs, and return the median of each of its 50 trials."""
    rig, block = f"rig-{number % rigs}", number // rigs
    return number, [float(np.median(draw(rig, block, *levels))) for levels in CONDITIONS]


def kill_workers(kills: int, seed: int) -> bool:
    """Kill workers while blocks are measured; tell whether every block is there once."""
    rng, over, killed = random.Random(seed), threading.Event(), Counter[str]()
    with tempfile.TemporaryDirectory() as name, LocalCluster(n_workers=0) as cluster:
        folder = Path(name)
        workers: dict[str, subprocess.Popen[bytes]] = {}

        def start(rig: str) -> None:
            env = {**ENVIRONMENT, fleet.RIG: rig}
            argv = fleet.worker_argv(cluster.scheduler_address, rig)
            quiet = subprocess.DEVNULL
            workers[rig] = subprocess.Popen(argv, env=env, stdout=quiet, stderr=quiet)

        def kill() -> None:
            while killed.total() < kills and not over.wait(rng.uniform(2.0, 8.0)):
                rig = rng.choice(RIGS)
                workers[rig].kill()
                workers[rig].wait()
                killed[rig] += 1
                start(rig)

        for rig in RIGS:
            start(rig)
        blocks = 0
        killer = threading.Thread(target=kill)
        with Client(cluster) as client:
            client.wait_for_workers(len(RIGS), timeout=120)
            killer.start()
            try:
                # More blocks until enough workers were killed.
                while killer.is_alive() or not blocks:
                    blocks += 20
                    task = partial(drawn_block, data=f"{folder}/own", blocks=2000, seconds=0.05)
                    numbers = range(1, blocks + 1)
                    fleet.measure(client, task, numbers, folder=folder / "all", study=STUDY)
                    print(f"{blocks} blocks, {killed.total()} kills", flush=True)
            finally:
                over.set()
                killer.join()
                for worker in workers.values():
                    worker.kill()
                    worker.wait()
        return _whole(folder / "all", blocks)


def _whole(folder: Path, blocks: int) -> bool:
    rigs: dict[int, set[str]] = {}
    trials: Counter[tuple[int, str]] = Counter()
    for rig in folder.iterdir():
        for campaign in campaigns(rig / STUDY):
            for block, trial in zip(
                campaign.trials["block"], campaign.trials["trial"], strict=True
            ):
                rigs.setdefault(block, set()).add(rig.name)
                trials[block, trial] += 1
    lost = sorted(set(range(1, blocks + 1)) - set(rigs))
    mixed = [block for block, of in rigs.items() if len(of) > 1]
    twice = [trial for trial, count in trials.items() if count > 1]
    short = blocks * 6 - len(trials)
    print(
        f"{blocks} blocks: {len(lost)} lost, {len(mixed)} mixed, {len(twice)} trials twice, ",
        end="",
    )
    print(f"{short} trials missing; blocks a rig: {Counter(min(of) for of in rigs.values())}")
    return not (lost or mixed or twice or short)


def many_rigs(rigs: int, blocks: int, processes: int) -> None:
    """Send the blocks of many rigs through one scheduler, and print what that takes."""
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "scheduler.json"
        scheduler += ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quiet["env"] = ENVIRONMENT
        with subprocess.Popen(scheduler, **quiet) as process:
            workers = []
            try:
                while not file.exists() or not file.read_text().strip():
                    time.sleep(0.1)
                address = json.loads(file.read_text())["address"]
                for number in range(processes):
                    argv = fleet.worker_argv(address, f"many-{number}")
                    at = argv.index("--resources") + 1
                    argv[at] = f"{fleet.RESOURCE}={rigs // processes}"
                    workers.append(subprocess.Popen(argv, **quiet))
                _send(address, process.pid, rigs, blocks, processes)
            finally:
                for worker in workers:
                    worker.terminate()
                    worker.wait()
                process.terminate()


def _send(address: str, scheduler: int, rigs: int, blocks: int, processes: int) -> None:
    with Client(address) as client:
        client.wait_for_workers(processes, timeout=120)
        before, began = psutil.Process(scheduler).memory_info().rss, time.monotonic()
        cpu = sum(psutil.Process(scheduler).cpu_times()[:2])
        task = partial(many_trials, rigs=rigs)
        futures = client.map(task, range(rigs * blocks), resources={fleet.RESOURCE: 1}, pure=False)
        most, came = before, 0
        for future in as_completed(futures):
            came += len(future.result()[1]) == len(CONDITIONS)
            future.release()
            if came % 500 == 0:
                most = max(most, psutil.Process(scheduler).memory_info().rss)
        seconds = time.monotonic() - began
        cpu = sum(psutil.Process(scheduler).cpu_times()[:2]) - cpu
        total = rigs * blocks
        size = len(CONDITIONS)
        print(f"{rigs} rigs x {blocks} blocks x {size} conditions: {came} of {total} blocks")
        each = seconds / total * 1000
        print(f"{seconds:.0f} s, {each:.2f} ms a block in {processes} processes")
        print(
            f"scheduler: {cpu / total * 1000:.2f} ms of CPU a block, {most >> 20} MiB at most, ",
            end="",
        )
        print(f"{(most - before) / total:.0f} bytes a block over {before >> 20} MiB")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--rigs", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.kills:
        print(f"seed {given.seed}")
        if not kill_workers(given.kills, given.seed):
            raise SystemExit(1)
    if given.rigs:
        many_rigs(given.rigs, given.blocks, given.processes)


if __name__ == "__main__":
    main()
