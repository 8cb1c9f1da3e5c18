"""Storages of containers: which of them a machine can have, and preparing them.

A storage is the storage driver of a Docker daemon, or something mounted at ``/data``: a directory
of the host, a named volume, a union of directories in user space. On the virtual rig each driver
has a daemon of its own; other rigs have the engine with its driver.

These daemons are in the network namespace of the system under test, so that the host's network is
that of the engine. The engine's own driver gets such a daemon too, so that the compared daemons
differ in nothing but the driver. Their data is kept between runs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.errors import UsageError, suggestion
from labkit.hosts import Host, LocalHost, script
from labkit.hosts.target import Storage, Target
from labkit.placement import DRIVERS, MOUNTS
from labkit.rig import engine, netns
from labkit.rig.images import Say, bring_images
from labkit.rig.kernel_probe import find_tool
from labkit.rig.layers import LayeredImage, layer_name, write_folder

#: Size of the sparse file that holds btrfs.
BTRFS_SIZE = "64G"
_PREFIX = "storage-"

# The file gets its name last, so that an unfinished file system is never used.
_BTRFS = """
file=$1 place=$2 size=$3
mkdir -p "$place"
if mountpoint -q "$place"; then exit 0; fi
if [ ! -e "$file" ]; then
    rm -f "$file.new"
    truncate -s "$size" "$file.new"
    mkfs.btrfs --quiet "$file.new"
    mv "$file.new" "$file"
fi
mount -o loop "$file" "$place"
"""

# A daemon without a bridge removes docker0 as it starts, even that of another daemon; the lab's
# engine could then publish no port. So docker0 has another name until all daemons run.
_HIDE_BRIDGE = """
if ip link show docker0 >/dev/null 2>&1; then
    ip link set docker0 down
    ip link set docker0 name labkit-docker0
fi
"""
_SHOW_BRIDGE = """
if ip link show labkit-docker0 >/dev/null 2>&1; then
    ip link set labkit-docker0 name docker0
    ip link set docker0 up
fi
"""


def daemon_socket(driver: str) -> str:
    """Return the socket of the daemon with a driver, as ``DOCKER_HOST`` expects it."""
    return engine.socket_of(_PREFIX + driver)


def daemon_data_root(driver: str) -> Path:
    """Return where the daemon with a driver keeps images and containers."""
    return engine.STORAGES / driver


@contextmanager
def running_daemons(local: LocalHost, drivers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a daemon for each driver; yield their sockets by driver."""
    with ExitStack() as stack:
        bridge = stack.enter_context(ExitStack())
        local.run(*netns.inside("sut"), *script(_HIDE_BRIDGE))
        bridge.callback(local.run, *netns.inside("sut"), *script(_SHOW_BRIDGE))
        for driver in drivers:
            root = daemon_data_root(driver)
            if driver == "btrfs":
                stack.callback(local.run, "umount", str(root), check=False)
                local.run(*script(_BTRFS, f"{engine.STORAGES}/btrfs.img", str(root), BTRFS_SIZE))
            stack.callback(_stop_daemon, local, driver)
            options = ("--storage-driver", driver, *engine.WITHOUT_NETWORK)
            engine.start_daemon(local, _PREFIX + driver, *options, data_root=root)
        bridge.close()
        yield {driver: daemon_socket(driver) for driver in drivers}


def _stop_daemon(local: LocalHost, driver: str) -> None:
    engine.remove_containers(local, daemon_socket(driver))
    engine.stop_daemon(local, _PREFIX + driver)


#: The file system type that a storage's containers see; others show that of the data.
_FILESYSTEMS = {
    "overlay2": "overlay",
    "fuse-overlayfs": "fuse.fuse-overlayfs",
    "btrfs": "btrfs",
    "aufs": "aufs",
    "unionfs-fuse": "fuse.unionfs",
}
#: What is below a rig's disk only for a while: sources of mounts, unions, archives.
_TEMPORARY = ("bind", "unions", "archives")

# Files that a container made belong to its users, so without root a container removes them.
_CLEAR = """
disk=$1 image=$2
shift 2
[ -n "$image" ] || image=$(docker image ls --quiet --filter label=labkit.image | head -n 1)
for name in $(docker volume ls --quiet --filter "label=labkit.disk=$disk"); do
    docker volume rm --force "$name" >/dev/null
done
for part in "$@"; do
    # Lazily, and before anything looks into it: a union may hang.
    awk -v place="$disk/$part/" 'index($2, place) == 1 { print $2 }' /proc/self/mounts |
        while read -r mount; do umount -l "$mount" 2>/dev/null || true; done
    [ -e "$disk/$part" ] || continue
    rm -rf --one-file-system "$disk/$part" 2>/dev/null ||
        docker run --rm --pull never --network none \\
        --mount "type=bind,src=$disk,dst=/labkit-disk" "$image" rm -rf "/labkit-disk/$part"
done
"""


