"""The Docker daemons of the virtual rig, and networks on any Docker Engine."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import Host, Job, LocalHost, start_job
from labkit.hosts.target import Network
from labkit.rig import netns
from labkit.rig.lock import KEEP

DATA_ROOT = KEEP / "docker"
IMAGES = KEEP / "images"
#: Data of the daemons with other storage drivers.
STORAGES = KEEP / "storage"
SOCKET = f"unix://{netns.DIRECTORY}/docker.sock"
#: The containers' layer-2 network; the lab's second interface is a port of its bridge.
LAYER2 = Network(
    "bridge", "198.18.1.0/24", "198.18.1.10", "198.18.1.1", "labkit-layer2", "labbr0", "lab1"
)
NETWORK = LAYER2.engine

#: How a daemon was started, in the directory of its job.
_STARTED = "started.json"
#: Options of a second daemon in a namespace: it touches neither firewall nor interfaces.
WITHOUT_NETWORK = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none")
#: The engine's own addresses: Docker's defaults are private networks that the machine may be in.
_POOLS = ("--bip", "198.19.0.1/24", "--default-address-pool", "base=198.19.0.0/16,size=24")


def socket_of(name: str) -> str:
    """Return the socket of a daemon of the rig, as ``DOCKER_HOST`` expects it."""
    return f"unix://{netns.DIRECTORY}/{name}.sock"


def digests(
    host: Host, socket: str, references: Sequence[str], *, check: bool = False
) -> dict[str, str]:
    """Return the digests of an engine's images by reference; {}, or an error, if it lacks one."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", *references)
    result = host.run(*argv, env={"DOCKER_HOST": socket}, check=check)
    if result.status != 0:
        return {}
    return dict(zip(references, result.stdout.split(), strict=True))


def daemon_job(local: LocalHost, name: str) -> Job:
    """Return the job that a daemon runs as."""
    return Job(local, str(netns.DIRECTORY / f"{name}-daemon"))


def start_engine(local: LocalHost) -> None:
    """Start the engine of the system under test, with its layer-2 network."""
    start_daemon(local, "docker", *_POOLS)
    await_daemon(local, "docker")
    remove_containers(local)
    make_network(local)


def start_daemon(
    local: LocalHost,
    name: str,
    *options: str,
    data_root: Path = DATA_ROOT,
    role: str = "sut",
    label: str = netns.LABEL,
) -> None:
    """Start a Docker daemon in a host's namespace, or outside the lab where `role` is ""."""
    # After a kill the daemon would restore networks; those of the lab are made anew each time.
    for folder in ("network", "swarm"):
        shutil.rmtree(data_root / folder, ignore_errors=True)
    files = netns.DIRECTORY / name
    argv = netns.inside(role) if role else ["taskset", "-c", netns.all_cpus()]
    argv += ["dockerd", "--data-root", str(data_root), "--exec-root", str(files)]
    argv += ["--host", socket_of(name), "--pidfile", f"{files}.pid"]
    argv += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
    # Otherwise a process would relay what one container sends to a port that its own host publishes
    # for another, and a chain of such ports would measure that instead of address translation.
    argv += ["--userland-proxy=false"]
    job = daemon_job(local, name)
    start_job(local, [*argv, *options], directory=job.directory, label=label)
    started = {"argv": [*argv, *options], "label": label}
    Path(job.directory, _STARTED).write_text(json.dumps(started))


def stop_daemon(local: LocalHost, name: str) -> None:
    """End a daemon, which `revive` then leaves alone."""
    job = daemon_job(local, name)
    Path(job.directory, _STARTED).unlink(missing_ok=True)
    job.stop(grace=10.0)


def await_daemon(local: LocalHost, name: str, seconds: float = 60.0) -> None:
    """Return as soon as a daemon of the rig answers; raise `RigError` with its log otherwise."""
    deadline = time.monotonic() + seconds
    env = {"DOCKER_HOST": socket_of(name)}
    while local.run("docker", "info", env=env, check=False).status != 0:
        if time.monotonic() > deadline:
            log = netns.DIRECTORY / f"{name}-daemon" / "stderr"
            raise RigError(
                "the Docker daemon does not answer",
                why=log.read_text()[-1200:] if log.exists() else "it printed nothing",
                remedy="labkit doctor says what it needs; labkit clean, then try again",
            )
        time.sleep(0.1)


