"""What this machine can and cannot do: each check is one titled rule with its remedy."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit import runtimes, studies
from labkit.hosts import LocalHost
from labkit.placement import DRIVERS, ENGINES, MOUNTS, NETWORKS
from labkit.rig import Rig, auto, kernel_probe, storage, virtual
from labkit.runtimes import RUNTIMES
from labkit.runtimes.networks import NEVER

Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One finding; ``needed`` marks what `make report` cannot measure without."""

    title: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = False

    def line(self) -> str:
        """Return the finding as a line, with its remedy where something is missing."""
        mark = "ok  " if self.ok else "MISS" if self.needed else "note"
        text = f"{mark}  {self.title}: {self.found}"
        return text if self.ok or not self.remedy else f"{text}\n        -> {self.remedy}"


def check_machine() -> list[Check]:
    """Return every check of this machine, the needed ones first."""
    rules = (_root, *(_tool(name, package) for name, package in virtual.TOOLS.items()))
    rules += (
        _bootstrap,
        _storages,
        _engines,
        _networks,
        _realtime,
        _cpus,
        _isolated,
        _governor,
        _idle,
        _clock,
        _virtual,
        _cgroup,
        _pressure,
    )
    return [rule() for rule in rules]


def _root() -> Check:
    why = kernel_probe.no_namespaces()
    return Check(
        "root",
        not why,
        why or "root, who may make network namespaces",
        "run as root (in a container with --privileged) for the virtual rig; without it reports "
        "show the reference dataset",
        needed=True,
    )


def _tool(name: str, package: str) -> Callable[[], Check]:
    def rule() -> Check:
        found = virtual.find_tool(name)
        remedy = f"apt-get install {package}"
        return Check(name, found is not None, found or "not found", remedy, needed=True)

    return rule


def _bootstrap() -> Check:
    found = shutil.which("mmdebstrap")
    return Check(
        "base image",
        found is not None,
        "made by mmdebstrap" if found else "has to be pulled from a registry",
        "apt-get install mmdebstrap, where no registry can be reached",
    )


def _storages() -> Check:
    lacking = {name.partition(":")[2]: why for name, why in storage.missing().items()}
    # No current kernel has aufs: its absence is said and is nothing to mend.
    return _choice(
        "storages of containers",
        (*DRIVERS, *MOUNTS),
        lacking,
        mend=bool(set(lacking) - {"aufs"}),
        remedy="apt-get install fuse-overlayfs unionfs-fuse btrfs-progs; the study of union file "
        "systems measures those that there are",
    )


#: Where Podman looks for the program that makes its networks.
NETAVARK = Path("/usr/lib/podman/netavark")


def _engines() -> Check:
    lacking = {
        name.partition(":")[2]: why for name, why in runtimes.unavailable(LocalHost(), None).items()
    }
    if virtual.find_tool("dockerd") is None:
        absent = "dockerd is not on this machine; its package is docker.io"
        lacking |= dict.fromkeys(("docker", "gvisor"), absent)
    if "podman" not in lacking and not NETAVARK.exists():
        lacking["podman"] = "without netavark, a package of its own, it has no networks"
    wanted = [RUNTIMES[name].package for name in lacking if RUNTIMES[name].package]
    wanted += ["netavark"] if "podman" in lacking else []
    remedy = f"apt-get install --no-install-recommends {' '.join(wanted)}"
    return _choice("container engines", ENGINES, lacking, mend=bool(wanted), remedy=remedy)


def _networks() -> Check:
    title = "networks of containers"
    if kernel_probe.no_namespaces():
        return Check(title, False, "not tried", "run as root: others may not ask the kernel")
    lacking = {name.partition(":")[2]: why for name, why in kernel_probe.missing_networks().items()}
    names = [name for name in NETWORKS if name not in NEVER]
    remedy = "use a kernel that has it; a study refuses what this one cannot have"
    return _choice(title, names, lacking, mend=bool(set(lacking) - {"weave"}), remedy=remedy)


