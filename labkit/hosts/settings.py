"""Settings of a host that last as long as a context, journalled on the host before each change.

The agent records a setting, syncs the journal, and only then writes: whatever is killed at any
time, `restore` finds every value that may have changed. A value that somebody else has changed
since is reported, not overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import uuid4

from labkit.errors import RigError
from labkit.hosts.agent import JOURNAL as DIRECTORY
from labkit.hosts.agent import LATENCY as LATENCY_REQUEST
from labkit.hosts.host import Host
from labkit.hosts.jobs import Job, start_job

__all__ = ["DIRECTORY", "LATENCY_REQUEST", "Settings", "restore"]

#: The request lasts as long as the file is open: the kernel undoes it at any death of the job.
_HOLD = (
    f"import os, signal; os.write(os.open({LATENCY_REQUEST!r}, os.O_RDWR), bytes(4)); "
    "print('held', flush=True); signal.pause()"
)


def restore(
    host: Host, *, journal: str = DIRECTORY, label: str = "", gone: bool = False
) -> list[str]:
    """Undo the pending settings whose labels begin so, the last first; return the outcome of each.

    It is ``restored``; ``unchanged``, it had its old value already; ``gone``, it no longer exists,
    or the host has rebooted since; ``conflict``, somebody else has changed it; or ``failed``. The
    last two stay in the journal, and are not raised. Settings of networks are only forgotten if
    their namespaces are `gone`. Restoring may be interrupted and repeated.
    """
    return list(host.call("restore", journal=journal, label=label, gone=gone))


class Settings:
    """Settings of a host that are restored when the context ends.

    `label` identifies them for `restore` and `stop_labelled`; `notes` says which settings the host
    does not support or did not accept. At the end, `RigError` is raised if a setting was changed by
    somebody else or cannot be restored, unless another error is being raised already.
    """

    def __init__(self, host: Host, label: str, *, journal: str = DIRECTORY) -> None:
        self.host, self.label, self.journal = host, label, journal
        self.notes: list[str] = []
        owner = uuid4().hex
        self._own, self._hold = f"{label} {owner}", Job(host, f"{journal}/hold-{owner}")

    def __enter__(self) -> Settings:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        failures = [one for one in self.restore() if re.search(": (conflict|failed), ", one)]
        self.notes += failures
        if failures and kind is None:
            raise RigError(
                f"{len(failures)} settings were not restored",
                where=f"host {self.host.name}",
                why="; ".join(failures),
                remedy="set them by hand; `labkit clean` forgets one whose prior value is back",
            )

    def restore(self) -> list[str]:
        """Undo the settings made here, the last one first; return the outcome of each."""
        if self._hold.pid:
            self._hold.remove()
        return restore(self.host, journal=self.journal, label=self._own)

    def set_file(self, path: str, value: str | int) -> bool:
        """Set one file; see `set_files`."""
        return self.set_files({path: value})[path]

    def set_files(self, values: Mapping[str, str | int]) -> dict[str, bool]:
        """Set files, or offloads such as ``"eth0 gro"``; return which have the value now."""
        texts = {target: str(value) for target, value in values.items()}
        reasons = self.host.call("set_values", values=texts, label=self._own, journal=self.journal)
        self.notes += [f"{target}: {why}" for target, why in reasons.items() if why]
        return {target: not why for target, why in reasons.items()}

    def hold_idle(self) -> bool:
        """Keep CPUs out of idle states that take time to leave; return whether that works."""
        argv = ["python3", "-ISc", _HOLD]
        self._hold = start_job(self.host, argv, directory=self._hold.directory, label=self.label)
        self._hold.await_output("held")
        lowest = self.host.call("latency_request")
        if lowest != 0:
            self.notes.append(f"{LATENCY_REQUEST}: 0 us was requested, but it is {lowest} us")
        return bool(lowest == 0)
