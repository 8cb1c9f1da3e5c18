"""A write-ahead journal of host settings, kept on the host whose settings they are.

An entry is locked, appended and synced before its setting is written, all in one command there:
whatever is killed when, the journal knows of every value that may have been changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

from labkit.errors import DatasetError
from labkit.hosts.base import Host, script
from labkit.hosts.levers import same

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

_LOAD = (
    _LOCKED
    + r"""
cat /proc/sys/kernel/random/boot_id
if [ -e "$file" ]; then stat -c %s "$file"; cat "$file"; else echo 0; fi
"""
)

# The value that is replaced is looked at again under the lock: what it was when the entry was
# made is what a restoration will write. Answers end with NUL: a value may have several lines.
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

# Where everything is undone and nobody has added anything, the journal goes as a whole.
_FINISH = (
    _LOCKED
    + r"""
if [ "$2" = "$(stat -c %s "$file" 2>/dev/null)" ]; then rm -f "$file"; sync "$directory"
else append; fi
"""
)


@dataclass(frozen=True)
class Entry:
    """A setting that is, or may be, ours.

    Parameters
    ----------
    kind : {"file", "route", "job"}
        What `target` is: a path, the words of a route, the directory of a job.
    target : str
        What was set.
    prior : str or None
        What it was; None for what did not exist.
    value : str
        What was to be written.
    label : str
        On whose behalf.
    boot : str
        Boot identifier of the host at that time.
    read : str or None
        What the kernel made of the value, where that is another one.
    """

    kind: str
    target: str
    prior: str | None
    value: str
    label: str
    boot: str
    read: str | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def left(self, current: str) -> bool:
        """Tell whether a lever holds what this entry has left there."""
        return same(current, self.value if self.read is None else self.read)

    def undone(self, current: str) -> bool:
        """Tell whether a lever holds what it held before this entry."""
        return self.prior is not None and same(current, self.prior)


@dataclass(frozen=True)
class Record:
    """What a journal holds: entries that are not done, in order, and what could not be read."""

    boot: str
    size: int
    pending: tuple[Entry, ...]
    torn: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What came of one write: whether it went well, why not, and what is there now."""

    ok: bool
    why: str
    now: str


def parse_journal(text: str) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return the pending entries of a journal's text, and its unreadable lines.

    A torn line is what a crash leaves of an append; its setting was never written.

    Raises
    ------
    DatasetError
        For a line of a newer version.
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
        except (ValueError, TypeError, KeyError, AttributeError):
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
        """Return the boot identifier and what is pending."""
        text = self.host.run(*script(_LOAD, self.directory)).stdout
        boot, size, lines = text.split("\n", 2)
        return Record(boot, int(size), *parse_journal(lines))

    def write(
        self, entries: Iterable[Entry], changes: Sequence[tuple[str, str, str]] = ()
    ) -> list[Answer]:
        """Append entries and sync them; then write files, each where it still holds its value.

        Parameters
        ----------
        entries : iterable of Entry
            What is about to be changed.
        changes : sequence of (path, expected, new)
            The files to write.
        """
        lines = "".join(_line(asdict(entry)) for entry in entries)
        words = [word for change in changes for word in change]
        parts = self.host.run(*script(_WRITE, self.directory, *words), input=lines).stdout
        cells = [iter(parts.split("\0")[:-1])] * 3
        rows = zip(*cells, strict=True)
        return [Answer(code == "0", why.strip(), now) for code, why, now in rows]

    def amend(self, readings: dict[str, str]) -> None:
        """Add to entries, by their id, what the kernel made of the value."""
        self._append(_line({"id": name, "read": value}) for name, value in readings.items())

    def finish(self, done: dict[str, str], record: Record) -> None:
        """Mark entries as done, by their id, with what was done; drop a journal that is over."""
        over = {entry.id for entry in record.pending} <= done.keys()
        self._append(
            (_line({"id": name, "done": state}) for name, state in done.items()),
            str(record.size) if over else "",
        )

    def _append(self, lines: Iterable[str], size: str = "") -> None:
        self.host.run(*script(_FINISH, self.directory, size or "-"), input="".join(lines))


def _line(fields: dict[str, Any]) -> str:
    return json.dumps({"version": VERSION} | fields, ensure_ascii=True) + "\n"
