"""Packet captures in classic pcap: read as arrays, and paired into residence times.

    packets = pcap.read("eth2.pcap")
    requests = packets.where(dst="198.18.0.2", protocol="udp")
    replies = packets.where(src="198.18.0.2", protocol="udp")
    paired = pcap.pair(requests, replies, pcap.number())     # sockperf's message number
    paired.residence_ns, paired.flags

Times are int64 ns of the clock that stamped the packets. The file format is described in libpcap's
manual page pcap-savefile(5).
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import ToolOutput, UsageError, suggestion

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
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zX": "unxz"}
#: Bytes of the file's header, and of the one before each packet.
_HEADER, _RECORD = 24, 16
#: Zeros after the file's bytes, so that headers can be read at the end of a packet cut short.
_PADDING = 128
#: libpcap captures at most so many bytes of a packet.
_LONGEST = 262_144
#: Packets that are read one by one before a run of equally long ones is looked for.
_SINGLE = 2048
#: Packets that are compared or decoded together: few enough to stay in the processor's cache.
_BLOCK = 16_384

#: The only supported link type, with the length of its header.
_ETHERNET, _LINK_HEADER = 1, 14
_ETHERTYPE_IPV4, _TAGS = 0x0800, (0x8100, 0x88A8, 0x9100)
_UDP, _TCP = 17, 6


@dataclass(frozen=True, eq=False)
class Fields:
    """What the headers of each packet say; arrays of one length, zeros where they do not apply.

    A header that the capture cut short counts as missing. Checksums are not verified, since devices
    fill them in after the packet was captured.

    Parameters
    ----------
    src, dst : (n,) uint32
        IPv4 addresses as numbers.
    protocol : (n,) uint8
        IPv4's protocol number: 17 is UDP, 6 is TCP.
    sport, dport : (n,) uint16
        UDP's or TCP's ports; fragments have none.
    payload : (n,) int64
        Where in the buffer UDP's or TCP's payload begins, -1 where there is none.
    payload_length : (n,) int64
        Its bytes according to the headers, so without the padding of short frames.
    payload_captured : (n,) int64
        Those of them that the capture holds.
    """

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
    """Packets in the order of the capture, over one buffer that is never copied.

    Parameters
    ----------
    times_ns : (n,) int64
        When each was stamped, in ns since 1970.
    captured : (n,) int64
        Bytes of the frame that the capture holds.
    offsets : (n,) int64
        Where in the buffer each begins.
    buffer : (size,) uint8
        The whole file, and some zeros.
    flags : tuple of str
        That the capture is truncated or empty.
    """

    times_ns: Ints
    captured: Ints
    offsets: Ints
    buffer: Bytes
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.times_ns)

    def __repr__(self) -> str:
        return f"<{'; '.join([f'{len(self):,} packets', *self.flags])}>"

    @cached_property
    def fields(self) -> Fields:
        """What the headers say."""
        starts = range(0, max(1, len(self)), _BLOCK)
        parts = [(self.offsets[at : at + _BLOCK], self.captured[at : at + _BLOCK]) for at in starts]
        blocks = [_decode(self.buffer, *part) for part in parts]
        names = [field.name for field in fields(Fields)]
        return Fields(**{x: np.concatenate([getattr(block, x) for block in blocks]) for x in names})

    def select(self, which: NDArray[Any]) -> Packets:
        """Return some of the packets, by a mask or by their numbers."""
        if which.dtype == np.bool_:
            which = np.flatnonzero(which)  # numbers are the faster of the two
        names = ("times_ns", "captured", "offsets")
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
        """Return the packets that meet all conditions, such as those of one direction.

        Parameters
        ----------
        src, dst : str, optional
            IPv4 addresses; where an engine translates them, those of the captured side.
        sport, dport : int, optional
            Ports; fragments have none.
        protocol : {"udp", "tcp"}, optional
            UDP datagrams or TCP segments with a complete header, and no fragments.

        Raises
        ------
        UsageError
            Invalid address or unknown protocol.
        """
        keep = np.ones(len(self), dtype=np.bool_)
        for name, address in (("src", src), ("dst", dst)):
            if address is not None:
                try:
                    value = int(ipaddress.IPv4Address(address))
                except ValueError as error:
                    raise UsageError(f"invalid IPv4 address {address!r}", why=str(error)) from None
                keep &= getattr(self.fields, name) == value
        for name, port in (("sport", sport), ("dport", dport)):
            if port is not None:
                keep &= (self.fields.payload >= 0) & (getattr(self.fields, name) == port)
        if protocol is not None:
            numbers = {"udp": _UDP, "tcp": _TCP}
            if protocol not in numbers:
                raise UsageError(
                    f"unknown protocol {protocol!r}", remedy=suggestion(protocol, numbers)
                )
            keep &= (self.fields.payload >= 0) & (self.fields.protocol == numbers[protocol])
        return self.select(keep)


def read(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Packets:
    """Read a classic packet capture of Ethernet, in microseconds or ns, in either byte order.

    Packets may be cut short by the capture's snapshot length. A file that was not written to its
    end keeps its complete packets, and a flag has the number of bytes that follow.

    Parameters
    ----------
    source : bytes-like, str or path
        The capture itself, or its path.

    Raises
    ------
    ToolOutput
        The file is missing, empty, damaged or in another format; the error shows its first bytes.
    """
    content, where = _load(source)
    if not len(content):
        raise ToolOutput(
            "the capture is empty",
            where=where,
            why="the file has 0 bytes",
            remedy="was tcpdump ended before it wrote? -U writes each packet at once",
        )
    order, scale = _file_header(content, where)
    starts, stop = _walk(content, order)
    data = np.concatenate([content, np.zeros(_PADDING, dtype=np.uint8)])
    heads = _take(data, starts, _RECORD).view(f"{order}u4").astype(np.int64)
    seconds, fractions, captured, wire = heads.T
    wrong = (captured > wire) | (wire == 0) | (fractions * scale >= 1_000_000_000)
    if wrong.any():
        n = int(wrong.argmax())
        why = (
            f"packet {n + 1:,} has {captured[n]:,} bytes captured of {wire[n]:,}, "
            f"and {fractions[n] * scale:,} ns past the second"
        )
        raise _damaged("the capture is damaged", where, why, content, int(starts[n]))
    left_over = len(content) - stop
    if left_over >= 12:
        (length,) = struct.unpack_from(order + "I", content.data, stop + 8)
        if length > _LONGEST:
            why = f"packet {len(starts) + 1:,} would have {length:,} bytes, over {_LONGEST:,}"
            raise _damaged("the capture is damaged", where, why, content, stop)
    flags = [f"truncated: {left_over} bytes after the last whole packet"] if left_over else []
    flags += [] if len(starts) else ["empty: no packet was captured"]
    times = seconds * 1_000_000_000 + fractions * scale
    return Packets(times, captured.copy(), starts + _RECORD, data, tuple(flags))


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


def _file_header(data: Bytes, where: str) -> tuple[str, int]:
    """Return the byte order, and the ns of a unit of time."""
    magic = data[:4].tobytes()
    if magic == _PCAPNG:
        raise ToolOutput(
            "pcapng captures are not supported",
            where=where,
            why="only classic pcap is",
            remedy="convert it: editcap -F pcap in.pcapng out.pcap (-F nsecpcap keeps ns)",
        )
    if magic not in _MAGICS:
        tool = _COMPRESSED.get(magic) or _COMPRESSED.get(magic[:2])
        why = f"it is compressed: run `{tool}` first" if tool else "unknown first bytes"
        raise _damaged("this is not a packet capture", where, why, data)
    if len(data) < _HEADER:
        why = f"it has {len(data)} bytes, its header alone {_HEADER}"
        raise _damaged("the capture ends within its header", where, why, data)
    order, scale = _MAGICS[magic]
    major, minor, link = struct.unpack_from(order + "HH12xI", data.data, 4)
    # The upper half of the link type may hold the length of the frame check sequence.
    if (major, minor, link & 0xFFFF) != (2, 4, _ETHERNET):
        raise ToolOutput(
            f"captures of version {major}.{minor} with link type {link & 0xFFFF} are not supported",
            where=where,
            why="only version 2.4 with Ethernet (link type 1) is",
            remedy="`tcpdump -r IN -w OUT` writes version 2.4; capture on an Ethernet device, "
            "not on `any`",
        )
    return order, scale


def _damaged(what: str, where: str, why: str, data: Bytes, at: int = 0) -> ToolOutput:
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
    """Return where each complete record begins, and the first byte after the last of them.

    Each record has to be found through the length of the one before, except where neighbours are
    equally long, as in a ping-pong: these are found a block at a time.
    """
    view, unpack = data.data, struct.Struct(order + "I").unpack_from
    parts, place, step = [np.zeros(0, dtype=np.int64)], _HEADER, _RECORD
    while True:
        singles: list[int] = []
        while len(singles) < _SINGLE and place + _RECORD <= len(data):
            step = _RECORD + unpack(view, place + 8)[0]
            if step > _RECORD + _LONGEST or place + step > len(data):
                break
            singles.append(place)
            place += step
        parts.append(np.array(singles, dtype=np.int64))
        if len(singles) < _SINGLE:
            return np.concatenate(parts), place
        ahead = 64
        while count := min(ahead, (len(data) - place) // step):
            lengths: NDArray[np.uint32] = np.ndarray((count,), order + "u4", data, place + 8, step)
            other = lengths != step - _RECORD
            same = int(other.argmax()) if other.any() else count
            parts.append(place + step * np.arange(same))
            place += step * same
            if same < count:
                break
            ahead = min(4 * ahead, _BLOCK)


def _take(data: Bytes, places: Ints, count: int) -> Bytes:
    """Return `count` bytes from each place, as (n, count)."""
    # One overlapping cell per byte: selecting cells copies each row at once, without an index of
    # every byte.
    cells: NDArray[np.void] = np.ndarray((len(data) - count + 1,), f"V{count}", data, 0, (1,))
    return cells[places].view(np.uint8).reshape(-1, count)


def _unsigned(rows: Bytes, at: int, size: int) -> NDArray[Any]:
    """Return each row's number of 2 or 4 bytes in network byte order at a column."""
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
    """Return the EtherType of each packet, and where its payload begins."""
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
    """Return the bytes of ports, where the payload begins (-1: nowhere), and its length.

    `inside` is the number of bytes from `begins` on according to the IPv4 header.
    """
    rows = _take(data, begins, 13)
    length, words = _unsigned(rows, 4, 2).astype(np.int64), 4 * (rows[:, 12] >> 4).astype(np.int64)
    udp = (protocol == _UDP) & (begins + 8 <= ends) & (length >= 8) & (length <= inside)
    payload, length = begins + 8, length - 8
    if not udp.all():
        tcp = (protocol == _TCP) & (begins + 20 <= ends) & (words >= 20) & (words <= inside)
        payload[tcp], length[tcp] = (begins + words)[tcp], (inside - words)[tcp]
        none = ~(udp | tcp)
        payload[none], length[none], rows[none] = -1, 0, 0
    return rows[:, :4], payload, length


