"""Podman containers: Docker's command line without a daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import script
from labkit.hosts.jobs import LABEL
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.runtimes import networks
from labkit.runtimes.base import Instance, Runtime, Started
from labkit.runtimes.engines.docker import PREFIX, limit_options
from labkit.runtimes.verify import Expectation

#: The network that publishes ports, in the lab's address range, unlike Podman's default network.
_NAT, _SUBNET = "labkit-nat", "198.18.7.0/24"

# Separate directories avoid conflicts with other users and rigs; runc is used because crun refuses
# the hybrid hierarchy of control groups; the limits of processes and files are those that root may
# set without all capabilities.
_PODMAN = """
place=$1 name=$2
shift 2
pod() {
    podman --root "$place/root" --runroot "$place/run" --tmpdir "$place/tmp" \\
        --network-config-dir "$place/networks" --cgroup-manager cgroupfs \\
        --runtime runc --events-backend none "$@"
}
"""
_START = (
    _PODMAN
    + """
network=$1 parent=$2 subnet=$3
shift 3
# Of several that start at the same time, one makes it.
if [ -n "$parent" ] && ! pod network exists "$network"; then
    pod network create --driver macvlan --opt "parent=$parent" --subnet "$subnet" "$network" ||
        pod network exists "$network"
elif [ -n "$network" ] && ! pod network exists "$network"; then
    pod network create --disable-dns --subnet "$subnet" "$network" || pod network exists "$network"
fi >/dev/null
# Docker's policy is to forward nothing, and Podman's own rules let only answers in.
[ -z "$network" ] || [ -n "$parent" ] ||
    iptables -w -I FORWARD -d "$subnet" -m comment --comment "$name" -j ACCEPT
id=$(pod run --detach --name "$name" --log-driver k8s-file \\
    --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@")
pod inspect --format "{{.Id}} {{.State.Pid}}" "$id"
"""
)
_STOP = (
    _PODMAN
    + """
holder=$(pod inspect --format "{{.State.ConmonPid}}" "$name" 2>/dev/null || true) tries=0
pod rm --force --time 0 --volumes --ignore "$name" >/dev/null
while [ -n "$holder" ] && [ -d "/proc/$holder" ] && [ "$tries" -lt 100 ]; do
    tries=$((tries + 1))
    sleep 0.01
done
iptables -w -D FORWARD -d "$2" -m comment --comment "$name" -j ACCEPT 2>/dev/null || true
rmdir /sys/fs/cgroup"$1"/conmon /sys/fs/cgroup/*"$1"/conmon 2>/dev/null || true
"""
)
_LOGS = _PODMAN + 'pod logs "$name" 2>&1\n'
_EXEC = _PODMAN + 'pod exec "$name" "$@"\n'


class Podman(Runtime):
    """Starts containers by Podman's command line, each held by ``conmon``."""

    impossible: ClassVar[Mapping[str, str]] = {
        "bridge": "Podman makes its bridges itself, and puts no lab interface on one",
        **networks.no_swarm("Podman has no network between hosts; Swarm's are Docker's"),
    }
    program = "podman"
    package = "podman"

    def start(self, instance: Instance) -> Started:
        """Run the container detached, on a layer over the unpacked image."""
        target, placement, label = instance.target, instance.placement, instance.label
        # By the variable it is found after a kill: Podman has no daemon to ask.
        options = ["--env", f"{LABEL}={label}", "--cgroup-parent", target.cgroup_parent]
        network, network_options = self._network(target, placement, instance.workload)
        options += network_options
        options += [*limit_options(placement.limits), "--rootfs", f"{instance.rootfs}:O"]
        command = ["taskset", "-c", instance.cpus, *instance.workload.argv]
        argv = self._argv(_START, target, label, *network, *options, *command)
        result = target.host.run(*argv, check=False)
        words = result.stdout.split()
        if result.status != 0 or len(words) != 2 or words[1] == "0":
            raise PlacementError(
                f"{placement.label} did not start",
                where=f"host {target.host.name}",
                why=(result.stderr.strip() or self.logs(target, label))[-800:],
                evidence={"argv": list(result.argv), "stderr": result.stderr},
            )
        return Started(int(words[1]), words[0])

    def stop(self, target: Target, label: str) -> None:
        """Remove the container, running or not."""
        target.host.run(*self._argv(_STOP, target, label, target.parent_group, _SUBNET))

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed on both streams."""
        result = target.host.run(*self._argv(_LOGS, target, label), check=False)
        return result.stdout if result.status == 0 else ""

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the engine's command that runs `argv` in the container."""
        return self._argv(_EXEC, instance.target, instance.label, *argv)

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true of a container on each network."""
        return Expectation(
            cpus=instance.cpus,
            container=True,
            cgroup=started.container,
            root="",
            rootfs=instance.rootfs,
            limits=instance.placement.limits,
            engine_process="conmon",
            **networks.expected(instance.target, instance.placement, instance.workload),
        )

    @staticmethod
    def _argv(text: str, target: Target, label: str, *rest: str) -> list[str]:
        return list(script(text, f"{target.directory}-podman", PREFIX + label, *rest))

    @staticmethod
    def _network(
        target: Target, placement: Placement, workload: Workload
    ) -> tuple[list[str], list[str]]:
        """Return name, parent and subnet of the network to create, and the container's options."""
        if placement.network == "host":
            return ["", "", ""], ["--network", "host"]
        if placement.network == "nat":
            published = networks.published(target, workload)
            return [_NAT, "", _SUBNET], ["--network", _NAT, *published]
        network = networks.network_of(target, placement)
        address, hardware = network.address(target.place), network.hardware(target.place)
        options = ["--network", network.engine, "--ip", address, "--mac-address", hardware]
        return [network.engine, network.parent, network.subnet], options