def _choice(
    title: str, names: Iterable[str], lacking: Mapping[str, str], *, mend: bool, remedy: str
) -> Check:
    """Return what of several there is, and why the rest is not there."""
    able = ", ".join(name for name in names if name not in lacking) or "none"
    without = "; ".join(f"not {name}: {why}" for name, why in lacking.items())
    return Check(title, not mend, able + (f" ({without})" if without else ""), remedy)


def _realtime() -> Check:
    tried = LocalHost().run("chrt", "--fifo", "1", "true", check=False)
    there = tried.status == 0
    found = "available" if there else tried.stderr.strip()[-200:] or "chrt failed"
    return Check("real-time class", there, found, "run as root; the level fifo is refused without")


def _cpus() -> Check:
    count = len(os.sched_getaffinity(1))
    return Check(
        "CPUs",
        count > 1,
        f"{count}; map: "
        + ", ".join(f"{k} {v}" for k, v in (virtual.cpu_map() | virtual.CPU_NOTES).items()),
        "with one CPU the two ends share it: conditions with pinned ends are refused",
    )


def _isolated() -> Check:
    cpus = _read("/sys/devices/system/cpu/isolated")
    return Check(
        "isolated CPUs",
        bool(cpus),
        cpus or "none",
        "boot with isolcpus= for claims about rare tails",
    )


def _governor() -> Check:
    found = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return Check(
        "frequency governor",
        found == "performance",
        found or "the machine shows none (a virtual CPU's frequency is its host's matter)",
        "set scaling_governor to performance" if found else "",
    )


def _idle() -> Check:
    states = [
        _read(str(path))
        for path in sorted(Path("/sys/devices/system/cpu/cpu0/cpuidle").glob("*/name"))
    ]
    return Check(
        "idle states",
        Path("/dev/cpu_dma_latency").exists(),
        f"{', '.join(states) or 'not shown'}; "
        + ("can be held" if Path("/dev/cpu_dma_latency").exists() else "cannot be held"),
        'without /dev/cpu_dma_latency the setting idle="held" is not possible',
    )


def _clock() -> Check:
    found = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return Check(
        "clock source", found in ("tsc", "arch_sys_counter"), found, "reading it may be slow"
    )


def _virtual() -> Check:
    flags = _read("/proc/cpuinfo")
    found = " hypervisor" in flags
    return Check(
        "bare machine",
        not found,
        "a virtual machine" if found else "no hypervisor is seen",
        "claims that need separate machines or NIC hardware stay undecided here; see rig.toml",
    )


def _cgroup() -> Check:
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    hybrid = Path("/sys/fs/cgroup/unified").exists()
    found = "v2" if unified else "v1 with v2 beside it" if hybrid else "v1"
    there = unified or Path("/sys/fs/cgroup/cpu").exists()
    return Check(
        "control groups", there, found, "mount the cpu and cpuset controllers", needed=True
    )


def _pressure() -> Check:
    there = os.access("/proc/pressure/cpu", os.R_OK)
    return Check("pressure (PSI)", there, "readable" if there else "not there", "boot with psi=1")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


#: Instead of a rig: nothing is measured, and the dataset that comes with labkit is read.
REFERENCE = "reference"

#: Findings that say what a first study can compare, and what its numbers are worth.
_SHOWN = (
    *("root", "container engines", "networks of containers", "CPUs", "isolated CPUs"),
    *("clock source", "bare machine"),
)


def machine_table(checks: Iterable[Check] | None = None) -> str:
    """Return in Markdown, as a short table, what this machine can and cannot do."""
    found = list(check_machine() if checks is None else checks)
    programs = [one for one in found if one.title in virtual.TOOLS]
    absent = [one for one in programs if not one.ok]
    rest = [one for one in found if one not in programs]
    shown = [one for one in rest if one.title in _SHOWN or (one.needed and not one.ok)]
    rows = [(one.title, _brief(one.found), "" if one.ok else one.remedy) for one in shown]
    there = f"{len(programs) - len(absent)} of {len(programs)}"
    there += f", not {', '.join(one.title for one in absent)}" if absent else ""
    remedies = "; ".join(dict.fromkeys(one.remedy for one in absent))
    rows.insert(1, ("programs of the virtual rig", there, remedies))
    lines = ["| | this machine | what to do, or what follows |", "| --- | --- | --- |"]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    left = len(rest) - len(shown)
    return "\n".join(
        [*lines, "", f"`labkit doctor` says more ({left} findings), with every reason."]
    )


