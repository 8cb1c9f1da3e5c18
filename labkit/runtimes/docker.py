"""Docker containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import Result, script
from labkit.hosts.target import Target
from labkit.placement import Limits
from labkit.runtimes import expect
from labkit.runtimes.base import Engine, Instance, Started
from labkit.runtimes.networks import network_of, published
from labkit.runtimes.storage import data_options, data_source, release
from labkit.runtimes.verify import Facts

#: The OCI runtime that starts containers.
OCI_RUNTIME = "runc"
#: Prefix of every container's name; the rest is its label.
PREFIX = "labkit-"

# Containers run one after the other, under the same name. A failure is printed and not counted.
_CHURN = """while :; do
    docker run --detach --pull never --name "$@" >/dev/null && echo started || sleep 0.1
    [ "$(docker wait "$1")" = 0 ] || docker logs --tail 1 "$1" >&2 || true
    docker rm --force --volumes "$1" >/dev/null 2>&1 || true
done"""


class Docker(Engine):
    """Starts containers by the engine's command line on the host."""

    program = "docker"
    package = "docker.io"
    needs = ("docker",)
    #: The name of the process that holds its containers.
    holder: ClassVar[str] = "containerd-shim"

    def start(self, instance: Instance) -> Started:
        """Run the container detached."""
        target, placement, name = instance.target, instance.placement, PREFIX + instance.label
        if target.engine is None or instance.workload.image not in target.images:
            raise PlacementError(
                f"no engine or no image {instance.workload.image!r} on the host",
                where=f"host {target.host.name}",
                remedy="labkit rig up starts the engine and builds the image",
            )
        options = self.options(instance)
        done = self.command(target, "run", "--detach", "--pull", "never", "--name", name, *options)
        how, why, where = "did not start", done.stderr.strip(), f"host {target.host.name}"
        if done.status == 0:
            shown = self.command(target, "inspect", "--format", "{{.Id}} {{.State.Pid}}", name)
            container, pid = shown.check("the container is gone").stdout.split()
            if pid != "0":
                return Started(int(pid), container)
            how, why = "ended at once", self.logs(instance)
        raise PlacementError(f"{placement.label} {how}", where=where, why=why[-800:])

    def stop(self, instance: Instance) -> None:
        """Remove the container, running or not."""
        target = instance.target
        remove = ("rm", "--force", "--volumes", PREFIX + instance.label)
        done = self.command(target, *remove)
        # A process that waits for a hanging FUSE file system can be killed only after its unmount.
        release(target, instance.label)
        if done.status != 0 and "No such container" not in done.stderr:
            done = self.command(target, *remove)
        if "No such container" not in done.stderr:
            done.check("is the engine still running? labkit clean removes what is left")

    def logs(self, instance: Instance) -> str:
        """Return what the container printed on both streams."""
        done = self.command(instance.target, "logs", PREFIX + instance.label)
        return done.stdout + done.stderr if done.status == 0 else ""

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the engine's command that runs `argv` in the container."""
        return [*_with_engine(instance), "docker", "exec", PREFIX + instance.label, *argv]

    def expect(self, instance: Instance, started: Started) -> Facts:
        """Return the facts of a container on each network."""
        target, placement = instance.target, instance.placement
        image = target.images[instance.workload.image]
        made = placement.network not in ("host", "nat")
        facts = {
            **expect.of_container(instance, started.container, self.holder),
            **expect.of_network(instance, instance.network if made else None),
            "image": image.digest,
            "OCI runtime": OCI_RUNTIME,
        }
        if placement.seccomp == "unconfined":
            facts["seccomp filter"] = "none"
        if target.storage:
            facts["storage driver"] = target.storage.driver
            facts["file system of /data"] = target.storage.filesystem
            facts["mount at /data"] = data_source(target.storage, image, instance.label) or "none"
        return facts

    def churn(self, instance: Instance) -> list[str]:
        """Return a loop of containers; `stop` with the same label removes the last of them."""
        argv = script(_CHURN, PREFIX + instance.label, *self.options(instance))
        return [*_with_engine(instance), *argv]

    def options(self, instance: Instance) -> list[str]:
        """Return options, image and command of ``docker run``."""
        target, placement, workload = instance.target, instance.placement, instance.workload
        image = target.images[workload.image]
        options = ["--runtime", OCI_RUNTIME, "--label", f"labkit={instance.label}"]
        options += ["--cgroup-parent", target.cgroup_parent]
        options += self.network(instance) + limit_options(placement.limits)
        if placement.limits.reads_per_s:
            options += ["--device-read-iops", f"{self.disk(target)}:{placement.limits.reads_per_s}"]
        if placement.seccomp == "unconfined":
            options += ["--security-opt", "seccomp=unconfined"]
        options += data_options(target, image, instance.label)
        # The affinity is set inside, in the same way as for a process without an engine.
        return [*options, image.reference, "taskset", "-c", instance.cpus, *workload.argv]

    def network(self, instance: Instance) -> list[str]:
        """Return the options of the placement's network."""
        network = instance.placement.network
        if network == "host":
            return ["--network", "host"]
        if network == "nat":
            return ["--network", "bridge", *published(instance.target, instance.workload)]
        made = network_of(instance.target, instance.placement)
        return ["--network", made.engine, "--ip", made.address(instance.target.place)]

    def disk(self, target: Target) -> str:
        """Return the whole disk of the engine's data: the kernel limits no partition's requests."""
        place = self.command(target, "info", "--format", "{{.DockerRootDir}}").stdout.strip()
        found = target.host.run("findmnt", "-n", "-v", "-o", "SOURCE", "-T", place).stdout
        device = found.split()[-1]
        whole = target.host.run("lsblk", "-n", "-d", "-o", "PKNAME", device).stdout.strip()
        return f"/dev/{whole}" if whole else device

    def command(self, target: Target, *argv: str) -> Result:
        """Run a command of the engine on the host; its failure is in the result."""
        env = {"DOCKER_HOST": str(target.engine)}
        return target.host.run("docker", *argv, env=env, check=False)


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
