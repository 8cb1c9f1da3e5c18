"""Where containers can keep what they write: which of it a machine can have, and having it stand.

A storage is a storage driver of a Docker daemon, or something mounted at ``/data``: a directory of
the host, a named volume, a union of directories in user space. On the virtual rig each driver has
a daemon of its own (`labkit.rig.daemons`); elsewhere there is the engine with its driver.
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
from labkit.hosts import Host, LocalHost, script
from labkit.hosts.site import Site, Storage
from labkit.placement import DRIVERS, MOUNTS
from labkit.rig import daemons, engine
from labkit.rig.layers import LayeredImage, layer_name, write_folder
from labkit.rig.loading import bring

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
        return f"whether {disk} is on the disk of the engine's data cannot be told"
    own, other = (" ".join(line.split()) for line in said)
    if own == other:
        return ""
    return f"{disk} is on {own}, the engine's data ({root}) on {other}: two disks, not two storages"


def missing_beside(own: str | None, bind: str = "") -> dict[str, str]:
    """Return the storages that a rig without daemons of its own lacks, as capabilities.

    Parameters
    ----------
    own : str, optional
        The storage driver of its engine; none for no engine at all.
    bind : str
        Why its bind mounts are no match for it: what `apart` says.
    """
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
    site: Site,
    wanted: Mapping[str, Sequence[LayeredImage | str]],
    *,
    own_daemons: bool,
    say: Say = lambda text: None,
) -> Iterator[Site]:
    """Have storages stand on a host, each with images, for the duration of a ``with`` block.

    Parameters
    ----------
    site : Site
        The host with the engine.
    wanted : mapping of str to sequence of LayeredImage or str
        Storages of `DRIVERS` and `MOUNTS` that the rig can have, each with the images that its
        containers are made of; a name is an image that stands on the site.
    own_daemons : bool
        Whether drivers get a daemon each, on this machine.
    say : callable
        Receives a line before each step that takes seconds.

    Yields
    ------
    Site
        The site with `storages` and the layered images.
    """
    if unknown := set(wanted) - {*DRIVERS, *MOUNTS}:
        raise UsageError(
            f"no storage called {', '.join(sorted(unknown))}",
            remedy=f"one of {(*DRIVERS, *MOUNTS)}",
        )
    host: Host = LocalHost() if own_daemons else site.host
    with ExitStack() as stack:
        carrier = _carrier(wanted) if own_daemons else driver_of(host, str(site.engine))
        under = {name: name if name in DRIVERS else carrier for name in wanted}
        sockets = {carrier: str(site.engine)}
        if own_daemons:
            drivers = list(dict.fromkeys(under.values()))
            say(f"starting a Docker daemon each for {', '.join(drivers)}")
            sockets = stack.enter_context(daemons.running(LocalHost(), drivers))
        needs: dict[str, list[LayeredImage | str]] = {}
        for name, images in wanted.items():
            needs.setdefault(sockets[under[name]], []).extend(images)
        made = bring(host, site, needs, say)
        whole = replace(site, images={**site.images, **made})
        mounts = [name for name in MOUNTS if name in wanted]
        if mounts:
            tidy = (host, sockets[carrier], site.disk, _any_image(wanted[mounts[0]], whole))
            clear(*tidy)
            stack.callback(clear, *tidy)
        stands = {name: _storage(host, whole, name, sockets, under[name]) for name in wanted}
        if "unionfs-fuse" in stands:
            branches = _branches(wanted["unionfs-fuse"])
            stands["unionfs-fuse"] = replace(stands["unionfs-fuse"], branches=branches)
        yield replace(whole, storages=stands)


def _any_image(images: Sequence[LayeredImage | str], site: Site) -> str:
    one = images[0]
    return site.images[one if isinstance(one, str) else one.name].reference


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


def _storage(host: Host, site: Site, name: str, sockets: Mapping[str, str], driver: str) -> Storage:
    socket = sockets[driver]
    where = site.disk
    if name in DRIVERS or name == "volume":
        where = _data_root(host, socket)
    kind = _OWN_TYPE.get(name)
    if kind is None:
        if name == "bind":
            host.run("mkdir", "-p", where)
        kind = host.run("findmnt", "-n", "-o", "FSTYPE", "-T", where).stdout.strip()
    return Storage(name, socket, driver, kind, directory=site.disk if name in MOUNTS else "")


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
