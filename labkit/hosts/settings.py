"""Settings of a host that last as long as a context, journalled on the host before each change.

The agent records a setting, syncs the journal, and only then writes: whatever is killed at any
time, `restore` finds every value that may have changed. A value that somebody else has changed
since is reported, not overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from labkit.errors import RigError
from labkit.hosts.agent import LATENCY as LATENCY_REQUEST
from labkit.hosts.host import Host
from labkit.hosts.jobs import Job, start_job

__all__ = ["DIRECTORY", "LATENCY_REQUEST", "Outcome", "Settings", "restore"]

DIRECTORY = "/var/lib/labkit/journal"
#: The request lasts as long as the file is open.
_HOLD = (
    f"import os, signal; os.write(os.open({LATENCY_REQUEST!r}, os.O_RDWR), bytes(4)); "
    "print('held', flush=True); signal.pause()"
)


@dataclass(frozen=True)
class Outcome:
    """The end of one setting.

    `state` is ``restored``; ``unchanged``, it had its old value already; ``gone``, it no longer
    exists, or the host has rebooted since; ``conflict``, somebody else has changed it; or
    ``failed``, it could not be undone. The last two stay in the journal.
    """

    target: str
    state: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is left to undo."""
        return self.state not in ("conflict", "failed")

    def __str__(self) -> str:
        return f"{self.target}: {self.state}" + (f", {self.detail}" if self.detail else "")


def restore(
    host: Host, *, journal: str = DIRECTORY, label: str = "", gone: bool = False
) -> list[Outcome]:
    """Undo the pending settings whose labels begin so, the last one first.

    Return the outcome of each; a conflict is not raised. Settings of networks are only forgotten if
    their namespaces are `gone`. Restoring may be interrupted at any time and repeated.
    """
    found = host.call("restore", journal=journal, label=label, gone=gone)
    return [Outcome(**row) for row in found]


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
        self._own = f"{label} {owner}"
        self._hold = Job(host, f"{journal}/hold-{owner}")

    def __enter__(self) -> Settings:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        failures = [outcome for outcome in self.restore() if not outcome.ok]
        self.notes += map(str, failures)
        if failures and kind is None:
            raise RigError(
                f"{len(failures)} settings were not restored",
                where=f"host {self.host.name}",
                why="; ".join(map(str, failures)),
                remedy="set them by hand; `labkit clean` forgets one whose prior value is back",
            )

    def restore(self) -> list[Outcome]:
        """Undo the settings made here, the last one first; return the outcome of each."""
        if self._hold.pid:
            self._hold.remove()
        return restore(self.host, journal=self.journal, label=self._own)

    def set_file(self, path: str, value: str | int) -> bool:
        """Set one file; see `set_files`."""
        return self.set_files({path: value})[path]

    def set_files(self, values: Mapping[str, str | int]) -> dict[str, bool]:
        """Set files of sysfs or procfs, or offloads such as ``"eth0 tx-udp_tnl-segmentation"``.

        Return which now have the value, with `notes` on others.
        """
        texts = {target: str(value) for target, value in values.items()}
        reasons = self.host.call("set_values", values=texts, label=self._own, journal=self.journal)
        self.notes += [f"{target}: {why}" for target, why in reasons.items() if why]
        return {target: not why for target, why in reasons.items()}

    def set_offload(self, device: str, feature: str, value: str) -> bool:
        """Set an offload of a network device to "on" or "off"; return whether it is that now."""
        return self.set_file(f"{device} {feature}", value)

    def move_irqs(self, cpus: str) -> int:
        """Move all interrupts to a CPU list; return how many accept it, with `notes` on others."""
        paths = self.host.call("files", pattern="/proc/irq/[0-9]*/smp_affinity_list")
        return sum(self.set_files(dict.fromkeys(paths, cpus)).values())

    def hold_idle(self) -> bool:
        """Keep CPUs out of idle states that take time to leave; return whether that works.

        A job holds a file open, so that the kernel undoes it at any death.
        """
        argv = ["python3", "-ISc", _HOLD]
        self._hold = start_job(self.host, argv, directory=self._hold.directory, label=self.label)
        self._hold.await_output("held")
        lowest = self.host.call("latency_request")
        if lowest != 0:
            self.notes.append(f"{LATENCY_REQUEST}: 0 us was requested, but it is {lowest} us")
        return bool(lowest == 0)
