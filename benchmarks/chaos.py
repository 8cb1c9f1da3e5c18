"""Kill and break campaigns at random moments; count what is lost, left behind, or wrong.

A run is one campaign on the virtual rig with short trials. It is killed several times, or
something of the rig, of the disk or in a window is broken; then it is resumed to its end. Compared
with the state before: every finished trial, and of this machine and of each host of the rig the
settings, rules, links, containers, namespaces, mounts, control groups, jobs and files.

Each run draws from its own seed, so ``--seed 7 --only 12`` is run 12 of ``--seed 7`` again.

Examples: .venv/bin/python benchmarks/chaos.py --count 20
          .venv/bin/python benchmarks/chaos.py --minutes 8 --seed 3 --append chaos.jsonl
          .venv/bin/python benchmarks/chaos.py --table chaos.jsonl
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit import Rig, Study, bare, docker
from labkit.campaign import runner, store, trial
from labkit.campaign.treatments import IdlePolicy, PacketCapture
from labkit.design import trial_name
from labkit.errors import LabkitError
from labkit.hosts import LocalHost
from labkit.hosts.journal import DIRECTORY as JOURNAL
from labkit.hosts.journal import Journal
from labkit.placement import Placement, waiting
from labkit.rig import clean, lock, netns, teardown, virtual
from labkit.tools.base import Client, Measurement

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "rig"))
from tampering import CASES, Case, Scene, run_case

#: Samples of a short trial; their values are their numbers.
SAMPLES = 200
#: Phases of a campaign on a rig that stays up, and those that only its own rig has; the longest
#: time from the beginning of the phase to the signal.
KEPT = {"placing": 0.3, "measuring": 0.7, "recording": 0.02, "": 6.0}
OWN = {"planning": 4.0, "taking down": 1.5, "restoring": 0.05, "": 12.0}
#: Runs after which a broken campaign must have reached its end.
RESUMES = 3
#: Seconds after which a campaign hangs.
PATIENCE = 240.0
#: Of so many runs, the last have a rig of their own.
CYCLE, CYCLE_OWN = 10, 2

# What the machine and each host must be like afterwards. Only settings of the lab are listed.
_STATE = r"""
show() { echo "@@ $1"; sh -c "$2" 2>/dev/null || true; }
show namespaces 'ls /run/netns'
link='{ sub(/@.*/, "", $2); print $2, $3, $5, $7, $9 }'  # name, flags, MTU, queue, state
show links "ip -o link | awk '$link' | grep -v ^veth"
show routes 'ip route show table all | sort'
show mounts "awk '{print \$1, \$2, \$3}' /proc/self/mounts | grep -E 'labkit|netns' |
    grep -v -e /rkt/ -e netns/default |
    sed 's/[0-9a-f]\{12,\}/ID/g' | sort"
show groups "find /sys/fs/cgroup -type d -path '*/labkit/*' | sort"
show processes "grep -lsz -e '^LABKIT_LABEL=trial-' /proc/[0-9]*/environ; pgrep -x dockerd -c"
show files "find /run/labkit -mindepth 1 -maxdepth 3 -not -path '*/docker/*' -not -name '*.pid' |
    grep -v -e /jobs$ -e /jobs-podman | sort
    ls -d /tmp/trial-* /run/trial-* /var/lib/labkit/images/*/rootfs/run/trial-*"
show journal "ls -A $JOURNAL"
show loops 'losetup --list --noheadings | grep labkit'
show idle 'od -An -td4 -N4 /dev/cpu_dma_latency'
show irqs 'grep . /proc/irq/*/smp_affinity_list'
show sysctls "sysctl -a | grep -E -e '^net.ipv4.(ip_forward|conf.all)' \
    -e '^net.(bridge|core.(busy|rps))' -e '^(kernel.keys.root|vm.swappiness)' | sort"
