"""Storages of containers: the engine's own driver, a mount at ``/data``, or a union mounted there.

All of them are on one disk of one engine, so that they differ in nothing else.
"""

from __future__ import annotations

from labkit.hosts import Host, script
from labkit.hosts.target import Storage
from labkit.placement import DRIVER, STORAGES, UNIONS

_FILESYSTEMS = {DRIVER: "overlay", "fuse-overlayfs": "fuse.fuse-overlayfs", "aufs": "aufs"}
_WHY = {
    "fuse-overlayfs": "fuse-overlayfs is not installed, or there is no /dev/fuse",
    "aufs": "the kernel has no aufs",
}


def find(host: Host, socket: str | None, disk: str) -> tuple[dict[str, Storage], dict[str, str]]:
    """Return the storages of a host, and those that it lacks as capabilities with the reason.

    `disk` is the directory of everything but the engine's own data: on another disk, a mount would
    differ from the engine's driver by the disk.
    """
    facts = socket and host.call("facts", engine=socket, directory=disk, timeout=120)
    if not facts or not facts["stable"]["engine"]:
        return {}, dict.fromkeys([f"storage:{name}" for name in STORAGES], "no engine answers")
    driver, (own, other) = facts["stable"]["engine"]["Driver"], facts["stable"]["storage"].values()
    reasons = {name: why for name, why in _WHY.items() if name not in facts["volatile"]["unions"]}
    if driver != DRIVER:
        why = f"the engine has the storage driver {driver}"
        reasons |= dict.fromkeys((DRIVER, *UNIONS), why)
    if own != other:
        why = f"{disk} is on {other}, the engine's data on {own}: two disks, not two storages"
        reasons |= dict.fromkeys(("bind", *UNIONS), why)
    storages = {
        name: Storage(name, driver, _FILESYSTEMS.get(name, own.split()[1]), disk)
        for name in STORAGES
        if name not in reasons
    }
    return storages, {f"storage:{name}": why for name, why in reasons.items()}


# The kernel's list of mounts is read, since looking at a union may hang.
_CLEAR = """
awk -v place="$1/unions/" 'index($2, place) == 1 { print $2 }' /proc/self/mounts |
    while read -r mount; do umount --lazy "$mount"; done
rm -rf --one-file-system -- "$1/bind" "$1/unions"
"""


def clear(host: Host, disk: str) -> None:
    """Remove what was made for storages below a directory, also by a killed campaign."""
    host.run(*script(_CLEAR, disk), timeout=600)
