"""Who uses the virtual rig, on disk: a lock that dies with its holder, and a write-ahead state."""

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
from labkit.standing import LOCK, MACHINE, RUN, STATE, holder, read, user

__all__ = [
    "KEEP",
    "LOCK",
    "MACHINE",
    "RUN",
    "STATE",
    "boot",
    "forget",
    "holder",
    "is_root",
    "locked",
    "read",
    "user",
    "write",
]

#: What is kept: the engine's images, and the journal of host settings.
KEEP = Path("/var/lib/labkit")


@contextmanager
def locked(patience: float = 0.0) -> Iterator[None]:
    """Hold the machine's rig for this process alone.

    Parameters
    ----------
    patience : float
        Seconds to wait for another process to let go.

    Raises
    ------
    RigError
        Another process holds it; its id is named.
    """
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        handle = stack.enter_context(LOCK.open("a+"))
        # A lock needs no right to write: once root has been here, users keep out of its way too.
        others = {MACHINE} - {LOCK} if MACHINE.exists() else set()
        handles = [handle, *(stack.enter_context(path.open()) for path in others)]
        deadline = time.monotonic() + patience
        while taken := [one.name for one in handles if not _taken(one)]:
            if time.monotonic() >= deadline:
                raise RigError(
                    "the rig is in use",
                    why=f"process {holder(taken[0]) or '(unknown)'} holds {taken[0]}",
                    remedy="wait for it, or interrupt it with Ctrl-C where it runs",
                )
            time.sleep(0.2)
        handle.seek(0)
        handle.truncate()
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _taken(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def forget() -> None:
    """Remove the rig's folder, the state last."""
    if STATE.parent.is_dir():
        for path in STATE.parent.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != STATE:
                path.unlink(missing_ok=True)
        STATE.unlink(missing_ok=True)
        shutil.rmtree(STATE.parent, ignore_errors=True)


def write(**state: Any) -> None:
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
