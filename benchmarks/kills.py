"""Kill a campaign with SIGKILL in every phase, and see that nothing is lost and nothing left.

Each kill starts the same campaign in a process of its own, waits until it is in the wanted phase,
waits a random moment more, and kills it. What was dead, or in another phase, before the signal came
is no kill and is tried again at another moment. The campaign is then resumed, killed again, and so
on; at the end it runs to its end. Then every planned trial must be there once, no finished trial
may have been lost or changed, and the machine must look as it did before. After every single kill
the machine outside the lab must look so too.

Examples: .venv/bin/python benchmarks/kills.py --kills 20
          .venv/bin/python benchmarks/kills.py --kills 6 --blocks 1 --study cpu-quota
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
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from labkit.hosts import LocalHost
from labkit.hosts.journal import DIRECTORY, Journal
from labkit.rig import clean, engine, lock

PHASES = ("planning", "placing", "measuring", "recording", "taking down", "restoring")
#: How long after a phase has begun the signal comes, at most. A moment that was too late is tried
#: again, within half of that time.
LONGEST = {
    "planning": 3.0,
    "placing": 0.15,
    "measuring": 2.0,
    "recording": 0.01,
    "taking down": 1.0,
    "restoring": 0.05,
    "setting up": 3.0,
    "steering": 0.1,
}
TRIES = 12
#: Studies that have more set up for them, or more set in a trial, and so more phases.
FURTHER = {
    "network-isolation": ("setting up",),
    "union-filesystem": ("setting up",),
    "forwarding-chains": ("setting up",),
    "application-networks": ("setting up",),
    "rps": ("setting up", "steering"),
}

#: What must be the same afterwards, each as a shell command.
STATE = {
    "namespaces": "ls /run/netns 2>/dev/null",
    "links": "ip -o link | sed 's/ qlen.*//; s/^[0-9]*: //' | grep -v veth",
    "veth pairs": "ip -o link show type veth | wc -l",
    "routes": "ip route show table all | sort",
    "qdiscs": "tc qdisc show | sort",
    "mounts": "awk '{print $1, $2, $3}' /proc/self/mounts | sort",
    "rules": "nft list ruleset 2>/dev/null",
    "control groups": "find /sys/fs/cgroup -type d -name 'labkit*' | sort",
    "processes": "ps -eo args | grep -E '[d]ockerd|[c]ontainerd|[l]abkit/(virtual|journal)|"
    "[s]ockperf|[s]ocat|[i]perf3|[m]emcached|[n]ginx|[p]ostgres|[s]leep infinity|"
    # Those to this machine itself are no rig's.
    "[u]nionfs|[f]use-overlayfs|[d]rop_caches' | grep -v 'socat - TCP:127'",
    "scratch": "find /run/labkit -mindepth 1 2>/dev/null | grep -v '^/run/labkit/lock$' | sort",
    "settings": "sysctl -a 2>/dev/null | grep -E '^(net.ipv4.(ip_forward|conf.all)|net.bridge|"
    "net.core.(busy|rps)|kernel.keys.root|vm.swappiness)' | sort",
    "idle": "od -An -td4 -N4 /dev/cpu_dma_latency",
    "journal's folder": f"ls -A {DIRECTORY}",
    "containers": f"ls -A {engine.DATA_ROOT}/containers {engine.STORAGES}/*/containers 2>/dev/null"
    " | grep -v :",
    "loop devices": "losetup --list --noheadings 2>/dev/null | grep labkit",
    "interrupts": "grep . /proc/irq/*/smp_affinity_list 2>/dev/null",
}
#: What no kill may change even for a while, each with the lines in which the standing lab shows.
OUTSIDE = {
    "links": None,
    "routes": "unreachable 198.18.",
    "qdiscs": None,
    "rules": None,
    "mounts": "labkit",
    "settings": "kernel.keys.root",
}


def read(kind: str) -> str:
    """Return one part of the machine's state, as text."""
    command = ["sh", "-c", STATE[kind]]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def machine() -> dict[str, str]:
    """Return the state of the machine, as text by kind; the caller holds the rig."""
    record = Journal(LocalHost()).load()
    pending = {"journal": "".join(f"{entry}\n" for entry in [*record.pending, *record.torn])}
    return pending | {kind: read(kind) for kind in STATE}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return in words what differs between two states."""
    return [
        f"{kind} differ:\n--- before\n{before[kind]}--- after\n{after[kind]}"
        for kind in before
        if before[kind] != after[kind]
    ]


def outside(whole: dict[str, str]) -> dict[str, str]:
    """Return, of a state, what has nothing to do with the lab."""
    return {
        kind: "".join(
            line for line in whole[kind].splitlines(keepends=True) if not (ours and ours in line)
        )
        for kind, ours in OUTSIDE.items()
    }


def finished(folder: Path) -> dict[str, str]:
    """Return a digest of every finished trial."""
    found = {}
    for path in sorted(folder.glob("*/*/trials/b*/trial.json")):
        if json.loads(path.read_text())["status"] == "ok":
            whole = b"".join(one.read_bytes() for one in sorted(path.parent.iterdir()))
            found[path.parent.name] = hashlib.sha256(whole).hexdigest()
    return found


@dataclass
class Campaign:
    """A campaign's folder, and the finished trials that were seen in it."""

    folder: Path
    blocks: int
    study: str = ""
    seen: dict[str, str] = field(default_factory=dict)

    def run(self, phase: str | None, draw: random.Random, tried: int = 0) -> str:
        """Run it, and kill it in a phase, tried before; return what became of it."""
        script = Path(__file__).with_name("killed_campaign.py")
        argv = [sys.executable, str(script), str(self.folder), str(self.blocks)]
        argv += [self.study] if self.study else []
        with (self.folder / "stderr").open("w") as log:
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert process.stdout is not None
        skip, within = draw.randrange(2) if phase != "planning" else 0, deque[str]()
        for line in map(str.strip, process.stdout):
            within.pop() if line == "/" else within.append(line)
            if line != phase:
                continue
            if skip:
                skip -= 1
                continue
            # A notebook brings the rig up before it plans, and so plans in a moment.
            longest = 0.05 if line == "planning" and self.study else LONGEST[line]
            time.sleep(draw.uniform(0, longest / 2**tried))
            os.killpg(process.pid, signal.SIGKILL)
            break
        for line in map(str.strip, process.stdout):  # what it still said before it was killed
            within.pop() if line == "/" else within.append(line)
        process.stdout.close()
        status = process.wait()
        if status == -signal.SIGKILL:
            return "killed" if phase in within else f"was in {within[-1] if within else 'between'}"
        error = (self.folder / "stderr").read_text()[-800:]
        return "finished" if status == 0 else f"failed: {error}"

    def lost(self) -> list[str]:
        """Return the finished trials that are lost or changed since this was last asked."""
        now = finished(self.folder)
        lost = [trial for trial, digest in self.seen.items() if now.get(trial) != digest]
        self.seen = now
        return lost


