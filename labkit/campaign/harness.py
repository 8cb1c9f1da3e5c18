"""What this process costs while a trial runs: how often it, and what drives it, wakes up."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def drivers() -> list[int]:
    """Return the processes that drive this one, nearest first: papermill, ``labkit run``."""
    found = []
    parent = os.getppid()
    while parent > 1:
        status = Path(f"/proc/{parent}/status").read_text()
        name = _field(status, "Name")
        if not name.startswith(("python", "papermill", "labkit")):
            break
        found.append(parent)
        parent = int(_field(status, "PPid"))
    return found


def harness_switches() -> int:
    """Return how often this process and those that drive it were put on a CPU so far."""
    total = resource.getrusage(resource.RUSAGE_SELF)
    count = total.ru_nvcsw + total.ru_nivcsw
    for pid in drivers():
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                lines = (task / "status").read_text()
                count += int(_field(lines, "voluntary_ctxt_switches"))
                count += int(_field(lines, "nonvoluntary_ctxt_switches"))
    return count


def _field(status: str, name: str) -> str:
    for line in status.splitlines():
        head, _, value = line.partition(":")
        if head == name:
            return value.strip()
    return "0"
