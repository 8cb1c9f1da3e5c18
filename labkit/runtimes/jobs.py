"""Placements that are detached jobs: processes, and containers whose engine has no daemon.

Such an engine has a program that holds a container, in the foreground of the job. It publishes no
ports, so that labkit does it with firewall rules.
"""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import CommandFailed, PlacementError
from labkit.hosts import Host, Job, script, start_job
from labkit.placement import Limits
from labkit.runtimes import base
from labkit.runtimes.base import Engine, Facts, Instance, Started

_NAT = ("iptables", "-w", "-t", "nat")
#: Runs a command in the control groups of the folders before ``--``.
_JOIN = """while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done
shift
exec "$@"
"""


def withdraw(host: Host, label: str, *, exact: bool = False) -> list[str]:
    """Remove the rules that publish ports of labels that begin so, or are so; return the rules."""
    listed = host.run(*_NAT, "-S", "PREROUTING").stdout.splitlines()
    rules = [shlex.split(line)[1:] for line in listed if f"labkit={label}" in line]
    removed = [rule for rule in rules if not exact or f"labkit={label}" in rule]
    for rule in removed:
        host.run(*_NAT, "-D", *rule)
    return [" ".join(rule) for rule in removed]


class Jobs(Engine):
    """Starts each workload as a job, or a program as one that holds its container."""

    impossible: ClassVar[dict[str, str]] = {
        "overlay": "it has no network of its own between hosts; Swarm's are Docker's",
        "weave": "Weave Net is a plugin of the Docker Engine",
    }
    #: The name of that program's process, if there is one.
    holder: ClassVar[str] = ""

    @abstractmethod
    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the host's command that runs `argv` in the placement, in the foreground."""

    def start(self, instance: Instance) -> Started:
        network, host = instance.network, instance.target.host
        argv = self.command(instance, ["taskset", "-c", instance.cpus, *instance.workload.argv])
        job = start_job(host, argv, directory=instance.folder, label=instance.label)
        if not self.holder:
            return Started(job.pid)
        try:
            # A holder that fails is seen at once: only a busy machine takes long.
            wanted = list(instance.workload.argv)
            pid = host.call("find_workload", holder=job.pid, argv=wanted, timeout=90)
        except CommandFailed as error:
            raise instance.failed(f"{error.why}: {self.logs(instance)}") from error
        if network and network.name == "nat":
            _publish(instance, network.address(instance.target.place))
        return Started(pid)

    def stop(self, instance: Instance) -> None:
        host = instance.target.host
        if instance.placement.network == "nat":
            withdraw(host, instance.label, exact=True)
        Job(host, instance.folder).stop()
        host.call("remove_group", group=instance.group)
        host.run("rm", "-rf", "--one-file-system", "--", instance.folder)

    def logs(self, instance: Instance) -> str:
        # LXC writes what a container prints to a console.
        files = [f"{instance.folder}/{name}" for name in ("console", "stdout", "stderr")]
        return instance.target.host.run("cat", *files, check=False).stdout

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        raise PlacementError(
            f"cannot run a client inside a container of {instance.placement.runtime}",
            remedy="place the client with docker(...)",
        )

    def expect(self, instance: Instance, started: Started) -> Facts:
        facts = base.of_container(instance, instance.network, instance.group, self.holder)
        return {**facts, "layer over": instance.image.rootfs}


def _publish(instance: Instance, address: str) -> None:
    """Add the rules that lead from the host's port to a container's."""
    target, port = instance.target, str(instance.workload.port)
    for protocol in instance.workload.protocols if instance.workload.port else ():
        flows = ("-d", target.address, "-p", protocol, "--dport", port)
        mark = ("-m", "comment", "--comment", f"labkit={instance.label}")
        to = ("-j", "DNAT", "--to-destination", f"{address}:{port}")
        target.host.run(*_NAT, "-A", "PREROUTING", *flows, *mark, *to)


class Bare(Jobs):
    """The ladder of baselines: processes on a clean host, under rules, in a chroot, in a group."""

    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        level = instance.placement.baseline_level
        inside = ["chroot", instance.image.rootfs] if level in ("chroot", "cgroup") else []
        return in_group(instance, [*inside, *argv]) if level == "cgroup" else [*inside, *argv]

    enter = command

    def expect(self, instance: Instance, started: Started) -> Facts:
        level = instance.placement.baseline_level
        limited = base.of_limits(instance.placement.limits) if level == "cgroup" else {}
        # Even an empty table of rules costs time for every packet.
        rules = {"rules of the host": "none"} if level == "clean" else {"engine rules": "yes"}
        return {
            **base.of_process(instance, None),
            "mounts": "the host's",
            "seccomp filter": "none",
            "root": instance.image.rootfs if level in ("chroot", "cgroup") else "/",
            "control group": instance.group if level == "cgroup" else "none",
            **limited,
            **rules,
        }


def in_group(instance: Instance, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the instance's control group, with its limits."""
    limits = limit_files(instance.placement.limits)
    folders = instance.target.host.call("make_group", group=instance.group, limits=limits)
    return list(script(_JOIN, *folders, "--", *argv))


def limit_files(limits: Limits) -> dict[str, str]:
    """Return limits as the files of a control group in both versions."""
    values = {
        "cpuset.cpus": limits.cpuset,
        "cpu.shares": limits.shares,
        "cpu.weight": limits.shares and base.weights(limits.shares)[0],
        "cpu.cfs_period_us": limits.period_us,
        "cpu.cfs_quota_us": limits.quota_us,
        "cpu.max": limits.quota_us and f"{limits.quota_us} {limits.period_us}",
        "memory.limit_in_bytes": limits.memory,
        "memory.max": limits.memory,
    }
    return {name: str(value) for name, value in values.items() if value}
