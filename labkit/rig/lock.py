"""The lock of this machine's rig, by which two runs never share the machine."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    why = f"{current_holder() or 'an unknown process'} uses it"
                    remedy = (
                        "--wait (labkit ask, run and report) waits for it; Ctrl-C there ends it"
                    )
                    raise RigInUse("the rig is in use", why=why, remedy=remedy) from None
                time.sleep(0.2)
        LOCK.with_name("holder").write_text(_this_process())
        yield


def current_holder() -> str:
    """Return the process that holds the rig now, in words, or "".

    The kernel's list of locks tells, so that this never delays a process that waits for the rig.
    """
    try:
        text, inode = LOCK.with_name("holder").read_text(), LOCK.stat().st_ino
    except FileNotFoundError:
        return ""
    held = rf"FLOCK .* {text.split()[1]} \S+:{inode} "
    return text if re.search(held, Path("/proc/locks").read_text()) else ""


def _this_process() -> str:
    """Return this process in words: its number, its command, and since when it runs."""
    process = psutil.Process()
    if "ipykernel_launcher" in process.cmdline():  # started by labkit run, or by JupyterLab
        process = process.parent() or process
    program, *words = process.cmdline()
    if words and Path(program).name.startswith("python"):
        program, *words = words
    command = " ".join([Path(program).name, *words])[:200]
    since = time_text(round(process.create_time() * 1e9))
    return f"process {os.getpid()} ({command}, since {since})"
