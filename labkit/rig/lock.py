"""The lock of this machine's rig, by which two runs never share the machine."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil

from labkit.errors import RigInUse
from labkit.status import time_text

#: The folder of what ends with the rig (keys, sockets, jobs), and that of what is kept (images).
RUN, KEEP = Path("/run/labkit"), Path("/var/lib/labkit")
#: A user without root has a lock too, for the machines of a rig.toml.
LOCK = RUN / "lock" if os.geteuid() == 0 else Path.home() / ".cache" / "labkit" / "lock"


def is_root() -> bool:
    """Tell whether this process runs as root."""
    return os.geteuid() == 0


@contextmanager
def locked(patience: float = 0.0) -> Iterator[None]:
    """Hold this machine's rig, after waiting up to `patience` seconds for it."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience
    with LOCK.open("a") as file:  # closing it releases the lock
        while not _acquired(file):
            if time.monotonic() >= end:
                raise RigInUse(
                    "the rig is in use",
                    why=f"{describe_process(current_holder())} uses it",
                    remedy="--wait (labkit ask, run and report) waits for it; Ctrl-C there ends it",
                )
            time.sleep(0.2)
        _holder().write_text(str(os.getpid()))
        yield


def _acquired(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def current_holder() -> int | None:
    """Return the process that holds the rig now, or None.

    The kernel's list of locks tells, so that this never delays a process that waits for the rig.
    """
    try:
        pid, inode = _holder().read_text(), LOCK.stat().st_ino
    except FileNotFoundError:
        return None
    held = re.search(rf"FLOCK .* {pid} \S+:{inode} ", Path("/proc/locks").read_text())
    return int(pid) if held else None


def _holder() -> Path:
    """Return the file with the number of the process that took the lock last."""
    return LOCK.with_name("holder")


def describe_process(pid: int | None) -> str:
    """Return a process in words: its number, its command, and since when it runs."""
    if pid is None:
        return "an unknown process"
    try:
        process = psutil.Process(pid)
        if "ipykernel_launcher" in process.cmdline():  # started by labkit run, or by JupyterLab
            process = process.parent() or process
        words = process.cmdline()
        if Path(words[0]).name.startswith("python") and words[1:]:
            words = words[1:]
        since = time_text(round(process.create_time() * 1e9))
    except (psutil.Error, IndexError):
        return f"process {pid}"
    words = [Path(words[0]).name, *words[1:]]
    return f"process {pid} ({' '.join(words)[:200]}, since {since})"