def lost(local: LocalHost) -> str:
    """Return what the engine's host lacks of what it made there as it started; "" if nothing."""
    jumps = {"nat": ("PREROUTING", "-j DOCKER\n"), "filter": ("FORWARD", "-j DOCKER-USER\n")}
    for table, (chain, jump) in jumps.items():
        argv = (*netns.inside("sut"), "iptables", "-w", "-t", table, "-S", chain)
        if jump not in local.run(*argv, check=False).stdout:
            return "the engine's rules are gone"
    bridge = (*netns.inside("sut"), "ip", "link", "show", "docker0", "up")
    return "" if local.run(*bridge, check=False).stdout else "the engine's bridge is gone or down"


def revive(local: LocalHost, end_containers: Callable[[], None]) -> list[str]:
    """Start the daemons that have died or hang again; return descriptions of them.

    They restore their networks. Containers without a daemon end by `end_containers`.
    """
    dead = [
        record
        for record in sorted(netns.DIRECTORY.glob(f"*-daemon/{_STARTED}"))
        if not _answers(local, _name(record))
    ]
    for record in dead:
        # With what belongs to it: a new one would wait for its containerd, also where that is a
        # zombie, which has the number in this file.
        daemon_job(local, _name(record)).stop()
        files = netns.DIRECTORY / _name(record)
        for path in (files.with_suffix(".pid"), files / "containerd" / "containerd.pid"):
            path.unlink(missing_ok=True)
    if dead:
        end_containers()
    for record in dead:
        started, job = json.loads(record.read_text()), daemon_job(local, _name(record))
        start_job(local, started["argv"], directory=job.directory, label=started["label"])
        await_daemon(local, _name(record))
        remove_containers(local, socket_of(_name(record)))
    if dead:
        netns.unhook_switch(local)
    return [f"the engine {_name(one)} had died, and was started again" for one in dead]


def _name(record: Path) -> str:
    return record.parent.name.removesuffix("-daemon")


def _answers(local: LocalHost, name: str) -> bool:
    argv = ("timeout", "10", "docker", "version")
    return local.run(*argv, env={"DOCKER_HOST": socket_of(name)}, check=False).status == 0


def remove_containers(
    host: Host, socket: str = SOCKET, which: str = "label=labkit", *, check: bool = False
) -> list[str]:
    """Remove an engine's containers, by default all of labkit's, and return their identifiers.

    The caller holds the rig's lock, so no container has an owner. An engine that was killed
    restores its containers when it starts again. Without `check`, what cannot be listed or removed
    must not prevent taking down the rest of a rig.
    """
    env = {"DOCKER_HOST": socket}
    argv = ("docker", "ps", "--all", "--quiet", "--filter", which)
    containers = host.run(*argv, env=env, check=check).stdout.split()
    for container in containers:
        host.run("docker", "rm", "--force", "--volumes", container, env=env, check=check)
    return containers


def forget_containers(local: LocalHost) -> int:
    """Remove the containers that a killed engine has on its disk; return how many there were.

    Only an engine can remove them whole, with their layers.
    """
    left = len(list(DATA_ROOT.glob("containers/*")))
    if left:
        with building_daemon(local) as socket:
            remove_containers(local, socket)
    return left


def make_network(local: LocalHost) -> None:
    """Create the layer-2 network, with the second lab interface on its bridge."""
    options = ("--subnet", LAYER2.subnet, "--gateway", LAYER2.gateway)
    create_network(local, SOCKET, NETWORK, LAYER2.bridge, *options)
    port = ("link", "set", LAYER2.port, "master", LAYER2.bridge)
    local.run("ip", "-n", netns.PREFIX + "sut", *port)


def create_network(host: Host, socket: str, network: str, bridge: str, *options: str) -> None:
    """Create a network for layer-2 placements: a bridge without address translation."""
    argv = ("docker", "network", "create", *bridge_options(bridge), *options, network)
    host.run(*argv, env={"DOCKER_HOST": socket})


def bridge_options(bridge: str) -> tuple[str, ...]:
    """Return the options of a network that is a bridge without address translation."""
    named = ("--driver", "bridge", "--opt", f"com.docker.network.bridge.name={bridge}")
    return (*named, "--opt", "com.docker.network.bridge.enable_ip_masquerade=false")


@contextmanager
def building_daemon(local: LocalHost) -> Iterator[str]:
    """Run a daemon outside the lab, which cannot reach the packages that a build needs.

    It shares the images of the lab's engine. Yields its socket.
    """
    start_daemon(local, "build", *WITHOUT_NETWORK, role="")
    try:
        await_daemon(local, "build")
        yield socket_of("build")
    finally:
        stop_daemon(local, "build")