def missing() -> dict[str, str]:
    """Return the storages that this machine cannot have, as capabilities with the reason."""
    reasons: dict[str, str] = {}
    if not _kernel_has("overlay"):
        reasons["overlay2"] = "the kernel has no overlay file system"
    if not _kernel_has("aufs"):
        reasons["aufs"] = "the kernel has no aufs"
    elif _engine_version() >= 24:
        reasons["aufs"] = "Docker has no driver for aufs since version 24"
    if not _kernel_has("btrfs"):
        reasons["btrfs"] = "the kernel has no btrfs"
    elif not find_tool("mkfs.btrfs"):
        reasons["btrfs"] = "mkfs.btrfs is not installed (package btrfs-progs)"
    elif not Path("/dev/loop-control").exists():
        reasons["btrfs"] = "the kernel has no loop devices to hold it"
    for name, tool in (("fuse-overlayfs", "fuse-overlayfs"), ("unionfs-fuse", "unionfs")):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            reasons[name] = "there is no /dev/fuse that this user may open"
        elif not find_tool(tool):
            reasons[name] = f"{tool} is not installed (package {name})"
    return {f"storage:{name}": reason for name, reason in reasons.items()}


# A directory that does not exist yet will be on the file system of its nearest existing parent.
_DISKS = """
for place in "$@"; do
    while [ ! -e "$place" ]; do place=$(dirname "$place"); done
    findmnt -n -v -o SOURCE,FSTYPE -T "$place" | tail -n 1
done
"""


def disk_difference(host: Host, socket: str, disk: str) -> str:
    """Return why directories below `disk` cannot be compared with an engine's storage, or "".

    On another disk or file system, a bind mount would differ from a driver by the disk.
    """
    root = _engine_info(host, socket, "DockerRootDir")
    lines = host.run(*script(_DISKS, disk, root), check=False).stdout.splitlines() if root else []
    if len(lines) != 2:
        return f"whether {disk} is on the disk of the engine's data is unknown"
    own, other = (" ".join(line.split()) for line in lines)
    if own == other:
        return ""
    return f"{disk} is on {own}, the engine's data ({root}) on {other}: two disks, not two storages"


def missing_without_daemons(driver: str | None, bind: str = "") -> dict[str, str]:
    """Return the storages that a rig without storage daemons lacks, as capabilities.

    `driver` is the engine's storage driver (None: there is no engine), `bind` why a bind mount
    cannot be compared with it.
    """
    if driver is None:
        return {f"storage:{name}": "there is no engine" for name in (*DRIVERS, *MOUNTS)}
    reason = f"the engine has the storage driver {driver}; only the virtual rig starts a daemon "
    reason += "for each"
    missing = {f"storage:{name}": reason for name in DRIVERS if name != driver}
    missing |= {"storage:bind": bind} if bind else {}
    return missing | {"storage:unionfs-fuse": "only the virtual rig mounts a union in user space"}


def _kernel_has(name: str) -> bool:
    """Tell whether the kernel has a file system, or a module for it."""
    if name in Path("/proc/filesystems").read_text().split():
        return True
    return LocalHost().run("modprobe", "--dry-run", "--quiet", name, check=False).status == 0


def _engine_version() -> int:
    """Return the major version of this machine's dockerd, 0 where it has none."""
    text = LocalHost().run("dockerd", "--version", check=False).stdout
    match = re.search(r"version (\d+)", text)
    return int(match[1]) if match else 0


