"""A write-ahead journal of a host's settings, kept on that host, and restoring from it.

One command on the host locks the journal, appends the entry, syncs it, and only then changes the
setting: whatever is killed at any time, the journal lists every value that may have changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

from labkit.errors import CommandFailed, DatasetError, RigError
from labkit.hosts.host import Host, Result, script
from labkit.hosts.jobs import Job
from labkit.hosts.sysfs import read_files, same_value, written_value

DIRECTORY = "/var/lib/labkit/journal"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
VERSION = 1

_LOCKED = r"""
directory=$1 file=$1/journal
mkdir -p "$directory"
exec 9>>"$directory/lock"
flock -w 30 9 || { echo "the journal in $directory stays locked" >&2; exit 75; }
append() {
    if [ -s "$file" ] && [ -n "$(tail -c1 "$file")" ]; then echo >>"$file"; fi
    cat >>"$file"
    sync "$file" "$directory"
}
"""

# Reading creates nothing: a user who may not write there has no journal there.
_LOAD = (
    '[ -e "$1/journal" ] || { cat /proc/sys/kernel/random/boot_id; echo 0; exit 0; }'
    + _LOCKED
    + r"""
cat /proc/sys/kernel/random/boot_id
if [ -e "$file" ]; then stat -c %s "$file"; cat "$file"; else echo 0; fi
"""
)

# A file is written only if it still has the value that the entry was made with, since that is what
# restoring will write. Answers end with NUL, because a value may have several lines.
_WRITE = (
    _LOCKED
    + r"""
