"""The Docker daemons of the virtual rig, and containers and networks on any Docker Engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import Host, Job, LocalHost, script, start_job
from labkit.hosts.target import Network
from labkit.placement import RELEASES
from labkit.rig import netns
from labkit.rig.lock import KEEP

#: Label of the daemons.
LABEL = netns.PREFIX + "engine"
DATA_ROOT = KEEP / "docker"
IMAGES = KEEP / "images"
#: Data of storages, and of daemons besides the first.
STORAGES = KEEP / "storage"
#: Root file systems of the releases of an engine.
ROOTS = KEEP / "releases"
#: The containers' layer-2 network; the lab's second interface is a port of its bridge.
LAYER2 = Network(
    "bridge", "198.18.1.0/24", "198.18.1.10", "198.18.1.1", "labkit-layer2", "labbr0", "lab1"
)
#: The engines' own addresses, since Docker's defaults are private networks that the machine may be
#: in; those of the peer's containers are never those of the first engine's.
_POOLS = {
    "sut": ("--bip", "198.19.0.1/24", "--default-address-pool", "base=198.19.0.0/16,size=24"),
    netns.PEER: (
        *("--bip", "198.19.128.1/24"),
        *("--default-address-pool", "base=198.19.128.0/17,size=24"),
    ),
}


def socket_of(name: str) -> str:
    """Return the socket of a daemon of the rig, as ``DOCKER_HOST`` expects it."""
    return f"unix://{netns.DIRECTORY}/{name}.sock"


SOCKET, PEER_SOCKET = socket_of("sut"), socket_of(netns.PEER)


def layer2(role: str) -> Network:
    """Return the layer-2 network of a host's containers; each host has other addresses."""
    place = 30 * (["sut", *RELEASES].index(role))
    return replace(LAYER2, first=f"198.18.1.{10 + place}", gateway=f"198.18.1.{1 + place}")


def start_engine(local: LocalHost, role: str = "sut") -> None:
    """Start the engine of the system under test or a release of it, or that of the peer."""
    data, enter = DATA_ROOT if role == "sut" else STORAGES / role, netns.inside(role)
    if role in RELEASES:
        enter += ["unshare", "--mount", "--propagation=private", *script(_ENTER, str(ROOTS / role))]
    pools = _POOLS[netns.PEER if role == netns.PEER else "sut"]
    start_daemon(local, role, enter, *pools, data_root=data)
    if role != netns.PEER:
        network = layer2(role)
        options = (*bridge_options(network.bridge), f"--subnet={network.subnet}")
        create = ("docker", "network", "create", *options, f"--gateway={network.gateway}")
        local.run(*create, network.engine, env={"DOCKER_HOST": socket_of(role)})
        port = ("link", "set", network.port, "master", network.bridge)
        local.run("ip", "-n", netns.PREFIX + role, *port)


# The root of a daemon must be a mount point; the lab's own folders have the same paths in it.
_ENTER = """
cd "$1" && shift && mount --bind . . && cd "$PWD"
for place in proc sys dev run/labkit var/lib/labkit; do
    mkdir -p $place && mount --rbind /$place $place
done
mkdir -p old && pivot_root . old && umount --lazy /old && exec "$@"
"""
# The release file of sid may have expired.
_MAKE = """
mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=docker.io,iptables \
    --aptopt='Acquire::Check-Valid-Until "false"' "$1" "$2.new" && mv "$2.new" "$2"
"""


def ensure_release(local: LocalHost, name: str) -> str:
    """Make the root file system of a release where it is missing; return its distribution."""
    root = ROOTS / name
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(f"{root}.new", ignore_errors=True)
        made = local.run(*script(_MAKE, RELEASES[name], str(root)), timeout=900, check=False)
        made.check("install mmdebstrap, and see that Debian's packages can be reached")
    lines = (line.partition("=") for line in (root / "etc/os-release").read_text().splitlines())
    return {key: value.strip('"') for key, _, value in lines}["PRETTY_NAME"]


@contextmanager
def building_daemon(local: LocalHost) -> Iterator[str]:
    """Run a daemon outside the lab, which cannot reach the packages that a build needs.

    It shares the images of the lab's engine. Yields its socket.
    """
    options = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none")
    try:
        start_daemon(local, "build", ["taskset", "-c", netns.all_cpus()], *options)
        yield socket_of("build")
    finally:
        Job(local, f"{netns.DIRECTORY}/build-daemon").stop(grace=10.0)


def start_daemon(
    local: LocalHost, name: str, enter: Sequence[str], *options: str, data_root: Path = DATA_ROOT
) -> None:
    """Start a Docker daemon below the prefix `enter` of its command; it answers then."""
    # A daemon that was killed restores its networks and containers.
    for folder in ("network", "swarm"):
        shutil.rmtree(data_root / folder, ignore_errors=True)
    files, folder = netns.DIRECTORY / name, f"{netns.DIRECTORY}/{name}-daemon"
    argv = [*enter, "dockerd", "--data-root", str(data_root), "--exec-root", str(files)]
    argv += ["--host", socket_of(name), "--pidfile", f"{files}.pid"]
    argv += ["--exec-opt", "native.cgroupdriver=cgroupfs"]
    # Otherwise a process would relay what one container sends to a port that its own host publishes
    # for another, and a chain of such ports would measure that instead of address translation.
    argv += ["--userland-proxy=false", *options]
    job = start_job(local, argv, directory=folder, label=LABEL)
    ready = script("until docker info >/dev/null 2>&1; do sleep 0.05; done")
    env = {"DOCKER_HOST": socket_of(name)}
    if local.run(*ready, env=env, timeout=60, check=False).status != 0:
        why = job.stderr()[-1200:] or "it printed nothing"
        remedy = "labkit doctor says what it needs; labkit clean, then try again"
        raise RigError("the Docker daemon does not answer", why=why, remedy=remedy)
    remove_containers(local, socket_of(name))


def digests(
    host: Host, socket: str, references: Sequence[str], *, check: bool = False
) -> dict[str, str]:
    """Return the digests of an engine's images by reference; {}, or an error, if it lacks one."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", *references)
    result = host.run(*argv, env={"DOCKER_HOST": socket}, check=check)
    if result.status != 0:
        return {}
    return dict(zip(references, result.stdout.split(), strict=True))


def remove_containers(host: Host, socket: str, *, check: bool = False) -> list[str]:
    """Remove labkit's containers of an engine, and return their identifiers.

    Without `check`, what cannot be listed or removed stays.
    """
    env = {"DOCKER_HOST": socket}
    argv = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit")
    containers = host.run(*argv, env=env, check=check).stdout.split()
    for container in containers:
        host.run("docker", "rm", "--force", "--volumes", container, env=env, check=check)
    return containers


def bridge_options(bridge: str) -> tuple[str, ...]:
    """Return the options of a network that is a bridge without address translation."""
    named = ("--driver", "bridge", "--opt", f"com.docker.network.bridge.name={bridge}")
    return (*named, "--opt", "com.docker.network.bridge.enable_ip_masquerade=false")
