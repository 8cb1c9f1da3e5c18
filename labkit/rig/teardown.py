"""Removing the virtual rig, and what trials on this machine left, by label and by name.

No record is kept of a rig: processes carry a label, and everything else has labkit's name. So what
a killed campaign left is removed in the same way as a rig that is closed.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil

from labkit.errors import RigError
from labkit.hosts import LocalHost, restore, script, stop_labelled
from labkit.hosts.settings import DIRECTORY as JOURNAL
from labkit.rig import engine, images, netns, networks, storage
from labkit.rig.lock import is_root

#: Where daemons of the rig mount something.
_MOUNTS = tuple(map(str, (netns.DIRECTORY, engine.DATA_ROOT, engine.IMAGES, engine.STORAGES)))


def clean() -> list[str]:
    """Remove everything of labkit's from this machine but images; return what it was.

    The caller holds the machine's lock, so that nothing of it has an owner.
    """
    if not is_root():
        return []
    local = LocalHost()
    removed = [f"control groups {root}" for root in group_roots()]
    # First what is in containers: an engine would wait for them as it ends.
    local.call("remove_group", group="/labkit")
    # An engine ends its own; an SSH server loses its label, and is found in its namespace.
    for label, grace in (("trial-", 2.0), (engine.LABEL, 10.0), (netns.PREFIX, 0.0)):
        removed += [f"process {line}" for line in stop_labelled(local, label, grace=grace)]
    removed += [f"process {pid} of a host" for pid in _kill_hosts(local)]
    for point in mounted():  # what a killed daemon left
        local.run("umount", "--lazy", point)
        removed.append(f"mount {point}")
    storage.clear(local, str(engine.STORAGES))
    for name in netns.existing():
        local.run("ip", "netns", "del", name)
        removed.append(f"network namespace {name}")
    # An engine may have started one more container before it ended.
    local.call("remove_group", group="/labkit")
    if local.run("ip", "route", "del", *netns.UNREACHABLE.split(), check=False).status == 0:
        removed.append(f"route {netns.UNREACHABLE}")
    for socket in Path(networks.PLUGINS).glob("labkit-*"):
        socket.unlink()
    # Of settings only the machine's are left; those of the hosts went with their namespaces.
    outcomes = [*restore(local, label="trial-", gone=True), *restore(local, label=netns.LABEL)]
    removed += [f"setting {outcome}" for outcome in outcomes]
    for folder in Path(JOURNAL).glob("hold-*"):  # their processes have been ended
        shutil.rmtree(folder, ignore_errors=True)
    images.forget_logs(local, str(engine.IMAGES))
    if netns.DIRECTORY.exists():
        shutil.rmtree(netns.DIRECTORY)
        removed.append(f"folder {netns.DIRECTORY}")
    return removed


def _kill_hosts(local: LocalHost) -> list[str]:
    """Kill the processes in the lab's namespaces until there are none: they may leave children."""
    listing = script('for name; do ip netns pids "$name"; done', *netns.existing())
    killed: dict[str, None] = {}
    deadline = time.monotonic() + 10.0
    while pids := local.run(*listing).stdout.split():
        killed |= dict.fromkeys(pids)
        local.run("kill", "-KILL", *pids, check=False)
        if time.monotonic() > deadline:
            raise RigError(
                f"processes of the rig do not end: {' '.join(pids)}",
                why="a process that waits for a disk or a mount cannot be killed",
                remedy="labkit clean, once more",
            )
    return [*killed]


def group_roots() -> list[Path]:
    """Return the lab's control group in every hierarchy."""
    base = Path("/sys/fs/cgroup")
    return [path for path in (base / "labkit", *base.glob("*/labkit")) if path.is_dir()]


def mounted(below: tuple[str, ...] = _MOUNTS) -> list[str]:
    """Return the mount points at or below some paths, the deepest first."""
    points = [partition.mountpoint for partition in psutil.disk_partitions(all=True)]
    folders = tuple(f"{path}/" for path in below)
    return sorted((p for p in points if p in below or p.startswith(folders)), reverse=True)
