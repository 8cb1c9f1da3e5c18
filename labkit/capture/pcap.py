"""Classic captures, as libpcap's manual page pcap-savefile(5) describes them.

A header of 24 bytes, then packets, each after 16 bytes that say when it came and how long it is.
"""

from __future__ import annotations

import numpy as np

from labkit.capture.packets import Packets, flags_of
from labkit.capture.records import Bytes, Ints, Layout, damaged, take, unsigned, walk
from labkit.errors import ToolOutput

#: First four bytes: byte order, and how many ns its fractions of a second count.
MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_HEADER, _RECORD = 24, 16
#: libpcap captures no more of a packet, so a longer one was never written by it.
LONGEST = 262_144


def read(data: Bytes, where: str) -> Packets:
    """Read a classic capture whose first four bytes are one of `MAGICS`.

    Raises
    ------
    ToolOutput
        Its header is cut off or of another version, or a packet cannot be.
    """
    order, scale = MAGICS[data[:4].tobytes()]
    link = _link(data, order, where)
    starts, stop = walk(data, _HEADER, Layout(order, 8, _RECORD, 0, LONGEST))
    heads = take(data, starts, _RECORD).view(f"{order}u4").astype(np.int64)
    _check(data, starts, heads, scale, where)
    left_over = len(data) - stop
    if left_over >= 12:
        length = unsigned(data, stop + 8, order)
        if length > LONGEST:
            why = f"packet {len(starts) + 1:,} would have {length:,} bytes, over {LONGEST:,}"
            raise damaged("a capture is damaged", where=where, why=why, data=data, at=stop)
    return Packets(
        times_ns=heads[:, 0] * 1_000_000_000 + heads[:, 1] * scale,
        wire=heads[:, 3].copy(),
        captured=heads[:, 2].copy(),
        offsets=starts + _RECORD,
        buffer=data,
        link=link,
        interface=np.zeros(len(starts), dtype=np.int64),
        left_over=left_over,
        flags=flags_of(len(starts), left_over),
    )


def _link(data: Bytes, order: str, where: str) -> int:
    """Return the link type that the file's header names."""
    if len(data) < _HEADER:
        why = f"it has {len(data)} bytes, its header alone {_HEADER}"
        raise damaged("a capture ends within its header", where=where, why=why, data=data)
    major, minor = unsigned(data, 4, order, 2), unsigned(data, 6, order, 2)
    if (major, minor) != (2, 4):
        raise ToolOutput(
            f"captures of version {major}.{minor} cannot be read here",
            where=where,
            why="before version 2.4 the two lengths of a packet stood in no settled order",
            remedy="`tcpdump -r IN -w OUT` writes it in version 2.4",
        )
    # The upper half may say how long the frame check sequence is.
    return unsigned(data, 20, order) & 0xFFFF


def _check(data: Bytes, starts: Ints, heads: Ints, scale: int, where: str) -> None:
    """Raise `ToolOutput` for the first packet that cannot be: longer than itself, for one."""
    parts, captured, wire = heads[:, 1], heads[:, 2], heads[:, 3]
    wrong = (captured > wire) | (wire == 0) | (parts * scale >= 1_000_000_000)
    if wrong.any():
        place = int(wrong.argmax())
        at = int(starts[place])
        why = (
            f"packet {place + 1:,} has {captured[place]:,} bytes captured of {wire[place]:,}, "
            f"and {parts[place] * scale:,} ns past the second"
        )
        raise damaged("a capture is damaged", where=where, why=why, data=data, at=at)