#: The key by which a packet is recognised on both sides, and which packets have one.
Keys = tuple[NDArray[np.uint64], Bools]
Key = Callable[[Packets], Keys]


def number() -> Key:
    """Return the key that is sockperf's message number, which its server sends back unchanged.

    It is the first 8 bytes of the payload, in network byte order. A segment of TCP begins with a
    message only if the sender wrote one message at a time, and none longer than a segment.
    """

    def key(packets: Packets) -> Keys:
        numbered = packets.fields.payload_captured >= 8
        values = np.zeros(len(packets), dtype=np.uint64)
        payload = packets.fields.payload[numbered]
        values[numbered] = _take(packets.buffer, payload, 8).view(">u8")[:, 0]
        return values, numbered

    return key


def alike(packets: Packets) -> Keys:
    """Return the same key for all packets: only of use with ``pair(..., in_turn=True)``."""
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
        From each packet's arrival to its departure, at least 0.
    arrival, departure : (n,) int64
        Their indices among the given arrivals and departures.
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
        return f"<{'; '.join([f'{len(self):,} packets paired', *self.flags])}>"

    @property
    def unmatched(self) -> tuple[int, int]:
        """Arrivals and departures that were not paired, for whatever reason."""
        totals = sum(self.arrivals.values()), sum(self.departures.values())
        return totals[0] - len(self), totals[1] - len(self)


