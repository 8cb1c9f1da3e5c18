"""Captures in pcapng, as the IETF's draft-ietf-opsawg-pcapng describes it: what dumpcap writes.

Blocks, each with its kind and its length at both ends. Read are one section, its interfaces with
their clocks, packets that have a time (Enhanced Packet Blocks), and the drops that the capturing
program counted itself. Packets without a time are refused, since a time is what is wanted of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.capture.headers import EN10MB
from labkit.capture.packets import Packets, flags_of
from labkit.capture.records import Bytes, Ints, Layout, damaged, take, unsigned, walk
from labkit.errors import ToolOutput

MAGIC = b"\x0a\x0d\x0d\x0a"
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_SECTION, _INTERFACE, _OLD, _SIMPLE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
#: A block's least size, and the most that libpcap reads.
_LEAST, _MOST = 12, 2**24
#: Bytes before a packet in its block, and of the block besides it.
_BEFORE, _BESIDES = 28, 32
#: Options: an interface's clock, and what was dropped by the device and by the system.
_RESOLUTION, _OFFSET, _DROPPED = 9, 14, (5, 7)


class _Interface(NamedTuple):
    """An interface's link type, the unit of its times (as the file says it), and their origin."""

    link: int
    resolution: int
    offset_s: int


def read(data: Bytes, where: str) -> Packets:
    """Read a pcapng capture of one section.

    Raises
    ------
    ToolOutput
        It is damaged, or has several sections, several link types or packets without a time; what
        writes it as a capture that can be read is named.
    """
    order = _ORDERS.get(data[8:12].tobytes())
    if order is None:
        why = "no byte order follows its first length"
        raise damaged("a pcapng capture is damaged", where=where, why=why, data=data)
    starts, stop = walk(data, 0, Layout(order, 4, 0, _LEAST, _MOST))
    if not len(starts):
        why = f"its {len(data):,} bytes are no whole section header"
        raise damaged("a capture ends within its header", where=where, why=why, data=data)
    kinds = _kinds(data, starts, order, where)
    _refuse(kinds, data[stop : stop + 4].tobytes() == MAGIC, where)
    left_over = len(data) - stop
    if left_over >= 8:
        length = unsigned(data, stop + 4, order)
        if not _LEAST <= length <= _MOST:
            why = f"block {len(starts) + 1:,} would have {length:,} bytes"
            raise damaged("a pcapng capture is damaged", where=where, why=why, data=data, at=stop)
    interfaces = [_interface(data, int(at), order) for at in starts[kinds == _INTERFACE]]
    blocks = starts[kinds == _PACKET]
    heads = take(data, blocks, _BEFORE).view(f"{order}u4").astype(np.int64)
    _check(data, blocks, heads, len(interfaces), where)
    dropped = _dropped(data, starts[kinds == _STATISTICS], order)
    lossy = (f"lossy: {dropped} packets were dropped, as the capture says",) if dropped else ()
    return Packets(
        times_ns=_times(heads, interfaces, where),
        wire=heads[:, 6].copy(),
        captured=heads[:, 5].copy(),
        offsets=blocks + _BEFORE,
        buffer=data,
        link=_link(heads[:, 2], interfaces, where),
        interface=heads[:, 2].copy(),
        left_over=left_over,
        flags=flags_of(len(blocks), left_over) + lossy,
    )


def _kinds(data: Bytes, starts: Ints, order: str, where: str) -> Ints:
    """Return the kind of each block, whose length must be the same at both ends."""
    heads = take(data, starts, 8).view(f"{order}u4").astype(np.int64)
    ends = take(data, starts + heads[:, 1] - 4, 4).view(f"{order}u4")[:, 0]
    wrong = (ends != heads[:, 1]) | (heads[:, 1] % 4 != 0)
    if wrong.any():
        place = int(wrong.argmax())
        why = f"block {place + 1:,} has {heads[place, 1]:,} bytes, and {ends[place]:,} at its end"
        raise damaged(
            "a pcapng capture is damaged", where=where, why=why, data=data, at=int(starts[place])
        )
    kinds: Ints = heads[:, 0]
    return kinds


def _refuse(kinds: Ints, another: bool, where: str) -> None:
    """Raise `ToolOutput` for what pcapng allows and labkit does not read."""
    why = ""
    if another or np.count_nonzero(kinds == _SECTION) > 1:
        why = "it has several sections, as if captures had been written one after the other"
    elif np.isin(kinds, (_OLD, _SIMPLE)).any():
        why = "it has packets without a time, or in the obsolete kind of block"
    if why:
        raise ToolOutput(
            "a pcapng capture cannot be read here",
            where=where,
            why=why,
            remedy="`editcap -F nsecpcap IN OUT` writes it as a classic capture",
        )