def _brief(found: str) -> str:
    """Return a finding without the reasons of what is absent, and without the CPU map."""
    return found.partition(" (not ")[0].partition("; map")[0]


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def choose_rig(rig: str) -> tuple[str, str]:
    """Return the rig to open, or `REFERENCE` with the reason why nothing is measured."""
    if rig == REFERENCE:
        return REFERENCE, "the parameter `rig` asks for it"
    if rig != "auto":
        return rig, ""
    reason = studies.cannot_measure()
    return (REFERENCE, reason) if reason else (auto(), "")


def timing(say: Say) -> list[str]:
    """Measure what the rig's numbers rest on: clock, tick, steal, idle exits, noise of trials."""
    lines = [f"clock read: {_clock_cost():.0f} ns (through Python)", *_second_of_spinning()]
    from labkit.campaign.trial import Trial
    from labkit.design import Condition
    from labkit.placement import bare
    from labkit.tools import sockperf

    def median(rig: Rig, wait: str, number: int) -> float:
        levels = (("placement", bare()), ("affinity", "split"), ("wait", wait))
        label = f"trial-doctor-{os.getpid()}-{number}"
        trial = Trial(rig, Condition(levels), {"messages": 2_000, "size": 64}, label, {})
        with trial.serve(sockperf.server(wait), bare()) as server:
            client = sockperf.ping_pong(server.address, messages=2_000, size=64, wait=wait)
            return float(np.median(trial.measure(client).samples["rtt_ns"])) / 1000

    with Rig.open("virtual", say=say) as rig:
        for wait in ("block", "spin"):
            say(f"six trials, {wait}")
            found = [median(rig, wait, number) for number in range(6)]
            spread = statistics.stdev(found) / statistics.mean(found)
            shown = ", ".join(f"{one:.1f}" for one in found)
            lines.append(f"round trip, {wait}: medians {shown} us; {spread:.1%} between trials")
        with rig.idle("held"):
            held = median(rig, "block", 9)
        lines.append(
            f"round trip, block, idle held at polling: {held:.1f} us (the rest is idle exit)"
        )
    return lines


def _clock_cost() -> float:
    reads = 200_000
    began = time.perf_counter_ns()
    for _ in range(reads):
        time.perf_counter_ns()
    return (time.perf_counter_ns() - began) / reads


def most_timer_interrupts(before: str, after: str) -> int:
    """Return the most timer interrupts of a CPU between two copies of ``/proc/interrupts``."""

    def counts(text: str) -> list[int]:
        lines = (line.split() for line in text.splitlines())
        return [
            int(word)
            for words in lines
            if words[:1] == ["LOC:"]
            for word in words
            if word.isdigit()
        ]

    return max((b - a for a, b in zip(counts(before), counts(after), strict=False)), default=0)


def _second_of_spinning() -> list[str]:
    """Spin for a second: the timer's interrupts are its tick, and steal is what was taken."""

    def stolen() -> int:
        return int(_read("/proc/stat").split()[8])

    before, steal, end = _read("/proc/interrupts"), stolen(), time.monotonic() + 1
    gaps, last = 0, time.perf_counter_ns()
    while time.monotonic() < end:
        now = time.perf_counter_ns()
        gaps = max(gaps, now - last)
        last = now
    ticks = most_timer_interrupts(before, _read("/proc/interrupts"))
    hertz = os.sysconf("SC_CLK_TCK")
    return [
        f"timer: {ticks} interrupts in a busy second",
        f"steal: {(stolen() - steal) / hertz:.2%} of a second; longest gap {gaps / 1000:.0f} us",
    ]
