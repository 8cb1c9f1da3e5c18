"""Levers of a host: settings that are journalled before they are written, and undone after.

What the kernel reverts by itself is preferred; what it does not is in the journal (see
`labkit.hosts.journal`), and `restore` undoes it after a kill -9 too. A value that is no longer
the one written here belongs to somebody else: it is reported, not overwritten.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
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
    restore,
    route_is_there,
)
from labkit.hosts.sysfs_values import read_files, same

# The device takes the request as hexadecimal text too, which no byte order can spoil. It holds
# for as long as the file is open; what can be read from it is the least of all requests.
_HOLD = r"""
exec 3<>/dev/cpu_dma_latency
printf "$1" >&3
exec sleep infinity
"""
# Started is not yet open, so it is asked for up to two seconds; it prints what holds.
_LEAST_LATENCY = r"""
for try in $(seq 40); do
    least=$(od -An -td4 -N4 /dev/cpu_dma_latency)
    [ $least -gt "$1" ] || break
    sleep 0.05
done
echo $least
"""
_IRQS = 'for path in /proc/irq/[0-9]*/smp_affinity_list; do echo "$path"; done'


class Tuning:
    """Settings of a host for as long as a context lasts.

    Parameters
    ----------
    host : Host
        Whose settings.
    label : str
        On whose behalf; `restore` and `stop_labelled` find by it.
    journal : str
        Directory of the journal on that host.

    Attributes
    ----------
    notes : list of str
        What this host does not have, or did not take.

    Raises
    ------
    TuningConflict
        At the end, where a setting was changed by somebody else or cannot be undone, unless
        another error is on its way.
    """

    def __init__(self, host: Host, label: str, *, journal: str = DIRECTORY) -> None:
        self.host, self.label = host, check_label(label)
        self.journal = Journal(host, journal)
        self.notes: list[str] = []
        self._ids: set[str] = set()

    def __enter__(self) -> Tuning:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcomes = self.restore()
        bad = [outcome for outcome in outcomes if not outcome.ok]
        self.notes += [str(outcome) for outcome in bad]
        if bad and error is None:
            raise conflict(self.host, bad)

    def restore(self) -> list[Outcome]:
        """Undo what was set here, in reverse order; return what became of each setting."""
        if not self._ids:
            return []
        outcomes = restore(self.host, journal=self.journal.directory, ids=self._ids)
        self._ids.clear()
        return outcomes

    def set_file(self, path: str, value: str | int) -> bool:
        """Set one lever; see `set_files`."""
        return self.set_files({path: value})[path]

    def set_files(self, values: Mapping[str, str | int]) -> dict[str, bool]:
        """Set files of sysfs or procfs, in two commands; return which now have the value.

        Why the others have not is in `notes`.
        """
        if bad := [path for path in values if not posixpath.isabs(path)]:
            raise UsageError(f"not an absolute path: {bad[0]!r}")
        wanted = {path: str(value) for path, value in values.items()}
        before = read_files(self.host, [BOOT_ID, *wanted])
        boot = before.pop(BOOT_ID) or ""
        taken = dict.fromkeys(wanted, False)
        entries = []
        for path, value in wanted.items():
            prior = before[path]
            if prior is None:
                self.notes.append(f"{path}: not supported on this host")
            elif same(prior, value):
                taken[path] = True
            else:
                entries.append(Entry("file", path, prior, value, self.label, boot))
        taken.update(self._write(entries))
        return taken

    def move_irqs(self, cpus: str) -> int:
        """Move all interrupts to the CPUs of a list such as ``"0"``; return how many are there.

        Interrupts that the kernel manages stay where they are, with a note.
        """
        paths = self.host.run(*script(_IRQS)).stdout.split()
        return sum(self.set_files(dict.fromkeys(paths, cpus)).values())

    def add_route(self, *spec: str) -> bool:
        """Add a route, such as ``"unreachable", "198.18.0.0/15"``; return whether it is ours.

        A route that was there before is left alone, now and at the end.
        """
        if route_is_there(self.host, spec):
            self.notes.append(f"the route {' '.join(spec)} was there before")
            return False
        self._enter("route", " ".join(spec))
        family = "-6" if any(":" in word for word in spec) else "-4"
        result = self.host.run("ip", family, "route", "add", *spec, check=False)
        if result.status != 0:
            self.notes.append(f"the route {' '.join(spec)}: {result.stderr.strip()}")
        return result.status == 0

    def hold_idle(self, max_latency_us: int = 0) -> bool:
        """Keep CPUs out of idle states that take longer to leave; return whether that holds."""
        if not 0 <= max_latency_us < 1 << 31:
            raise UsageError(f"invalid latency: {max_latency_us} us")
        if self.host.run("test", "-w", "/dev/cpu_dma_latency", check=False).status != 0:
            self.notes.append("/dev/cpu_dma_latency: not supported on this host")
            return False
        directory = posixpath.join(self.journal.directory, f"hold-{uuid4().hex}")
        self._enter("job", directory, f"{max_latency_us} us")
        hold = script(_HOLD, f"0x{max_latency_us:08x}")
        job = start_job(self.host, hold, directory=directory, label=self.label)
        least = self.host.run(*script(_LEAST_LATENCY, str(max_latency_us))).stdout.strip()
        if int(least) <= max_latency_us and job.running():
            return True
        self.notes.append(f"/dev/cpu_dma_latency: {max_latency_us} us was asked, {least} us holds")
        return False

    def _enter(self, kind: str, target: str, value: str = "") -> None:
        """Journal what is about to be made and did not exist."""
        boot = read_files(self.host, [BOOT_ID])[BOOT_ID] or ""
        entry = Entry(kind, target, None, value, self.label, boot)
        self._ids.add(entry.id)
        self.journal.write([entry])

    def _write(self, entries: list[Entry]) -> dict[str, bool]:
        """Journal and write settings; note what a host did not take."""
        if not entries:
            return {}
        self._ids.update(entry.id for entry in entries)
        changes = [(entry.target, entry.prior or "", entry.value) for entry in entries]
        taken, measurements = {}, {}
        for entry, answer in zip(entries, self.journal.write(entries, changes), strict=True):
            taken[entry.target] = answer.ok and same(answer.now, entry.value)
            if not answer.ok:
                self.notes.append(f"{entry.target}: {entry.value!r} was not taken: {answer.why}")
            elif not taken[entry.target]:
                measurements[entry.id] = answer.now
                self.notes.append(f"{entry.target}: {entry.value!r} became {answer.now!r}")
        if measurements:
            self.journal.amend(measurements)
        return taken
