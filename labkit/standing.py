"""Whether the virtual rig stands, and who uses this machine's rig: files tell, none is locked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from labkit.process import boot

#: Everything that may vanish with a reboot, as namespaces and daemons do.
RUN = Path("/run/labkit")
STATE = RUN / "virtual" / "state.json"
MACHINE = RUN / "lock"
#: Who is not root cannot make the machine's lock; this one keeps a user's own campaigns apart.
LOCK = MACHINE if os.geteuid() == 0 else Path.home() / ".cache" / "labkit" / "lock"


def read() -> dict[str, Any] | None:
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


def holder(lock: Path | str = LOCK) -> int | None:
    """Return the process that last took the lock, or None."""
    try:
        return int(Path(lock).read_text())
    except (FileNotFoundError, ValueError):
        return None


def user() -> int | None:
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
            if same and (where.startswith(f"{device}:") or pid == holder(path)):
                return pid
    return None
