"""Settings of a host that last as long as a context, journalled on the host before each change.

The agent records a setting, syncs the journal, and only then writes: whatever is killed at any
time, `restore` finds every value that may have changed. A value that somebody else has changed
since is reported, not overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from labkit.errors import RigError
from labkit.hosts import agent
from labkit.hosts.host import Host
from labkit.hosts.jobs import Job, check_label, start_job

DIRECTORY = "/var/lib/labkit/journal"
BOOT_ID, LATENCY_REQUEST = agent.BOOT_ID, agent.LATENCY
#: The request lasts as long as the file is open.
_HOLD = (
    f"import os, signal; os.write(os.open({LATENCY_REQUEST!r}, os.O_RDWR), bytes(4)); "
    "signal.pause()"
)


@dataclass(frozen=True)
class Outcome:
    """The end of one setting.

    `state` is ``restored``; ``unchanged``, it had its old value already; ``gone``, it no longer
    exists; ``expired``, the host has rebooted since; ``conflict``, somebody else has changed it; or
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
    host: Host, *, journal: str = DIRECTORY, label: str = "", owner: str = ""
) -> list[Outcome]:
    """Undo the pending settings of a journal, the last one first; return the outcome of each.

    `label` (a prefix) or `owner` selects settings. A conflict is reported, not raised. Restoring
    may be interrupted at any time and repeated.
    """
    rows = host.call("restore", journal=journal, label=label, owner=owner)
    return [Outcome(**row) for row in rows]


@dataclass(frozen=True)
class Entry:
    """A setting in a journal: its value before, its value since, and who has set it."""

    id: str
    #: "file" or "offload".
    kind: str
    target: str
    prior: str
    value: str
    label: str
    boot: str


def pending(host: Host, journal: str = DIRECTORY) -> list[Entry]:
    """Return the settings that a journal has, in order."""
    return [Entry(**row) for row in host.call("pending", journal=journal)]


def forget(host: Host, entries: Sequence[Entry], journal: str = DIRECTORY) -> None:
    """Remove entries whose settings are gone, for example with their network namespace."""
    host.call("forget", journal=journal, names=[entry.id for entry in entries])


class Settings:
    """Settings of a host that are restored when the context ends.

    `label` identifies them for `restore` and `stop_labelled`; `notes` says which settings the host
    does not support or did not accept. At the end, `RigError` is raised if a setting was changed by
    somebody else or cannot be restored, unless another error is being raised already.
    """

    def __init__(self, host: Host, label: str, *, journal: str = DIRECTORY) -> None:
        self.host, self.label, self.journal = host, check_label(label), journal
        self.notes: list[str] = []
        self._owner = uuid4().hex
        self._hold: Job | None = None

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
        if self._hold:
            self._hold.remove()
            self._hold = None
        return restore(self.host, journal=self.journal, owner=self._owner)

    def set_file(self, path: str, value: str | int) -> bool:
        """Set one file; see `set_files`."""
        return self.set_files({path: value})[path]

    def set_files(self, values: Mapping[str, str | int]) -> dict[str, bool]:
        """Set files of sysfs or procfs, or offloads such as ``"eth0 tx-udp_tnl-segmentation"``.

        Return which now have the value, with `notes` on others.
        """
        texts = {target: str(value) for target, value in values.items()}
        reasons = self.host.call(
            "set_values", values=texts, label=self.label, owner=self._owner, journal=self.journal
        )
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
        self._hold = Job(self.host, f"{self.journal}/hold-{self._owner}")
        argv = ["python3", "-ISc", _HOLD]
        start_job(self.host, argv, directory=self._hold.directory, label=self.label)
        if (lowest := self.host.call("latency_request", seconds=2)) != 0:
            self.notes.append(f"{LATENCY_REQUEST}: 0 us was requested, but it is {lowest} us")
        return bool(lowest == 0 and self._hold.running())


def offload(host: Host, target: str) -> str | None:
    """Return whether an offload such as ``"eth0 tx-udp_tnl-segmentation"`` is "on" or "off".

    None where the device has no such offload, or cannot change it.
    """
    value: str | None = host.call("get_value", target=target)
    return value


def takes_latency_request(host: Host) -> bool:
    """Tell whether idle states can be held on a host."""
    return host.run("test", "-w", LATENCY_REQUEST, check=False).status == 0
