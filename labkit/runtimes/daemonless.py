"""Engines without a daemon: each container is held by a program, which runs as a detached job.

They publish no ports, so that labkit does it with firewall rules.
"""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import CommandFailed, PlacementError
from labkit.hosts import Host, start_job
from labkit.runtimes import expect
from labkit.runtimes.bare import job_output, stop_job
from labkit.runtimes.base import Engine, Instance, Started
from labkit.runtimes.verify import Facts

_NAT = ("iptables", "-w", "-t", "nat")
#: The end of the name of a holder's control group.
MONITOR = "-monitor"


def files_of(instance: Instance) -> str:
    """Return the directory of a container's configuration and files on the host."""
    return f"{instance.folder}-files"


def withdraw(host: Host, label: str, *, exact: bool = False) -> list[str]:
    """Remove the rules that publish ports of labels that begin so, or are so; return the rules."""
    listed = host.run(*_NAT, "-S", "PREROUTING").stdout.splitlines()
    rules = [shlex.split(line)[1:] for line in listed if f"labkit={label}" in line]
    removed = [rule for rule in rules if not exact or f"labkit={label}" in rule]
    for rule in removed:
        host.run(*_NAT, "-D", *rule)
    return [" ".join(rule) for rule in removed]


def publish(instance: Instance, address: str) -> None:
    """Add the rules that lead from the host's port to a container's; `withdraw` finds them."""
    port, mark = str(instance.workload.port), f"labkit={instance.label}"
    for protocol in instance.workload.protocols:
        flows = ("-d", instance.target.address, "-p", protocol, "--dport", port)
        to = ("-m", "comment", "--comment", mark, "-j", "DNAT", "--to-destination")
        instance.target.host.run(*_NAT, "-A", "PREROUTING", *flows, *to, f"{address}:{port}")


class Daemonless(Engine):
    """Starts each container by a program that holds it, in the foreground of a job."""

    #: The name of that program's process.
    holder: ClassVar[str] = ""
    publishes_ports = False

    @abstractmethod
    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the host's command that runs a command in a container, in the foreground."""

    @abstractmethod
    def end(self, instance: Instance) -> None:
        """End a container, if there is one, by its own engine: its holder does not on TERM."""

    def clear(self, instance: Instance) -> None:
        """Remove what the engine itself keeps of a container whose holder has ended."""

    def attach(self, instance: Instance, pid: int) -> None:
        """Assign the container's address, if its engine does not."""

    def start(self, instance: Instance) -> Started:
        """Start the holder, and find the workload's process."""
        target, workload, label = instance.target, instance.workload, instance.label
        network, host = instance.network, target.host
        argv = self.hold(instance, ["taskset", "-c", instance.cpus, *workload.argv])
        job = start_job(host, argv, directory=instance.folder, label=label)
        try:
            # A holder that fails is seen at once: only a busy machine takes long.
            command = list(workload.argv)
            pid = host.call("find_workload", holder=job.pid, argv=command, timeout=90)
        except CommandFailed as error:
            raise PlacementError(
                f"{instance.placement.label} did not start",
                where=f"host {host.name}",
                why=f"{error.why}: {self.logs(instance)}".strip()[-1200:],
            ) from error
        if network:
            self.attach(instance, pid)
            if network.name == "nat" and workload.port:
                publish(instance, network.address(target.place))
        return Started(pid)

    def stop(self, instance: Instance) -> None:
        """End the container and its holder, and remove its rules, control groups and files."""
        if instance.placement.network == "nat":
            withdraw(instance.target.host, instance.label, exact=True)
        self.end(instance)
        stop_job(instance)
        self.clear(instance)
        host = instance.target.host
        for group in (instance.group, f"{instance.group}{MONITOR}"):
            host.call("remove_group", group=group)
        host.run("rm", "-rf", "--one-file-system", "--", files_of(instance))

    def logs(self, instance: Instance) -> str:
        """Return what the container printed on both streams."""
        return job_output(instance)

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Raise `PlacementError`: commands run inside containers of Docker only."""
        raise PlacementError(
            f"cannot run a client inside a container of {instance.placement.runtime}",
            remedy="place the client with docker(...)",
        )

    def expect(self, instance: Instance, started: Started) -> Facts:
        """Return the facts of a container on each network."""
        return {
            **expect.of_container(instance, instance.group, self.holder),
            **expect.of_network(instance, instance.network),
            "layer over": instance.image.rootfs,
        }