def kill_in(
    phase: str, current: Campaign, draw: random.Random, before: dict[str, str]
) -> tuple[Campaign, str, list[str]]:
    """Kill the campaign once in a phase; return what goes on, what happened, and what is wrong.

    A campaign that comes to its end first is checked, and another is begun.
    """
    problems: list[str] = []
    for tried in range(TRIES):
        outcome = current.run(phase, draw, tried)
        lost = current.lost()
        problems += [f"lost or changed after {phase} ({outcome}): {lost}"] if lost else []
        rest = {kind: read(kind) for kind in OUTSIDE}
        problems += [
            f"after {phase} ({outcome}): {one}" for one in changed(outside(before), outside(rest))
        ]
        if outcome == "killed" or outcome.startswith("failed"):
            return current, outcome, problems + ([] if outcome == "killed" else [outcome])
        print(f"    {phase:12} {outcome}: no kill, tried again", flush=True)
        if outcome == "finished":
            problems += check_trials(current.folder, current.seen)
            folder = Path(tempfile.mkdtemp(dir=current.folder.parent))
            current = Campaign(folder, current.blocks, current.study)
    return current, "missed", [*problems, f"no kill in {phase} in {TRIES} tries"]


def main() -> int:
    """Kill, resume, compare; return 0 when nothing was lost and nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, help="of three trials (default: half the kills)")
    parser.add_argument("--study", default="", help="a study's own notebook, in its tiny profile")
    given = parser.parse_args()
    draw, problems = random.Random(given.seed), []
    blocks = given.blocks or max(2, given.kills // 2)
    with lock.locked(patience=600):
        clean()
        before = machine()
    kills = 0
    with tempfile.TemporaryDirectory() as name:
        current = Campaign(Path(tempfile.mkdtemp(dir=name)), blocks, given.study)
        phases = [*PHASES, *FURTHER.get(given.study, ())]
        for number in range(given.kills):
            phase = phases[number % len(phases)]
            current, outcome, wrong = kill_in(phase, current, draw, before)
            kills += outcome == "killed"
            problems += wrong
            count = len(current.seen)
            print(f"{number + 1:3} {phase:12} {outcome:9} {count:3} trials finished", flush=True)
        outcome = current.run(None, draw)
        print("last run:", outcome)
        problems += [] if outcome == "finished" else [outcome]
        problems += check_trials(current.folder, current.seen)
    with lock.locked(patience=600):
        problems += changed(before, machine())
    print("\n".join(problems) or f"{kills} kills: nothing lost, nothing left")
    return 1 if problems else 0


def check_trials(folder: Path, seen: dict[str, str]) -> list[str]:
    """Return what is wrong with the finished campaign."""
    plans = list(folder.glob("*/*/plan.json"))
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