@contextmanager
def ready(
    target: Target,
    storages: Mapping[str, Sequence[LayeredImage | str]],
    *,
    own_daemons: bool,
    say: Say = lambda text: None,
) -> Iterator[Target]:
    """Prepare storages on a host, each with its images; yield the target that has them."""
    if unknown := set(storages) - {*DRIVERS, *MOUNTS}:
        raise UsageError(
            f"no storage called {', '.join(sorted(unknown))}",
            remedy=suggestion(min(unknown), (*DRIVERS, *MOUNTS)),
        )
    host: Host = LocalHost() if own_daemons else target.host
    with ExitStack() as stack:
        # The driver of the engine that runs the containers with something mounted.
        if own_daemons:
            drivers = [name for name in storages if name in DRIVERS]
            carrier = "overlay2" if "storage:overlay2" not in missing() else [*drivers, "vfs"][0]
        else:
            carrier = driver_of(host, str(target.engine))
        driver = {name: name if name in DRIVERS else carrier for name in storages}
        sockets = {carrier: str(target.engine)}
        if own_daemons:
            drivers = list(dict.fromkeys(driver.values()))
            say(f"starting a Docker daemon each for {', '.join(drivers)}")
            sockets = stack.enter_context(running_daemons(LocalHost(), drivers))
        needs: dict[str, list[LayeredImage | str]] = {}
        for name, images in storages.items():
            needs.setdefault(sockets[driver[name]], []).extend(images)
        loaded = bring_images(host, target, needs, say)
        target = replace(target, images={**target.images, **loaded})
        if mounts := [name for name in MOUNTS if name in storages]:
            image = storages[mounts[0]][0]
            reference = target.images[image if isinstance(image, str) else image.name].reference
            arguments = (host, sockets[carrier], target.disk, reference)
            clear(*arguments)
            stack.callback(clear, *arguments)
        prepared = {}
        for name in storages:
            socket, disk = sockets[driver[name]], target.disk if name in MOUNTS else ""
            kind = _FILESYSTEMS.get(name) or _data_filesystem(host, socket, name, disk)
            prepared[name] = Storage(name, socket, driver[name], kind, directory=disk)
        if "unionfs-fuse" in prepared:
            branches = _branches(storages["unionfs-fuse"])
            prepared["unionfs-fuse"] = replace(prepared["unionfs-fuse"], branches=branches)
        yield replace(target, storages=prepared)


def driver_of(host: Host, socket: str) -> str:
    """Return the storage driver of an engine."""
    return _engine_info(host, socket, "Driver")


def _engine_info(host: Host, socket: str, field: str) -> str:
    argv = ("docker", "info", "--format", f"{{{{.{field}}}}}")
    return host.run(*argv, env={"DOCKER_HOST": socket}).stdout.strip()


def _data_filesystem(host: Host, socket: str, name: str, disk: str) -> str:
    """Return the type of the file system that holds a storage's data."""
    if name == "bind":
        host.run("mkdir", "-p", disk)
        path = disk
    else:
        path = _engine_info(host, socket, "DockerRootDir")
    return host.run("findmnt", "-n", "-o", "FSTYPE", "-T", path).stdout.strip()


def _branches(images: Sequence[LayeredImage | str]) -> dict[str, tuple[str, ...]]:
    """Write the layers of images as directories of this machine, which are kept."""
    branches = {}
    for image in images:
        if isinstance(image, str):
            continue
        folders = []
        for layer in image.contents():
            folder = engine.STORAGES / "branches" / layer_name(layer)
            if not folder.is_dir():
                unfinished = folder.with_suffix(".new")
                shutil.rmtree(unfinished, ignore_errors=True)
                write_folder(layer, unfinished)
                unfinished.rename(folder)
            folders.append(str(folder))
        branches[image.name] = tuple(folders)
    return branches


def clear(host: Host, socket: str, disk: str, image: str = "") -> None:
    """Remove what was made for mounts: volumes, and directories below the rig's disk.

    A container of `image` removes what this user may not; by default of any layered image, since
    without one nothing was made.
    """
    argv = script(_CLEAR, disk, image, *_TEMPORARY)
    host.run(*argv, env={"DOCKER_HOST": socket}, timeout=600)


def remove_temporary() -> None:
    """Remove what a killed campaign left below this machine's disk for storages."""
    for name in _TEMPORARY:
        shutil.rmtree(engine.STORAGES / name, ignore_errors=True)
    for path in [*engine.STORAGES.glob("*.new"), *engine.STORAGES.glob("branches/*.new")]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def forget(local: LocalHost) -> str:
    """Remove everything that the daemons keep between runs; return a description of it.

    The caller holds the machine's lock, and no daemon runs.
    """
    if not engine.STORAGES.is_dir():
        return ""
    size = local.run("du", "-sh", str(engine.STORAGES), timeout=600).stdout.split()[0]
    local.run("rm", "-rf", "--one-file-system", str(engine.STORAGES), timeout=1200)
    return f"{engine.STORAGES} ({size}): images and loop file of the storage daemons"
