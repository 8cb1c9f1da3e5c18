"""Processes without an engine: the ladder of baselines, from a clean host to a control group."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.hosts import Job, script, start_job
from labkit.hosts.target import Target
from labkit.runtimes.base import Instance, Runtime, Started
from labkit.runtimes.verify import Expectation

# Creates the control group in every hierarchy, as an engine does, and runs the command in it.
_JOIN = """
group=$1 cpus=$2 shares=$3 weight=$4 period=$5 quota=$6 memory=$7
shift 7
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
    put "$base$group/cpu.weight" "$weight"
    put "$base$group/cpu.max" "${quota:+$quota $period}"
    put "$base$group/memory.max" "$memory"
    echo $$ >"$base$group/cgroup.procs"
done </proc/self/cgroup
exec "$@"
"""

# Runs the command in the group that `_JOIN` has created.
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
    while [ -d "$base$1" ] && [ "$tries" -lt 500 ]; do
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


def join_argv(instance: Instance, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` in a new control group with the placement's limits."""
    target, limits = instance.target, instance.placement.limits
    weights = limits.shares, target.cpu_weight(limits.shares)
    order = (limits.cpuset, *weights, limits.period_us, limits.quota_us, limits.memory)
    values = ["" if value is None else str(value) for value in order]
    return list(script(_JOIN, f"{target.parent_group}/{instance.label}", *values, *argv))


class Bare(Runtime):
    """Starts processes on the host itself."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._groups: dict[str, str] = {}

    def start(self, instance: Instance) -> Started:
        """Start the workload as a detached job."""
        target, label = instance.target, instance.label
        argv = ["taskset", "-c", instance.cpus, *_chroot(instance), *instance.workload.argv]
        if instance.placement.baseline_level == "cgroup":
            self._groups[label] = f"{target.parent_group}/{label}"
            argv = join_argv(instance, argv)
        directory = f"{target.directory}/{label}"
        # Stored before it starts, so that `stop` ends it if starting is interrupted.
        self._jobs[label] = Job(target.host, directory)
        return Started(start_job(target.host, argv, directory=directory, label=label).pid)

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the command in the chroot and the control group of the baseline level."""
        argv = [*_chroot(instance), *argv]
        if instance.label in self._groups:
            return list(script(_ENTER, self._groups[instance.label], *argv))
        return argv

    def stop(self, target: Target, label: str) -> None:
        """End the job, and remove its control group and its directory."""
        job, group = self._jobs.get(label), self._groups.get(label)
        if job:
            job.stop()
        if group:
            target.host.run(*script(LEAVE, group))
            del self._groups[label]
        if job:
            target.host.run("rm", "-rf", "--", job.directory)
            del self._jobs[label]

    def logs(self, target: Target, label: str) -> str:
        """Return what the job printed on both streams."""
        job = self._jobs.get(label)
        return job.stdout() + job.stderr() if job else ""

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true at each baseline level."""
        target, level = instance.target, instance.placement.baseline_level
        return Expectation(
            cpus=instance.cpus,
            engine_rules=level != "clean",
            cgroup=f"{target.parent_group}/" if level == "cgroup" else "",
            root=instance.rootfs if level in ("chroot", "cgroup") else "/",
            limits=instance.placement.limits,
            address=target.address,
            service=instance.workload.port,
        )


def _chroot(instance: Instance) -> list[str]:
    inside = instance.placement.baseline_level in ("chroot", "cgroup")
    return ["chroot", instance.rootfs] if inside else []
