"""Does the harness add anything to what it measures? sockperf by hand and by labkit, interleaved.

By hand means what a person types on the hosts: a shell script in each namespace, no evidence, no
check, no record. Both measure the same conditions on the same rig, in pairs whose order is drawn.
Prints ratios and intervals; it decides nothing by a time.

Example: make bench, or: .venv/bin/python benchmarks/harness.py --pairs 20
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit import Placement, Rig, Study, bare, compare, docker, treatments
from labkit.rig import netns
from labkit.tools import sockperf

MESSAGES = 5_000
CONDITIONS = [(bare("clean"), "spin"), (docker("host"), "spin"), (docker("host"), "block")]
#: The server, on its CPUs, by its placement's engine.
SERVERS = {
    "bare": 'nsenter --net=$on taskset -c "$1" $2 >/dev/null 2>&1 & server=$!',
    "docker": 'server=$(docker run -d --network host "$7" taskset -c "$1" $2)',
}
ENDS = {"bare": "kill $server; wait $server || true", "docker": "docker rm -f $server >/dev/null"}
BY_HAND = """
on=/run/netns/labkit-{host}
{server}
until nsenter --net=$on ss -lunH "sport = 11111" | grep -q .; do sleep 0.01; done
nsenter --net=/run/netns/labkit-generator taskset -c "$3" $4 --full-log "$5" >"$6"
{end}
"""


def by_hand(lab: Rig, placement: Placement, wait: str, folder: Path) -> dict[str, float]:
    """Measure a condition as a person would, and read the same log."""
    address = lab.target(placement).address
    client = sockperf.ping_pong(address, messages=MESSAGES, size=64, wait=wait)
    command = " ".join(client.argv[: client.argv.index("--full-log")])
    server = " ".join(sockperf.server(wait).argv)
    log, out = folder / "log", folder / "out"
    script = BY_HAND.format(
        host="clean" if placement.runtime == "bare" else "sut",
        server=SERVERS[placement.runtime],
        end=ENDS[placement.runtime],
    )
    image = lab.targets["sut"].images["net"].reference
    cpus = lab.cpu_map["sut"], lab.cpu_map["generator"]
    argv = ["sh", "-ec", script, "hand", cpus[0], server, cpus[1], command, log, out, image]
    # The scheduler's mask is inherited: without this a person's shell would differ from labkit's
    # hosts, whose daemons may use every CPU.
    whole = ["taskset", "-c", f"0-{os.cpu_count() - 1}", *map(str, argv)]
    environment = {"DOCKER_HOST": netns.socket_of("sut"), "PATH": os.environ["PATH"]}
    began = time.monotonic()
    subprocess.run(whole, check=True, env=environment, timeout=120)
    rtt = sockperf.parse(out.read_text(), log.read_text(), messages=MESSAGES).samples["rtt_ns"]
    return {"median_ns": float(np.median(rtt)), "seconds": time.monotonic() - began}


def ping(trial: Any, placement: Placement, wait: str) -> Any:
    """Run a trial as a study does."""
    with trial.serve(sockperf.server(wait), placement) as server:
        client = sockperf.ping_pong(server.address, messages=MESSAGES, size=64, wait=wait)
        return trial.measure(client)


def by_labkit(lab: Rig, placement: Placement, wait: str, folder: Path) -> dict[str, float]:
    """Measure a condition as a study of its own."""
    study = Study(
        "harness",
        ping,
        factors={
            "placement": [placement],
            "wait": [wait],
            "affinity": treatments.Pinning("split"),
        },
    )
    row = study.plan(lab, blocks=1, seed=1).run(folder, new=True).ok.iloc[-1]
    return {"median_ns": row["rtt_ns_median"], "seconds": row["seconds"]}


def pairs(lab: Rig, count: int, folder: Path) -> pd.DataFrame:
    """Measure every condition both ways, `count` times, in an order that is drawn."""
    draw, rows = random.Random(2015), []
    ways = {"by hand": by_hand, "labkit": by_labkit}
    for block in range(count):
        for placement, wait in draw.sample(CONDITIONS, len(CONDITIONS)):
            for way in draw.sample([*ways], len(ways)):
                keys = {"condition": f"{placement.label}, {wait}", "block": block, "way": way}
                rows.append(keys | ways[way](lab, placement, wait, folder))
    return pd.DataFrame(rows)


def show(frame: pd.DataFrame) -> None:
    """Print for each condition the ratio, its interval, what it can decide, and the overhead."""
    for condition, rows in frame.groupby("condition", sort=False):
        options = {"condition": "way", "baseline": "by hand"}
        medians = compare(rows, value="median_ns", **options).iloc[0]
        seconds = compare(rows, value="seconds", **options).iloc[0]
        print(
            f"\n{condition}: {medians.n_blocks} pairs\n"
            f"  median round trip, labkit / by hand: {medians.estimate:.4f} "
            f"[{medians.low:.4f}, {medians.high:.4f}]: {medians.verdict}\n"
            f"  smallest margin these pairs decide: {medians.margin_decidable:.1%}\n"
            f"  seconds of a trial, labkit / by hand: {seconds.estimate:.2f} "
            f"[{seconds.low:.2f}, {seconds.high:.2f}]"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, help="pairs a condition (default 12)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Rig.open("virtual") as lab:
        show(pairs(lab, given.pairs, Path(folder)))


if __name__ == "__main__":
    main()
