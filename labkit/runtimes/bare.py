"""Processes without an engine: the ladder of baselines, from a clean host to a control group."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.hosts import Job, script, start_job
from labkit.hosts.target import Target
from labkit.placement import Limits
from labkit.runtimes import expect
from labkit.runtimes.base import Engine, Instance, Started
from labkit.runtimes.verify import Facts

#: Runs a command in the control groups of the folders before ``--``.
_JOIN = """while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done
shift
exec "$@"
"""


class Bare(Engine):
    """Starts processes on the host itself."""

    def start(self, instance: Instance) -> Started:
        """Start the workload as a detached job."""
        argv = ["taskset", "-c", instance.cpus, *_chroot(instance), *instance.workload.argv]
        if instance.placement.baseline_level == "cgroup":
            argv = in_group(instance, argv)
        host, folder = instance.target.host, instance.folder
        return Started(start_job(host, argv, directory=folder, label=instance.label).pid)

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the command in the chroot and the control group of the baseline level."""
        argv = [*_chroot(instance), *argv]
        grouped = instance.placement.baseline_level == "cgroup"
        return in_group(instance, argv) if grouped else argv

    def stop(self, instance: Instance) -> None:
        """End the job, and remove its control group and its directory."""
        stop_job(instance)
        instance.target.host.call("remove_group", group=instance.group)

    def logs(self, instance: Instance) -> str:
        """Return what the job printed on both streams."""
        return job_output(instance)

    def expect(self, instance: Instance, started: Started) -> Facts:
        """Return the facts of each baseline level."""
        level = instance.placement.baseline_level
        grouped = {"control group": instance.group, **expect.of_limits(instance.placement.limits)}
        # Even an empty table of rules costs time for every packet.
        clean = {"rules of the host": "none"}
        return {
            **expect.of_process(instance),
            **expect.of_network(instance, None),
            "mounts": "the host's",
            "seccomp filter": "none",
            "root": instance.image.rootfs if _chroot(instance) else "/",
            **(grouped if level == "cgroup" else {"control group": "none"}),
            **(clean if level == "clean" else {"engine rules": "yes"}),
        }


def _chroot(instance: Instance) -> list[str]:
    inside = instance.placement.baseline_level in ("chroot", "cgroup")
    return ["chroot", instance.image.rootfs] if inside else []


def stop_job(instance: Instance) -> None:
    """End an instance's job, if there is one, and remove its directory."""
    Job(instance.target.host, instance.folder).stop()
    instance.target.host.run("rm", "-rf", "--", instance.folder)


def job_output(instance: Instance) -> str:
    """Return what an instance's job printed on both streams."""
    files = (f"{instance.folder}/stdout", f"{instance.folder}/stderr")
    return instance.target.host.run("cat", *files, check=False).stdout


def in_group(instance: Instance, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the instance's control group, with its limits.

    The group is made if it is not there.
    """
    limits = limit_files(instance.target, instance.placement.limits)
    folders = instance.target.host.call("make_group", group=instance.group, limits=limits)
    return list(script(_JOIN, *folders, "--", *argv))


def limit_files(target: Target, limits: Limits) -> dict[str, str]:
    """Return limits as the files of a control group in both versions."""
    values = {
        "cpuset.cpus": limits.cpuset,
        "cpu.shares": limits.shares,
        "cpu.weight": target.cpu_weight(limits.shares),
        "cpu.cfs_period_us": limits.period_us,
        "cpu.cfs_quota_us": limits.quota_us,
        "cpu.max": limits.quota_us and f"{limits.quota_us} {limits.period_us}",
        "memory.limit_in_bytes": limits.memory,
        "memory.max": limits.memory,
    }
    return {name: str(value) for name, value in values.items() if value}
