"""Taking down the parts of the virtual rig: daemons, processes, mounts, control groups."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from labkit.errors import RigError
from labkit.hosts import LocalHost, stop_labelled
from labkit.hosts.journal import DIRECTORY as JOURNAL
from labkit.hosts.journal import Journal
from labkit.rig import engine, netns

#: Where daemons of the rig mount something.
_MOUNTS = tuple(map(str, (netns.DIRECTORY, engine.DATA_ROOT, engine.IMAGES, engine.STORAGES)))


def stop_engine(pattern: str = "*.pid") -> None:
    """Ask daemons to stop, so that they remove their containers' mounts and interfaces."""
    for path in netns.DIRECTORY.glob(pattern):
        text = path.read_text().strip()
        if text.isdigit() and _is_daemon(int(text), path):
            os.kill(int(text), signal.SIGTERM)
            _await_end({int(text)}, 10.0)


def _is_daemon(pid: int, path: Path) -> bool:
    """Tell whether a process is the daemon with a PID file, which is among its arguments."""
    try:
        return str(path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def kill(find: Callable[[], set[int]], seconds: float = 10.0) -> None:
    """Kill the processes that `find` returns until there are none: they may leave children."""
    deadline = time.monotonic() + seconds
    while pids := find() - {os.getpid()}:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _await_end(pids, 2.0)
        if time.monotonic() > deadline:
            raise RigError(
                f"processes of the rig do not end: {sorted(pids)}",
                why="a process that waits for a disk or a mount cannot be killed",
                remedy="`labkit rig down` again",
            )


def _await_end(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def group_roots() -> list[Path]:
    """Return the lab's control group in every hierarchy."""
    base = Path("/sys/fs/cgroup")
    return [path for path in (base / "labkit", *base.glob("*/labkit")) if path.is_dir()]


def grouped() -> set[int]:
    """Return the processes in control groups of the lab."""
    return {pid for root in group_roots() for pid in _processes(root)}


def _processes(group: Path) -> set[int]:
    """Return the processes in a control group and in those below it."""
    pids: set[int] = set()
    for listing in group.rglob("cgroup.procs"):
        try:
            pids |= {int(line) for line in listing.read_text().split()}
        except OSError:
            continue
    return {pid for pid in pids if _is_alive(pid)}


def remove_groups(*, keep_roots: bool = False) -> None:
    """Remove the lab's control groups."""
    for root in group_roots():
        _remove_group(root, keep=keep_roots)


def _remove_group(group: Path, *, keep: bool = False) -> None:
    """Remove a control group and those below it, the innermost first."""
    for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        path.rmdir()
    if not keep:
        group.rmdir()


def mounted(below: tuple[str, ...] = _MOUNTS) -> list[str]:
    """Return the mount points at or below some paths, the deepest first."""
    points = [partition.mountpoint for partition in psutil.disk_partitions(all=True)]
    folders = tuple(f"{path}/" for path in below)
    return sorted((p for p in points if p in below or p.startswith(folders)), reverse=True)


def unmount(below: tuple[str, ...] = _MOUNTS) -> None:
    """Unmount what a killed daemon left."""
    for point in mounted(below):
        LocalHost().run("umount", "--lazy", point)


def remove_host(local: LocalHost, role: str, label: str, *, below: tuple[str, ...] = ()) -> None:
    """Remove a host that was added for a study.

    Its processes carry `label`; its sysfs is unmounted, and what is mounted below `below`.
    """
    name = netns.PREFIX + role
    stop_labelled(local, label)
    kill(lambda: netns.pids([name]))
    unmount((*below, str(netns.sysfs(role))))
    with suppress(OSError):  # never mounted, or still in use
        netns.sysfs(role).rmdir()
    # The kernel removes a namespace some time after its name, so the link is removed first.
    local.run("ip", "-n", netns.SWITCH, "link", "del", netns.plug(role), check=False)
    local.run("ip", "netns", "del", name)
    shutil.rmtree(netns.DIRECTORY / "sshd" / role, ignore_errors=True)


def remove_trial_leftovers() -> list[str]:
    """Remove the control groups and job directories of trials whose campaign was killed.

    A containerd that was killed leaves the groups of the container that it was starting, which no
    engine removes. The containers of an engine that was killed still run in theirs.
    """
    groups = [path for root in group_roots() for path in root.iterdir() if path.is_dir()]
    groups = [path for path in groups if not _processes(path)]
    for group in groups:
        _remove_group(group)
    jobs = list((netns.DIRECTORY / "jobs").glob("trial-*"))
    for job in jobs:
        shutil.rmtree(job)
    # A podman that was killed leaves its storage mounted.
    unmount((f"{netns.DIRECTORY}/jobs-podman/root/overlay",))
    return [f"control group {path}" for path in groups] + [f"folder {path}" for path in jobs]


def remove_holds(local: LocalHost) -> None:
    """Remove directories of idle holds that no pending entry of the journal refers to."""
    pending = {entry.target for entry in Journal(local).load().pending}
    for folder in Path(JOURNAL).glob("hold-*"):
        if str(folder) not in pending:
            shutil.rmtree(folder, ignore_errors=True)
