"""Kill campaigns at random moments with SIGKILL; count trials lost, leaks, and settings left.

A campaign is the study `rps` on the virtual rig, which changes settings of hosts, as `labkit run`
measures it. labkit and its kernel are killed together, several times, and the same command resumes
the campaign; at last it runs to its end. Then each finished trial must have the bytes with which it
was first seen, each planned trial must be there once, and the machine must be as before: settings
(routes, sysctls, interrupts, idle states) and everything else (links, namespaces, mounts, control
groups, processes, files, loop devices).

Each campaign draws its moments from the seed and its own number, so that `--first 3 --seed 7` is
campaign 3 of `--seed 7` again. Root only. Example:

    .venv/bin/python benchmarks/chaos.py --seed 2026 --kills 100
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from labkit.data import load

LABKIT = (sys.executable, "-m", "labkit.cli")
STUDY, BLOCKS = "rps", 2
#: Kills of one campaign, and the latest moment of a kill in seconds after the start.
MOST, LATEST = 12, 15.0
#: Attempts at the rest of a campaign, each with a limit in seconds.
RESUMES, PATIENCE = 3, 900.0

SETTINGS = {
    "routes": "ip route show table all | sort",
    "sysctls": "sysctl -a | grep -E -e '^net.ipv4.(ip_forward|conf.all)' "
    "-e '^net.(bridge|core.(busy|rps))' -e '^(kernel.keys.root|vm.swappiness)' | sort",
    "interrupts": "grep . /proc/irq/*/smp_affinity_list",
    "steering": "grep . /sys/class/net/*/queues/rx-*/rps_cpus",
    "idle states": "od -An -td4 -N4 /dev/cpu_dma_latency; "
    "grep . /sys/devices/system/cpu/cpu*/cpuidle/state*/disable",
}
LEFT_OVER = {
    "links": "ip -o link | awk '{ sub(/@.*/, \"\", $2); print $2, $3, $5, $7, $9 }' | sort",
    "namespaces": "ls /run/netns",
    "mounts": "awk '{ print $1, $2, $3 }' /proc/self/mounts | grep -E 'labkit|netns' | sort",
    "control groups": "find /sys/fs/cgroup -type d -path '*/labkit/*' | sort",
    "processes": "grep -hsaz -E '^LABKIT_LABEL=(trial|labkit-rig)' /proc/[0-9]*/environ "
    "| tr '\\0' '\\n' | sort -u; pgrep -x -l -r D,R,S,T dockerd",
    "files": "find /run/labkit -mindepth 1 -maxdepth 2 -type d | sort; "
    "ls -d /tmp/trial-* /var/lib/labkit/storage/unions/*",
}


def cleaned() -> dict[str, str]:
    """Return the state of this machine after `labkit clean`."""
    subprocess.run([*LABKIT, "clean"], check=True, capture_output=True)
    return machine()


def machine() -> dict[str, str]:
    """Return the state of this machine, by the name of each part."""
    return {
        name: subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
        for name, script in {**SETTINGS, **LEFT_OVER}.items()
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each part of a state that differs, with up to five lines of each side."""
    found = []
    for name in before:
        was, now = (set(state[name].splitlines()) for state in (before, after))
        lines = [f"-{line}" for line in sorted(was - now)[:5]]
        lines += [f"+{line}" for line in sorted(now - was)[:5]]
        if lines:
            kind = "setting left" if name in SETTINGS else "leak"
            found.append(f"{kind}: {name}: {'; '.join(lines)}")
    return found


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start or resume the campaign."""
    # Where this test is ended, the campaign ends too, and takes the rig down.
    argv = ["setpriv", "--pdeathsig", "TERM", *LABKIT]
    argv += ["run", STUDY, "-P", "tiny", "--rig", "virtual"]
    argv += ["-p", "blocks", str(BLOCKS), "-p", "data", str(folder)]
    # Its trials are short, so that kills also meet the opening and the closing of a rig.
    argv += ["-p", "applications", "[memcached text]", "-p", "seconds", "1"]
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill labkit and its kernel at once; tell whether it was still running."""
    if process.poll() is not None:
        return False
    labkit = psutil.Process(process.pid)
    kernels = labkit.children()
    for victim in (labkit, *kernels):
        victim.suspend()  # so that none sees another one die
    for victim in (labkit, *kernels):
        victim.kill()
    psutil.wait_procs(kernels)
    return process.wait() == -signal.SIGKILL


def finished(folder: Path) -> dict[str, str]:
    """Return a digest of the files of each trial that succeeded, by the name of its attempt."""
    digests = {}
    for path in sorted(folder.rglob("trial.json")):
        if json.loads(path.read_text())["rows"][0]["status"] == "ok":
            samples = path.parents[2] / "samples.parquet" / f"{path.parent.name}.parquet"
            files = [*path.parent.iterdir(), *([samples] if samples.exists() else [])]
            content = b"".join(file.read_bytes() for file in sorted(files))
            digests[path.parent.name] = hashlib.sha256(content).hexdigest()
    return digests


def run_campaign(folder: Path, draw: random.Random, kills: int) -> tuple[int, int, list[str]]:
    """Kill a campaign, and resume it to its end; return kills, trials, and everything wrong."""
    killed, seen, wrong = 0, dict[str, str](), list[str]()

    def look() -> None:
        now = finished(folder)
        wrong.extend(f"lost: {name}" for name, digest in seen.items() if now.get(name) != digest)
        seen.update(now)

    for _ in range(kills):
        process = start(folder)
        time.sleep(draw.uniform(0, LATEST))
        killed += kill(process)
        look()
    for _ in range(RESUMES):
        status = start(folder).wait(timeout=PATIENCE)
        look()
        if status == 0:
            break
    else:
        wrong.append(f"it did not end well: {(folder / 'output').read_text()[-1500:]}")
    campaign = load(folder / STUDY)
    if len(list(folder.rglob("plan.json"))) != 1:
        wrong.append("it was begun anew")
    counts = campaign.ok.drop_duplicates(["trial", "attempt"])["trial"].value_counts()
    wrong += [f"twice: {name}" for name, count in counts.items() if count > 1]
    if lost := sum(map(len, campaign.plan["order"])) - len(counts):
        wrong.append(f"lost: {lost} planned trials")
    return killed, len(counts), wrong


def main() -> int:
    """Kill campaigns until a number of kills or a time is reached; return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, default=20, help="(default: 20)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no campaign after these")
    parser.add_argument("--first", type=int, default=0, help="the number of the first campaign")
    given = parser.parse_args()
    print(f"--seed {given.seed}", flush=True)
    began, before, number, bad = time.monotonic(), cleaned(), given.first, 0
    kills = trials = 0
    while kills < given.kills and time.monotonic() - began < 60 * given.minutes:
        draw = random.Random(f"{given.seed}:{number}")
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            killed, ended, wrong = run_campaign(Path(name), draw, min(MOST, given.kills - kills))
        wrong += changed(before, cleaned())
        kills, trials, bad, number = kills + killed, trials + ended, bad + len(wrong), number + 1
        counts = f"campaign {number - 1}: {killed} kills, {ended} trials"
        print(counts, *wrong, sep="\n  ", flush=True)
    print(f"{kills} kills, {trials} trials, {bad} lost, leaked, left or wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
