"""Where containers can keep what they write: which of it a machine can have, and having it stand.

A storage is a storage driver of a Docker daemon, or something mounted at ``/data``: a directory of
the host, a named volume, a union of directories in user space. On the virtual rig each driver has
a daemon of its own ; elsewhere there is the engine with its driver.

Those daemons are in the network namespace of the system under test, so that a container on the
host's network is where the engine's own would be. One with the driver that the engine has too runs
as well: storages are then compared between daemons that differ in nothing else. Their data stays
between runs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.errors import UsageError
from labkit.hosts import Host, Job, LocalHost, script, start_job, stop_labelled
from labkit.hosts.target import Storage, Target
from labkit.placement import DRIVERS, MOUNTS
from labkit.rig import engine, netns, teardown
from labkit.rig.images import bring_images
from labkit.rig.layers import LayeredImage, layer_name, write_folder

#: Label of the daemons' processes.
DAEMON_LABEL = "labkit-storage"
#: Size of the file that holds btrfs; it is sparse, and takes what is written to it.
BTRFS_SIZE = "64G"
_PREFIX = "storage-"

# The file system is made beside and moved there, so that one that was not finished is not used.
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

# A daemon without a bridge removes the interface of this name as it starts, whosever it is: the
# lab's engine would publish no port any more. So it goes by another name until all of them stand.
_HIDE = """
if ip link show docker0 >/dev/null 2>&1; then
    ip link set docker0 down
    ip link set docker0 name "$1"
fi
"""
_SHOW = """
if ip link show "$1" >/dev/null 2>&1; then
    ip link set "$1" name docker0
    ip link set docker0 up
fi
"""
_HIDDEN = "labkit-docker0"


def daemon_socket(driver: str) -> str:
    """Return where the daemon with a driver listens, as ``DOCKER_HOST`` wants it."""
    return f"unix://{netns.DIRECTORY}/{_PREFIX}{driver}.sock"


def daemon_data_root(driver: str) -> Path:
    """Return where the daemon with a driver keeps images and containers."""
    return engine.STORAGES / driver


@contextmanager
def running_daemons(local: LocalHost, drivers: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a daemon for each driver; yields their sockets by driver."""
    with ExitStack() as stack:
        bridge = stack.enter_context(ExitStack())
        local.run(*netns.inside("sut"), *script(_HIDE, _HIDDEN))
        bridge.callback(local.run, *netns.inside("sut"), *script(_SHOW, _HIDDEN))
        for driver in drivers:
            stack.callback(_unmount_daemon, driver)
            if driver == "btrfs":
                file = engine.STORAGES / "btrfs.img"
                local.run(*script(_BTRFS, str(file), str(daemon_data_root(driver)), BTRFS_SIZE))
            directory = netns.DIRECTORY / f"{_PREFIX}{driver}-daemon"
            stack.callback(_stop_daemon, local, driver, Job(local, str(directory)))
            start_job(local, _daemon_command(driver), directory=str(directory), label=DAEMON_LABEL)
        for driver in drivers:
            log = netns.DIRECTORY / f"{_PREFIX}{driver}-daemon" / "stderr"
            engine.await_daemon(local, daemon_socket(driver), log)
            # It remembers those of a killed campaign, which would come back with it.
            engine.remove_containers(local, daemon_socket(driver))
        bridge.close()
        yield {driver: daemon_socket(driver) for driver in drivers}


def _daemon_command(driver: str) -> tuple[str, ...]:
    options = engine.daemon_options(
        _PREFIX + driver, daemon_socket(driver), daemon_data_root(driver)
    )
    return (
        *netns.inside("sut"),
        *("dockerd", *options, "--storage-driver", driver, *engine.WITHOUT_NETWORK),
    )


def _stop_daemon(local: LocalHost, driver: str, job: Job) -> None:
    engine.remove_containers(local, daemon_socket(driver))
    job.stop(grace=10.0)