shift
append
while [ $# -ge 3 ]; do
    code=0 why=
    if [ "$(cat "$1")" != "$2" ]; then why='it was changed at the same time' code=1
    elif ! why=$( { printf '%s\n' "$3" >"$1"; } 2>&1 ); then code=1; fi
    printf '%s\0%s\0%s\0' "$code" "$why" "$(cat "$1" || :)"
    shift 3
done
"""
)

#: What a shell puts before the reason of an error.
_SHELL = re.compile(r"^(?:\S*sh: (?:line )?\d+: |printf: )+")

# The journal is deleted if everything is undone and nothing was added since it was read.
_FINISH = (
    _LOCKED
    + r"""
if [ "$2" = "$(stat -c %s "$file" 2>/dev/null)" ]; then rm -f "$file"; sync "$directory"
else append; fi
"""
)


@dataclass(frozen=True)
class Entry:
    """A setting that labkit has changed or is about to change."""

    #: "file", "offload", "route" or "job".
    kind: str
    #: A path, a device and its offload, the words of a route, or the directory of a job.
    target: str
    #: The value before; None if the target did not exist.
    prior: str | None
    value: str
    label: str
    #: Boot identifier of the host when it was changed.
    boot: str
    #: The value read back, if the kernel changed it, for example by rounding.
    read: str | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def is_set(self, current: str) -> bool:
        """Return whether `current` is the value that this entry has set."""
        return same_value(current, self.value if self.read is None else self.read)

    def is_undone(self, current: str) -> bool:
        """Return whether `current` is the value before this entry."""
        return self.prior is not None and same_value(current, self.prior)


@dataclass(frozen=True)
class Record:
    """A journal as read: the entries not yet undone, in order, and the unreadable lines."""

    boot: str
    size: int
    pending: tuple[Entry, ...]
    torn: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The result of one write: whether it succeeded, why not, and the value now."""

    ok: bool
    why: str
    now: str


def parse_journal(text: str) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return the pending entries of a journal's text, and its unreadable lines.

    A line is torn if a crash interrupted its append; its setting was never changed.
    """
    entries: dict[str, Entry] = {}
    torn = []
    for line in filter(None, text.split("\n")):
        try:
            fields = json.loads(line)
            version, name = fields.pop("version"), fields.pop("id")
            if version > VERSION:
                raise DatasetError(
                    f"the journal has version {version}", remedy="restore with a newer labkit"
                )
            _apply(entries, name, fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            torn.append(line)
    return tuple(entries.values()), tuple(torn)


def _apply(entries: dict[str, Entry], name: str, fields: dict[str, Any]) -> None:
    if "done" in fields:
        entries.pop(name, None)
    elif "kind" in fields:
        entries[name] = Entry(id=name, **fields)
    elif name in entries:
        entries[name] = replace(entries[name], read=fields["read"])


class Journal:
    """The journal in a directory of a host."""

    def __init__(self, host: Host, directory: str = DIRECTORY) -> None:
        self.host, self.directory = host, directory

    def load(self) -> Record:
        """Return the boot identifier and the pending entries."""
        text = self.host.run(*script(_LOAD, self.directory)).stdout
        boot, size, lines = text.split("\n", 2)
        return Record(boot, int(size), *parse_journal(lines))

    def write(
        self, entries: Iterable[Entry], changes: Sequence[tuple[str, str, str]] = ()
    ) -> list[Answer]:
        """Append and sync entries; then apply changes (path, prior, new) to files."""
        lines = "".join(_line(asdict(entry)) for entry in entries)
        words = [word for change in changes for word in change]
        parts = self.host.run(*script(_WRITE, self.directory, *words), input=lines).stdout
        cells = [iter(parts.split("\0")[:-1])] * 3
        rows = zip(*cells, strict=True)
        return [Answer(code == "0", _SHELL.sub("", why.strip()), now) for code, why, now in rows]

    def amend(self, values: dict[str, str]) -> None:
        """Add the values read back to entries, by their id."""
        self._append(_line({"id": name, "read": value}) for name, value in values.items())

    def finish(self, done: dict[str, str], record: Record) -> None:
        """Mark entries as done, by id and state; delete the journal if nothing is pending."""
        empty = {entry.id for entry in record.pending} <= done.keys()
        self._append(
            (_line({"id": name, "done": state}) for name, state in done.items()),
            str(record.size) if empty else "",
        )

    def _append(self, lines: Iterable[str], size: str = "") -> None:
        self.host.run(*script(_FINISH, self.directory, size or "-"), input="".join(lines))


def _line(fields: dict[str, Any]) -> str:
    return json.dumps({"version": VERSION} | fields, ensure_ascii=True) + "\n"


_LOST = "its entry was gone from the journal; it was restored from memory"
_ROUTE_TYPES = {"unreachable", "blackhole", "prohibit", "throw", "local", "broadcast", "unicast"}


@dataclass(frozen=True)
class Outcome:
    """What restoring did to one setting.

    `state` is ``restored``; ``unchanged``, it had its old value already; ``gone``, it no longer
    exists; ``expired``, the host has rebooted since; ``lost``, it was restored although its entry
    was no longer in the journal; ``conflict``, somebody else has changed it; or ``failed``, it
    could not be undone. The last two stay in the journal.
    """

    state: str
    kind: str
    target: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is left to undo."""
        return self.state not in ("conflict", "failed")

    def __str__(self) -> str:
        return f"{self.target}: {self.state}" + (f", {self.detail}" if self.detail else "")


def restore(
    host: Host,
    *,
    journal: str = DIRECTORY,
    label: str | None = None,
    known: Collection[Entry] | None = None,
    boot: str | None = None,
) -> list[Outcome]:
    """Undo the pending settings of a journal, the last one first; return the outcome of each.

    `label` (a prefix) selects settings, and so does `known`: entries that the caller remembers,
    which are undone also where the journal was removed. A conflict is reported, not raised (see
    `conflict`). Restoring may be interrupted at any time and repeated.
    """
    settings = Journal(host, journal)
    record = settings.load()
    lost = {entry.id for entry in known or ()} - {entry.id for entry in record.pending}
    if lost:
        settings.write([entry for entry in known or () if entry.id in lost])
        record = settings.load()
    ids = {entry.id for entry in known or ()}
    entries = [
        entry
        for entry in reversed(record.pending)
        if entry.id in ids
        or (label is not None and entry.label.startswith(label))
        or (label is None and known is None)
    ]
    if not entries:
        return []
    current = [entry for entry in entries if entry.boot == (boot or record.boot)]
    outcomes = {entry.id: _outcome(entry, "expired") for entry in entries if entry not in current}
    for entry in current:
        if entry.kind == "route":
            outcomes[entry.id] = _undo_route(host, entry)
        elif entry.kind == "offload":
            outcomes[entry.id] = _undo_offload(host, entry)
        elif entry.kind == "job":
            outcomes[entry.id] = _undo_job(host, entry, journal)
    outcomes |= _undo_files(settings, [entry for entry in current if entry.kind == "file"])
    for name in lost:
        if outcomes[name].state == "restored":
            outcomes[name] = replace(outcomes[name], state="lost", detail=_LOST)
    done = {name: outcome.state for name, outcome in outcomes.items() if outcome.ok}
    if done:
        settings.finish(done, record)
    return [outcomes[entry.id] for entry in entries]


def conflict(host: Host, outcomes: Iterable[Outcome]) -> RigError:
    """Return the error that names the settings that were not restored."""
    failures = [outcome for outcome in outcomes if not outcome.ok]
    return RigError(
        f"{len(failures)} settings were not restored",
        where=f"host {host.name}",
        why="; ".join(map(str, failures)),
        remedy="set them by hand; an entry goes away when its prior value is back, or at a reboot",
        evidence={"outcomes": [asdict(outcome) for outcome in failures]},
    )


def journal_lost(host: Host, outcomes: Iterable[Outcome]) -> RigError:
    """Return the error that names the settings whose entries were gone from the journal."""
    return RigError(
        "the journal of settings was removed while it was needed",
        where=f"host {host.name}",
        why="; ".join(str(outcome) for outcome in outcomes if outcome.state == "lost"),
        remedy="settings of processes that were killed before cannot be restored: check them",
    )


def ip_route(host: Host, spec: Sequence[str], *words: str) -> Result:
    """Run ``ip route`` with these words, for the address family of a route."""
    family = "-6" if any(":" in word for word in spec) else "-4"
    return host.run("ip", family, "route", *words, check=False)


def route_exists(host: Host, spec: Sequence[str]) -> bool:
    """Return whether a host has a route with all the words of `spec`."""
    words = list(spec)
    table = ["table", "main"]
    if "table" in words[:-1]:
        at = words.index("table")
        table = words[at : at + 2]
        del words[at : at + 2]
    target = next(word for word in words if word not in _ROUTE_TYPES)
    routes = ip_route(host, spec, "show", *table, "exact", target).stdout.splitlines()
    return any(set(words) <= set(route.split()) for route in routes)


def offload(host: Host, target: str) -> str | None:
    """Return whether an offload such as ``"eth0 tx-udp_tnl-segmentation"`` is "on" or "off".

    None where the device has no such offload, or cannot change it.
    """
    device, feature = target.split(" ")
    for line in host.run("ethtool", "-k", device, check=False).stdout.splitlines():
        name, _, state = line.strip().partition(": ")
        if name == feature:
            return None if state.endswith("[fixed]") else state.partition(" ")[0]
    return None


def set_offload(host: Host, target: str, value: str) -> Result:
    """Set an offload of a device to "on" or "off"."""
    device, feature = target.split(" ")
    return host.run("ethtool", "-K", device, feature, value, check=False)


def _outcome(entry: Entry, state: str, detail: str = "") -> Outcome:
    return Outcome(state, entry.kind, entry.target, detail)


def _undo_route(host: Host, entry: Entry) -> Outcome:
    spec = entry.target.split(" ")
    if not route_exists(host, spec):
        return _outcome(entry, "unchanged")
    result = ip_route(host, spec, "del", *spec)
    if result.status != 0:
        return _outcome(entry, "failed", result.stderr.strip())
    return _outcome(entry, "restored")


def _undo_offload(host: Host, entry: Entry) -> Outcome:
    current = offload(host, entry.target)
    if current is None:
        return _outcome(entry, "gone")
    if current != entry.value:
        return _outcome(entry, "unchanged")
    result = set_offload(host, entry.target, entry.prior or "on")
    if offload(host, entry.target) != entry.prior:
        return _outcome(entry, "failed", result.stderr.strip())
    return _outcome(entry, "restored")


def _undo_job(host: Host, entry: Entry, directory: str) -> Outcome:
    try:
        Job(host, entry.target).stop()
    except CommandFailed as error:  # continue with the other settings
        return _outcome(entry, "failed", error.why)
    if entry.target.startswith(f"{directory}/"):  # delete nothing outside the journal's directory
        host.run("rm", "-rf", "--", entry.target)
    return _outcome(entry, "restored")


def _undo_files(journal: Journal, entries: list[Entry]) -> dict[str, Outcome]:
    """Undo file settings, newest first; each file is written once, however often it was set."""
    before = read_files(journal.host, (entry.target for entry in entries))
    outcomes: dict[str, Outcome] = {}
    final: dict[str, str] = {}
    for index, entry in enumerate(entries):
        current = final.get(entry.target, before[entry.target])
        older = [other for other in entries[index:] if other.target == entry.target]
        if current is None:
            outcomes[entry.id] = _outcome(entry, "gone")
        elif entry.is_set(current):
            outcomes[entry.id] = _outcome(entry, "restored")
            final[entry.target] = entry.prior or ""
        elif any(other.is_undone(current) or other.is_set(current) for other in older):
            # Never written, or restored by a process that was killed before it could record that.
            outcomes[entry.id] = _outcome(entry, "unchanged")
        else:
            detail = f"it is {current!r}; {entry.value!r} was written, over {entry.prior!r}"
            outcomes[entry.id] = _outcome(entry, "conflict", detail)
    if not final:
        return outcomes
    changes = [(path, before[path] or "", written_value(value)) for path, value in final.items()]
    failed = {
        path: answer.why or f"it became {answer.now!r}"
        for (path, value), answer in zip(final.items(), journal.write([], changes), strict=True)
        if not (answer.ok and same_value(answer.now, value))
    }
    for entry in entries:
        if entry.target in failed and outcomes[entry.id].state == "restored":
            outcomes[entry.id] = _outcome(entry, "failed", failed[entry.target])
    return outcomes
