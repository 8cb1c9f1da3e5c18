"""Pairing both directions: how long each packet stayed between the two points of capture.

The first paper joined its two captures by the number of the row (rohprimardho2015, listing A.1), in
which one lost packet shifts all that follow. Here a packet is known by a key, and every packet that
is not paired is counted under the reason why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.capture.keys import Key, number
from labkit.capture.packets import Packets
from labkit.capture.records import Bools, Ints
from labkit.errors import UsageError

_SEQUENCE = number()
_SAID_OF_ARRIVALS = {
    "lost": "no departure of their key within {longest} ns",
    "repeated": "another arrival of their key within {longest} ns, so they were left out",
    "without key": "the capture holds no key of them",
}
_SAID_OF_DEPARTURES = {
    "duplicate": "one of their key had left before them",
    "late": "their key arrived more than {longest} ns before",
    "early": "their key arrived only after them: are the directions or the clocks apart?",
    "stray": "nothing of their key arrived",
    "repeated": "of arrivals that were left out",
    "without key": "the capture holds no key of them",
}


@dataclass(frozen=True, eq=False, repr=False)
class Paired:
    """Packets that were found on both sides, in the order in which they arrived.

    Parameters
    ----------
    residence_ns : (n,) int64
        From each packet's arrival to its departure; never negative, nor more than was allowed.
    arrival, departure : (n,) int64
        Which packets these are, of those that were given.
    arrivals : dict of str to int
        How many of the arrivals were ``paired``, ``lost``, ``repeated`` or ``without key``.
    departures : dict of str to int
        How many of the departures were ``paired``, ``duplicate``, ``late``, ``early``, ``stray``,
        ``repeated`` or ``without key``.
    flags : tuple of str
        One for every reason for which a packet was not paired.
    """

    residence_ns: Ints
    arrival: Ints
    departure: Ints
    arrivals: dict[str, int]
    departures: dict[str, int]
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.residence_ns)

    def __repr__(self) -> str:
        noted = f", {'; '.join(self.flags)}" if self.flags else ""
        return f"<{len(self):,} packets paired{noted}>"

    @property
    def unmatched(self) -> tuple[int, int]:
        """Arrivals and departures that were not paired, for whatever reason."""
        counts = self.arrivals, self.departures
        return sum(counts[0].values()) - len(self), sum(counts[1].values()) - len(self)


class _Events(NamedTuple):
    """Arrivals and departures that have a key, together, by key and then by time."""

    keys: NDArray[np.uint64]
    times: Ints
    arrives: Bools
    place: Ints


def pair(
    arrivals: Packets,
    departures: Packets,
    key: Key = _SEQUENCE,
    *,
    longest_ns: int = 1_000_000_000,
    in_turn: bool = False,
) -> Paired:
    """Pair each packet's arrival at a system with its departure.

    A departure belongs to the last arrival of its key before it (or at the same time), if that is
    no more than `longest_ns` ago; of several the first one counts, and the others are duplicates.
    So numbers that begin anew or wrap around are told apart by time, as long as no packet stays
    longer than it takes until its number comes again. Where a number arrives twice within
    `longest_ns`, nothing tells which of the two a departure is of: all of them are left out, and
    counted as repeated.

    Parameters
    ----------
    arrivals, departures : Packets
        Both directions, stamped by one clock; see `Packets.where`. In any order.
    key : callable
        What makes two packets the same; `keys.number` by default.
    longest_ns : int
        More than any packet stays, and less than it takes until a key comes again, in ns.
    in_turn : bool
        The client has one message under way at a time, so the next departure of a key is that of
        its last arrival, however often keys come again. With the key `alike` this pairs messages
        that have nothing to be known by; an arrival without its departure before the next one is
        lost. Wrong for a client that sends before it has its answer.

    Returns
    -------
    Paired

    Raises
    ------
    UsageError
        `longest_ns` is not a whole number above 0.
    """
    if not isinstance(longest_ns, int) or longest_ns < 1:
        raise UsageError(f"longest_ns={longest_ns!r} is no time", remedy="whole ns above 0")
    events, without = _events(arrivals, departures, key)
    repeated = np.zeros(len(events.keys), dtype=np.bool_)
    if not in_turn:
        repeated = _repeated(events, longest_ns)
    last, wait, kinds = _departures(events, repeated, longest_ns)
    hits = np.flatnonzero(kinds["paired"])
    hits = hits[np.argsort(events.place[last[hits]], kind="stable")]
    left_out = int(repeated[events.arrives].sum())
    lost = int(events.arrives.sum()) - left_out - len(hits)
    of_arrivals = {"paired": len(hits), "lost": lost, "repeated": left_out}
    of_departures = {name: int(which.sum()) for name, which in kinds.items()}
    of_arrivals["without key"], of_departures["without key"] = without
    return Paired(
        residence_ns=wait[hits],
        arrival=events.place[last[hits]],
        departure=events.place[hits],
        arrivals=of_arrivals,
        departures=of_departures,
        flags=_flags(of_arrivals, "arrivals", _SAID_OF_ARRIVALS, longest_ns)
        + _flags(of_departures, "departures", _SAID_OF_DEPARTURES, longest_ns),
    )


def _events(arrivals: Packets, departures: Packets, key: Key) -> tuple[_Events, tuple[int, int]]:
    """Return all that has a key, in order, and how many on each side have none."""
    (first, has_first), (second, has_second) = key(arrivals), key(departures)
    place = np.concatenate([np.flatnonzero(has_first), np.flatnonzero(has_second)])
    arrives = np.arange(len(place)) < has_first.sum()
    keys = np.concatenate([first[has_first], second[has_second]])
    times = np.concatenate([arrivals.times_ns[has_first], departures.times_ns[has_second]])
    # Two stable sorts, and arrivals stand first where times are equal. Captures are nearly in order
    # of time and of number, which such a sort makes use of.
    order = np.argsort(times, kind="stable")
    order = order[np.argsort(keys[order], kind="stable")]
    without = int(len(arrivals) - has_first.sum()), int(len(departures) - has_second.sum())
    return _Events(keys[order], times[order], arrives[order], place[order]), without


def _repeated(events: _Events, longest_ns: int) -> Bools:
    """Tell which arrivals have another of their key so near that a departure could be of either."""
    here = np.flatnonzero(events.arrives)
    keys, times = events.keys[here], events.times[here]
    near = (keys[1:] == keys[:-1]) & (np.diff(times) <= longest_ns)
    found = np.zeros(len(events.keys), dtype=np.bool_)
    found[here[1:][near]] = True
    found[here[:-1][near]] = True
    return found


def _departures(
    events: _Events, repeated: Bools, longest_ns: int
) -> tuple[Ints, Ints, dict[str, Bools]]:
    """Return each event's last arrival, the time since then, and the departures of each kind."""
    keys, times, arrives, _ = events
    index = np.arange(len(keys), dtype=np.int64)
    begins = np.ones(len(keys), dtype=np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    last = np.maximum.accumulate(np.where(arrives, index, -1))
    first = np.maximum.accumulate(np.where(begins, index, 0))
    leaves, known = ~arrives, last >= first
    wait = np.where(known, times - times[last], 0)
    group = np.cumsum(begins) - 1
    arrived = np.bincount(group[arrives], minlength=int(begins.sum()))[group] > 0
    unsure = leaves & known & repeated[last]
    late = leaves & known & ~unsure & (wait > longest_ns)
    near = leaves & known & ~unsure & ~late
    paired = near & (last == index - 1)
    kinds = {"paired": paired, "duplicate": near & ~paired, "late": late}
    kinds["early"], kinds["stray"] = leaves & ~known & arrived, leaves & ~known & ~arrived
    kinds["repeated"] = unsure
    return last, wait, kinds


def _flags(
    counts: dict[str, int], what: str, said: dict[str, str], longest_ns: int
) -> tuple[str, ...]:
    """Return a flag for every reason that some packets had not to be paired."""
    total = sum(counts.values())
    return tuple(
        f"{name}: {counts[name]} of {total} {what}, {text.format(longest=longest_ns)}"
        for name, text in said.items()
        if counts[name]
    )
