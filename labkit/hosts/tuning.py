"""Change settings of a host for as long as a context lasts.

Each change is journalled before it is made (`labkit.hosts.journal`), so that `restore` undoes it
even after ``kill -9``. A value that somebody else has changed since is reported, not overwritten.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from uuid import uuid4

from labkit.errors import UsageError
from labkit.hosts.host import Host, script
from labkit.hosts.jobs import check_label, start_job
from labkit.hosts.journal import (
    BOOT_ID,
    DIRECTORY,
    Entry,
    Journal,
    Outcome,
    conflict,
    ip_route,
    journal_lost,
    offload,
    restore,
    route_exists,
    set_offload,
)
from labkit.hosts.sysfs import read_files, same_value

#: The device by which a program requests that CPUs wake up within a time.
LATENCY_REQUEST = "/dev/cpu_dma_latency"

# The request lasts as long as the file is open. As hexadecimal text it does not depend on the byte
# order; reading the device returns the lowest of all requests.
_HOLD_LATENCY = rf"""
exec 3<>{LATENCY_REQUEST}
printf 0x00000000 >&3
exec sleep infinity
"""
# Waits up to two seconds for the job to open the device, and prints the lowest request.
_LOWEST_LATENCY = rf"""
for try in $(seq 40); do
    lowest=$(od -An -td4 -N4 {LATENCY_REQUEST})
    [ $lowest -gt 0 ] || break
    sleep 0.05
done
echo $lowest
"""
_IRQS = 'for path in /proc/irq/[0-9]*/smp_affinity_list; do echo "$path"; done'


def takes_latency_request(host: Host) -> bool:
    """Tell whether idle states can be held on a host."""
    return host.run("test", "-w", LATENCY_REQUEST, check=False).status == 0


class Tuning:
    """Settings of a host that are restored when the context ends.

    `label` identifies them for `restore` and `stop_labelled`; `notes` says which settings the host
    does not support or did not accept. On exit, `RigError` is raised if a setting was changed by
    somebody else, cannot be restored, or was removed from the journal, unless another error is
    being raised already.
    """

    def __init__(self, host: Host, label: str, *, journal: str = DIRECTORY) -> None:
        self.host, self.label = host, check_label(label)
        self.journal = Journal(host, journal)
        self.notes: list[str] = []
        #: What was journalled here, by the entry's id.
        self._entries: dict[str, Entry] = {}

    def __enter__(self) -> Tuning:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcomes = self.restore()
        failures = [outcome for outcome in outcomes if not outcome.ok]
        lost = [outcome for outcome in outcomes if outcome.state == "lost"]
        self.notes += map(str, failures + lost)
        if error is None and failures + lost:
            raise (conflict if failures else journal_lost)(self.host, failures or lost)

    def restore(self) -> list[Outcome]:
        """Undo the settings made here, the last one first; return the outcome of each."""
        if not self._entries:
            return []
        outcomes = restore(self.host, journal=self.journal.directory, known=self.entries)
        self._entries.clear()
        return outcomes

    @property
    def entries(self) -> list[Entry]:
        """What was journalled here, in order."""
        return list(self._entries.values())

    def set_file(self, path: str, value: str | int) -> bool:
        """Set one file; see `set_files`."""
        return self.set_files({path: value})[path]

    def set_files(self, values: Mapping[str, str | int]) -> dict[str, bool]:
        """Set files of sysfs or procfs; return which now have the value, with `notes` on others."""
        if relative := [path for path in values if not posixpath.isabs(path)]:
            raise UsageError(f"not an absolute path: {relative[0]!r}")
        before = read_files(self.host, [BOOT_ID, *values])
        boot = before[BOOT_ID] or ""
        accepted = dict.fromkeys(values, False)
        entries = []
        for path, value in values.items():
            prior, text = before[path], str(value)
            if prior is None:
                self.notes.append(f"{path}: not supported on this host")
            elif same_value(prior, text):
                accepted[path] = True
            else:
                entries.append(Entry("file", path, prior, text, self.label, boot))
        return accepted | self._write(entries)

    def move_irqs(self, cpus: str) -> int:
        """Move all interrupts to a CPU list; return how many accept it, with `notes` on others."""
        paths = self.host.run(*script(_IRQS)).stdout.split()
        return sum(self.set_files(dict.fromkeys(paths, cpus)).values())

    def set_offload(self, device: str, feature: str, value: str) -> bool:
        """Set an offload of a network device to "on" or "off"; return whether it is that now."""
        target = f"{device} {feature}"
        prior = offload(self.host, target)
        if prior is None:
            self.notes.append(f"{target}: not supported on this host")
        elif prior != value:
            self._journal("offload", target, value, prior)
            result = set_offload(self.host, target, value)
            if offload(self.host, target) == value:
                return True
            self.notes.append(f"{target}: {value!r} was not taken: {result.stderr.strip()}")
        return prior == value

    def add_route(self, *spec: str) -> bool:
        """Add a route such as ``"unreachable", "198.18.0.0/15"``; return whether it was added.

        A route that exists already is left alone, now and at the end.
        """
        if route_exists(self.host, spec):
            self.notes.append(f"the route {' '.join(spec)} exists already")
            return False
        self._journal("route", " ".join(spec))
        result = ip_route(self.host, spec, "add", *spec)
        if result.status != 0:
            self.notes.append(f"the route {' '.join(spec)}: {result.stderr.strip()}")
        return result.status == 0

    def hold_idle(self) -> bool:
        """Keep CPUs out of idle states that take time to leave; return whether that works."""
        if not takes_latency_request(self.host):
            self.notes.append(f"{LATENCY_REQUEST}: not supported on this host")
            return False
        directory = posixpath.join(self.journal.directory, f"hold-{uuid4().hex}")
        self._journal("job", directory, "0 us")
        job = start_job(self.host, script(_HOLD_LATENCY), directory=directory, label=self.label)
        lowest = self.host.run(*script(_LOWEST_LATENCY)).stdout.strip()
        if int(lowest) == 0 and job.running():
            return True
        self.notes.append(f"{LATENCY_REQUEST}: 0 us was requested, but it is {lowest} us")
        return False

    def _journal(self, kind: str, target: str, value: str = "", prior: str | None = None) -> None:
        """Journal what is about to be created or set."""
        boot = read_files(self.host, [BOOT_ID])[BOOT_ID] or ""
        entry = Entry(kind, target, prior, value, self.label, boot)
        self._entries[entry.id] = entry
        self.journal.write([entry])

    def _write(self, entries: list[Entry]) -> dict[str, bool]:
        """Journal and write files; return which accepted the value."""
        if not entries:
            return {}
        self._entries |= {entry.id: entry for entry in entries}
        changes = [(entry.target, entry.prior or "", entry.value) for entry in entries]
        accepted, rounded = {}, {}
        for entry, answer in zip(entries, self.journal.write(entries, changes), strict=True):
            accepted[entry.target] = answer.ok and same_value(answer.now, entry.value)
            if not answer.ok:
                self.notes.append(f"{entry.target}: {entry.value!r} was not taken: {answer.why}")
            elif not accepted[entry.target]:
                rounded[entry.id] = answer.now
                self._entries[entry.id] = replace(entry, read=answer.now)
                self.notes.append(f"{entry.target}: {entry.value!r} became {answer.now!r}")
        if rounded:
            self.journal.amend(rounded)
        return accepted
