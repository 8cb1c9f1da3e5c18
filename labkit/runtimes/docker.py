"""Docker containers."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.errors import PlacementError
from labkit.hosts import Result, script
from labkit.hosts.target import Target
from labkit.runtimes import expect
from labkit.runtimes.base import Engine, Instance, Started
from labkit.runtimes.networks import published
from labkit.runtimes.storage import data_options, data_source, release
from labkit.runtimes.verify import Facts

#: The OCI runtime that starts containers, and the program that holds them.
OCI_RUNTIME, HOLDER = "runc", "containerd-shim"
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

    programs = ("docker",)
    package = "docker.io"
    needs = ("docker",)

    def start(self, instance: Instance) -> Started:
        """Run the container detached."""
        target, name = instance.target, PREFIX + instance.label
        options = self.options(instance)
        done = _docker(target, "run", "--detach", "--pull", "never", "--name", name, *options)
        how, why = "did not start", done.stderr.strip()
        if done.status == 0:
            shown = _docker(target, "inspect", "--format", "{{.Id}} {{.State.Pid}}", name)
            container, pid = shown.check("the container is gone").stdout.split()
            if pid != "0":
                return Started(int(pid), container)
            how, why = "ended at once", self.logs(instance)
        where = f"host {target.host.name}"
        raise PlacementError(f"{instance.placement.label} {how}", where=where, why=why[-800:])

    def stop(self, instance: Instance) -> None:
        """Remove the container, running or not."""
        remove = ("rm", "--force", "--volumes", PREFIX + instance.label)
        done = _docker(instance.target, *remove)
        # A process that waits for a hanging FUSE file system can be killed only after its unmount.
        release(instance.target, instance.label)
        if done.status != 0 and "No such container" not in done.stderr:
            done = _docker(instance.target, *remove)
        if "No such container" not in done.stderr:
            done.check("is the engine still running? labkit clean removes what is left")

    def logs(self, instance: Instance) -> str:
        """Return what the container printed on both streams."""
        done = _docker(instance.target, "logs", PREFIX + instance.label)
        return done.stdout + done.stderr if done.status == 0 else ""

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Return the engine's command that runs `argv` in the container."""
        engine = f"DOCKER_HOST={instance.target.engine}"
        return ["env", engine, "docker", "exec", PREFIX + instance.label, *argv]

    def churn(self, instance: Instance) -> list[str]:
        """Return a loop of containers; `stop` with the same label removes the last of them."""
        argv = script(_CHURN, PREFIX + instance.label, *self.options(instance))
        return ["env", f"DOCKER_HOST={instance.target.engine}", *argv]

    def expect(self, instance: Instance, started: Started) -> Facts:
        """Return the facts of a container on each network."""
        storage, image = instance.target.storage, instance.image
        own = instance.placement.network in ("host", "nat")
        facts = {
            **expect.of_container(instance, started.container, HOLDER),
            **expect.of_network(instance, None if own else instance.network),
            "image": image.digest,
            "OCI runtime": OCI_RUNTIME,
        }
        if instance.placement.seccomp == "unconfined":
            facts["seccomp filter"] = "none"
        if storage:
            facts["storage driver"] = storage.driver
            facts["file system of /data"] = storage.filesystem
            facts["mount at /data"] = data_source(storage, image, instance.label) or "none"
        return facts

    def options(self, instance: Instance) -> list[str]:
        """Return options, image and command of ``docker run``."""
        target, placement, image = instance.target, instance.placement, instance.image
        limits = placement.limits
        words = ["--runtime", OCI_RUNTIME, "--label", f"labkit={instance.label}"]
        words += ["--cgroup-parent", target.cgroup_parent, *self.network(instance)]
        limited = {
            "--cpuset-cpus": limits.cpuset,
            "--cpu-shares": limits.shares,
            "--cpu-period": limits.period_us,
            "--cpu-quota": limits.quota_us,
            "--memory": limits.memory,
        }
        if limits.reads_per_s:
            limited["--device-read-iops"] = f"{_disk(target)}:{limits.reads_per_s}"
        if placement.seccomp == "unconfined":
            limited["--security-opt"] = "seccomp=unconfined"
        words += [str(word) for option in limited.items() if option[1] for word in option]
        words += data_options(target, image, instance.label)
        # The affinity is set inside, in the same way as for a process without an engine.
        return [*words, image.reference, "taskset", "-c", instance.cpus, *instance.workload.argv]

    def network(self, instance: Instance) -> list[str]:
        """Return the options of the placement's network."""
        if instance.placement.network == "nat":
            return ["--network", "bridge", *published(instance.target, instance.workload)]
        if not (network := instance.network):
            return ["--network", "host"]
        return ["--network", network.engine, "--ip", network.address(instance.target.place)]


def _docker(target: Target, *argv: str) -> Result:
    """Run a command of the target's engine; its failure is in the result."""
    return target.host.run("docker", *argv, env={"DOCKER_HOST": str(target.engine)}, check=False)


def _disk(target: Target) -> str:
    """Return the whole disk of the engine's data: the kernel limits no partition's requests."""
    place = _docker(target, "info", "--format", "{{.DockerRootDir}}").stdout.strip()
    found = target.host.run("findmnt", "-n", "-v", "-o", "SOURCE", "-T", place).stdout
    device = found.split()[-1]
    whole = target.host.run("lsblk", "-n", "-d", "-o", "PKNAME", device).stdout.strip()
    return f"/dev/{whole}" if whole else device