def _unmount_daemon(driver: str) -> None:
    """Unmount what a daemon left, and the file system that it was on."""
    teardown.unmount((str(daemon_data_root(driver)),))


def unremoved_drivers() -> list[str]:
    """Return the drivers whose daemon was begun and not taken down."""
    return sorted(
        path.name.removeprefix(_PREFIX).removesuffix("-daemon")
        for path in netns.DIRECTORY.glob(f"{_PREFIX}*-daemon")
        if (path / "lock").exists() and _daemon_remains(path)
    )


def _daemon_remains(directory: Path) -> bool:
    driver = directory.name.removeprefix(_PREFIX).removesuffix("-daemon")
    pidfile = netns.DIRECTORY / f"{_PREFIX}{driver}.pid"
    return pidfile.exists() or bool(teardown.mounted((str(daemon_data_root(driver)),)))


def remove_daemons(local: LocalHost) -> list[str]:
    """Take down the daemons of a dead campaign on a standing rig; return them in words."""
    found = unremoved_drivers()
    for driver in found:
        engine.remove_containers(local, daemon_socket(driver))
    if found:
        teardown.stop_engine(f"{_PREFIX}*.pid")
    # Also one that was begun only: it stands nowhere yet, and would go on in removed folders.
    stop_labelled(local, DAEMON_LABEL)
    if found:
        # Containers whose daemon was killed; those of the engine are removed already.
        teardown.kill(teardown.grouped)
        teardown.remove_groups(keep_roots=True)
    teardown.unmount((str(engine.STORAGES),))
    for path in netns.DIRECTORY.glob(f"{_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return [f"daemon with the storage driver {driver}" for driver in found]


Say = Callable[[str], None]
#: The type of file system that a driver's containers see; the others show that of the data.
_OWN_TYPE = {
    "overlay2": "overlay",
    "fuse-overlayfs": "fuse.fuse-overlayfs",
    "btrfs": "btrfs",
    "aufs": "aufs",
    "unionfs-fuse": "fuse.unionfs",
}
#: What is made for a while, below a rig's disk: sources of mounts, archives, unions.
_PASSING = ("bind", "unions", "archives")

# Files that a container made belong to its users: who is not root removes them as it made them.
_CLEAR = """
disk=$1 image=$2
shift 2
[ -n "$image" ] || image=$(docker image ls --quiet --filter label=labkit.image | head -n 1)
for name in $(docker volume ls --quiet --filter "label=labkit.disk=$disk"); do
    docker volume rm --force "$name" >/dev/null
done
for part in "$@"; do
    # A union that hangs is let go, and never walked into.
    awk -v place="$disk/$part/" 'index($2, place) == 1 { print $2 }' /proc/self/mounts |
        while read -r mount; do umount -l "$mount" 2>/dev/null || true; done
    [ -e "$disk/$part" ] || continue
    rm -rf --one-file-system "$disk/$part" 2>/dev/null ||
        docker run --rm --pull never --network none \\
        --mount "type=bind,src=$disk,dst=/labkit-disk" "$image" rm -rf "/labkit-disk/$part"
done
"""


def missing() -> dict[str, str]:
    """Return the storages that this machine cannot have beside each other, as capabilities."""
    found: dict[str, str] = {}
    if not _kernel_has("overlay"):
        found["overlay2"] = "the kernel has no overlay file system"
    if not _kernel_has("aufs"):
        found["aufs"] = "the kernel has no aufs"
    elif _engine_version() >= 24:
        found["aufs"] = "Docker has no driver for aufs since version 24"
    if not _kernel_has("btrfs"):
        found["btrfs"] = "the kernel has no btrfs"
    elif not _tool("mkfs.btrfs"):
        found["btrfs"] = "mkfs.btrfs is not installed (package btrfs-progs)"
    elif not Path("/dev/loop-control").exists():
        found["btrfs"] = "the kernel has no loop devices to hold it"
    for name, tool in (("fuse-overlayfs", "fuse-overlayfs"), ("unionfs-fuse", "unionfs")):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            found[name] = "there is no /dev/fuse that this user may open"
        elif not _tool(tool):
            found[name] = f"{tool} is not installed (package {name})"
    return {f"storage:{name}": reason for name, reason in found.items()}


# A directory that is still to be made is on the file system of the first above it that stands.
_DISKS = """
for place in "$@"; do
    while [ ! -e "$place" ]; do place=$(dirname "$place"); done
    findmnt -n -v -o SOURCE,FSTYPE -T "$place" | tail -n 1
done
"""


def apart(host: Host, socket: str, disk: str) -> str:
    """Return why directories below `disk` are no match for an engine's own storage, or "".

    On another disk or file system a bind mount would be compared with a driver by what these do.
    """
    root = _data_root(host, socket)
    said = host.run(*script(_DISKS, disk, root), check=False).stdout.splitlines() if root else []
    if len(said) != 2:
        return f"whether {disk} is on the disk of the engine's data is unknown"
    own, other = (" ".join(line.split()) for line in said)
    if own == other:
        return ""
    return f"{disk} is on {own}, the engine's data ({root}) on {other}: two disks, not two storages"


def missing_beside(own: str | None, bind: str = "") -> dict[str, str]:
    """Return the storages that a rig without daemons of its own lacks, as capabilities."""
    if own is None:
        reason = "there is no engine"
        return {f"storage:{name}": reason for name in (*DRIVERS, *MOUNTS)}
    reason = f"the engine has the storage driver {own}; only the virtual rig starts a daemon "
    reason += "for each"
    found = {f"storage:{name}": reason for name in DRIVERS if name != own}
    found |= {"storage:bind": bind} if bind else {}
    return found | {"storage:unionfs-fuse": "only the virtual rig mounts a union in user space"}


def _kernel_has(name: str) -> bool:
    """Tell whether the kernel has a file system, or has a module for it."""
    if name in Path("/proc/filesystems").read_text().split():
        return True
    return LocalHost().run("modprobe", "--dry-run", "--quiet", name, check=False).status == 0


def _engine_version() -> int:
    """Return the major version of this machine's daemon, 0 where it has none."""
    said = LocalHost().run("dockerd", "--version", check=False).stdout
    found = re.search(r"version (\d+)", said)
    return int(found[1]) if found else 0


def _tool(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


@contextmanager
def ready(
    target: Target,
    wanted: Mapping[str, Sequence[LayeredImage | str]],
    *,
    own_daemons: bool,
    say: Say = lambda text: None,
) -> Iterator[Target]:
    """Have storages stand on a host, each with images, for the duration of a ``with`` block."""
    if unknown := set(wanted) - {*DRIVERS, *MOUNTS}:
        raise UsageError(
            f"no storage called {', '.join(sorted(unknown))}",
            remedy=f"one of {(*DRIVERS, *MOUNTS)}",
        )
    host: Host = LocalHost() if own_daemons else target.host
    with ExitStack() as stack:
        carrier = _carrier(wanted) if own_daemons else driver_of(host, str(target.engine))
        under = {name: name if name in DRIVERS else carrier for name in wanted}
        sockets = {carrier: str(target.engine)}
        if own_daemons:
            drivers = list(dict.fromkeys(under.values()))
            say(f"starting a Docker daemon each for {', '.join(drivers)}")
            sockets = stack.enter_context(running_daemons(LocalHost(), drivers))
        needs: dict[str, list[LayeredImage | str]] = {}
        for name, images in wanted.items():
            needs.setdefault(sockets[under[name]], []).extend(images)
        made = bring_images(host, target, needs, say)
        whole = replace(target, images={**target.images, **made})
        mounts = [name for name in MOUNTS if name in wanted]
        if mounts:
            tidy = (host, sockets[carrier], target.disk, _any_image(wanted[mounts[0]], whole))
            clear(*tidy)
            stack.callback(clear, *tidy)
        stands = {name: _storage(host, whole, name, sockets, under[name]) for name in wanted}
        if "unionfs-fuse" in stands:
            branches = _branches(wanted["unionfs-fuse"])
            stands["unionfs-fuse"] = replace(stands["unionfs-fuse"], branches=branches)
        yield replace(whole, storages=stands)


def _any_image(images: Sequence[LayeredImage | str], target: Target) -> str:
    one = images[0]
    return target.images[one if isinstance(one, str) else one.name].reference


def _carrier(wanted: Iterable[str]) -> str:
    """Return the driver whose daemon runs the containers that have something mounted."""
    drivers = [name for name in wanted if name in DRIVERS]
    return "overlay2" if "storage:overlay2" not in missing() else [*drivers, "vfs"][0]


def driver_of(host: Host, socket: str) -> str:
    """Return the storage driver of an engine."""
    argv = ("docker", "info", "--format", "{{.Driver}}")
    return host.run(*argv, env={"DOCKER_HOST": socket}).stdout.strip()


def _data_root(host: Host, socket: str) -> str:
    """Return where an engine keeps images, containers and volumes."""
    argv = ("docker", "info", "--format", "{{.DockerRootDir}}")
    return host.run(*argv, env={"DOCKER_HOST": socket}).stdout.strip()


def _storage(
    host: Host, target: Target, name: str, sockets: Mapping[str, str], driver: str
) -> Storage:
    socket = sockets[driver]
    where = target.disk
    if name in DRIVERS or name == "volume":
        where = _data_root(host, socket)
    kind = _OWN_TYPE.get(name)
    if kind is None:
        if name == "bind":
            host.run("mkdir", "-p", where)
        kind = host.run("findmnt", "-n", "-o", "FSTYPE", "-T", where).stdout.strip()
    return Storage(name, socket, driver, kind, directory=target.disk if name in MOUNTS else "")


def _branches(images: Sequence[LayeredImage | str]) -> dict[str, tuple[str, ...]]:
    """Write each layer as a directory of this machine; one that stands is used again."""
    found = {}
    for image in images:
        if isinstance(image, str):
            continue
        folders = []
        for layer in image.contents():
            place = engine.STORAGES / "branches" / layer_name(layer)
            if not place.is_dir():
                unfinished = place.with_suffix(".new")
                shutil.rmtree(unfinished, ignore_errors=True)
                write_folder(layer, unfinished)
                unfinished.rename(place)
            folders.append(str(place))
        found[image.name] = tuple(folders)
    return found


def clear(host: Host, socket: str, disk: str, image: str = "") -> None:
    """Remove what was made for mounts: volumes, and directories below the rig's disk.

    `image` is one that the engine has, for what only a container may remove; a layered one by
    default, as without one nothing was made.
    """
    argv = script(_CLEAR, disk, image, *_PASSING)
    host.run(*argv, env={"DOCKER_HOST": socket}, timeout=600)


def remove_passing() -> None:
    """Remove what is below this machine's disk for a while only; its owner is gone."""
    for name in _PASSING:
        shutil.rmtree(engine.STORAGES / name, ignore_errors=True)
    for path in [*engine.STORAGES.glob("*.new"), *engine.STORAGES.glob("branches/*.new")]:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def forget(local: LocalHost) -> str:
    """Remove everything that the daemons keep between runs; return what it was, in words.

    The caller holds the machine's lock, and no daemon runs.
    """
    if not engine.STORAGES.is_dir():
        return ""
    size = local.run("du", "-sh", str(engine.STORAGES), timeout=600).stdout.split()[0]
    local.run("rm", "-rf", "--one-file-system", str(engine.STORAGES), timeout=1200)
    return f"{engine.STORAGES} ({size}): images and loop file of the storage daemons"
