"""Kill a campaign with SIGKILL in every phase, and see that nothing is lost and nothing left.

Each kill starts the same campaign in a process of its own, waits until it is in the wanted phase,
waits a random moment more, and kills it. The campaign is then resumed, killed again, and so on; at
the end it runs to its end. Then every planned trial must be there once, no finished trial may have
been lost or changed, and the machine must look as it did before.

Example: .venv/bin/python benchmarks/kills.py --kills 20
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PHASES = ("planning", "placing", "measuring", "recording", "taking down", "restoring")

#: What must be the same afterwards, each as a shell command.
STATE = {
    "namespaces": "ls /run/netns 2>/dev/null",
    "links": "ip -o link | sed 's/ qlen.*//; s/^[0-9]*: //' | grep -v veth",
    "routes": "ip route show table all | sort",
    "qdiscs": "tc qdisc show | sort",
    "mounts": "awk '{print $1, $2, $3}' /proc/self/mounts | sort",
    "rules": "nft list ruleset 2>/dev/null",
    "control groups": "find /sys/fs/cgroup -type d -name 'labkit*' | sort",
    "processes": "ps -eo args | grep -E '[d]ockerd|[c]ontainerd|[l]abkit/virtual|[s]ockperf'",
    "scratch": "ls /run/labkit 2>/dev/null | grep -v '^lock$'",
    "settings": "sysctl -a 2>/dev/null | grep -E '^(net.ipv4.(ip_forward|conf.all)|net.bridge|"
    "net.core.(busy|rps)|kernel.keys.root|vm.swappiness)' | sort",
    "idle": "od -An -td4 -N4 /dev/cpu_dma_latency",
    "journal": "cat /var/lib/labkit/journal/* 2>/dev/null | grep -c pending",
}


def machine() -> dict[str, str]:
    """Return the state of the machine, as text by kind."""
    run = subprocess.run
    return {
        name: run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
        for name, command in STATE.items()
    }


def finished(folder: Path) -> dict[str, str]:
    """Return a digest of every finished trial."""
    found = {}
    for path in sorted(folder.glob("killed/*/trials/b*/trial.json")):
        if json.loads(path.read_text())["status"] == "ok":
            whole = b"".join(one.read_bytes() for one in sorted(path.parent.iterdir()))
            found[path.parent.name] = hashlib.sha256(whole).hexdigest()
    return found


def one_run(folder: Path, blocks: int, phase: str | None, draw: random.Random) -> str:
    """Run the campaign, and kill it in a phase; return what became of it."""
    campaign = Path(__file__).with_name("killed_campaign.py")
    argv = [sys.executable, str(campaign), str(folder), str(blocks)]
    log = (folder / "stderr").open("w")
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    assert process.stdout is not None
    skip = draw.randrange(2)
    for line in process.stdout:
        if phase and line.strip() == phase:
            if skip and phase in ("placing", "measuring", "recording"):
                skip -= 1
                continue
            longest = {"planning": 3.0, "measuring": 4.0, "taking down": 2.0}.get(phase, 0.3)
            time.sleep(draw.uniform(0, longest))
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    status = process.wait()
    if status == -signal.SIGKILL:
        return "killed"
    return "finished" if status == 0 else f"failed: {(folder / 'stderr').read_text()[-800:]}"


def main() -> int:
    """Kill, resume, compare; return 0 when nothing was lost and nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, help="of three trials (default: half the kills)")
    given = parser.parse_args()
    draw, problems = random.Random(given.seed), []
    blocks = given.blocks or max(2, given.kills // 2)
    before = machine()
    with tempfile.TemporaryDirectory() as name:
        folder, seen, kills = Path(name), {}, 0
        while kills < given.kills:
            phase = PHASES[kills % len(PHASES)]
            outcome = one_run(folder, blocks, phase, draw)
            now = finished(folder)
            lost = [trial for trial, digest in seen.items() if now.get(trial) != digest]
            problems += [f"lost or changed after a kill in {phase}: {lost}"] if lost else []
            print(f"{kills + 1:3} {phase:12} {outcome:9} {len(now):3} trials finished", flush=True)
            if outcome.startswith("failed"):
                problems.append(outcome)
            seen = now
            kills += 1
        outcome = one_run(folder, blocks, None, draw)
        print("last run:", outcome)
        problems += [] if outcome == "finished" else [outcome]
        problems += check_trials(folder, seen)
    after = machine()
    for kind in STATE:
        if before[kind] != after[kind]:
            problems.append(f"{kind} differ:\n--- before\n{before[kind]}--- after\n{after[kind]}")
    print("\n".join(problems) or f"{given.kills} kills: nothing lost, nothing left")
    return 1 if problems else 0


def check_trials(folder: Path, seen: dict[str, str]) -> list[str]:
    """Return what is wrong with the finished campaign."""
    plans = list(folder.glob("killed/*/plan.json"))
    if len(plans) != 1:
        return [f"{len(plans)} campaigns instead of one"]
    plan, now = json.loads(plans[0].read_text()), finished(folder)
    planned = {
        f"b{block:02d}-p{position:02d}"
        for block, order in enumerate(plan["order"], start=1)
        for position in range(1, len(order) + 1)
    }
    done = [trial.rpartition("-a")[0] for trial in now]
    wrong = [f"planned but not there: {sorted(planned - set(done))}"] if planned - set(done) else []
    twice = sorted({trial for trial in done if done.count(trial) > 1})
    wrong += [f"there more than once: {twice}"] if twice else []
    lost = [trial for trial, digest in seen.items() if now.get(trial) != digest]
    return wrong + ([f"lost at the end: {lost}"] if lost else [])


if __name__ == "__main__":
    sys.exit(main())
