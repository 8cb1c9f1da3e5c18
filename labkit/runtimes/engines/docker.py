"""Docker containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import script
from labkit.hosts.target import Target
from labkit.placement import Limits, Placement, Workload
from labkit.runtimes import networks
from labkit.runtimes.base import Instance, Runtime, Started
from labkit.runtimes.storage import data_options, data_source, release
from labkit.runtimes.verify import Expectation

#: The OCI runtime that starts containers.
OCI_RUNTIME = "runc"
#: Prefix of every container's name; the rest is its label.
PREFIX = "labkit-"

_START = """
name=$1
shift
id=$(docker run --detach --pull never --name "$name" "$@")
docker inspect --format "{{.Id}} {{.State.Pid}}" "$id"
"""

# The kernel limits requests to a whole disk, not to a partition.
_DISK = """
place=$(docker info --format "{{.DockerRootDir}}")
device=$(findmnt -n -v -o SOURCE -T "$place" | tail -n 1)
whole=$(lsblk -n -d -o PKNAME "$device")
echo "${whole:+/dev/}${whole:-$device}"
"""

# Containers run one after the other, under the same name. A failure is printed and not counted.
_CHURN = """
name=$1
shift
while :; do
    if docker run --detach --pull never --name "$name" "$@" >/dev/null; then
        echo came
        [ "$(docker wait "$name")" = 0 ] || docker logs --tail 1 "$name" >&2
    else
        sleep 0.1
    fi
    docker rm --force --volumes "$name" >/dev/null 2>&1 || true
done
"""


class Docker(Runtime):
    """Starts containers by the engine's command line on the host."""

    program = "docker"
    package = "docker.io"
    needs = ("docker",)
    #: The name of the process that holds its containers.
    holder: ClassVar[str] = "containerd-shim"

    def start(self, instance: Instance) -> Started:
        """Run the container detached."""
        target, placement, workload = instance.target, instance.placement, instance.workload
        label = instance.label
        if target.engine is None or workload.image not in target.images:
            raise PlacementError(
                f"no engine or no image {workload.image!r} on the host",
                where=f"host {target.host.name}",
                remedy="open the rig anew, which builds the image",
            )
        argv = script(_START, PREFIX + label, *self._options(instance))
        result = target.host.run(*argv, env=_env(target), check=False)
        if result.status != 0:
            raise PlacementError(
                f"{placement.label} did not start",
                where=f"host {target.host.name}",
                why=result.stderr.strip()[-800:],
                evidence={"argv": list(result.argv), "stderr": result.stderr},
            )
        container, pid = result.stdout.split()
        if pid == "0":
            raise PlacementError(
                f"{placement.label} ended at once",
                where=f"host {target.host.name}",
                why=self.logs(target, label)[-800:],
            )
        return Started(int(pid), container)

    def stop(self, target: Target, label: str) -> None:
        """Remove the container, running or not."""
        remove = ("docker", "rm", "--force", "--volumes", PREFIX + label)
        result = target.host.run(*remove, env=_env(target), check=False)
        # A process that waits for a hanging FUSE file system can be killed only after its unmount.
        release(target, label)
        if result.status != 0 and "No such container" not in result.stderr:
            again = target.host.run(*remove, env=_env(target), check=False)
            if "No such container" not in again.stderr:
                again.check("is the engine still running? labkit clean removes what is left")

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed on both streams."""
        result = target.host.run("docker", "logs", PREFIX + label, env=_env(target), check=False)
        return result.stdout + result.stderr if result.status == 0 else ""

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true of a container on each network."""
        target, placement, workload = instance.target, instance.placement, instance.workload
        storage, image = target.storage, target.images[workload.image]
        return Expectation(
            cpus=instance.cpus,
            container=True,
            unconfined=placement.seccomp == "unconfined",
            cgroup=started.container,
            root="",
            image=image.digest,
            limits=placement.limits,
            engine_process=self.holder,
            runtime=OCI_RUNTIME,
            driver=storage.driver if storage else "",
            filesystem=storage.filesystem if storage else "",
            source=data_source(storage, image, "") if storage else "",
            **networks.expected(target, placement, workload),
        )

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the engine's command that runs `argv` in the container."""
        return [*_with_engine(instance), "docker", "exec", PREFIX + instance.label, *argv]

    def churn(self, instance: Instance) -> list[str]:
        """Return a loop of containers; `stop` with the same label removes the last of them."""
        argv = script(_CHURN, PREFIX + instance.label, *self._options(instance))
        return [*_with_engine(instance), *argv]

    def _options(self, instance: Instance) -> list[str]:
        """Return options, image and command of ``docker run``."""
        target, placement, workload = instance.target, instance.placement, instance.workload
        image = target.images[workload.image]
        options = ["--runtime", OCI_RUNTIME, "--label", f"labkit={instance.label}"]
        options += ["--cgroup-parent", target.cgroup_parent]
        options += self._network(target, placement, workload) + limit_options(placement.limits)
        if placement.limits.reads_per_s:
            disk = target.host.run(*script(_DISK), env=_env(target)).stdout.strip()
            options += ["--device-read-iops", f"{disk}:{placement.limits.reads_per_s}"]
        if placement.seccomp == "unconfined":
            options += ["--security-opt", "seccomp=unconfined"]
        options += data_options(target, image, instance.label)
        # The affinity is set inside, in the same way as for a process without an engine.
        return [*options, image.reference, "taskset", "-c", instance.cpus, *workload.argv]

    @staticmethod
    def _network(target: Target, placement: Placement, workload: Workload) -> list[str]:
        if placement.network == "host":
            return ["--network", "host"]
        if placement.network != "nat":
            network = networks.network_of(target, placement)
            return ["--network", network.engine, "--ip", network.address(target.place)]
        return ["--network", "bridge", *networks.published(target, workload)]


def limit_options(limits: Limits) -> list[str]:
    """Return the options of ``docker run`` for limits."""
    pairs = (
        ("--cpuset-cpus", limits.cpuset),
        ("--cpu-shares", limits.shares),
        ("--cpu-period", limits.period_us),
        ("--cpu-quota", limits.quota_us),
        ("--memory", limits.memory),
    )
    return [text for name, value in pairs if value is not None for text in (name, str(value))]


def _with_engine(instance: Instance) -> list[str]:
    return ["env", f"DOCKER_HOST={instance.target.engine}"]


def _env(target: Target) -> dict[str, str]:
    return {"DOCKER_HOST": str(target.engine)}
