"""The lock and the state of this machine's rig, on disk.

The lock is an ``flock``: it ends with the process that holds it, and a user who may not write the
file of root's lock can hold it too. The state is written before what it speaks of is made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from labkit.errors import RigError
from labkit.process import boot

#: Everything that may vanish with a reboot, as namespaces and daemons do.
RUN = Path("/run/labkit")
STATE = RUN / "virtual" / "state.json"
MACHINE = RUN / "lock"
#: Who is not root cannot make the machine's lock; this one keeps a user's own campaigns apart.
LOCK = MACHINE if os.geteuid() == 0 else Path.home() / ".cache" / "labkit" / "lock"


def read_state() -> dict[str, Any] | None:
    """Return the state, or None where no rig was ever begun since the last boot."""
    unfinished = {"ready": False, "keep": False}
    try:
        found = dict(json.loads(STATE.read_text()))
    except FileNotFoundError:
        return None
    except ValueError:
        # A torn state still says that something was begun.
        return unfinished
    # Where the folder outlives a boot, what it speaks of does not.
    return found if found.get("boot") == boot() else unfinished


def last_holder(lock: Path | str = LOCK) -> int | None:
    """Return the process that last took the lock, or None."""
    try:
        return int(Path(lock).read_text())
    except (FileNotFoundError, ValueError):
        return None


def current_holder() -> int | None:
    """Return the process that holds the rig now, or None.

    The kernel's list of locks is read, and no lock is taken: whoever wants the rig at that moment
    is not kept from it, and whoever may not take it can look too.
    """
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    for path in (MACHINE, LOCK):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        # Some file systems are listed as another device than their files say: then the file tells.
        listed = [(int(one[4]), one[5]) for one in held if one[1] == "FLOCK"]
        for pid, where in listed:
            same = where.endswith(f":{found.st_ino}")
            if same and (where.startswith(f"{device}:") or pid == last_holder(path)):
                return pid
    return None


#: What is kept: the engine's images, and the journal of host settings.
KEEP = Path("/var/lib/labkit")


@contextmanager
def locked(patience: float = 0.0) -> Iterator[None]:
    """Hold the machine's rig for this process alone."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        handle = stack.enter_context(LOCK.open("a+"))
        # A lock needs no right to write: once root has been here, users keep out of its way too.
        others = {MACHINE} - {LOCK} if MACHINE.exists() else set()
        handles = [handle, *(stack.enter_context(path.open()) for path in others)]
        deadline = time.monotonic() + patience
        while held_elsewhere := [one.name for one in handles if not _acquire(one)]:
            if time.monotonic() >= deadline:
                raise RigError(
                    "the rig is in use",
                    why=f"process {last_holder(held_elsewhere[0]) or '(unknown)'} holds "
                    f"{held_elsewhere[0]}",
                    remedy="wait for it, or interrupt it with Ctrl-C where it runs",
                )
            time.sleep(0.2)
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _acquire(handle: TextIO) -> bool:
    # Not filelock: it opens for writing, which a user may not do with the lock of root.
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_state() -> None:
    """Remove the rig's folder, the state last."""
    if STATE.parent.is_dir():
        for path in STATE.parent.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != STATE:
                path.unlink(missing_ok=True)
        STATE.unlink(missing_ok=True)
        shutil.rmtree(STATE.parent, ignore_errors=True)


def write_state(**state: Any) -> None:
    """Replace the state; it is written before the thing that it speaks of is made."""
    STATE.parent.mkdir(parents=True, exist_ok=True)
    temporary = STATE.with_suffix(".tmp")
    with temporary.open("w") as handle:
        json.dump({**state, "boot": boot()}, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.rename(STATE)


def is_root() -> bool:
    """Tell whether this process is root's; what root may do here is another question."""
    return os.geteuid() == 0
