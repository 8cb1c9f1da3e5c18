"""Checks of what this machine can do, each with a remedy."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from labkit import runtimes, studies
from labkit.hosts import LocalHost, collect_facts
from labkit.placement import ENGINES, NETWORKS
from labkit.rig import Rig, engine, kernel_probe, virtual
from labkit.runtimes import RUNTIMES
from labkit.runtimes.networks import NEVER

#: In place of a rig: nothing can be measured here, and the reference is shown.
REFERENCE = "reference"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """The result of one check; nothing can be measured if a `needed` one is not ok."""

    title: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = False

    def line(self) -> str:
        """Return the result as a line of text, with the remedy if it is not ok."""
        mark = "ok  " if self.ok else "MISS" if self.needed else "note"
        text = f"{mark}  {self.title}: {self.found}"
        return text if self.ok or not self.remedy else f"{text}\n        -> {self.remedy}"


def check_machine() -> list[Check]:
    """Return the results of all checks of this machine."""
    return [
        _rig(),
        _root(),
        *(_tool(name, package) for name, package in virtual.TOOLS.items()),
        _bootstrap(),
        _engines(),
        _networks(),
        _unpackaged(),
        *_cpus(),
        *_kernel(),
        _seccomp(_read("/proc/sys/kernel/seccomp/actions_avail"), _read("/proc/self/status")),
    ]


def _rig() -> Check:
    """Return which rig `auto` is."""
    spec, reason = studies.rig_here()
    return Check(
        "rig",
        not reason,
        spec or f"none ({reason})",
        "run as root, with the packages below; without a rig reports show the reference dataset",
        needed=True,
    )


def _root() -> Check:
    reason = kernel_probe.no_namespaces()
    return Check(
        "root",
        not reason,
        reason or "root, who may make network namespaces",
        "run as root (in a container with --privileged) for the virtual rig",
    )


def _tool(name: str, package: str) -> Check:
    path = kernel_probe.find_tool(name)
    return Check(name, path is not None, path or "not found", f"apt-get install {package}")


def _bootstrap() -> Check:
    path = shutil.which("mmdebstrap")
    return Check(
        "base image",
        path is not None,
        "made by mmdebstrap" if path else "has to be pulled from a registry",
        "apt-get install mmdebstrap, where no registry can be reached",
    )


#: Where Podman looks for the program that sets up its networks.
NETAVARK = Path("/usr/lib/podman/netavark")


def _engines() -> Check:
    unavailable = runtimes.unavailable(LocalHost())
    missing = {name.partition(":")[2]: reason for name, reason in unavailable.items()}
    if kernel_probe.find_tool("dockerd") is None:
        missing["docker"] = "dockerd is not on this machine; its package is docker.io"
    if "podman" not in missing and not NETAVARK.exists():
        missing["podman"] = "it has no networks without netavark, which is a separate package"
    packages = [RUNTIMES[name].package for name in missing if RUNTIMES[name].package]
    packages += ["netavark"] if "podman" in missing else []
    remedy = f"apt-get install --no-install-recommends {' '.join(packages)}"
    return _choices("container engines", ENGINES, missing, ok=not packages, remedy=remedy)


def _networks() -> Check:
    title = "networks of containers"
    if kernel_probe.no_namespaces():
        return Check(title, False, "not tried", "run as root, which testing the kernel requires")
    reasons = kernel_probe.missing_networks()
    missing = {name.partition(":")[2]: reason for name, reason in reasons.items()}
    names = [name for name in NETWORKS if name not in NEVER]
    remedy = "use a kernel that supports them; studies leave out what is missing"
    return _choices(title, names, missing, ok=not set(missing) - {"weave"}, remedy=remedy)


#: Programs of the papers that no distribution packages.
UNPACKAGED_PROGRAMS = ("sfnt-pingpong", "memtier_benchmark", "wrk2", "weaver", "rkt")


def _unpackaged() -> Check:
    missing = [name for name in UNPACKAGED_PROGRAMS if kernel_probe.find_tool(name) is None]
    there = ", ".join(name for name in UNPACKAGED_PROGRAMS if name not in missing) or "none"
    found = there + (f" (not {', '.join(missing)})" if missing else "")
    remedy = "no distribution packages them; studies use other tools, and leave rkt and Weave out"
    return Check("programs of the papers", not missing, found, remedy)


def _choices(
    title: str, names: Iterable[str], missing: Mapping[str, str], *, ok: bool, remedy: str
) -> Check:
    """Return a check that lists what is available, and why the rest is not."""
    available = ", ".join(name for name in names if name not in missing) or "none"
    reasons = "; ".join(f"not {name}: {reason}" for name, reason in missing.items())
    return Check(title, ok, available + (f" ({reasons})" if reasons else ""), remedy)


def _cpus() -> list[Check]:
    """Return the checks of scheduling, CPUs, frequency and idle states."""
    chrt = LocalHost().run("chrt", "--fifo", "1", "true", check=False)
    error = chrt.stderr.strip()[-200:] or "chrt failed"
    count = len(os.sched_getaffinity(1))
    cpu_map = (virtual.cpu_map() | virtual.CPU_NOTES).items()
    isolated = _read("/sys/devices/system/cpu/isolated")
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    names = sorted(Path("/sys/devices/system/cpu/cpu0/cpuidle").glob("*/name"))
    states = ", ".join(_read(str(path)) for path in names) or "not shown"
    latency = Path("/dev/cpu_dma_latency").exists()
    return [
        Check(
            "real-time class",
            chrt.status == 0,
            "available" if chrt.status == 0 else error,
            "run as root; without it, the level fifo is infeasible",
        ),
        Check(
            "CPUs",
            count > 1,
            f"{count}; map: " + ", ".join(f"{role} {cpus}" for role, cpus in cpu_map),
            "with one CPU, generator and SUT share it: conditions that pin them are infeasible",
        ),
        Check(
            "isolated CPUs",
            bool(isolated),
            isolated or "none",
            "boot with isolcpus= for claims about rare tails",
        ),
        Check(
            "frequency governor",
            governor == "performance",
            governor or "not shown (the host of a virtual machine controls the frequency)",
            "set scaling_governor to performance" if governor else "",
        ),
        Check(
            "idle states",
            latency,
            f"{states}; {'can' if latency else 'cannot'} be held",
            'without /dev/cpu_dma_latency the setting idle="held" is not possible',
        ),
    ]


def _kernel() -> list[Check]:
    """Return the checks of clock, virtualisation, control groups and pressure."""
    clock = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    hypervisor = " hypervisor" in _read("/proc/cpuinfo")
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    hybrid = Path("/sys/fs/cgroup/unified").exists()
    pressure = os.access("/proc/pressure/cpu", os.R_OK)
    tcp = "/proc/sys/net/ipv4/tcp_"
    control = _read(f"{tcp}congestion_control")
    disk = collect_facts(LocalHost(), directory=str(engine.STORAGES))["stable"]["storage"]["data"]
    return [
        Check(
            "clock source", clock in ("tsc", "arch_sys_counter"), clock, "reading it may be slow"
        ),
        Check(
            "bare machine",
            not hypervisor,
            "a virtual machine" if hypervisor else "no hypervisor is seen",
            "claims that need separate machines or NIC hardware stay undecided here; see rig.toml",
        ),
        Check(
            "control groups",
            unified or Path("/sys/fs/cgroup/cpu").exists(),
            "v2" if unified else "v1 and v2 (hybrid)" if hybrid else "v1",
            "mount the cpu and cpuset controllers",
            needed=True,
        ),
        Check(
            "TCP congestion control",
            control == "cubic",
            f"{control or 'not shown'}; available: {_read(f'{tcp}available_congestion_control')}",
            'the papers had cubic: set the parameter congestion_control="cubic" of a study, if the '
            "kernel has it",
        ),
        Check(
            "disk",
            True,
            f"{disk['disk'] or 'unknown'}, {disk['filesystem'] or 'unknown file system'}",
        ),
        Check(
            "pressure (PSI)", pressure, "readable" if pressure else "not found", "boot with psi=1"
        ),
    ]


def _seccomp(actions: str, status: str) -> Check:
    """Return whether a container can have a seccomp filter, and a process beside it none."""
    own = re.search(r"^Seccomp:\s*2$", status, re.MULTILINE) is not None
    if own:
        found = "labkit itself runs under a filter"
        remedy = "trials outside a container fail: docker run --security-opt seccomp=unconfined"
    elif "errno" in actions.split():
        found, remedy = "containers get their engine's filter, other processes none", ""
    else:
        found = "the kernel has no filters"
        remedy = "trials in a container fail: use a kernel with CONFIG_SECCOMP_FILTER"
    return Check("seccomp", not remedy, found, remedy)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


#: The checks that matter for a first study.
_SHOWN = (
    *("rig", "root", "container engines", "networks of containers", "CPUs", "isolated CPUs"),
    *("clock source", "bare machine"),
)


def machine_table(checks: Iterable[Check] | None = None) -> str:
    """Return a short Markdown table of what this machine can do."""
    checks = list(check_machine() if checks is None else checks)
    tools = [check for check in checks if check.title in virtual.TOOLS]
    absent = [check for check in tools if not check.ok]
    others = [check for check in checks if check not in tools]
    shown = [check for check in others if check.title in _SHOWN or (check.needed and not check.ok)]
    # Without the reasons of what is missing, and without the CPU map.
    brief = [check.found.partition(" (not ")[0].partition("; map")[0] for check in shown]
    rows = [
        (check.title, found, "" if check.ok else check.remedy)
        for check, found in zip(shown, brief, strict=True)
    ]
    names = f", not {', '.join(check.title for check in absent)}" if absent else ""
    count = f"{len(tools) - len(absent)} of {len(tools)}{names}"
    remedies = "; ".join(dict.fromkeys(check.remedy for check in absent))
    place = 1 + [row[0] for row in rows].index("root")
    rows.insert(place, ("programs of the virtual rig", count, remedies))
    lines = ["| | this machine | what to do, or what follows |", "| --- | --- | --- |"]
    for row in rows:
        cells = (text.replace("|", r"\|").replace("<", "&lt;") for text in row)
        lines.append("| " + " | ".join(cells) + " |")
    hidden = len(others) - len(shown)
    return "\n".join(
        [*lines, "", f"`labkit doctor` says more ({hidden} findings), with every reason."]
    )


def choose_rig(rig: str) -> tuple[str, str]:
    """Return the rig to open, or `REFERENCE` and the reason why nothing can be measured."""
    if rig == REFERENCE:
        return REFERENCE, "the parameter `rig` asks for it"
    if rig != "auto":
        return rig, ""
    spec, reason = studies.rig_here()
    return spec or REFERENCE, reason


def timing(say: Say) -> list[str]:
    """Measure clock, timer tick, steal time, idle exits, and the noise of trials."""
    from labkit.campaign.treatments import IdlePolicy
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

    reads = 200_000
    clock_ns = 1e9 * timeit.timeit(time.perf_counter_ns, number=reads) / reads
    lines = [f"clock read: {clock_ns:.0f} ns (through Python)", *_busy_second()]
    with Rig.open("virtual", say=say) as rig:
        for wait in ("block", "spin"):
            say(f"six trials, {wait}")
            medians = [median(rig, wait, number) for number in range(6)]
            spread = statistics.stdev(medians) / statistics.mean(medians)
            shown = ", ".join(f"{value:.1f}" for value in medians)
            lines.append(f"round trip, {wait}: medians {shown} us; {spread:.1%} between trials")
        if line := rig.cache_line():
            shown = (
                f"{line['cache_line_ns']:.0f} ns, {line['cache_line_ratio']:.1f} times the least"
            )
            lines.append(f"cache line from generator to SUT and back: {shown}")
        policy = IdlePolicy()
        if reason := policy.feasibility(rig, "held", {}):
            return [*lines, f"round trip, block, idle held at polling: not measured; {reason}"]
        with policy.apply(rig, "held", "trial-idle"):
            policy.begin(rig, "held")
            held = median(rig, "block", 9)
        lines.append(
            f"round trip, block, idle held at polling: {held:.1f} us (the rest is idle exit)"
        )
    return lines


def most_timer_interrupts(before: str, after: str) -> int:
    """Return the largest increase of a CPU's timer interrupts between two ``/proc/interrupts``."""

    def counts(text: str) -> list[int]:
        rows = [line.split() for line in text.splitlines() if line.split()[:1] == ["LOC:"]]
        return [int(word) for row in rows for word in row if word.isdigit()]

    return max((b - a for a, b in zip(counts(before), counts(after), strict=False)), default=0)


def _busy_second() -> list[str]:
    """Spin for a second and return its timer interrupts, steal time and longest gap."""
    before, end = _read("/proc/interrupts"), time.monotonic() + 1
    steal = psutil.cpu_times().steal
    gap, last = 0, time.perf_counter_ns()
    while time.monotonic() < end:
        now = time.perf_counter_ns()
        gap = max(gap, now - last)
        last = now
    ticks = most_timer_interrupts(before, _read("/proc/interrupts"))
    stolen = psutil.cpu_times().steal - steal
    return [
        f"timer: {ticks} interrupts in a busy second",
        f"steal: {stolen:.2%} of a second; longest gap {gap / 1000:.0f} us",
    ]
