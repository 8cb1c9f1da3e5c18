"""A write-ahead journal of host settings, kept on the host, and restoring from it.

An entry is locked, appended and synced before its setting is written, all in one command there:
whatever is killed when, the journal knows of every value that may have been changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

from labkit.errors import CommandFailed, DatasetError, TuningConflict
from labkit.hosts.host import Host, script
from labkit.hosts.jobs import Job
from labkit.hosts.sysfs_values import read_files, same, settable

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
        """Append entries and sync them; then write files, each where it still holds its value."""
        lines = "".join(_line(asdict(entry)) for entry in entries)
        words = [word for change in changes for word in change]
        parts = self.host.run(*script(_WRITE, self.directory, *words), input=lines).stdout
        cells = [iter(parts.split("\0")[:-1])] * 3
        rows = zip(*cells, strict=True)
        return [Answer(code == "0", why.strip(), now) for code, why, now in rows]

    def amend(self, measurements: dict[str, str]) -> None:
        """Add to entries, by their id, what the kernel made of the value."""
        self._append(_line({"id": name, "read": value}) for name, value in measurements.items())

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


_ROUTE_TYPES = {"unreachable", "blackhole", "prohibit", "throw", "local", "broadcast", "unicast"}


@dataclass(frozen=True)
class Outcome:
    """What became of one setting.

    Parameters
    ----------
    state : str
        ``restored``; ``unchanged``, it was as before; ``gone``, it does not exist any more;
        ``expired``, the host has booted since; ``conflict``, somebody else has set it; ``failed``,
        it could not be undone. The last two stay in the journal.
    kind, target : str
        As in the journal.
    detail : str
        What was found, where it is not as expected.
    """

    state: str
    kind: str
    target: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing of it is left on the host."""
        return self.state not in ("conflict", "failed")

    def __str__(self) -> str:
        return f"{self.target}: {self.state}" + (f", {self.detail}" if self.detail else "")


def restore(
    host: Host,
    *,
    journal: str = DIRECTORY,
    label: str | None = None,
    ids: Collection[str] | None = None,
    boot: str | None = None,
) -> list[Outcome]:
    """Undo the pending settings of a journal in reverse order, where they are still ours.

    `label` is a prefix, and `ids` a selection, of what is undone. One outcome a setting is
    returned, the last one set first; conflicts are reported, not raised: see `conflict`.

    Doing it again does no harm, and it may be interrupted anywhere.
    """
    book = Journal(host, journal)
    record = book.load()
    wanted = [
        entry
        for entry in reversed(record.pending)
        if (label is None or entry.label.startswith(label)) and (ids is None or entry.id in ids)
    ]
    if not wanted:
        return []
    now = [entry for entry in wanted if entry.boot == (boot or record.boot)]
    outcomes = {entry.id: _outcome(entry, "expired") for entry in wanted if entry not in now}
    for entry in now:
        if entry.kind == "route":
            outcomes[entry.id] = _undo_route(host, entry)
        elif entry.kind == "job":
            outcomes[entry.id] = _undo_job(host, entry, book.directory)
    outcomes |= _undo_files(book, [entry for entry in now if entry.kind == "file"])
    done = {name: outcome.state for name, outcome in outcomes.items() if outcome.ok}
    if done:
        book.finish(done, record)
    return [outcomes[entry.id] for entry in wanted]


def conflict(host: Host, outcomes: Iterable[Outcome]) -> TuningConflict:
    """Return the error that says which settings were not restored, and why."""
    bad = [outcome for outcome in outcomes if not outcome.ok]
    return TuningConflict(
        f"{len(bad)} settings were not restored",
        where=f"host {host.name}",
        why="; ".join(map(str, bad)),
        remedy="set them by hand; an entry goes away when its prior value is back, or at a reboot",
        evidence={"outcomes": [asdict(outcome) for outcome in bad]},
    )


def route_is_there(host: Host, spec: Sequence[str]) -> bool:
    """Tell whether a host has a route with all the words of `spec`."""
    words = list(spec)
    table = ["table", "main"]
    if "table" in words[:-1]:
        at = words.index("table")
        table = words[at : at + 2]
        del words[at : at + 2]
    target = next(word for word in words if word not in _ROUTE_TYPES)
    family = "-6" if any(":" in word for word in words) else "-4"
    seen = host.run("ip", family, "route", "show", *table, "exact", target, check=False)
    return any(set(words) <= set(line.split()) for line in seen.stdout.splitlines())


def _outcome(entry: Entry, state: str, detail: str = "") -> Outcome:
    return Outcome(state, entry.kind, entry.target, detail)


def _undo_route(host: Host, entry: Entry) -> Outcome:
    spec = entry.target.split(" ")
    if not route_is_there(host, spec):
        return _outcome(entry, "unchanged")
    family = "-6" if any(":" in word for word in spec) else "-4"
    result = host.run("ip", family, "route", "del", *spec, check=False)
    if result.status != 0:
        return _outcome(entry, "failed", result.stderr.strip())
    return _outcome(entry, "restored")


def _undo_job(host: Host, entry: Entry, directory: str) -> Outcome:
    try:
        Job(host, entry.target).stop()
    except CommandFailed as error:  # the rest is to be restored all the same
        return _outcome(entry, "failed", error.why)
    if entry.target.startswith(f"{directory}/"):  # only what is in the journal's own directory
        host.run("rm", "-rf", "--", entry.target)
    return _outcome(entry, "restored")


def _undo_files(book: Journal, entries: list[Entry]) -> dict[str, Outcome]:
    """Undo settings of files, the newest first; each file is written once, whatever its history."""
    found = read_files(book.host, (entry.target for entry in entries))
    outcomes: dict[str, Outcome] = {}
    final: dict[str, str] = {}
    for index, entry in enumerate(entries):
        current = final.get(entry.target, found[entry.target])
        older = [other for other in entries[index:] if other.target == entry.target]
        if current is None:
            outcomes[entry.id] = _outcome(entry, "gone")
        elif entry.left(current):
            outcomes[entry.id] = _outcome(entry, "restored")
            final[entry.target] = entry.prior or ""
        elif any(other.undone(current) or other.left(current) for other in older):
            # Never written, or undone by a restoration that was killed before it could say so.
            outcomes[entry.id] = _outcome(entry, "unchanged")
        else:
            what = f"it is {current!r}; {entry.value!r} was written, over {entry.prior!r}"
            outcomes[entry.id] = _outcome(entry, "conflict", what)
    return outcomes | _write_back(book, entries, outcomes, found, final)


def _write_back(
    book: Journal,
    entries: list[Entry],
    outcomes: dict[str, Outcome],
    found: dict[str, str | None],
    final: dict[str, str],
) -> dict[str, Outcome]:
    """Write the final values; return the outcomes of the settings for which that failed."""
    if not final:
        return {}
    changes = [(path, found[path] or "", settable(value)) for path, value in final.items()]
    answers = zip(final.items(), book.write([], changes), strict=True)
    failed = {
        path: answer.why or f"it became {answer.now!r}"
        for (path, value), answer in answers
        if not (answer.ok and same(answer.now, value))
    }
    return {
        entry.id: _outcome(entry, "failed", failed[entry.target])
        for entry in entries
        if entry.target in failed and outcomes[entry.id].state == "restored"
    }
