"""Placements that are detached jobs: processes, and containers whose engine has no daemon."""

import re
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import CommandFailed, PlacementError
from labkit.hosts import Host, script
from labkit.placement import Limits
from labkit.runtimes import base
from labkit.runtimes.base import Engine, Facts, Instance

_NAT = ("iptables", "-w", "-t", "nat")
#: Runs a command in the control groups of the folders before ``--``.
_JOIN = """while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done
shift
exec "$@"
"""


def withdraw(host: Host, pattern: str, tables: Sequence[str] = ("nat",)) -> list[str]:
    """Delete the firewall rules (-A) that match a pattern, then the chains (-N); return them."""
    removed = list[str]()
    for table in tables:
        iptables = ("iptables", "-w", "-t", table)
        for line in sorted(host.run(*iptables, "-S").stdout.splitlines()):
            if re.search(pattern, line):
                option, *words = shlex.split(line)
                host.run(*iptables, {"-A": "-D", "-N": "-X"}[option], *words)
                removed.append(" ".join(words))
    return removed


class Jobs(Engine):
    """Starts each workload, or the holder of its container, as a job."""

    impossible: ClassVar[dict[str, str]] = {
        "overlay": "it has no network of its own between hosts; Swarm's are Docker's",
        "weave": "Weave Net is a plugin of the Docker Engine",
    }
    #: The program in the foreground of the job that holds the container, if there is one.
    holder: ClassVar[str] = ""

    @abstractmethod
    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the host's command that runs `argv` in the placement, in the foreground."""

    def start(self, instance: Instance) -> tuple[int, str]:
        network, host = instance.network, instance.target.host
        argv = self.command(instance, ["taskset", "-c", instance.cpus, *instance.workload.argv])
        pid = host.call("start", folder=instance.folder, argv=argv, label=instance.label)
        if not self.holder:
            return pid, ""
        try:
            # A holder that fails is seen at once: only a busy machine takes long.
            wanted = list(instance.workload.argv)
            pid = host.call("find_workload", holder=pid, argv=wanted, timeout=90)
        except CommandFailed as error:
            raise instance.failed(f"{error.why}: {self.stop(instance)}") from error
        if network and network.name == "nat" and instance.workload.port:
            # The engine publishes no ports.
            target, port = instance.target, str(instance.workload.port)
            mark = ("-m", "comment", "--comment", f"labkit={instance.label}")
            to = ("-j", "DNAT", "--to-destination", f"{network.address(target.place)}:{port}")
            for protocol in instance.workload.protocols:
                flows = ("-d", target.address, "-p", protocol, "--dport", port)
                host.run(*_NAT, "-A", "PREROUTING", *flows, *mark, *to)
        return int(pid), ""

    def stop(self, instance: Instance) -> str:
        host = instance.target.host
        if instance.placement.network == "nat":
            withdraw(host, rf"labkit={re.escape(instance.label)}(?![^\s\"])")
        groups = [instance.group, f"{instance.group}-monitor"]
        return str(host.call("stop_placement", folder=instance.folder, groups=groups))

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        what = f"cannot run a client inside a container of {instance.placement.runtime}"
        raise PlacementError(what, remedy="place the client with docker(...)")

    def expect(self, instance: Instance, container: str) -> Facts:
        facts = base.of_container(instance, instance.network, instance.group, self.holder)
        return {**facts, "layer over": instance.image.rootfs}


class Bare(Jobs):
    """The ladder of baselines: processes on a clean host, under rules, in a chroot, in a group."""

    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        level = instance.placement.baseline_level
        inside = ["chroot", instance.image.rootfs] if level in ("chroot", "cgroup") else []
        return in_group(instance, [*inside, *argv]) if level == "cgroup" else [*inside, *argv]

    enter = command

    def expect(self, instance: Instance, container: str) -> Facts:
        level = instance.placement.baseline_level
        return {
            **base.of_process(instance, None),
            "mounts": "the host's",
            "seccomp filter": "none",
            "root": instance.image.rootfs if level in ("chroot", "cgroup") else "/",
            "control group": instance.group if level == "cgroup" else "none",
            **(base.of_limits(instance.placement.limits) if level == "cgroup" else {}),
            # Even an empty table of rules costs time for every packet.
            **({"rules of the host": "none"} if level == "clean" else {"engine rules": "yes"}),
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
