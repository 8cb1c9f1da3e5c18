"""Does the harness add anything to what it measures? sockperf by hand and by labkit, interleaved.

By hand means what a person types on the hosts: a shell script in each namespace, no evidence, no
check, no record. Both measure the same conditions on the same rig, in pairs whose order is drawn.
Prints ratios and intervals; it decides nothing by a time.

Example: make bench, or: .venv/bin/python benchmarks/harness.py --pairs 20
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from labkit import Rig, bare, compare, docker
from labkit.campaign.runner import pinned_to_harness
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.rig import engine, netns
from labkit.tools import sockperf

MESSAGES = 5_000
CONDITIONS = [
    (bare("clean"), "spin"),
    (docker("host"), "spin"),
    (docker("host"), "block"),
]

BY_HAND_BARE = """
on=/run/netns/labkit-clean
nsenter --net=$on taskset -c "$1" $2 >/dev/null 2>&1 &
server=$!
until nsenter --net=$on ss -lunH "sport = 11111" | grep -q .; do sleep 0.01; done
nsenter --net=/run/netns/labkit-generator taskset -c "$3" $4 --full-log "$5" >"$6"
kill $server; wait $server || true
"""

BY_HAND_DOCKER = """
on=/run/netns/labkit-sut
id=$(docker run -d --network host "$7" taskset -c "$1" $2)
until nsenter --net=$on ss -lunH "sport = 11111" | grep -q .; do sleep 0.01; done
nsenter --net=/run/netns/labkit-generator taskset -c "$3" $4 --full-log "$5" >"$6"
docker rm -f "$id" >/dev/null
"""


def by_hand(lab: Rig, placement, wait: str, folder: Path) -> np.ndarray:
    """Run the condition as a person would, and read the same log."""
    address = lab.target(placement).address
    client = sockperf.ping_pong(address, messages=MESSAGES, size=64, wait=wait)
    command = " ".join(client.argv[: client.argv.index("--full-log")])
    server = " ".join(sockperf.server(wait).argv)
    log, out = folder / "log", folder / "out"
    script = BY_HAND_BARE if placement.runtime == "bare" else BY_HAND_DOCKER
    image = lab.targets["sut"].images["net"].reference
    cpus = lab.cpu_map["sut"], lab.cpu_map["generator"]
    argv = ["sh", "-ec", script, "hand", cpus[0], server, cpus[1], command, log, out, image]
    environment = {
        "DOCKER_HOST": engine.SOCKET,
        "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    # The scheduler's mask is inherited: without this a person's shell would differ from labkit's
    # hosts, whose daemons may use every CPU.
    whole = ["taskset", "-c", netns.all_cpus(), *map(str, argv)]
    subprocess.run(whole, check=True, env=environment, timeout=120)
    return sockperf.parse(out.read_text(), log.read_text(), messages=MESSAGES).samples["rtt_ns"]


def by_labkit(
    lab: Rig, placement, wait: str, label: str, runtimes: dict
) -> tuple[np.ndarray, dict]:
    """Run the condition as a study does."""
    levels = (("placement", placement), ("affinity", "split"), ("wait", wait))
    trial = Trial(lab, Condition(levels), {}, label, runtimes)
    with trial.serve(sockperf.server(wait), placement) as server:
        client = sockperf.ping_pong(server.address, messages=MESSAGES, size=64, wait=wait)
        measurement = trial.measure(client)
    return measurement.samples["rtt_ns"], trial.record


def pairs(lab: Rig, count: int, folder: Path) -> pd.DataFrame:
    """Measure every condition both ways, `count` times, in an order that is drawn."""
    draw, rows, runtimes = random.Random(2015), [], {}
    with pinned_to_harness(lab), tqdm(total=2 * count * len(CONDITIONS), unit="trial") as bar:
        for block in range(count):
            for placement, wait in draw.sample(CONDITIONS, len(CONDITIONS)):
                for way in draw.sample(["by hand", "labkit"], 2):
                    began, record = time.monotonic(), {}
                    if way == "by hand":
                        rtt = by_hand(lab, placement, wait, folder)
                    else:
                        label = f"trial-bench-{block}"
                        rtt, record = by_labkit(lab, placement, wait, label, runtimes)
                    rows.append(
                        {
                            "condition": f"{placement.label}, {wait}",
                            "block": block,
                            "way": way,
                            "median_ns": float(np.median(rtt)),
                            "seconds": time.monotonic() - began,
                            "wakeups": record.get("mechanisms", {}).get("harness_wakeups"),
                            "window": record.get("window_seconds"),
                        }
                    )
                    bar.update()
    return pd.DataFrame(rows)


def show(frame: pd.DataFrame) -> None:
    """Print for each condition the ratio, its interval, what it can decide, and the overhead."""
    for condition, rows in frame.groupby("condition", sort=False):
        options = {"condition": "way", "baseline": "by hand"}
        medians = compare(rows, value="median_ns", **options).iloc[0]
        seconds = compare(rows, value="seconds", **options).iloc[0]
        ours = rows[rows.way == "labkit"]
        print(f"\n{condition}: {medians.n_blocks} pairs")
        print(
            f"  median round trip, labkit / by hand: {medians.estimate:.4f} "
            f"[{medians.low:.4f}, {medians.high:.4f}]: {medians.verdict}"
        )
        print(f"  smallest margin these pairs decide: {medians.margin_decidable:.1%}")
        print(
            f"  wake-ups of the harness in a window of {ours.window.median():.1f} s: "
            f"median {ours.wakeups.median():.0f}, largest {ours.wakeups.max():.0f}"
        )
        print(
            f"  seconds a trial: {ours.seconds.median():.2f} against "
            f"{rows[rows.way == 'by hand'].seconds.median():.2f}: ratio {seconds.estimate:.2f} "
            f"[{seconds.low:.2f}, {seconds.high:.2f}]"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, help="pairs a condition (default 12)")
    given = parser.parse_args()
    import tempfile

    with tempfile.TemporaryDirectory() as folder, Rig.open("virtual") as lab:
        show(pairs(lab, given.pairs, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
