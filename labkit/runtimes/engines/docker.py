"""Docker containers: on their host's network, or on any that the engine has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.errors import PlacementError
from labkit.hosts import script
from labkit.hosts.target import Target
from labkit.placement import Limits, Placement, Workload
from labkit.runtimes import networks
from labkit.runtimes.base import Runtime, Started
from labkit.runtimes.storage import data_options, data_source, release
from labkit.runtimes.verify import Expectation

#: Prefix of every container's name; the label on it says which trial made it.
PREFIX = "labkit-"

_START = """
name=$1
shift
id=$(docker run --detach --pull never --name "$name" "$@")
docker inspect --format "{{.Id}} {{.State.Pid}}" "$id"
"""

# A container comes, does its work, and goes; the next one follows at once, under the same name.
# What fails says why and is not counted.
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
    """Starts containers through the engine's own command line on the host."""

    program = "docker"
    package = "docker.io"
    needs = ("docker",)
    #: The program that holds its containers.
    holder: ClassVar[str] = "containerd-shim"
    #: The runtime that the engine is to start them with.
    oci: ClassVar[str] = "runc"

    def start(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> Started:
        """Run the container detached; its affinity is set as a bare process sets it."""
        if target.engine is None or workload.image not in target.images:
            raise PlacementError(
                f"no engine or no image {workload.image!r} on the host",
                where=f"host {target.host.name}",
                remedy="labkit rig up starts the engine and builds the image",
            )
        options = self._options(target, placement, workload, cpus, label)
        argv = script(_START, PREFIX + label, *options)
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
        return Started(int(pid), networks.reached_at(target, placement), container)

    def stop(self, target: Target, label: str) -> None:
        """Remove the container, running or not."""
        remove = ("docker", "rm", "--force", "--volumes", PREFIX + label)
        result = target.host.run(*remove, env=_env(target), check=False)
        # What waits for a file system in user space that hangs cannot be killed before that ends.
        release(target, label)
        if result.status != 0 and "No such container" not in result.stderr:
            again = target.host.run(*remove, env=_env(target), check=False)
            if "No such container" not in again.stderr:
                again.check("is the engine still running? labkit clean removes what is left")

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed on both streams."""
        result = target.host.run("docker", "logs", PREFIX + label, env=_env(target), check=False)
        return result.stdout + result.stderr if result.status == 0 else ""

    def expect(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, started: Started
    ) -> Expectation:
        """Return what must be true of a container on each network."""
        storage = target.storage
        image = target.images[workload.image]
        return Expectation(
            cpus=cpus,
            container=True,
            cgroup=started.container,
            root="",
            image=image.digest,
            limits=placement.limits,
            engine_process=self.holder,
            runtime=self.oci,
            driver=storage.driver if storage else "",
            filesystem=storage.filesystem if storage else "",
            source=data_source(storage, image, "") if storage else "",
            **networks.expected(target, placement, workload),
        )

    def enter(
        self,
        target: Target,
        placement: Placement,
        workload: Workload,
        label: str,
        argv: Sequence[str],
    ) -> list[str]:
        """Return the engine's command that runs `argv` in the container."""
        return [*_with_engine(target), "docker", "exec", PREFIX + label, *argv]

    def churn(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> list[str]:
        """Return a loop of containers; `stop` with the same label removes the last of them."""
        options = self._options(target, placement, workload, cpus, label)
        return [*_with_engine(target), *script(_CHURN, PREFIX + label, *options)]

    def _options(
        self, target: Target, placement: Placement, workload: Workload, cpus: str, label: str
    ) -> list[str]:
        """Return options, image and command of ``docker run``; affinity as a bare process has."""
        options = ["--runtime", self.oci, "--label", f"labkit={label}"]
        options += ["--cgroup-parent", target.cgroup_parent]
        options += self._network(target, placement, workload) + limit_options(placement.limits)
        options += data_options(target, target.images[workload.image], label)
        command = [*self.pinned(cpus), *workload.argv]
        return [*options, target.images[workload.image].reference, *command]

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


def _with_engine(target: Target) -> list[str]:
    return ["env", f"DOCKER_HOST={target.engine}"]


def _env(target: Target) -> dict[str, str]:
    return {"DOCKER_HOST": str(target.engine)}
