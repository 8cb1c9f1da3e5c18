"""The rig's own Docker daemon."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import Host, LocalHost, start_job
from labkit.hosts.target import Network
from labkit.rig import netns
from labkit.rig.lock import KEEP

DATA_ROOT = KEEP / "docker"
IMAGES = KEEP / "images"
#: Data of the daemons with other storage drivers.
STORAGES = KEEP / "storage"
SOCKET = f"unix://{netns.DIRECTORY}/docker.sock"
#: The containers' layer-2 network; the lab's second interface is the port of its bridge.
LAYER2 = Network(
    "bridge", "198.18.1.0/24", "198.18.1.10", "198.18.1.1", "labkit-layer2", "labbr0", "lab1"
)
NETWORK = LAYER2.engine


def start_daemon(local: LocalHost) -> None:
    """Start the engine in the namespace of the system under test, and wait until it answers."""
    # Its own address pools: the default ones are private networks that the machine may be in.
    forget_networks(DATA_ROOT)
    pools = ["--bip", "198.19.0.1/24", "--default-address-pool", "base=198.19.0.0/16,size=24"]
    argv = [*netns.inside("sut"), "dockerd", *daemon_options("docker", SOCKET), *pools]
    start_job(local, argv, directory=str(netns.DIRECTORY / "dockerd"), label=netns.LABEL)
    await_daemon(local, SOCKET, netns.DIRECTORY / "dockerd" / "stderr")


def forget_networks(data_root: Path) -> None:
    """Remove what an engine remembers of networks: a killed one would lay them again at its start.

    The lab's are made anew each time, and those of a study while it asks for them.
    """
    for name in ("network", "swarm"):
        shutil.rmtree(data_root / name, ignore_errors=True)


def daemon_options(name: str, socket: str, data_root: Path = DATA_ROOT) -> list[str]:
    """Return the options of a daemon that has places of its own, called `name`."""
    directory = netns.DIRECTORY / name
    options = ["--data-root", str(data_root), "--exec-root", str(directory), "--host", socket]
    options += ["--pidfile", f"{directory}.pid", "--exec-opt", "native.cgroupdriver=cgroupfs"]
    # What one container sends to a port that its own host publishes for another would be carried by
    # a process, and a chain of such ports would measure that instead of the address translation.
    options += ["--userland-proxy=false"]
    # The runtimes that it is to know beside its own.
    runsc = shutil.which("runsc")
    return options + (["--add-runtime", f"runsc={runsc}"] if runsc else [])


#: For a daemon beside the lab's engine: it touches neither firewall nor interfaces.
WITHOUT_NETWORK = (
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--bridge=none",
)


def await_daemon(local: LocalHost, socket: str, log: Path, seconds: float = 60.0) -> None:
    """Return as soon as a daemon answers; raise `RigError` with its log where it does not."""
    deadline = time.monotonic() + seconds
    while local.run("docker", "info", env={"DOCKER_HOST": socket}, check=False).status != 0:
        if time.monotonic() > deadline:
            raise RigError(
                "the Docker daemon does not answer",
                why=log.read_text()[-1200:] if log.exists() else "it printed nothing",
                remedy="labkit doctor says what it needs; labkit clean, then try again",
            )
        time.sleep(0.1)


def remove_containers(local: LocalHost, socket: str = SOCKET) -> list[str]:
    """Remove the trials' containers where the engine answers, and return their identifiers.

    The caller holds the rig, so none of them has an owner. An engine remembers containers beyond
    its own end: those of a killed campaign come back with the next one.
    """
    env = {"DOCKER_HOST": socket}
    argv = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit")
    found = local.run(*argv, env=env, check=False).stdout.split()
    for container in found:
        # One that cannot be removed must not keep the rest of the rig from being taken down.
        local.run("docker", "rm", "--force", "--volumes", container, env=env, check=False)
    return found


def make_network(local: LocalHost) -> None:
    """Make the layer-2 network, and enslave the second lab interface to its bridge."""
    options = ("--subnet", LAYER2.subnet, "--gateway", LAYER2.gateway)
    create_network(local, SOCKET, NETWORK, LAYER2.bridge, *options)
    port = ("link", "set", LAYER2.port, "master", LAYER2.bridge)
    local.run("ip", "-n", netns.PREFIX + "sut", *port)


def create_network(host: Host, socket: str, network: str, bridge: str, *options: str) -> None:
    """Make a network for layer-2 placements: a bridge of that name, without translation."""
    argv = ("docker", "network", "create", *bridge_options(bridge), *options, network)
    host.run(*argv, env={"DOCKER_HOST": socket})


def bridge_options(bridge: str) -> tuple[str, ...]:
    """Return the options of a network that is a bridge of that name, without translation."""
    named = ("--driver", "bridge", "--opt", f"com.docker.network.bridge.name={bridge}")
    return (*named, "--opt", "com.docker.network.bridge.enable_ip_masquerade=false")


@contextmanager
def building_daemon(local: LocalHost) -> Iterator[str]:
    """Run an engine outside the lab, which has no way out to the packages that a build needs.

    It shares the lab engine's images.
    """
    socket = f"unix://{netns.DIRECTORY}/build.sock"
    argv = ["taskset", "-c", netns.all_cpus(), "dockerd", *daemon_options("build", socket)]
    argv += WITHOUT_NETWORK
    # It would let the networks that it remembers, of the lab's engine, stand outside the lab.
    forget_networks(DATA_ROOT)
    directory = netns.DIRECTORY / "build-daemon"
    job = start_job(local, argv, directory=str(directory), label=netns.LABEL)
    try:
        await_daemon(local, socket, directory / "stderr")
        yield socket
    finally:
        job.stop(grace=10.0)
