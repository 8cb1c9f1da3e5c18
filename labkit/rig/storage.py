"""Storages of containers: the engine's own driver, a mount at ``/data``, or a union mounted there.

All of them are on one disk of one engine, so that they differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from labkit.hosts import Host, script
from labkit.hosts.target import Storage, Target
from labkit.placement import DRIVER, STORAGES, UNIONS, docker
from labkit.rig.images import Say
from labkit.rig.layers import LayeredImage, ensure_layers

# The engine's driver, the disk of its data and that of a directory, and the unions that the host
# can mount. A directory that does not exist yet will be on the disk of its nearest parent.
_INSPECT = """
docker info --format "{{.Driver}}"
for place in "$(docker info --format "{{.DockerRootDir}}")" "$1"; do
    while [ ! -e "$place" ]; do place=$(dirname "$place"); done
    findmnt -n -v -o SOURCE,FSTYPE -T "$place" | tail -n 1
done
[ ! -w /dev/fuse ] || ! command -v fuse-overlayfs >/dev/null || echo fuse-overlayfs
! grep -qw aufs /proc/filesystems || echo aufs
"""
_WHY = {
    "fuse-overlayfs": "fuse-overlayfs is not installed, or there is no /dev/fuse",
    "aufs": "the kernel has no aufs",
}


def missing(host: Host, socket: str | None, disk: str) -> dict[str, str]:
    """Return the storages that a host cannot have, as capabilities with the reason.

    `disk` is the directory of everything but the engine's own data: on another disk, a mount would
    differ from the engine's driver by the disk.
    """
    lines = _inspect(host, socket, disk) if socket else []
    if len(lines) < 3:
        return dict.fromkeys([f"storage:{name}" for name in STORAGES], "no engine answers")
    driver, own, other, *able = lines
    reasons = {name: why for name, why in _WHY.items() if name not in able}
    if driver != DRIVER:
        why = f"the engine has the storage driver {driver}"
        reasons |= dict.fromkeys((DRIVER, *UNIONS), why)
    if own != other:
        why = f"{disk} is on {other}, the engine's data on {own}: two disks, not two storages"
        reasons |= dict.fromkeys(("bind", *UNIONS), why)
    return {f"storage:{name}": why for name, why in reasons.items()}


def _inspect(host: Host, socket: str, disk: str) -> list[str]:
    result = host.run(*script(_INSPECT, disk), env={"DOCKER_HOST": socket}, check=False)
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


@contextmanager
def ready(
    target: Target, storages: Mapping[str, Sequence[LayeredImage]], say: Say
) -> Iterator[Target]:
    """Prepare storages on a host, each with its images; yield the target that has them."""
    for name in storages:
        docker(storage=name)  # an unknown one is an error
    layered = {image.name: image for images in storages.values() for image in images}
    say("building layered images where the engine lacks them (the first time takes minutes)")
    built = {name: ensure_layers(target, image) for name, image in layered.items()}
    driver, disk, *_ = _inspect(target.host, str(target.engine), target.disk)
    filesystems = {DRIVER: "overlay", "fuse-overlayfs": "fuse.fuse-overlayfs", "aufs": "aufs"}
    prepared = {
        name: Storage(name, driver, filesystems.get(name, disk.split()[1]), target.disk)
        for name in storages
    }
    clear(target.host, target.disk)
    try:
        yield replace(target, images={**target.images, **built}, storages=prepared)
    finally:
        clear(target.host, target.disk)


# The kernel's list of mounts is read, since looking at a union may hang.
_CLEAR = """
awk -v place="$1/unions/" 'index($2, place) == 1 { print $2 }' /proc/self/mounts |
    while read -r mount; do umount --lazy "$mount"; done
rm -rf --one-file-system -- "$1/bind" "$1/unions"
"""


def clear(host: Host, disk: str) -> None:
    """Remove what was made for storages below a directory, also by a killed campaign."""
    host.run(*script(_CLEAR, disk), timeout=600)