def pair(
    arrivals: Packets,
    departures: Packets,
    key: Key | None = None,
    *,
    longest_ns: int = 1_000_000_000,
    in_turn: bool = False,
) -> Paired:
    """Pair each packet's arrival at a system with its departure.

    A packet is recognised by its key, since one lost packet would shift all that follow if rows
    were joined by position; every packet that is not paired is counted with the reason.

    A departure belongs to the last arrival of its key before it (or at the same time), if that is
    no more than `longest_ns` ago; of several the first one counts, and the others are duplicates.
    Numbers that start over or wrap around are thus distinguished by time, as long as no packet
    stays longer than it takes until its number returns. Where a number arrives twice within
    `longest_ns`, a departure could be of either: all of them are left out, and counted as repeated.

    Parameters
    ----------
    arrivals, departures : Packets
        Both directions, stamped by one clock; see `Packets.where`. In any order.
    key : callable, optional
        By what packets are recognised; `number` by default.
    longest_ns : int
        More than any packet stays, and less than it takes until a key returns, in ns.
    in_turn : bool
        The client has one message under way at a time, so the next departure of a key is that of
        its last arrival, however often keys return. With the key `alike` this pairs messages
        without any key; an arrival without its departure before the next one is lost. Wrong for a
        client that sends before it has its answer.

    Raises
    ------
    UsageError
        `longest_ns` is not a positive integer.
    """
    if not isinstance(longest_ns, int) or longest_ns < 1:
        raise UsageError(f"invalid longest_ns: {longest_ns!r}", remedy="a positive integer, in ns")
    arrived, left = (_keyed(packets, key or number()) for packets in (arrivals, departures))
    repeated = np.zeros(len(arrivals), dtype=np.bool_)
    if not in_turn:
        by_key = arrived.sort_values("key", kind="stable")
        near = (by_key["key"].diff() == 0) & (by_key["time"].diff() <= longest_ns)
        repeated[by_key["index"][near | near.shift(-1, fill_value=False)]] = True
    latest = pd.merge_asof(left, arrived, on="time", by="key", suffixes=("", "_arrival"))
    known = latest["index_arrival"].notna().to_numpy()
    arrival = latest["index_arrival"].fillna(0).to_numpy(dtype=np.int64)
    departure = latest["index"].to_numpy()
    wait = np.zeros(len(latest), dtype=np.int64)
    wait[known] = latest["time"].to_numpy()[known] - arrivals.times_ns[arrival[known]]
    unsure, late = known.copy(), known & (wait > longest_ns)
    unsure[known] = repeated[arrival[known]]
    late &= ~unsure
    near_enough = known & ~unsure & ~late
    first = near_enough & ~latest["index_arrival"].where(near_enough).duplicated().to_numpy()
    early = ~known & latest["key"].isin(arrived["key"]).to_numpy()
    of_departures = {
        "paired": int(first.sum()),
        "duplicate": int((near_enough & ~first).sum()),
        "late": int(late.sum()),
        "early": int(early.sum()),
        "stray": int((~known & ~early).sum()),
        "repeated": int(unsure.sum()),
        "without key": len(departures) - len(left),
    }
    left_out = int(repeated.sum())
    of_arrivals = {
        "paired": int(first.sum()),
        "lost": len(arrived) - left_out - int(first.sum()),
        "repeated": left_out,
        "without key": len(arrivals) - len(arrived),
    }
    order = np.argsort(arrival[first], kind="stable")
    return Paired(
        residence_ns=wait[first][order],
        arrival=arrival[first][order],
        departure=departure[first][order],
        arrivals=of_arrivals,
        departures=of_departures,
        flags=_flags(of_arrivals, "arrivals", _ARRIVAL_FLAGS, longest_ns)
        + _flags(of_departures, "departures", _DEPARTURE_FLAGS, longest_ns),
    )


