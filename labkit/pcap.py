"""Packet captures in classic pcap: read as arrays, and paired into residence times.

    packets = pcap.read("eth2.pcap")
    requests = packets.where(dst="198.18.0.2", protocol="udp")
    replies = packets.where(src="198.18.0.2", protocol="udp")
    paired = pcap.pair(requests, replies, pcap.number())     # sockperf's message number
    paired.residence_ns, paired.flags

Nothing here runs a tool or touches a host: bytes in, arrays out. Times are int64 ns, all of the
clock that stamped the packets. Files are as libpcap's manual page pcap-savefile(5) describes them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.errors import ToolOutput, UsageError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: First four bytes of a file: byte order, and how many ns its fractions of a second count.
_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz"}
#: Bytes of the file's header, and of the one before each packet.
_HEADER, _RECORD = 24, 16
#: libpcap captures no more of a packet, so it never wrote a longer one.
_LONGEST = 262_144
#: Packets that are read one by one before a run of equally long ones is looked for.
_SINGLE = 2048
#: Bytes of memory that are fetched together, and that a processor keeps near.
_LINE, _NEAR = 64, 2**20
#: Packets of a run that are compared at first, and at most, at a time.
_AHEAD, _FAR = 4096, 2**20

#: The only link type that is read, with the length of its header.
_ETHERNET, _LINK_HEADER = 1, 14
_ETHERTYPE_IPV4, _TAGS = 0x0800, (0x8100, 0x88A8, 0x9100)
_UDP, _TCP = 17, 6
#: Packets whose headers are decoded together: few enough that the gathered bytes stay in cache.
_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class Fields:
    """What the headers of each packet say; arrays of one length, zeros where it does not apply.

    Only what was captured counts: a header that the capture cut short is none. Checksums are not
    verified, since devices fill them in after the packet was captured.

    Parameters
    ----------
    ipv4 : (n,) bool
        It carries IPv4, and the capture holds the first 20 bytes of that header.
    fragment : (n,) bool
        It is a part of an IPv4 datagram, the first one too: it has no ports and no payload here.
    src, dst : (n,) uint32
        IPv4 addresses as numbers.
    protocol : (n,) uint8
        IPv4's number of what it carries: 17 is UDP, 6 is TCP.
    sport, dport : (n,) uint16
        UDP's or TCP's ports.
    payload : (n,) int64
        Where in the buffer UDP's or TCP's payload begins, -1 where there is none.
    payload_length : (n,) int64
        Its bytes, as the headers say: padding of short frames is not counted.
    payload_captured : (n,) int64
        Those of them that the capture holds.
    """

    ipv4: Bools
    fragment: Bools
    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    protocol: NDArray[np.uint8]
    sport: NDArray[np.uint16]
    dport: NDArray[np.uint16]
    payload: Ints
    payload_length: Ints
    payload_captured: Ints

    def select(self, which: NDArray[Any]) -> Fields:
        """Return the fields of some packets, by a mask or by their numbers."""
        return Fields(**{field.name: getattr(self, field.name)[which] for field in fields(self)})


@dataclass(frozen=True, eq=False, repr=False)
class Packets:
    """Packets in the order in which the capture holds them, over one buffer that is never copied.

    Parameters
    ----------
    times_ns : (n,) int64
        When each was stamped, in ns since 1970 by the clock that did it.
    wire, captured : (n,) int64
        Bytes of the frame as it was sent (without preamble and, as a rule, frame check sequence),
        and those of them that the capture holds.
    offsets : (n,) int64
        Where in the buffer each begins.
    buffer : (size,) uint8
        The whole file.
    link : int
        Link type of all of them; 1 is Ethernet.
    left_over : int
        Bytes after the last whole packet, of one that was not written to its end.
    flags : tuple of str
        What is not as it should be: cut off, or empty.
    """

    times_ns: Ints
    wire: Ints
    captured: Ints
    offsets: Ints
    buffer: Bytes
    link: int
    left_over: int = 0
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.times_ns)

    def __repr__(self) -> str:
        flags = f", {'; '.join(self.flags)}" if self.flags else ""
        return f"<{len(self):,} packets of link type {self.link}{flags}>"

    @cached_property
    def fields(self) -> Fields:
        """What the headers say; raises `ToolOutput` for an unknown link type."""
        if self.link != _ETHERNET:
            raise ToolOutput(
                f"packets of link type {self.link} are not supported",
                why="only Ethernet (link type 1) is",
                remedy="capture on an Ethernet device, not on `any`",
            )
        starts = range(0, max(1, len(self)), _BLOCK)
        parts = [(self.offsets[at : at + _BLOCK], self.captured[at : at + _BLOCK]) for at in starts]
        blocks = [_decode(self.buffer, *part) for part in parts]
        names = [field.name for field in fields(Fields)]
        return Fields(**{x: np.concatenate([getattr(one, x) for one in blocks]) for x in names})

    def select(self, which: NDArray[Any]) -> Packets:
        """Return some of the packets, by a mask or by their numbers."""
        if which.dtype == np.bool_:
            which = np.flatnonzero(which)  # numbers are the faster of the two
        names = ("times_ns", "wire", "captured", "offsets")
        some = replace(self, **{name: getattr(self, name)[which] for name in names})
        # Headers are decoded once.
        if "fields" in vars(self):
            vars(some)["fields"] = self.fields.select(which)
        return some

    def where(
        self,
        *,
        src: str | None = None,
        dst: str | None = None,
        sport: int | None = None,
        dport: int | None = None,
        protocol: str | None = None,
    ) -> Packets:
        """Return the packets that agree with all that is given, such as one direction.

        Parameters
        ----------
        src, dst : str, optional
            IPv4 addresses. Where an engine translates addresses, those of the captured side.
        sport, dport : int, optional
            Ports; fragments have none.
        protocol : {"udp", "tcp"}, optional
            Whole UDP datagrams or TCP segments: no fragment, and no header that was cut off.

        Raises
        ------
        UsageError
            Invalid address or unknown protocol.
        """
        keep = np.ones(len(self), dtype=np.bool_)
        for name, address in (("src", src), ("dst", dst)):
            if address is not None:
                try:
                    wanted = int(ipaddress.IPv4Address(address))
                except ValueError as error:
                    raise UsageError(f"invalid IPv4 address {address!r}", why=str(error)) from None
                keep &= self.fields.ipv4 & (getattr(self.fields, name) == wanted)
        for name, port in (("sport", sport), ("dport", dport)):
            if port is not None:
                keep &= (self.fields.payload >= 0) & (getattr(self.fields, name) == port)
        if protocol is not None:
            numbers = {"udp": _UDP, "tcp": _TCP}
            if protocol not in numbers:
                raise UsageError(f"unknown protocol {protocol!r}", remedy=f"one of {[*numbers]}")
            keep &= (self.fields.payload >= 0) & (self.fields.protocol == numbers[protocol])
        return self.select(keep)


def read(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Packets:
    """Read a classic packet capture, in microseconds or nanoseconds and in either byte order.

    Packets may be cut short by the capture's snapshot length. A file that was not written to its
    end keeps its whole packets; `Packets.left_over` and a flag say how many bytes followed.

    Parameters
    ----------
    source : bytes-like, str or path
        The capture itself, or where it is: a str is a path.

    Raises
    ------
    ToolOutput
        The file is missing, empty, damaged or in another format; the error shows its first bytes.
    """
    data, where = _load(source)
    if not len(data):
        raise ToolOutput(
            "the capture is empty",
            where=where,
            why="the file has 0 bytes",
            remedy="was tcpdump ended before it wrote? -U writes each packet at once",
        )
    order, scale, link = _file_header(data, where)
    starts, stop = _walk(data, order)
    heads = _take(data, starts, _RECORD).view(f"{order}u4").astype(np.int64)
    _check_records(data, starts, heads, scale, where)
    left_over = len(data) - stop
    if left_over >= 12:
        (length,) = struct.unpack_from(order + "I", data.data, stop + 8)
        if length > _LONGEST:
            why = f"packet {len(starts) + 1:,} would have {length:,} bytes, over {_LONGEST:,}"
            raise _damaged("the capture is damaged", where=where, why=why, data=data, at=stop)
    flags = [f"truncated: {left_over} bytes after the last whole packet"] if left_over else []
    flags += [] if len(starts) else ["empty: no packet was captured"]
    return Packets(
        times_ns=heads[:, 0] * 1_000_000_000 + heads[:, 1] * scale,
        wire=heads[:, 3].copy(),
        captured=heads[:, 2].copy(),
        offsets=starts + _RECORD,
        buffer=data,
        link=link,
        left_over=left_over,
        flags=tuple(flags),
    )


def _load(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> tuple[Bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return np.frombuffer(source, dtype=np.uint8), f"{len(source):,} bytes in memory"
    path = Path(source)
    try:
        return np.fromfile(path, dtype=np.uint8), str(path)
    except OSError as error:
        raise ToolOutput(
            "cannot open the capture",
            where=str(path),
            why=str(error),
            remedy="did the capturing program start, and write there?",
        ) from None


def _file_header(data: Bytes, where: str) -> tuple[str, int, int]:
    """Return byte order, ns of a unit of time, and link type."""
    head = data[:8].tobytes()
    if head[:4] == _PCAPNG:
        raise ToolOutput(
            "pcapng captures are not supported",
            where=where,
            why="only classic pcap is",
            remedy="convert it: editcap -F pcap in.pcapng out.pcap (-F nsecpcap keeps ns)",
        )
    if head[:4] not in _MAGICS:
        tools = [tool for magic, tool in _PACKED.items() if head.startswith(magic)]
        why = f"it is compressed: run `{tools[0]}` first" if tools else "unknown first bytes"
        raise _damaged("this is not a packet capture", where=where, why=why, data=data)
    if len(data) < _HEADER:
        why = f"it has {len(data)} bytes, its header alone {_HEADER}"
        raise _damaged("the capture ends within its header", where=where, why=why, data=data)
    order, scale = _MAGICS[head[:4]]
    major, minor = struct.unpack_from(order + "HH", data.data, 4)
    if (major, minor) != (2, 4):
        raise ToolOutput(
            f"captures of version {major}.{minor} are not supported",
            where=where,
            why="before version 2.4 the order of a packet's two lengths was not fixed",
            remedy="`tcpdump -r IN -w OUT` writes it in version 2.4",
        )
    # The upper half of the link type may say how long the frame check sequence is.
    return order, scale, struct.unpack_from(order + "I", data.data, 20)[0] & 0xFFFF


def _check_records(data: Bytes, starts: Ints, heads: Ints, scale: int, where: str) -> None:
    """Raise `ToolOutput` for the first packet whose lengths or time are impossible."""
    parts, captured, wire = heads[:, 1], heads[:, 2], heads[:, 3]
    wrong = (captured > wire) | (wire == 0) | (parts * scale >= 1_000_000_000)
    if wrong.any():
        place = int(wrong.argmax())
        why = (
            f"packet {place + 1:,} has {captured[place]:,} bytes captured of {wire[place]:,}, "
            f"and {parts[place] * scale:,} ns past the second"
        )
        at = int(starts[place])
        raise _damaged("the capture is damaged", where=where, why=why, data=data, at=at)


def _damaged(what: str, *, where: str, why: str, data: Bytes, at: int = 0) -> ToolOutput:
    shown = data[at : at + 32].tobytes()
    return ToolOutput(
        what,
        where=where,
        why=f"{why}; {f'from byte {at:,}' if at else 'it begins with'}: {shown.hex(' ')}",
        remedy="capture again with `tcpdump --time-stamp-precision=nano -w FILE`; "
        "what another tool can read of it, `editcap -F nsecpcap IN OUT` writes anew",
        evidence={"bytes": shown.hex(), "at": at, "size": len(data)},
    )


def _walk(data: Bytes, order: str) -> tuple[Ints, int]:
    """Return where each whole record begins, and the first byte that belongs to none of them.

    A record says only how long it is, so the next one is found through it. Where neighbours are
    equally long, as in a ping-pong, whole runs are checked at once.
    """
    parts, place, ahead = [], _HEADER, 0
    while True:
        # One record after the other would wait for memory each time: what the next ones take, if
        # they are as long as those before, is fetched at one go (twice as fast).
        data[place : place + min(ahead, _NEAR) : _LINE].max(initial=0)
        starts, after = _singly(data, place, order)
        place, ahead = after, after - place
        parts.append(starts)
        if len(starts) < _SINGLE:
            return np.concatenate(parts), place
        run, place = _run(data, place, int(starts[-1] - starts[-2]), order)
        parts.append(run)


def _singly(data: Bytes, place: int, order: str) -> tuple[Ints, int]:
    """Return up to `_SINGLE` records from a place on, fewer only where the walk ends."""
    unpack, view = struct.Struct(order + "I").unpack_from, data.data
    found = [place]
    add = found.append
    # Nothing is checked in the loop: the lengths are checked all at once below.
    with suppress(struct.error):  # at the end of the buffer
        for _ in range(_SINGLE):
            place += _RECORD + unpack(view, place + 8)[0]
            add(place)
    places = np.array(found, dtype=np.int64)
    wrong = (np.diff(places) - _RECORD > _LONGEST) | (places[1:] > len(data))
    whole = int(wrong.argmax()) if wrong.any() else len(wrong)
    return places[:whole], int(places[whole])


def _run(data: Bytes, place: int, step: int, order: str) -> tuple[Ints, int]:
    """Return the records from a place on that all are `step` long, at once."""
    whole, count, ahead = (len(data) - place) // step, 0, _AHEAD
    while count < whole:
        some = min(ahead, whole - count)
        start = place + count * step + 8
        lengths: NDArray[np.uint32] = np.ndarray((some,), order + "u4", data, start, (step,))
        other = lengths != step - _RECORD
        if other.any():
            count += int(other.argmax())
            break
        count, ahead = count + some, min(4 * ahead, _FAR)
    return place + step * np.arange(count, dtype=np.int64), place + count * step


def _take(data: Bytes, places: Ints, count: int) -> Bytes:
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


def _unsigned(rows: Bytes, at: int, size: int) -> NDArray[Any]:
    """Return the number of 2 or 4 bytes in network byte order that each row has at a column."""
    return rows[:, at : at + size].view(f">u{size}")[:, 0].astype(f"u{size}")


def _decode(data: Bytes, offsets: Ints, captured: Ints) -> Fields:
    """Return what the headers of some packets say."""
    ends = offsets + captured
    kind, ip = _network(data, offsets)
    rows = _take(data, ip, 20)
    header, total = 4 * (rows[:, 0] & 15).astype(np.int64), _unsigned(rows, 2, 2).astype(np.int64)
    ipv4 = (kind == _ETHERTYPE_IPV4) & (rows[:, 0] >> 4 == 4) & (ip + 20 <= ends)
    ipv4 &= (header >= 20) & (total >= header)
    if not ipv4.all():
        rows[~ipv4] = 0
    fragment = _unsigned(rows, 6, 2) & 0x3FFF != 0  # more follow, or not the first
    carried = np.where(fragment, 0, rows[:, 9])
    ports, payload, length = _transport(data, ip + header, ends, total - header, carried)
    return Fields(
        ipv4=ipv4,
        fragment=fragment,
        src=_unsigned(rows, 12, 4),
        dst=_unsigned(rows, 16, 4),
        protocol=rows[:, 9].copy(),
        sport=_unsigned(ports, 0, 2),
        dport=_unsigned(ports, 2, 2),
        payload=payload,
        payload_length=length,
        payload_captured=np.maximum(np.minimum(ends - payload, length), 0),
    )


def _network(data: Bytes, offsets: Ints) -> tuple[NDArray[Any], Ints]:
    """Return what each Ethernet header says that it carries, and where that begins."""
    rows = _take(data, offsets + _LINK_HEADER - 2, 10)
    kind, begins = _unsigned(rows, 0, 2), offsets + _LINK_HEADER
    # The type is last in the header, so each VLAN tag before it moves it by four bytes.
    outer = np.isin(kind, _TAGS)
    if not outer.any():
        return kind, begins
    inner = outer & np.isin(_unsigned(rows, 4, 2), _TAGS)
    kind = np.where(inner, _unsigned(rows, 8, 2), np.where(outer, _unsigned(rows, 4, 2), kind))
    return kind, begins + 4 * outer + 4 * inner


def _transport(
    data: Bytes, begins: Ints, ends: Ints, inside: Ints, protocol: NDArray[Any]
) -> tuple[Bytes, Ints, Ints]:
    """Return the bytes of ports, where the payload begins (-1: nowhere), and how long it is.

    `inside` is how many bytes IPv4 says that there are from `begins` on.
    """
    rows = _take(data, begins, 13)
    said, words = _unsigned(rows, 4, 2).astype(np.int64), 4 * (rows[:, 12] >> 4).astype(np.int64)
    udp = (protocol == _UDP) & (begins + 8 <= ends) & (said >= 8) & (said <= inside)
    payload, length = begins + 8, said - 8
    if not udp.all():
        tcp = (protocol == _TCP) & (begins + 20 <= ends) & (words >= 20) & (words <= inside)
        payload[tcp], length[tcp] = (begins + words)[tcp], (inside - words)[tcp]
        none = ~(udp | tcp)
        payload[none], length[none], rows[none] = -1, 0, 0
    return rows[:, :4], payload, length


#: What makes a packet the same on both sides: a number for each packet, and where there is one.
Keys = tuple[NDArray[np.uint64], Bools]
Key = Callable[[Packets], Keys]


def number() -> Key:
    """Return the key that is sockperf's message number, which its server sends back as it came.

    It is the first 8 bytes of the payload, in network byte order. A segment of TCP begins with a
    message only if the sender wrote one message at a time, and none longer than a segment.
    """

    def key(packets: Packets) -> Keys:
        there = packets.fields.payload_captured >= 8
        values = np.zeros(len(packets), dtype=np.uint64)
        values[there] = _take(packets.buffer, packets.fields.payload[there], 8).view(">u8")[:, 0]
        return values, there

    return key


def alike(packets: Packets) -> Keys:
    """Return one and the same key for all packets: only of use with ``pair(..., in_turn=True)``."""
    return np.zeros(len(packets), dtype=np.uint64), np.ones(len(packets), dtype=np.bool_)


_ARRIVAL_FLAGS = {
    "lost": "no departure of their key within {longest} ns",
    "repeated": "another arrival of their key within {longest} ns, so they were left out",
    "without key": "the capture holds no key of them",
}
_DEPARTURE_FLAGS = {
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
        flags = f", {'; '.join(self.flags)}" if self.flags else ""
        return f"<{len(self):,} packets paired{flags}>"

    @property
    def unmatched(self) -> tuple[int, int]:
        """Arrivals and departures that were not paired, for whatever reason."""
        totals = sum(self.arrivals.values()), sum(self.departures.values())
        return totals[0] - len(self), totals[1] - len(self)


class _Events(NamedTuple):
    """Arrivals and departures that have a key, together, by key and then by time."""

    keys: NDArray[np.uint64]
    times: Ints
    arrives: Bools
    place: Ints


def pair(
    arrivals: Packets,
    departures: Packets,
    key: Key | None = None,
    *,
    longest_ns: int = 1_000_000_000,
    in_turn: bool = False,
) -> Paired:
    """Pair each packet's arrival at a system with its departure.

    Rows are not joined by their number, in which one lost packet would shift all that follow: a
    packet is known by its key, and every packet that is not paired is counted with the reason.

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
    key : callable, optional
        What makes two packets the same; `number` by default.
    longest_ns : int
        More than any packet stays, and less than it takes until a key comes again, in ns.
    in_turn : bool
        The client has one message under way at a time, so the next departure of a key is that of
        its last arrival, however often keys come again. With the key `alike` this pairs messages
        without any key; an arrival without its departure before the next one is lost. Wrong for a
        client that sends before it has its answer.

    Raises
    ------
    UsageError
        `longest_ns` is not a positive integer.
    """
    if not isinstance(longest_ns, int) or longest_ns < 1:
        raise UsageError(f"invalid longest_ns: {longest_ns!r}", remedy="a positive integer, in ns")
    events, without = _events(arrivals, departures, key or number())
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
        flags=_flags(of_arrivals, "arrivals", _ARRIVAL_FLAGS, longest_ns)
        + _flags(of_departures, "departures", _DEPARTURE_FLAGS, longest_ns),
    )


def _events(arrivals: Packets, departures: Packets, key: Key) -> tuple[_Events, tuple[int, int]]:
    """Return all that has a key, in order, and how many on each side have none."""
    (first, has_first), (second, has_second) = key(arrivals), key(departures)
    place = np.concatenate([np.flatnonzero(has_first), np.flatnonzero(has_second)])
    arrives = np.arange(len(place)) < has_first.sum()
    keys = np.concatenate([first[has_first], second[has_second]])
    times = np.concatenate([arrivals.times_ns[has_first], departures.times_ns[has_second]])
    # Two stable sorts, so that arrivals come first where times are equal. Captures are nearly in
    # order of time and of number, which such a sort makes use of.
    order = np.argsort(times, kind="stable")
    order = order[np.argsort(keys[order], kind="stable")]
    without = int(len(arrivals) - has_first.sum()), int(len(departures) - has_second.sum())
    return _Events(keys[order], times[order], arrives[order], place[order]), without


def _repeated(events: _Events, longest_ns: int) -> Bools:
    """Tell which arrivals have another of their key so near that a departure could be of either."""
    here = np.flatnonzero(events.arrives)
    keys, times = events.keys[here], events.times[here]
    near = (keys[1:] == keys[:-1]) & (np.diff(times) <= longest_ns)
    repeated = np.zeros(len(events.keys), dtype=np.bool_)
    repeated[here[1:][near]] = True
    repeated[here[:-1][near]] = True
    return repeated


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
    counts: dict[str, int], what: str, texts: dict[str, str], longest_ns: int
) -> tuple[str, ...]:
    """Return a flag for every reason for which some packets were not paired."""
    total = sum(counts.values())
    return tuple(
        f"{name}: {counts[name]} of {total} {what}, {text.format(longest=longest_ns)}"
        for name, text in texts.items()
        if counts[name]
    )


_DROPS = {
    "captured": "captured",
    "received": "received by filter",
    "kernel": "dropped by kernel",
    "interface": "dropped by interface",
}


@dataclass(frozen=True)
class Drops:
    """What tcpdump says of one capture when it ends.

    Parameters
    ----------
    captured : int
        Packets that tcpdump took and wrote.
    received : int
        Packets that passed its filter, among them on Linux those that were then dropped, those that
        it had not read when it was ended, and on a loopback every packet twice. So what it did not
        capture of them is no loss, unless it was dropped.
    kernel : int
        Packets for which the kernel's buffer had no room.
    interface : int
        Packets that the device or its driver dropped; tcpdump names them only where there are any.
    """

    captured: int
    received: int
    kernel: int
    interface: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """A flag where packets were dropped: those missing in the file are then no loss of SUT."""
        if not self.kernel + self.interface:
            return ()
        dropped = f"{self.kernel} of {self.received} packets dropped by the kernel"
        return (f"lossy capture: {dropped}, {self.interface} by the interface",)


def parse_drops(text: str) -> Drops:
    """Read the closing lines of tcpdump from all that it wrote to its standard error.

    Counts that it gave when it was asked meanwhile come earlier, and do not count.

    Raises
    ------
    ToolOutput
        A count is missing: tcpdump was killed, or failed; the error shows what it wrote.
    """
    counts = {
        name: re.findall(rf"(?<![\w.,-])(\d+) packets? {words}\b", text)
        for name, words in _DROPS.items()
    }
    missing = [_DROPS[name] for name in ("captured", "received", "kernel") if not counts[name]]
    if missing:
        raise ToolOutput(
            "cannot read tcpdump's closing lines",
            why=f"no count of packets {', '.join(missing)}; it wrote: "
            f"{text.strip()[-600:] or '(nothing)'}",
            remedy="end tcpdump with SIGINT or SIGTERM, and wait until it has ended",
            evidence={"stderr": text[-4000:]},
        )
    return Drops(**{name: int(values[-1]) for name, values in counts.items() if values})
