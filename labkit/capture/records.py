"""Records of varying size in one buffer: where each begins, and bytes gathered from many places.

A record says only how long it is, so the next one is found through it. Where neighbours are equally
long, as in a ping-pong, whole runs are checked at once; elsewhere one is read after the other.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.errors import ToolOutput

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Records that are read one by one before a run of equal ones is looked for.
_SINGLE = 2048
#: Bytes of memory that are fetched together, and that a processor keeps near.
_LINE, _NEAR = 64, 2**20
#: Records of a run that are compared at first, and at most, at a time.
_AHEAD, _FAR = 4096, 2**20


class Layout(NamedTuple):
    """How a record says where it ends.

    Parameters
    ----------
    order : {"<", ">"}
        Byte order.
    at : int
        Where in the record its length stands, in four bytes.
    plus : int
        Bytes of the record that its length does not count.
    least, most : int
        Lengths that can be.
    """

    order: str
    at: int
    plus: int
    least: int
    most: int


def walk(data: Bytes, first: int, layout: Layout) -> tuple[Ints, int]:
    """Find every whole record.

    Parameters
    ----------
    data : (size,) uint8
        The buffer.
    first : int
        Where the first record begins.
    layout : Layout
        How a record says where it ends.

    Returns
    -------
    starts : (n,) int64
        Where each record begins.
    stop : int
        The first byte that belongs to none of them: the end of the buffer, a record that is not
        whole, or one whose length cannot be.
    """
    parts, place, ahead = [], first, 0
    while True:
        # One record after the other would wait for memory each time: what the next ones take, if
        # they are as long as those before, is fetched at one go (twice as fast).
        data[place : place + min(ahead, _NEAR) : _LINE].max(initial=0)
        found, after = _singly(data, place, layout)
        place, ahead = after, after - place
        parts.append(found)
        if len(found) < _SINGLE:
            return np.concatenate(parts), place
        run, place = _alike(data, place, int(found[-1] - found[-2]), layout)
        parts.append(run)


def _singly(data: Bytes, place: int, layout: Layout) -> tuple[Ints, int]:
    """Return up to `_SINGLE` records from a place on, fewer only where the walk ends."""
    order, at, plus, least, most = layout
    read, view = struct.Struct(order + "I").unpack_from, data.data
    found = [place]
    add = found.append
    # Nothing is checked in the loop: what it went through is, all at once, before it counts.
    with suppress(struct.error):  # at the end of the buffer
        for _ in range(_SINGLE):
            place += plus + read(view, place + at)[0]
            add(place)
    places = np.array(found, dtype=np.int64)
    lengths = np.diff(places) - plus
    wrong = (lengths < least) | (lengths > most) | (places[1:] > len(data))
    whole = int(wrong.argmax()) if wrong.any() else len(wrong)
    return places[:whole], int(places[whole])


def _alike(data: Bytes, place: int, step: int, layout: Layout) -> tuple[Ints, int]:
    """Return the records from a place on that all are `step` long, at once."""
    whole, count, ahead = (len(data) - place) // step, 0, _AHEAD
    while count < whole:
        some = min(ahead, whole - count)
        start = place + count * step + layout.at
        lengths: NDArray[np.uint32] = np.ndarray((some,), layout.order + "u4", data, start, (step,))
        other = lengths != step - layout.plus
        if other.any():
            count += int(other.argmax())
            break
        count, ahead = count + some, min(4 * ahead, _FAR)
    return place + step * np.arange(count, dtype=np.int64), place + count * step


def take(data: Bytes, places: Ints, count: int) -> Bytes:
    """Return `count` bytes from each place, as (n, count); zeros beyond the end of the buffer."""
    size = len(data)
    inside = places <= size - count
    if inside.all():
        return _rows(data, places, count)
    rows = np.zeros((len(places), count), dtype=np.uint8)
    rows[inside] = _rows(data, places[inside], count)
    columns = places[~inside, None] + np.arange(count)
    rows[~inside] = np.where(columns < size, data[np.minimum(columns, size - 1)], 0)
    return rows


def _rows(data: Bytes, places: Ints, count: int) -> Bytes:
    if not len(places):
        return np.zeros((0, count), dtype=np.uint8)
    # One overlapping cell a byte: picking cells copies each row at once, and makes no index of it.
    cells: NDArray[np.void] = np.ndarray((len(data) - count + 1,), f"V{count}", data, 0, (1,))
    return cells[places].view(np.uint8).reshape(-1, count)


def number(rows: Bytes, at: int, size: int) -> NDArray[Any]:
    """Return the unsigned number of 2 or 4 bytes, in network byte order, that each row has there.

    As uint16 or uint32 of this machine.
    """
    return rows[:, at : at + size].view(f">u{size}")[:, 0].astype(f"u{size}")


def unsigned(data: Bytes, at: int, order: str, size: int = 4) -> int:
    """Return the one unsigned number of 2 or 4 bytes at a place."""
    return int(struct.unpack_from(order + {2: "H", 4: "I"}[size], data.data, at)[0])


def damaged(what: str, *, where: str, why: str, data: Bytes, at: int = 0) -> ToolOutput:
    """Return the error for a file that is no capture, or not a whole one; it shows its bytes."""
    shown = data[at : at + 32].tobytes()
    return ToolOutput(
        what,
        where=where,
        why=f"{why}; {f'from byte {at:,}' if at else 'it begins with'}: {shown.hex(' ')}",
        remedy="capture again with `tcpdump --time-stamp-precision=nano -w FILE`; "
        "what another tool can read of it, `editcap -F nsecpcap IN OUT` writes anew",
        evidence={"bytes": shown.hex(), "at": at, "size": len(data)},
    )