def _keyed(packets: Packets, key: Key) -> pd.DataFrame:
    """Return key, time and index of the packets that have a key, by time."""
    keys, has_key = key(packets)
    index = np.flatnonzero(has_key)
    columns = {"key": keys[index].view(np.int64), "time": packets.times_ns[index], "index": index}
    return pd.DataFrame(columns).sort_values("time", kind="stable")


def _flags(
    counts: dict[str, int], what: str, texts: dict[str, str], longest_ns: int
) -> tuple[str, ...]:
    """Return a flag for each reason for which packets were not paired."""
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
    """tcpdump's counts of one capture.

    Parameters
    ----------
    captured : int
        Packets that tcpdump wrote.
    received : int
        Packets that passed its filter. On Linux these include packets that were then dropped, that
        it had not read when it was ended, and on a loopback every packet twice: a difference from
        `captured` is not a loss.
    kernel : int
        Packets for which the kernel's buffer had no room.
    interface : int
        Packets that the device or its driver dropped; tcpdump prints them only if there are any.
    """

    captured: int
    received: int
    kernel: int
    interface: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """A flag where packets were dropped: what the file lacks was then not lost by the SUT."""
        if not self.kernel + self.interface:
            return ()
        dropped = f"{self.kernel} of {self.received} packets dropped by the kernel"
        return (f"lossy capture: {dropped}, {self.interface} by the interface",)


def parse_drops(text: str) -> Drops:
    """Read tcpdump's closing lines from its standard error; earlier counts are ignored.

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
