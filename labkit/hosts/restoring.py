"""Undo what a journal says is pending: on a good day at the end, after a kill -9 later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from labkit.errors import CommandFailed, TuningConflict
from labkit.hosts.base import Host
from labkit.hosts.jobs import Job
from labkit.hosts.journal import DIRECTORY, Entry, Journal
from labkit.hosts.levers import read_files, same, settable

_ROUTE_TYPES = {"unreachable", "blackhole", "prohibit", "throw", "local", "broadcast", "unicast"}


@dataclass(frozen=True)
class Outcome:
    """What became of one setting.

    Parameters
    ----------
    state : str
        ``restored``; ``unchanged``, it was as before; ``gone``, there is no such lever any more;
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

    Doing it again does no harm, and it may be interrupted anywhere.

    Parameters
    ----------
    host : Host
        Whose settings.
    journal : str
        Directory of the journal on that host.
    label : str, optional
        Only settings whose label starts with this.
    ids : collection of str, optional
        Only these entries.
    boot : str, optional
        Boot identifier to go by, instead of the host's own.

    Returns
    -------
    list of Outcome
        One a setting, the last one set first. Conflicts are reported, not raised; `conflict`
        makes an error of them.
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
