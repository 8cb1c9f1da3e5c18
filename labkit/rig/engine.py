"""The rig's own Docker daemon, and the images that it is given."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.errors import CommandFailed, RigError
from labkit.hosts import Host, LocalHost, script, start_job
from labkit.hosts.site import Image, Network
from labkit.rig import netns
from labkit.rig.state import KEEP

DATA_ROOT = KEEP / "docker"
IMAGES = KEEP / "images"
#: Data of the daemons with other storage drivers; `labkit.rig.storage` keeps it.
STORAGES = KEEP / "storage"
SOCKET = f"unix://{netns.DIRECTORY}/docker.sock"
BASE = "debian:bookworm-slim"
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
def _building_daemon(local: LocalHost) -> Iterator[str]:
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


def tag(folder: Path) -> str:
    """Return the name of the image made from a folder: it changes with any file in it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"labkit/{folder.name}:{digest.hexdigest()[:12]}"


def ensure_images(local: LocalHost, containers: Path) -> dict[str, Image]:
    """Return every image below ``containers/``, building those that do not stand yet."""
    folders = [path.parent for path in sorted(containers.glob("*/Dockerfile"))]
    missing = [folder for folder in folders if stored(folder) is None]
    if missing:
        with _building_daemon(local) as socket:
            for folder in missing:
                ensure_image(local, socket, folder, store=str(IMAGES), parent="/labkit")
    found = {folder.name: stored(folder) for folder in folders}
    return {name: image for name, image in found.items() if image}


def stored(folder: Path) -> Image | None:
    """Return the image made from a folder as it is now, or None where it is still to be built."""
    record = IMAGES / tag(folder).replace("/", "-").replace(":", "-") / "image.json"
    return Image(**json.loads(record.read_text())) if record.is_file() else None


def ensure_image(
    host: Host, socket: str, folder: Path, *, store: str = "", parent: str = ""
) -> Image:
    """Return an image that an engine has, building it there where it is still to be built.

    Parameters
    ----------
    host : Host
        Any host: the folder is sent to its engine as the input of ``docker build``.
    socket : str
        The engine there, as ``DOCKER_HOST`` wants it.
    folder : Path
        The image's folder on this machine.
    store : str, optional
        A directory on the host in which the root file system is unpacked too, as root, with a
        record that is written last.
    parent : str, optional
        Control group of what runs during the build.
    """
    reference, env = tag(folder), {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
    inspect = ("docker", "image", "inspect", "-f", "{{.Id}}", reference)
    found = host.run(*inspect, env=env, check=False)
    if found.status != 0:
        ensure_base(host, socket)
        options = ["--network", "host", "--tag", reference]
        options += ["--cgroup-parent", parent] if parent else []
        host.run("docker", "build", *options, "-", input=_context(folder), env=env, timeout=1200)
        found = host.run(*inspect, env=env)
    image = Image(folder.name, reference, found.stdout.strip(), "")
    return _unpacked(host, env, image, store) if store else image


def _context(folder: Path) -> str:
    """Return a folder as an archive that only a change of its content changes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o111 else 0o644
            archive.addfile(info, io.BytesIO(data))
    # A host's input is text, in which any byte is preserved like this.
    return buffer.getvalue().decode("utf-8", "surrogateescape")


_UNPACK = """
rm -rf "$1"
mkdir -p "$1/rootfs"
id=$(docker create --label labkit=image "$2" true)
trap 'docker rm "$id" >/dev/null' EXIT
docker export "$id" | tar -x -C "$1/rootfs"
"""
_RECORD = 'cat >"$1.tmp" && sync "$1.tmp" && mv "$1.tmp" "$1"'


def _unpacked(host: Host, env: dict[str, str], image: Image, store: str) -> Image:
    """Unpack an image's root file system on its host, unless that was done before."""
    place = f"{store}/{image.reference.replace('/', '-').replace(':', '-')}"
    whole = replace(image, rootfs=f"{place}/rootfs")
    record = json.dumps(whole.__dict__)
    if host.run("cat", f"{place}/image.json", check=False).stdout == record:
        return whole
    host.run(*script(_UNPACK, place, image.reference), env=env, timeout=600)
    host.run(*script(_RECORD, f"{place}/image.json"), input=record)
    return whole


def ensure_base(host: Host, socket: str) -> None:
    """Bring the base image: made from the machine's own Debian mirror, or else pulled."""
    env = {"DOCKER_HOST": socket}
    if host.run("docker", "image", "inspect", BASE, env=env, check=False).status == 0:
        return
    # On Debian no registry is needed, so none is asked; elsewhere the keys for it may be missing.
    debian = "ID=debian" in host.run("cat", "/etc/os-release").stdout.splitlines()
    ways = [_bootstrap, _pull] if debian else [_pull, _bootstrap]
    reasons = []
    for way in ways:
        try:
            way(host, env)
            return
        except CommandFailed as error:
            reasons.append(error.why or error.what)
    raise RigError(
        f"the base image {BASE} can be neither made nor pulled",
        where=f"host {host.name}",
        why=" / ".join(reasons)[-1500:],
        remedy="install mmdebstrap, or give the engine a registry it can reach",
    )


_BOOTSTRAP = """
archive=$(mktemp --suffix=.tar)
trap 'rm -f "$archive"' EXIT
mmdebstrap --quiet --variant=minbase bookworm "$archive"
docker import "$archive" "$1"
"""


def _bootstrap(host: Host, env: dict[str, str]) -> None:
    host.run(*script(_BOOTSTRAP, BASE), env=env, timeout=600)


def _pull(host: Host, env: dict[str, str]) -> None:
    host.run("docker", "pull", BASE, env=env, timeout=300)