def _options(data: Bytes, begin: int, end: int, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield the code and the value of each option between two places."""
    while begin + 4 <= end:
        code, length = (unsigned(data, begin + half, order, 2) for half in (0, 2))
        if code == 0 or begin + 4 + length > end:
            return
        yield code, data[begin + 4 : begin + 4 + length].tobytes()
        begin += 4 + length + -length % 4


def _block_options(data: Bytes, at: int, first: int, order: str) -> dict[int, bytes]:
    """Return the options of the block at a place, which begin `first` bytes after it."""
    length = unsigned(data, at + 4, order)
    return dict(_options(data, at + first, at + length - 4, order))


def _interface(data: Bytes, at: int, order: str) -> _Interface:
    link = unsigned(data, at + 8, order, 2)
    found = _block_options(data, at, 16, order)
    (offset,) = struct.unpack(order + "q", found.get(_OFFSET, bytes(8))[:8].ljust(8, b"\0"))
    return _Interface(link, (found.get(_RESOLUTION) or b"\x06")[0], offset)


def _check(data: Bytes, blocks: Ints, heads: Ints, interfaces: int, where: str) -> None:
    """Raise `ToolOutput` for the first packet that cannot be."""
    length, interface, captured, wire = (heads[:, number] for number in (1, 2, 5, 6))
    wrong = (captured > length - _BESIDES) | (captured > wire) | (wire == 0)
    wrong |= interface >= interfaces
    if wrong.any():
        place = int(wrong.argmax())
        why = (
            f"packet {place + 1:,}, of interface {interface[place]} of {interfaces}, has "
            f"{captured[place]:,} bytes captured of {wire[place]:,} in a block of {length[place]:,}"
        )
        raise damaged(
            "a pcapng capture is damaged", where=where, why=why, data=data, at=int(blocks[place])
        )


def _link(used: Ints, interfaces: list[_Interface], where: str) -> int:
    """Return the one link type of the interfaces that captured anything."""
    links = {interfaces[number].link for number in np.unique(used)}
    if len(links) > 1:
        raise ToolOutput(
            "a capture of several link types cannot be read here",
            where=where,
            why=f"its packets have the link types {sorted(links)}",
            remedy="capture each interface into a file of its own",
        )
    return next(iter(links), interfaces[0].link if interfaces else EN10MB)


def _times(heads: Ints, interfaces: list[_Interface], where: str) -> Ints:
    """Return the time of each packet in ns, by the clock of its interface."""
    ticks = (heads[:, 3].astype(np.uint64) << np.uint64(32)) | heads[:, 4].astype(np.uint64)
    times = np.zeros(len(heads), dtype=np.int64)
    for number in np.unique(heads[:, 2]):
        its = heads[:, 2] == number
        times[its] = _nanoseconds(ticks[its], interfaces[number], where)
    return times


def _nanoseconds(ticks: NDArray[np.uint64], interface: _Interface, where: str) -> Ints:
    """Return ticks in ns; what is finer than a ns is rounded down.

    The lower seven bits of the resolution are an exponent: of 2 where the eighth is set, else 10.
    """
    exponent, binary = interface.resolution & 0x7F, bool(interface.resolution & 0x80)
    unit, latest = 2**exponent if binary else 10**exponent, int(ticks.max())
    # Within these bounds nothing below passes 63 bits: times until the year 2242.
    late = latest // unit + abs(interface.offset_s) > 2**33
    if exponent > (34 if binary else 18) or late:
        raise ToolOutput(
            "a capture's clock cannot be read here",
            where=where,
            why=f"times up to {latest} in units of 1/{unit} s, from {interface.offset_s} s",
            remedy="`editcap -F nsecpcap IN OUT` writes it as a classic capture",
        )
    if binary:
        seconds, parts = ticks // np.uint64(unit), ticks % np.uint64(unit)
        found = seconds * np.uint64(10**9) + parts * np.uint64(10**9) // np.uint64(unit)
    elif exponent <= 9:
        found = ticks * np.uint64(10 ** (9 - exponent))
    else:
        found = ticks // np.uint64(10 ** (exponent - 9))
    return found.astype(np.int64) + interface.offset_s * 1_000_000_000


def _dropped(data: Bytes, blocks: Ints, order: str) -> int:
    """Return the packets that the capturing program knows to have lost, of all interfaces."""
    last: dict[int, int] = {}
    for at in map(int, blocks):
        found = _block_options(data, at, 20, order)
        counts = [found[code] for code in _DROPPED if len(found.get(code, b"")) == 8]
        # The counts run on, so the last block of an interface has them all.
        interface = unsigned(data, at + 8, order)
        last[interface] = sum(struct.unpack(order + "Q", count)[0] for count in counts)
    return sum(last.values())
