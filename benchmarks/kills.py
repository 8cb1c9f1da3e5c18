"""Kill a campaign with SIGKILL in every phase, and check that no trial is lost and nothing left.

Each kill starts or resumes the same campaign in its own process, waits for the phase and a random
time more, and kills it. If the process had ended or left the phase before the signal, the kill is
repeated with another time. At the end the campaign runs to its end. Then every planned trial must
be stored once, no finished trial may be lost or changed, and the machine must be as it was before.
After every kill this must hold for the machine outside the lab.

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
#: The longest time in seconds from the beginning of a phase to the signal. It is halved each time
#: that the signal comes too late.
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
#: Studies with further phases.
FURTHER = {
    "network-isolation": ("setting up",),
    "union-filesystem": ("setting up",),
    "forwarding-chains": ("setting up",),
    "application-networks": ("setting up",),
    "rps": ("setting up", "steering"),
}

#: Shell commands whose output must be the same afterwards.
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
    # socat to this machine itself does not belong to a rig.
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
#: State that no kill may change, with the text of lines that a lab which is up adds.
OUTSIDE = {
    "links": None,
    "routes": "unreachable 198.18.",
    "qdiscs": None,
    "rules": None,
    "mounts": "labkit",
    "settings": "kernel.keys.root",
}


def read(kind: str) -> str:
    """Return one part of the machine's state."""
    command = ["sh", "-c", STATE[kind]]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def machine() -> dict[str, str]:
    """Return the state of the machine by kind; the caller has locked the rig."""
    record = Journal(LocalHost()).load()
    pending = {"journal": "".join(f"{entry}\n" for entry in [*record.pending, *record.torn])}
    return pending | {kind: read(kind) for kind in STATE}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a text for each difference between two states."""
    return [
        f"{kind} differ:\n--- before\n{before[kind]}--- after\n{after[kind]}"
        for kind in before
        if before[kind] != after[kind]
    ]


def outside(state: dict[str, str]) -> dict[str, str]:
    """Return the part of a state that does not belong to the lab."""
    return {
        kind: "".join(
            line for line in state[kind].splitlines(keepends=True) if not (ours and ours in line)
        )
        for kind, ours in OUTSIDE.items()
    }


def finished(folder: Path) -> dict[str, str]:
    """Return a digest of every finished trial."""
    digests = {}
    for path in sorted(folder.glob("*/*/trials/b*/trial.json")):
        if json.loads(path.read_text())["status"] == "ok":
            content = b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))
            digests[path.parent.name] = hashlib.sha256(content).hexdigest()
    return digests


@dataclass
class Campaign:
    """A campaign's folder, and the finished trials that were last seen in it."""

    folder: Path
    blocks: int
    study: str = ""
    seen: dict[str, str] = field(default_factory=dict)

    def run(self, phase: str | None, draw: random.Random, tried: int = 0) -> str:
        """Run it and kill it in a phase, after `tried` attempts; return the outcome."""
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
            # A notebook brings the rig up before planning, which is short then.
            longest = 0.05 if line == "planning" and self.study else LONGEST[line]
            time.sleep(draw.uniform(0, longest / 2**tried))
            os.killpg(process.pid, signal.SIGKILL)
            break
        for line in map(str.strip, process.stdout):  # lines before it was killed
            within.pop() if line == "/" else within.append(line)
        process.stdout.close()
        status = process.wait()
        if status == -signal.SIGKILL:
            return "killed" if phase in within else f"was in {within[-1] if within else 'between'}"
        error = (self.folder / "stderr").read_text()[-800:]
        return "finished" if status == 0 else f"failed: {error}"

    def lost(self) -> list[str]:
        """Return the finished trials that were lost or changed since the last call."""
        now = finished(self.folder)
        lost = [trial for trial, digest in self.seen.items() if now.get(trial) != digest]
        self.seen = now
        return lost


def kill_in(
    phase: str, current: Campaign, draw: random.Random, before: dict[str, str]
) -> tuple[Campaign, str, list[str]]:
    """Kill the campaign once in a phase; return the campaign, the outcome, and the problems.

    If the campaign ends before, it is checked and another one is begun.
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
    """Kill, resume and compare; return 0 if there is no problem."""
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
    """Return the problems of a finished campaign."""
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
