"""The lock and the state file of this machine's rig.

The lock is an ``flock``: the kernel releases it when its process ends, and a user can take root's
lock without being able to write to its file. A name among the kernel's sockets stands beside it,
which holds where somebody removes the file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import psutil

from labkit.errors import RigError
from labkit.process import WAIT, boot
from labkit.status import time_text

#: What does not survive a reboot: namespaces, daemons, the state.
RUN = Path("/run/labkit")
#: What is kept: the engine's images, and the journal of host settings.
KEEP = Path("/var/lib/labkit")
STATE = RUN / "virtual" / "state.json"
MACHINE = RUN / "lock"
#: Users cannot create the machine's lock; their own keeps their campaigns apart.
LOCK = MACHINE if os.geteuid() == 0 else Path.home() / ".cache" / "labkit" / "lock"


def is_root() -> bool:
    """Tell whether this process runs as root."""
    return os.geteuid() == 0


def read_state() -> dict[str, Any] | None:
    """Return the virtual rig's state, or None where none was started since the last boot."""
    unfinished = {"ready": False, "keep": False}
    try:
        state = dict(json.loads(STATE.read_text()))
    except FileNotFoundError:
        return None
    except ValueError:
        return unfinished  # a truncated state still says that a rig was started
    # /run may be on a disk; the rig itself does not survive a reboot.
    return state if state.get("boot") == boot() else unfinished


def write_state(**state: Any) -> None:
    """Replace the state; call this before making what the state describes."""
    STATE.parent.mkdir(parents=True, exist_ok=True)
    temporary = STATE.with_suffix(".tmp")
    with temporary.open("w") as handle:
        json.dump({**state, "boot": boot()}, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.rename(STATE)


def remove_state() -> None:
    """Remove the rig's directory, the state last."""
    if STATE.parent.is_dir():
        for path in STATE.parent.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != STATE:
                path.unlink(missing_ok=True)
        shutil.rmtree(STATE.parent, ignore_errors=True)


def last_holder(lock: Path | str = LOCK) -> int | None:
    """Return the process that last took the lock, or None."""
    try:
        return int(Path(lock).read_text())
    except (FileNotFoundError, ValueError):
        return None


def current_holder() -> int | None:
    """Return the process that holds the rig now, or None.

    This reads the kernel's list of locks and takes none, so it never delays a process that waits
    for the rig, and works for users who may not take the lock.
    """
    rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    locks = [(int(row[4]), row[5]) for row in rows if row[1] == "FLOCK"]
    for path in (MACHINE, LOCK):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:"
        for pid, inode in locks:
            # Some file systems are listed under another device than stat() returns.
            if inode.endswith(f":{stat.st_ino}") and (
                inode.startswith(device) or pid == last_holder(path)
            ):
                return pid
    return None


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


@contextmanager
def locked(patience: float = 0.0) -> Iterator[None]:
    """Hold this machine's rig, after waiting up to `patience` seconds for it.

    Where the environment has `labkit.process.WAIT`, it waits as long as it takes.
    """
    patience = math.inf if os.environ.get(WAIT) else patience
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        handle = stack.enter_context(LOCK.open("a+"))
        handles: list[TextIO] = [handle]
        if MACHINE != LOCK and MACHINE.exists():
            handles.append(stack.enter_context(MACHINE.open()))
        names = {path: socket.socket(socket.AF_UNIX) for path in (LOCK, MACHINE)}
        for name in names.values():
            stack.enter_context(name)
        deadline = time.monotonic() + patience
        while busy := [lock.name for lock in handles if not _acquire(lock)] or [
            path for path, name in names.items() if not _bind(name, path)
        ]:
            if time.monotonic() >= deadline:
                # A user who may not write root's lock has no number in it.
                holder = current_holder()
                if holder in (None, os.getpid()):
                    holder = last_holder(busy[0])
                raise RigError(
                    "the rig is in use",
                    why=f"{describe_process(holder)} uses it",
                    remedy="--wait (labkit ask, run and report) waits for it; Ctrl-C where it runs "
                    "ends it",
                )
            time.sleep(0.2)
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _bind(name: socket.socket, path: Path) -> bool:
    """Take the name of a lock in the kernel, which nobody can remove."""
    if name.getsockname():
        return True
    try:
        # A socket's name is shorter than a path may be.
        name.bind(f"\0labkit-{hashlib.sha256(bytes(path)).hexdigest()[:32]}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _acquire(handle: TextIO) -> bool:
    # Not filelock: it opens the file for writing, which a user may not do with root's lock.
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
