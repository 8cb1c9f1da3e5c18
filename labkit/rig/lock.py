"""The lock of this machine's rig, by which two runs never share the machine."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from labkit import process
from labkit.errors import RigInUse
from labkit.status import time_text

#: The folder of what ends with the rig (keys, sockets, jobs), and that of what is kept (images).
RUN, KEEP = Path("/run/labkit"), Path("/var/lib/labkit")
#: A user without root has a lock too, for the machines of a rig.toml.
LOCK = RUN / "lock" if os.geteuid() == 0 else Path.home() / ".cache" / "labkit" / "lock"


def is_root() -> bool:
    """Tell whether this process runs as root."""
    return os.geteuid() == 0


def locked(patience: float = 0.0) -> AbstractContextManager[None]:
    """Hold this machine's rig, after waiting up to `patience` seconds for it."""
    remedy = "--wait (labkit ask, run and report) waits for it; Ctrl-C there ends it"
    busy = RigInUse("the rig is in use", remedy=remedy)
    return process.locked(LOCK, busy, patience=patience, words=_this_process())


def _this_process() -> str:
    """Return this process in words: its number, its command, and since when it runs."""
    own = psutil.Process()
    if "ipykernel_launcher" in own.cmdline():  # started by labkit run, or by JupyterLab
        own = own.parent() or own
    program, *words = own.cmdline()
    if words and Path(program).name.startswith("python"):
        program, *words = words
    command = " ".join([Path(program).name, *words])[:200]
    since = time_text(round(own.create_time() * 1e9))
    return f"process {os.getpid()} ({command}, since {since})"
