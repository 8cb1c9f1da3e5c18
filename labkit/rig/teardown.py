"""How what a rig consists of is ended for sure: engine, processes, mounts, control groups."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import LocalHost, stop_labelled
from labkit.hosts.journal import DIRECTORY as JOURNAL
from labkit.hosts.journal import Journal
from labkit.rig import engine, netns


def stop_engine(pattern: str = "*.pid") -> None:
    """Let the engines stop by themselves: they remove containers' mounts and interfaces."""
    for path in netns.DIRECTORY.glob(pattern):
        text = path.read_text().strip()
        if text.isdigit() and _is_daemon(int(text)):
            os.kill(int(text), signal.SIGTERM)
            _gone({int(text)}, 10.0)


def _is_daemon(pid: int) -> bool:
    try:
        return b"dockerd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill(find: Callable[[], set[int]], seconds: float = 10.0) -> None:
    """Kill what `find` finds until it finds nothing: the dying may leave children behind."""
    deadline = time.monotonic() + seconds
    while pids := find() - {os.getpid()}:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _gone(pids, 2.0)
        if time.monotonic() > deadline:
            raise RigError(f"processes of the lab do not end: {sorted(pids)}")


def _gone(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def group_roots() -> list[Path]:
    """Return the lab's control group in every hierarchy."""
    base = Path("/sys/fs/cgroup")
    return [path for path in (base / "labkit", *base.glob("*/labkit")) if path.is_dir()]


def grouped() -> set[int]:
    """Return every process in a control group of the lab."""
    found: set[int] = set()
    for root in group_roots():
        for listing in root.rglob("cgroup.procs"):
            try:
                found |= {int(line) for line in listing.read_text().split()}
            except OSError:
                continue
    return {pid for pid in found if _alive(pid)}


def remove_groups(*, keep_roots: bool = False) -> None:
    """Remove the lab's control groups, the innermost first."""
    for root in group_roots():
        folders = sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True)
        for folder in [*folders, *([] if keep_roots else [root])]:
            folder.rmdir()


#: Where engines of the lab mount something.
_MOUNTING = tuple(map(str, (netns.DIRECTORY, engine.DATA_ROOT, engine.IMAGES, engine.STORAGES)))


def mounted(below: tuple[str, ...] = _MOUNTING) -> list[str]:
    """Return the mount points at or below some paths, the deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    inside = tuple(f"{path}/" for path in below)
    return sorted((p for p in points if p in below or p.startswith(inside)), reverse=True)


def remove_host(local: LocalHost, role: str, label: str, *, below: tuple[str, ...] = ()) -> None:
    """Take down a host that stands only while a study asks for it.

    `label` is that of its processes; what is mounted below `below` goes with its sysfs.
    """
    name = netns.PREFIX + role
    stop_labelled(local, label)
    kill(lambda: netns.pids([name]))
    unmount((*below, str(netns.sysfs(role))))
    # A namespace goes some time after its name: its plug must not stand on the switch meanwhile.
    for number in range(len(netns.PASSING[role])):
        plug = ("ip", "-n", netns.SWITCH, "link", "del", netns.plug(role, number))
        local.run(*plug, check=False)
    local.run("ip", "netns", "del", name)
    shutil.rmtree(netns.DIRECTORY / "sshd" / role, ignore_errors=True)


def unmount(below: tuple[str, ...] = _MOUNTING) -> None:
    """Unmount what a killed engine left, the deepest first; a loop device goes with its mount."""
    local = LocalHost()
    for point in mounted(below):
        local.run("umount", "--lazy", point)


def remove_trial_leftovers() -> list[str]:
    """Remove the control groups and job folders of trials whose campaign is dead."""
    groups = [path for root in group_roots() for path in root.glob("trial-*")]
    for group in groups:
        # An engine's containers may have made groups of their own in there.
        inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
        for folder in [*inner, group]:
            folder.rmdir()
    jobs = list((netns.DIRECTORY / "jobs").glob("trial-*"))
    for job in jobs:
        shutil.rmtree(job)
    return [f"control group {path}" for path in groups] + [f"folder {path}" for path in jobs]


def remove_holds(local: LocalHost) -> None:
    """Remove the folders of idle holds that no pending entry of the journal speaks of."""
    pending = {entry.target for entry in Journal(local).load().pending}
    for folder in Path(JOURNAL).glob("hold-*"):
        if str(folder) not in pending:
            shutil.rmtree(folder, ignore_errors=True)
