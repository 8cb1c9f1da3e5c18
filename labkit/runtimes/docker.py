"""Docker containers, and what is mounted at their ``/data``: the image's files of it."""

from collections.abc import Sequence

from labkit.hosts import script
from labkit.runtimes.base import Engine, Facts, Instance, of_container

#: The OCI runtime that starts containers, and the prefix of their labels in their names.
OCI_RUNTIME, PREFIX = "runc", "labkit-"
# Containers run one after the other, under the same name. A failure is printed and not counted.
_CHURN = """while began=$(date +%s%N); do
    docker run -d --pull never --name "$@" >/dev/null && echo "$began $(date +%s%N)" || sleep 0.1
    [ "$(docker wait "$1")" = 0 ] || docker logs --tail 1 "$1" >&2 || true
    docker rm --force --volumes "$1" >/dev/null 2>&1 || true
done"""
_STOP = """log=$(docker logs "$1" 2>&1) && printf %s "$log"
docker rm --force --volumes "$1" >/dev/null
"""


class Docker(Engine):
    """Starts containers by the engine's command line on the host."""

    def start(self, instance: Instance) -> tuple[int, str]:
        target, name = instance.target, PREFIX + instance.label
        run = ("docker", "run", "--detach", "--pull", "never", "--name", name)
        done = target.run(*run, *self.options(instance), check=False)
        if done.status != 0:
            raise instance.failed(done.stderr)
        return 0, done.stdout.strip()

    def stop(self, instance: Instance) -> str:
        target, name = instance.target, PREFIX + instance.label
        done = target.run(*script(_STOP, name), check=False)
        log = done.stdout
        if (union := data_source(instance)).endswith("/union"):
            # A process that waits for a hanging union can be killed only after its unmount.
            if target.host.run("umount", union, check=False).status != 0:  # busy, or never mounted
                target.host.run("umount", "--lazy", union, check=False)
            target.host.run("rm", "-rf", "--one-file-system", "--", union.removesuffix("/union"))
        if done.status != 0 and "No such container" not in done.stderr:
            done = target.run("docker", "rm", "--force", "--volumes", name, check=False)
        if "No such container" not in done.stderr:
            done.check("is the engine still running? labkit clean removes what is left")
        return log

    def enter(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        engine = f"DOCKER_HOST={instance.target.engine}"
        return ["env", engine, "docker", "exec", PREFIX + instance.label, *argv]

    def expect(self, instance: Instance, container: str) -> Facts:
        storage, image = instance.target.storage, instance.image
        network = None if instance.placement.network == "nat" else instance.network
        facts = dict(of_container(instance, network, container, "containerd-shim"))
        facts |= {"image": image.digest, "OCI runtime": OCI_RUNTIME}
        if instance.placement.release:
            facts["system of its holder"] = instance.target.system
        if instance.placement.seccomp == "unconfined":
            facts["seccomp filter"] = "none"
        if storage:
            source = data_source(instance) or "none"
            facts |= {"storage driver": storage.driver, "mount at /data": source}
            facts["file system of /data"] = storage.filesystem
        return facts

    def options(self, instance: Instance) -> list[str]:
        """Return options, image and command of ``docker run``."""
        target, limits, image = instance.target, instance.placement.limits, instance.image
        words = ["--runtime", OCI_RUNTIME, "--label", f"labkit={instance.label}"]
        words += ["--cgroup-parent", target.cgroup_parent]
        if instance.placement.network == "nat":
            port = instance.workload.port
            own = f"{target.address}:{port}:{port}"
            ports = [f"{own}/{one}" for one in instance.workload.protocols if port]
            words += ["--network", "bridge", *(x for one in ports for x in ("--publish", one))]
        elif network := instance.network:
            words += ["--network", network.engine, "--ip", network.address(target.place)]
        else:
            words += ["--network", "host"]
        limited = {
            "--cpuset-cpus": limits.cpuset,
            "--cpu-shares": limits.shares,
            "--cpu-period": limits.period_us,
            "--cpu-quota": limits.quota_us,
            "--memory": limits.memory,
            "--security-opt": {"unconfined": "seccomp=unconfined"}.get(instance.placement.seccomp),
        }
        words += [str(word) for option in limited.items() if option[1] for word in option]
        words += data_options(instance)
        # The affinity is set inside, in the same way as for a process without an engine.
        return [*words, image.reference, "taskset", "-c", instance.cpus, *instance.workload.argv]


def churning(instance: Instance) -> list[str]:
    """Return an endless loop of containers that prints when each was asked for, and when it ran."""
    argv = script(_CHURN, PREFIX + instance.label, *Docker().options(instance))
    return ["env", f"DOCKER_HOST={instance.target.engine}", *argv]


def data_source(instance: Instance) -> str:
    """Return what is mounted, or the engine's folder of it; "" for the container's own layer."""
    storage, disk = instance.target.storage, instance.target.disk
    if storage is None or storage.name == storage.driver:
        return ""
    name = f"{instance.image.name}-{instance.image.digest.rpartition(':')[2][:12]}"
    sources = {"bind": f"{disk}/bind/{name}", "volume": "volumes"}
    return sources.get(storage.name, f"{disk}/unions/{instance.label}/union")


def data_options(instance: Instance) -> list[str]:
    """Create what the storage needs, and return the options of ``docker run`` that mount it."""
    source, target, run = data_source(instance), instance.target, instance.target.host.run
    if source in ("", "volumes"):  # an anonymous volume goes with its container
        return ["--mount", "type=volume,dst=/data"] if source else []
    if source.endswith("/union"):
        _mount_union(instance, source)
    elif run("test", "-d", source, check=False).status != 0:
        made = f"{source}.new"  # it gets its name last, when the copy is complete
        create = ("docker", "create", "--label", "labkit=storage", instance.image.reference, "true")
        container = target.run(*create).stdout.strip()
        run("rm", "-rf", "--", made)
        run("mkdir", "-p", made)
        target.run("docker", "cp", "--archive", f"{container}:/data/.", made, timeout=600)
        target.run("docker", "rm", container)
        run("mv", made, source)
    return ["--mount", f"type=bind,src={source},dst=/data"]


def _mount_union(instance: Instance, union: str) -> None:
    """Mount /data of the layers that the engine's driver keeps, the uppermost first, read-only."""
    target, run = instance.target, instance.target.host.run
    keys = "{{.GraphDriver.Data.UpperDir}}:{{.GraphDriver.Data.LowerDir}}"
    inspect = ("docker", "image", "inspect", "--format", keys, instance.image.reference)
    kept = target.run(*inspect).stdout
    layers = [one for one in kept.strip().split(":") if one.startswith("/")]
    named = ("-maxdepth", "1", "-type", "d", "-name", "data")
    lower = run("find", *layers, *named).stdout.splitlines()
    # Above them is an empty directory to write to.
    written, work = (union.removesuffix("union") + name for name in ("written", "work"))
    run("mkdir", "-p", written, work, union)
    if instance.placement.storage == "aufs":
        branches = ":".join([f"{written}=rw", *(f"{layer}=ro" for layer in lower)])
        run("mount", "-t", "aufs", "-o", f"br={branches}", "none", union)
    else:
        over = f"lowerdir={':'.join(lower)},upperdir={written},workdir={work}"
        run("fuse-overlayfs", "-o", over, union)