# Chains that iptables makes where it looks for rules.
empty='s/\tchain \w+ \{\n\t\ttype [^\n]*policy accept;\n\t\}\n\n?//g'
for namespace in /run/netns/labkit-*; do
    case $namespace in */labkit-\*) continue ;; esac
    host=${namespace##*-}
    nsenter --net="$namespace" sh -c '
        echo "@@ links of $1"; ip -o link | awk "$2" | grep -v ^veth | sort
        echo "@@ routes of $1"; ip route show table all | sort
        echo "@@ queues of $1"; tc qdisc show | grep -v veth | sort
        echo "@@ rules of $1"
        nft list ruleset | sed "s/packets [0-9]* bytes [0-9]*//" | perl -0pe "$3"
        echo "@@ sysctls of $1"; sysctl -a | grep -E "^net.(ipv4.(ip_|tcp_|conf.all)|core|bridge)" |
            grep -v -e netdev_rss_key -e tcp_fastopen_key | sort
        echo "@@ steering of $1"
        grep . "/run/labkit/virtual/sys/$1"/class/net/*/queues/rx-*/rps_cpus | grep -v veth
    ' sh "$host" "$link" "$empty" 2>/dev/null
done
[ ! -S /run/labkit/virtual/docker.sock ] || {
    export DOCKER_HOST=unix:///run/labkit/virtual/docker.sock
    echo "@@ containers"; docker ps --all --format '{{.Names}}'
    echo "@@ networks"; docker network ls --format '{{.Name}} {{.Driver}}' | sort
    echo "@@ volumes"; docker volume ls --quiet
}
"""
#: Parts of the state that are settings; the others are leftovers.
SETTINGS = ("links", "routes", "idle", "irqs", "sysctls", "queues", "rules", "steering", "pending")

WORDS = ("lost", "leaks", "settings", "wrong")


def machine() -> dict[str, str]:
    """Return the state of this machine and of the hosts of the rig, after `labkit clean`."""
    with lock.locked(patience=600):
        clean(say=lambda text: None)
        script = ["sh", "-c", f"JOURNAL={JOURNAL}\n{_STATE}"]
        text = subprocess.run(script, capture_output=True, text=True, check=False).stdout
        record = Journal(LocalHost()).load()
    parts = (part.partition("\n") for part in text.split("@@ ")[1:])
    pending = sorted(f"{one.kind} {one.target} {one.label}" for one in record.pending)
    return {title: body for title, _, body in parts} | {"pending": "\n".join(pending)}


def changed(before: Mapping[str, str], after: Mapping[str, str], settings: bool) -> list[str]:
    """Return the differences between two states, of settings or of all else."""
    found = []
    for kind in sorted({*before, *after}):
        was, now = (set(state.get(kind, "").splitlines()) for state in (before, after))
        if kind.startswith(SETTINGS) == settings and was != now:
            lines = [f"-{line}" for line in sorted(was - now)[:5]]
            lines += [f"+{line}" for line in sorted(now - was)[:5]]
            found.append(f"{kind}: {'; '.join(lines)}")
    return found


# The campaign.


@dataclass(frozen=True)
class Broken:
    """What is done once while a campaign runs: in a window, or after a time."""

    act: Callable[[Rig], Any]
    after: float


#: What the campaign of this process suffers in a window, the file that says that it has, and when.
_TAMPERING: list[tuple[Case, Path, float]] = []


def counted(stdout: str, log: str) -> Measurement:
    """Return the samples of a short trial."""
    return Measurement({"rtt_ns": np.array(stdout.split(), dtype=np.int64)}, messages=SAMPLES)


def short(trial: trial.Trial) -> Measurement:
    """Run a trial of under a second; its samples can be checked."""
    with trial.apply("idle"), trial.serve(waiting("net"), trial.placement) as server:
        argv = ("sh", "-c", f"sleep 0.3; seq {SAMPLES}")
        return trial.measure(Client(argv, server.address, 2.0, counted))


def disturbed(trial: trial.Trial) -> Measurement:
    """Run the trial of a case of tampering."""
    case, over, delay = _TAMPERING[0]
    with trial.apply("idle"):
        return run_case(trial._rig, trial, case, over, delay)


def measure(folder: Path, blocks: int, case: Case | None, broken: Broken | None) -> None:
    """Run or resume the campaign in this process."""
    import threading

    placements = [bare("clean"), bare("cgroup"), docker("bridge")] if case is None else []
    factors = {"placement": placements or [case.placement], "affinity": ["split"]}
    protocol = disturbed if case else short
    settings, of = {"idle": "held"}, {"idle": IdlePolicy()}
    study = Study("chaos", protocol, factors=factors, settings=settings, treatments=of)
    with Rig.open("virtual", say=lambda text: None, patience=600) as lab:
        plan = study.plan(lab, blocks=blocks, seed=1)
        if broken:
            timer = threading.Timer(broken.after, broken.act, [lab])
            timer.daemon = True
            timer.start()
        plan.run(into=folder)
        if broken:
            timer.join()


def announced(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that prints the phase around `function`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        os.write(1, f"{phase}\n".encode())
        try:
            return function(*args, **kwargs)
        finally:
            os.write(1, b"/\n")

    return wrapper


def announced_entry(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose context prints the phase while it is entered."""

    @contextmanager
    def wrapper(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with ExitStack() as stack:
            yield announced(phase, stack.enter_context)(function(*args, **kwargs))

    return wrapper


def announce() -> None:
    """Make the library print its phases."""
    Study.plan = announced("planning", Study.plan)
    runner.Trial.serve = announced_entry("placing", trial.Trial.serve)
    runner.Trial.measure_all = announced("measuring", trial.Trial.measure_all)
    store.Store.add = announced("recording", store.Store.add)
    virtual.up = announced("planning", virtual.up)
    virtual.down = announced("taking down", virtual.down)
    virtual.restore = announced("restoring", virtual.restore)


class Process:
    """A campaign in a process of its own, which prints its phases; a fork saves the imports."""

    def __init__(self, folder: Path, work: Callable[[], None]) -> None:
        self.errors = folder / "errors"
        reading, writing = os.pipe()
        # A campaign pins the processes that started it.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            os.close(reading)
            os.dup2(writing, 1)
            with self.errors.open("w") as log:
                os.dup2(log.fileno(), 2)
            faulthandler.register(signal.SIGUSR1)  # tells where it hangs
            os._exit(_status(work))
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        self._rest = b""

    def until(self, phase: str | None, seconds: float) -> bool:
        """Read until a phase begins; return False if it ended, or took longer."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._pipe], [], [], left)[0]:
                continue
            text = self._pipe.read(4096)
            if not text:
                return False
            *lines, self._rest = (self._rest + text).split(b"\n")
            if phase is not None and phase.encode() in lines:
                return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal to it and what it runs here."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def said(self) -> str:
        """Return the end of its errors, without paths of this machine."""
        text = self.errors.read_text()[-1500:] if self.errors.exists() else ""
        return re.sub(r"(/[\w.-]+){2,}", "PATH", text)

    def end(self) -> int | None:
        """Return its status, or None if it hung and was killed."""
        deadline = time.monotonic() + PATIENCE
        while (ended := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(1.0)
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            self.until(None, 0.2)  # reads, so that it can write
            time.sleep(0.01)
        self._pipe.close()
        return os.waitstatus_to_exitcode(ended[1]) if ended[0] else None


def _status(work: Callable[[], None]) -> int:
    """Return 0, 1 for an error that the command line shows, or 3 for another: a defect."""
    try:
        announce()
        work()
    except (LabkitError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 3
    return 0


# What is killed, and what is broken.


def pid_of(name: str = "docker") -> int:
    """Return the process of an engine of the rig."""
    return int((netns.DIRECTORY / f"{name}.pid").read_text())


def children(pid: int, name: str) -> list[int]:
    """Return the processes below a process, by name."""
    listing = ["pgrep", "-P", str(pid), "-x", name]
    return [
        int(x) for x in subprocess.run(listing, capture_output=True, check=False).stdout.split()
    ]


def kill(*pids: int) -> None:
    """Kill processes."""
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop(seconds: float, *pids: int) -> None:
    """Stop processes for a time."""
    assert pids
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(seconds if number == signal.SIGSTOP else 0)


def servers(role: str) -> list[int]:
    """Return the processes of a host's SSH server, with its sessions."""
    found = []
    for pid in netns.pids([netns.PREFIX + role]):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "sshd\n":
                found.append(pid)
    return sorted(found)


def run(*argv: str) -> None:
    """Run a command on this machine."""
    LocalHost().run(*argv)


def end_groups() -> None:
    """End everything in the lab's control groups, and remove them."""
    kill(*(teardown.grouped() or {2**22 - 1}))
    time.sleep(0.1)
    for root in teardown.group_roots():
        for path in root.glob("*"):
            with suppress(OSError):
                path.rmdir()


def jump(seconds: float) -> None:
    """Move the clock of this process."""
    for name, factor in (("time", 1), ("time_ns", 10**9)):
        true = getattr(time, name)
        setattr(time, name, lambda true=true, factor=factor: true() + int(seconds * factor))


def image_of(folder: Path) -> Path:
    """Return the file that holds the file system of a small disk."""
    return folder.with_suffix(".img")


def mount(folder: Path) -> None:
    """Mount a small disk."""
    run("mount", "-o", "loop", str(image_of(folder)), str(folder))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of 8 MiB."""
    image = image_of(folder)
    run("truncate", "--size=8M", str(image))
    run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
    mount(folder)
    try:
        yield
    finally:
        run("umount", "--lazy", str(folder))


def remounted(folder: Path) -> None:
    """Mount a small disk again after the kernel made it read-only."""
    run("umount", str(folder))
    LocalHost().run("e2fsck", "-fy", str(image_of(folder)), check=False)
    mount(folder)


def fill(folder: Path) -> None:
    """Fill a disk."""
    subprocess.run(["dd", "if=/dev/zero", f"of={folder}/fill"], capture_output=True, check=False)


@dataclass(frozen=True)
class Fault:
    """What is broken while a campaign runs, and what is mended before it is resumed."""

    name: str
    act: Callable[[Path], Any]
    mend: Callable[[Path], Any] = lambda folder: None
    disk: bool = False


def removed(*paths: str | Path) -> Callable[[Path], None]:
    """Return what removes files and folders."""

    def act(folder: Path) -> None:
        for path in map(Path, paths):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    return act


IN_SUT = ("nsenter", f"--net={netns.namespace('sut')}")
FAULTS = [
    Fault("engine killed", lambda x: kill(pid_of())),
    Fault("engine stopped for 2 s", lambda x: stop(2.0, pid_of())),
    Fault("containerd killed", lambda x: kill(*children(pid_of(), "containerd"))),
    Fault("containerd stopped for 2 s", lambda x: stop(2.0, *children(pid_of(), "containerd"))),
    Fault("SSH server and sessions killed", lambda x: kill(*servers("sut"))),
    Fault("SSH server killed", lambda x: kill(servers("clean")[0])),
    Fault("SSH stopped for 2 s", lambda x: stop(2.0, *servers("sut"))),
    Fault("namespace removed", lambda x: run("ip", "netns", "del", "labkit-clean")),
    Fault("link removed", lambda x: run("ip", "-n", netns.SWITCH, "link", "del", "sut0")),
    Fault("link down", lambda x: run("ip", "-n", netns.SWITCH, "link", "set", "clean0", "down")),
    Fault("rules flushed", lambda x: run(*IN_SUT, "sh", "-c", "iptables -t nat -F; iptables -F")),
    Fault("control groups removed", lambda x: end_groups()),
    # The rig that is up was in it; it is taken down by what else is known of it.
    Fault("journal removed", removed(f"{JOURNAL}/journal"), lambda x: keep_up(kept=False)),
    Fault("lock removed", removed(lock.MACHINE)),
    Fault("/run/labkit removed", removed(lock.RUN)),
    Fault("folders of jobs removed", removed(netns.DIRECTORY / "jobs")),
    Fault("keys removed", removed(netns.DIRECTORY / "keys")),
    Fault("state of the rig removed", removed(lock.STATE)),
    Fault("disk full", fill, lambda x: (x / "fill").unlink(missing_ok=True), disk=True),
    # As the kernel does after an error of the disk.
    Fault(
        "disk read-only",
        lambda x: run("mount", "-o", "remount,abort", str(x)),
        remounted,
        disk=True,
    ),
    Fault("labkit's clock an hour on", lambda x: jump(3600.0)),
    Fault("labkit's clock an hour back", lambda x: jump(-3600.0)),
]


@contextmanager
def capturing(scene: Scene) -> Iterator[None]:
    """Capture on the collector."""
    label = f"trial-{os.getpid()}-chaos"
    with scene.lab.collector("clean"), PacketCapture().apply(scene.lab, "on", label):
        yield


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tcpdump() -> set[int]:
    """Return the processes that capture."""
    return netns.pids([netns.PREFIX + "collector"]) & {
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text() == "tcpdump\n"
    }


DOCKER: Placement = docker("host")
WINDOWS = [
    *CASES,
    *(
        Case(f"server killed, {place.label}", place, lambda scene: kill(scene.server.pid), "")
        for place in (bare(), bare("cgroup"), DOCKER)
    ),
    *(
        Case(f"client killed, {place.label}", place, lambda scene: kill(scene.client), "")
        for place in (bare(), DOCKER)
    ),
    Case("shim killed", DOCKER, lambda scene: kill(parent(scene.server.pid)), ""),
    Case("window's shell killed", bare(), lambda scene: kill(parent(scene.client)), ""),
    Case("collector killed", bare(), lambda scene: kill(*tcpdump()), "", around=capturing),
]


# Runs.


@dataclass
class Row:
    """What came of one run."""

    seed: int
    number: int
    kind: str
    name: str
    kills: int = 0
    missed: int = 0
    trials: int = 0
    #: Attempts at trials that nothing was done to.
    untampered: int = 0
    lost: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def finished(folder: Path) -> dict[str, str]:
    """Return a digest of every finished trial."""
    digests = {}
    for path in sorted(folder.glob("*/*/trials/b*/trial.json")):
        if json.loads(path.read_text())["rows"][0]["status"] == "ok":
            samples = path.parents[2] / "samples.parquet" / f"{path.parent.name}.parquet"
            files = [*sorted(path.parent.iterdir()), *([samples] if samples.exists() else [])]
            content = b"".join(file.read_bytes() for file in files)
            digests[path.parent.name] = hashlib.sha256(content).hexdigest()
    return digests


def planned(path: Path) -> list[str]:
    """Return the names of the trials of a plan.json."""
    order = json.loads(path.read_text())["order"]
    return [
        trial_name(block, position)
        for block, conditions in enumerate(order, start=1)
        for position in range(1, len(conditions) + 1)
    ]


class Campaign:
    """A campaign, its row, and the finished trials that were last seen."""

    def __init__(self, folder: Path, row: Row, blocks: int, case: Case | None = None) -> None:
        self.folder, self.row, self.blocks, self.case = folder, row, blocks, case
        self.data = folder / "data"
        self.data.mkdir()
        self.seen: dict[str, str] = {}

    def start(self, broken: Broken | None = None) -> Process:
        """Start or resume it."""
        work = lambda: measure(self.data, self.blocks, self.case, broken)  # noqa: E731
        return Process(self.folder, work)

    def end(self, process: Process, expected: tuple[int, ...]) -> int | None:
        """Wait for its end, and compare the trials with those seen before."""
        status = process.end()
        said = process.said()
        if status not in expected:
            how = "hung" if status is None else f"ended with {status}"
            self.row.wrong.append(f"the campaign {how}: {said}")
        now = finished(self.data)
        self.row.lost += [name for name, digest in self.seen.items() if now.get(name) != digest]
        self.seen = now
        return status

    def resume(self) -> None:
        """Resume it until its end, and check that every planned trial is there once."""
        for attempt in range(RESUMES):
            status = self.end(self.start(), (0, 1) if attempt < RESUMES - 1 else (0,))
            plans = list(self.data.glob("*/*/plan.json"))
            done = Counter(name.rpartition("-a")[0] for name in self.seen)
            # A trial whose attempts failed is attempted again by the next run.
            missing = [name for path in plans for name in planned(path) if not done[name]]
            if status == 0 and not missing:
                break
        if len(plans) != 1:
            self.row.wrong.append(f"{len(plans)} campaigns instead of one")
            return
        self.row.lost += [f"{name} is not there" for name in missing]
        self.row.wrong += [f"{name} is there {n} times" for name, n in done.items() if n > 1]
        self.row.trials = len(self.seen)
        if not self.case:
            self._check_samples(plans[0].parent)

    def _check_samples(self, path: Path) -> None:
        import labkit

        counts = labkit.load(path).samples("rtt_ns")
        every = counts.groupby("trial")["rtt_ns"].agg(["size", "sum"])
        bad = every[(every["size"] != SAMPLES) | (every["sum"] != SAMPLES * (SAMPLES + 1) // 2)]
        self.row.wrong += [f"samples of {name} are wrong" for name in bad.index]


def run_kills(
    campaign: Campaign, phases: Mapping[str, float], draw: random.Random, kills: int
) -> None:
    """Kill a campaign in some phases, and resume it after each."""
    row, process = campaign.row, None
    names = [draw.choice(list(phases)) for _ in range(kills)]
    row.name = ", ".join(name or "anywhere" for name in names)
    for phase in names:
        longest, number = phases[phase], draw.choice([signal.SIGKILL] * 9 + [signal.SIGSTOP])
        process = process or campaign.start()
        skip = draw.randrange(3) if phase in KEPT and phase else 0
        there = all(process.until(phase, PATIENCE) for _ in range(skip + 1)) if phase else True
        if there:
            process.until(None, draw.uniform(0, longest))
        process.signal(number)
        if number == signal.SIGSTOP:
            time.sleep(1.0)
            process.signal(signal.SIGCONT)
            continue
        status = campaign.end(process, (0, -number))
        process = None
        row.kills += status == -number
        if status == 0:  # it came too late, and nothing is left to kill
            row.missed += 1
            break
    if process:
        campaign.end(process, (0,))


def count_alarms(campaign: Campaign) -> None:
    """Count the attempts at trials that nothing was done to; each must be as its label says."""
    for path in sorted(campaign.data.glob("*/*/trials/*/trial.json")):
        record = json.loads(path.read_text())
        row = record["rows"][0]
        campaign.row.untampered += 1
        flags = row["flags"].split("; ")
        said = [flag for flag in flags if "pause" in flag or "impossible" in flag]
        if row["status"] != "ok" or said:
            why = said or [record["error"]["what"], record["error"]["why"]]
            campaign.row.wrong.append(f"false alarm in {path.parent.name}: {why}")


def run_fault(campaign: Campaign, fault: Fault, draw: random.Random) -> None:
    """Break something while a campaign runs, and resume it."""
    campaign.row.name = fault.name

    def act(lab: Rig) -> None:
        try:
            fault.act(campaign.data)
        except BaseException as error:
            (campaign.folder / "failure").write_text(repr(error))

    with ExitStack() as stack:
        if fault.disk:
            stack.enter_context(small_disk(campaign.data))
        process = campaign.start(Broken(act, draw.uniform(0.0, 4.0)))
        process.until(None, PATIENCE)
        status = process.end()
        fault.mend(campaign.data)
        said = process.said()
        if status not in (0, 1):
            campaign.row.wrong.append(f"the campaign ended with {status}: {said}")
        campaign.seen = finished(campaign.data)
        if (campaign.folder / "failure").exists():
            campaign.row.missed = 1
            campaign.row.name += f" ({(campaign.folder / 'failure').read_text()})"
        campaign.resume()


def run_window(campaign: Campaign, case: Case, draw: random.Random) -> None:
    """Change something in a window: its attempt must have failed, or be flagged."""
    campaign.row.name = case.name
    over = campaign.folder / "over"
    _TAMPERING[:] = [(case, over, draw.uniform(0.0, 0.3))]
    campaign.end(campaign.start(), (0, 1))
    over.touch()
    for path in sorted(campaign.data.glob("*/*/trials/*-a1/trial.json")):
        record = json.loads(path.read_text())
        row = record["rows"][0]
        # What else runs on the machine is not what was changed.
        found = filter(None, row["flags"].split("; "))
        flags = [flag for flag in found if "which is not part of the trial" not in flag]
        if row["status"] == "ok" and not flags:
            campaign.row.wrong.append(f"{path.parent.name}: ok, without a flag")
        elif row["status"] == "ok" or record["error"]["type"] == "AssertionError":
            what = flags or record["error"]["what"]
            campaign.row.missed = int(row["status"] != "ok")
            campaign.row.name += f" ({what})"[:300] if campaign.row.missed else ""
    campaign.resume()


def keep_up(kept: bool) -> None:
    """Have a rig that stays up, or none."""
    with lock.locked(patience=600):
        clean(say=lambda text: None)
        state = lock.read_state()
        if kept and state is None:
            virtual.up(keep=True)
        elif not kept and state is not None:
            virtual.down()


def deck(seed: int, kinds: Iterable[str]) -> list[Fault | Case | None]:
    """Return what runs on a kept rig suffer, in the order of a seed; None is kills."""
    cards: list[Fault | Case | None] = []
    cards += FAULTS if "faults" in kinds else []
    cards += WINDOWS if "windows" in kinds else []
    # As many kills as faults, of which a run has several.
    cards += [None] * (len(cards) or 1) if "kills" in kinds else []
    random.Random(seed).shuffle(cards)
    return cards


def run_one(
    seed: int, number: int, kinds: Iterable[str], kills: int, states: dict[bool, Any]
) -> Row:
    """Do the run of a number; `states` are those of the machine with a rig and without."""
    began, draw = time.monotonic(), random.Random(f"{seed}:{number}")
    cards = deck(seed, kinds)
    own = "kills" in kinds and number % CYCLE >= CYCLE - CYCLE_OWN
    turn = number // CYCLE * (CYCLE - CYCLE_OWN) + number % CYCLE if "kills" in kinds else number
    card = None if own else cards[turn % len(cards)]
    kind = "kill" if card is None else "fault" if isinstance(card, Fault) else "window"
    row = Row(seed, number, kind + (", own rig" if own else ""), "")
    keep_up(not own)
    if own not in states:
        states[own] = machine()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        if isinstance(card, Case):
            run_window(Campaign(folder, row, 1, card), card, draw)
        elif isinstance(card, Fault):
            run_fault(Campaign(folder, row, 2), card, draw)
        else:
            campaign = Campaign(folder, row, kills)
            run_kills(campaign, OWN if own else KEPT, draw, kills)
            campaign.resume()
            count_alarms(campaign)
    keep_up(not own)  # a rig whose state was removed is down
    after = machine()
    row.leaks += changed(states[own], after, settings=False)
    row.settings += changed(states[own], after, settings=True)
    states[own] = after
    row.seconds = round(time.monotonic() - began, 1)
    return row


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the counts by kind, as Markdown."""
    sums: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=lambda row: (not row["kind"].startswith("kill"), row["kind"])):
        names = {"kill": "labkit killed (SIGKILL)", "kill, own rig": "labkit killed, with its rig"}
        name = names.get(row["kind"], f"{row['kind']}: {row['name'].partition(' (')[0]}")
        one = sums.setdefault(name, Counter())
        one["count"] += row["kills"] if row["kind"].startswith("kill") else 1 - row["missed"]
        one["trials"] += row["trials"]
        one["untampered"] += row["untampered"]
        for word in WORDS:
            one[word] += len(row[word])
    sums["all"] = sum(sums.values(), Counter())
    heads = ("kind", "count", "trials", "of them untampered", "lost", "leaks", "settings left")
    heads += ("wrong",)
    keys = ("count", "trials", "untampered", *WORDS)
    lines = [" | ".join(heads), " | ".join(["---", *["---:"] * (len(heads) - 1)])]
    lines += [" | ".join([name, *(str(one[key]) for key in keys)]) for name, one in sums.items()]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> int:
    """Do runs until a count or a time is reached; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=20, help="runs (default: 20)")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after these")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--only", type=int, help="this run alone")
    parser.add_argument("--kinds", default="kills,faults,windows", help="of kills,faults,windows")
    parser.add_argument("--kills", type=int, default=4, help="of a campaign (default: 4)")
    parser.add_argument("--append", type=Path, help="append a line of JSON for each run")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and end")
    given = parser.parse_args()
    if given.table:
        print(table(map(json.loads, given.table.read_text().splitlines())))
        return 0
    print(f"--seed {given.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the rig is taken down
    began, rows, states = time.monotonic(), [], dict[bool, Any]()
    numbers = range(given.first, given.first + given.count)
    try:
        for number in numbers if given.only is None else [given.only]:
            if time.monotonic() - began > 60 * given.minutes:
                break
            row = run_one(given.seed, number, given.kinds.split(","), given.kills, states)
            rows.append(asdict(row))
            bad = {word: rows[-1][word] for word in WORDS if rows[-1][word]}
            count = f"{row.kills} kills" if row.kind.startswith("kill") else ""
            print(f"{number:4} {row.seconds:5} s {row.kind}: {row.name} {count}", flush=True)
            for word, texts in bad.items():
                print(*(f"     {word}: {text}" for text in texts), sep="\n", flush=True)
            if given.append:
                with given.append.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    finally:
        keep_up(kept=False)
    print(table(rows))
    return int(any(row[word] for row in rows for word in WORDS))


if __name__ == "__main__":
    sys.exit(main())
