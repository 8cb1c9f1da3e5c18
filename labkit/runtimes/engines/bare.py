"""Processes without an engine: the ladder of baselines, from a clean host up to a cgroup."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.hosts import Job, script, start_job
from labkit.hosts.target import Target
from labkit.placement import Limits, Placement, Workload
from labkit.runtimes.base import Runtime, Started, rootfs_of
from labkit.runtimes.verify import Expectation

# Make the control group in every hierarchy that a process is in, as an engine does, then go in.
_JOIN = """
group=$1 cpus=$2 shares=$3 period=$4 quota=$5 memory=$6
shift 6
put() { if [ -n "$2" ] && [ -e "$1" ]; then printf %s "$2" >"$1"; fi; }
while IFS=: read -r id names path; do
    if [ "$id" = 0 ]; then
        base=/sys/fs/cgroup/unified
        if [ ! -d "$base" ]; then
            base=/sys/fs/cgroup
            mkdir -p "$base${group%/*}"
            for level in "$base" "$base${group%/*}"; do
                for controller in cpu cpuset memory pids; do
                    echo "+$controller" >"$level/cgroup.subtree_control" 2>/dev/null || true
                done
            done
        fi
    else
        base=/sys/fs/cgroup/${names#name=}
    fi
    [ -d "$base" ] || continue
    mkdir -p "$base$group"
    if [ -e "$base/cpuset.mems" ] && [ "$id" != 0 ]; then
        for level in "$base${group%/*}" "$base$group"; do
            cat "$base/cpuset.mems" >"$level/cpuset.mems"
            cat "$base/cpuset.cpus" >"$level/cpuset.cpus"
        done
    fi
    put "$base$group/cpuset.cpus" "$cpus"
    put "$base$group/cpu.shares" "$shares"
    put "$base$group/cpu.cfs_period_us" "$period"
    put "$base$group/cpu.cfs_quota_us" "$quota"
    put "$base$group/memory.limit_in_bytes" "$memory"
    put "$base$group/cpu.weight" "${shares:+$((1 + ((shares - 2) * 9999) / 262142))}"
    put "$base$group/cpu.max" "${quota:+$quota $period}"
    put "$base$group/memory.max" "$memory"
    echo $$ >"$base$group/cgroup.procs"
done </proc/self/cgroup
exec "$@"
"""

# Into the group that `_JOIN` made, in every hierarchy that has it.
_ENTER = """
group=$1
shift
while IFS=: read -r id names path; do
    base=/sys/fs/cgroup/${names#name=}
    [ "$id" = 0 ] && { base=/sys/fs/cgroup/unified; [ -d "$base" ] || base=/sys/fs/cgroup; }
    [ ! -d "$base$group" ] || echo $$ >"$base$group/cgroup.procs"
done </proc/self/cgroup
exec "$@"
"""

LEAVE = """
while IFS=: read -r id names path; do
    base=/sys/fs/cgroup/${names#name=}
    [ "$id" = 0 ] && { base=/sys/fs/cgroup/unified; [ -d "$base" ] || base=/sys/fs/cgroup; }
    [ -d "$base$1" ] || continue
    tries=0
    while [ -d "$base$1" ] && [ "$tries" -lt 100 ]; do
        # What runs in there may have made groups of its own.
        find "$base$1" -depth -type d 2>/dev/null | while read -r part; do
            for pid in $(cat "$part/cgroup.procs"); do kill -KILL "$pid" || true; done
            rmdir "$part" || true
        done 2>/dev/null
        [ -d "$base$1" ] || break
        tries=$((tries + 1))
        sleep 0.02
    done
    [ ! -d "$base$1" ] || { echo "cannot remove $base$1" >&2; exit 1; }
done </proc/self/cgroup
"""


def join_argv(group: str, limits: Limits, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` inside a control group made for it."""
    order = (limits.cpuset, limits.shares, limits.period_us, limits.quota_us, limits.memory)
    values = ["" if value is None else str(value) for value in order]
    return list(script(_JOIN, group, *values, *argv))


class Bare(Runtime):
    """Starts processes on the host itself; one instance a campaign."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._groups: dict[str, str] = {}

    def start(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Start the workload at its baseline level as a detached job."""
        argv = list(workload.argv)
        if placement.baseline_level in ("chroot", "cgroup"):
            argv = ["chroot", rootfs_of(target, workload), *argv]
        argv = ["taskset", "-c", cpus, *argv]
        if placement.baseline_level == "cgroup":
            group = f"{target.parent_group}/{label}"
            self._groups[label] = group
            argv = join_argv(group, placement.limits, argv)
        directory = f"{target.directory}/{label}"
        # Registered first: interrupted while it starts, it is ended all the same.
        self._jobs[label] = Job(target.host, directory)
        job = start_job(target.host, argv, directory=directory, label=label)
        return Started(job.pid, target.address)

    def enter(
        self,
        target: Target,
        placement: Placement,
        workload: Workload,
        label: str,
        argv: Sequence[str],
    ) -> list[str]:
        """Return the command in the chroot and the control group of its baseline level."""
        inside = list(argv)
        if placement.baseline_level in ("chroot", "cgroup"):
            inside = ["chroot", rootfs_of(target, workload), *inside]
        if label in self._groups:
            inside = list(script(_ENTER, self._groups[label], *inside))
        return inside

    def stop(self, target: Target, label: str) -> None:
        """End the job, and remove its control group and its directory."""
        job = self._jobs.pop(label, None)
        if job:
            job.stop()
        group = self._groups.pop(label, None)
        if group:
            target.host.run(*script(LEAVE, group))
        if job:
            target.host.run("rm", "-rf", "--", job.directory)

    def logs(self, target: Target, label: str) -> str:
        """Return what the job printed on both streams."""
        job = self._jobs.get(label)
        return job.stdout() + job.stderr() if job else ""

    def expect(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, started: Started
    ) -> Expectation:
        """Return what must be true of each baseline level."""
        inside = placement.baseline_level in ("chroot", "cgroup")
        return Expectation(
            cpus=cpus,
            engine_rules=placement.baseline_level != "clean",
            cgroup=f"{target.parent_group}/" if placement.baseline_level == "cgroup" else "",
            root=rootfs_of(target, workload) if inside else "/",
            limits=placement.limits,
            address=target.address,
            service=workload.port,
        )
