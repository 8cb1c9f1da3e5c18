"""Captures of tcpdump: headers as a table, and packets paired by arrival and departure.

    packets = pcap.read(captured.packets)
    requests = packets.where(dst="198.18.0.2", protocol="udp")
    replies = packets.where(src="198.18.0.2", protocol="udp")
    paired = pcap.pair(requests, replies)       # by sockperf's message number
    paired.residence_ns, paired.flags

labkit starts tcpdump itself, so a file has one format: Ethernet, times in ns, little-endian
(the manual page pcap-savefile(5)). Times are int64 ns of the clock that stamped the packets.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import ToolOutput

Ints = NDArray[np.int64]
#: The key by which a packet is recognised on both sides, and which packets have one.
Key = Callable[["Packets"], tuple["pd.Series[Any]", "pd.Series[bool]"]]

#: Magic number of times in ns, version 2.4, and the link type of Ethernet.
_FORMAT = (0xA1B23C4D, 2, 4, 1)
#: Bytes of the file's header, and of the one before each packet.
_HEADER, _RECORD = 24, 16
_ETHERNET, _IPV4, _PROTOCOLS = 14, 0x0800, {"udp": 17, "tcp": 6}
_NUMBERS = list(_PROTOCOLS.values())
#: Bytes of UDP's payload in a frame.
_MOST = 1472
#: The longest headers of Ethernet, IPv4 and TCP, and a message number.
_WIDTH = _ETHERNET + 60 + 60 + 8


@dataclass(frozen=True, eq=False)
class Packets:
    """Packets in the order of the capture, and flags of what it lacks.

    A row of `fields` is a packet: `time_ns` (since 1970), and of UDP and TCP over IPv4 `src`,
    `dst`, `protocol` (IPv4's numbers), `sport`, `dport`, `payload_length` (bytes), `number` (the
    first 8 bytes of the payload) and `numbered` (whether the capture holds them). Zeros for
    fragments and everything else.
    """

    fields: pd.DataFrame
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def times_ns(self) -> Ints:
        """When each was stamped, in ns since 1970."""
        times: Ints = self.fields["time_ns"].to_numpy()
        return times

    def select(self, which: Any) -> Packets:
        """Return the packets of a mask."""
        return replace(self, fields=self.fields[np.asarray(which)])

    def where(self, **wanted: str | int) -> Packets:
        """Return the packets with these values: `src`, `dst`, `sport`, `dport`, `protocol`.

        Addresses and protocols ("udp" or "tcp") are text.
        """
        keep = np.ones(len(self), dtype=np.bool_)
        for name, value in wanted.items():
            if name in ("src", "dst"):
                value = int(ipaddress.IPv4Address(value))
            keep &= self.fields[name].to_numpy() == _PROTOCOLS.get(str(value), value)
        return self.select(keep)


def read(content: bytes) -> Packets:
    """Read tcpdump's file; one that was not written to its end keeps its whole packets, flagged."""
    if len(content) < _HEADER or struct.unpack_from("<IHH12xI", content) != _FORMAT:
        raise ToolOutput(
            "this is not a capture of labkit",
            why=f"{len(content)} bytes that begin with: {content[:32].hex(' ')}",
            remedy="capture Ethernet by `tcpdump --time-stamp-precision=nano -w FILE`",
        )
    starts, place = [], _HEADER
    while place + _RECORD <= len(content):
        end = place + _RECORD + int.from_bytes(content[place + 8 : place + 12], "little")
        if end > len(content):
            break
        starts.append(place)
        place = end
    flags = [f"truncated: {len(content) - place} bytes after the last whole packet"]
    flags = flags if place < len(content) else []
    flags += [] if starts else ["empty: no packet was captured"]
    padded = np.frombuffer(content + bytes(_RECORD + _WIDTH), dtype=np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(padded, _RECORD + _WIDTH)[starts]
    heads = rows[:, :_RECORD].copy().view("<u4").astype(np.int64)
    times, captured = heads[:, 0] * 1_000_000_000 + heads[:, 1], heads[:, 2]
    # The bytes after a short packet are those of the next one.
    frames = np.where(np.arange(_WIDTH) < captured[:, None], rows[:, _RECORD:], 0)
    fields = _decode(frames, captured).assign(time_ns=times)
    ours = (frames[:, 12:14] == (8, 0)).all(axis=1) & np.isin(frames[:, 23], _NUMBERS)
    counts = {
        "undecoded: {} packets of UDP or TCP, damaged, cut short or in fragments": int(
            (ours & (fields["protocol"] == 0)).sum()
        ),
        "merged: {} datagrams are longer than a frame, by an offload": int(
            ((fields["protocol"] == _PROTOCOLS["udp"]) & (fields["payload_length"] > _MOST)).sum()
        ),
    }
    flags += [text.format(count) for text, count in counts.items() if count]
    return Packets(fields, tuple(flags))


def _decode(frames: NDArray[np.uint8], captured: Ints) -> pd.DataFrame:
    """Return the fields of the headers; a header that is damaged or cut short counts as missing."""

    def field(at: Any, size: int) -> NDArray[Any]:
        """Return each row's number in network byte order, from its own column on."""
        places = np.broadcast_to(at, len(frames))[:, None] + np.arange(size)
        cells = np.take_along_axis(frames, places, axis=1)
        return cells.view(f">u{size}")[:, 0].astype(np.uint64 if size == 8 else np.int64)

    header, total = 4 * (field(14, 1) & 15), field(16, 2)
    transport, protocol = _ETHERNET + header, field(23, 1)
    udp, words = protocol == _PROTOCOLS["udp"], 4 * (field(transport + 12, 1) >> 4)
    payload = transport + np.where(udp, 8, words)
    length = np.where(udp, field(transport + 4, 2) - 8, total - header - words)
    known = (field(12, 2) == _IPV4) & (field(14, 1) >> 4 == 4) & (header >= 20)
    known &= (field(20, 2) & 0x3FFF == 0) & (udp | (protocol == _PROTOCOLS["tcp"]) & (words >= 20))
    known &= (length >= 0) & (payload + length <= _ETHERNET + total) & (payload <= captured)
    columns = {
        "src": field(26, 4),
        "dst": field(30, 4),
        "protocol": protocol,
        "sport": field(transport, 2),
        "dport": field(transport + 2, 2),
        "payload_length": length,
        "number": field(payload, 8).view(np.int64),
        "numbered": np.minimum(length, captured - payload) >= 8,
    }
    return pd.DataFrame({name: np.where(known, values, 0) for name, values in columns.items()})


def number() -> Key:
    """Return the key that is sockperf's message number, which its server sends back unchanged.

    A segment of TCP begins with a message only if the sender wrote one message at a time.
    """
    return lambda packets: (packets.fields["number"], packets.fields["numbered"] != 0)


def alike(packets: Packets) -> tuple[pd.Series[Any], pd.Series[bool]]:
    """Return the same key for all packets: only of use with ``pair(..., in_turn=True)``."""
    return packets.fields["time_ns"] * 0, packets.fields["time_ns"] != -1


@dataclass(frozen=True, eq=False)
class Paired:
    """Packets that were found on both sides, in the order in which they arrived.

    `arrival` and `departure` are their positions among the given packets; `unmatched` counts the
    arrivals and departures that were not paired, with a flag for every reason.
    """

    #: From each packet's arrival to its departure, in ns, at least 0.
    residence_ns: Ints
    arrival: Ints
    departure: Ints
    unmatched: tuple[int, int]
    flags: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.residence_ns)


def pair(
    arrivals: Packets,
    departures: Packets,
    key: Key | None = None,
    *,
    longest_ns: int = 1_000_000_000,
    in_turn: bool = False,
) -> Paired:
    """Pair each packet's arrival at a system with its departure, both stamped by one clock.

    A departure belongs to the last arrival of its key (`number` by default) that is at most
    `longest_ns` before it; of several the first one counts. Numbers that start over are thus
    distinguished by time. Where a number arrives twice within `longest_ns`, neither is paired, as
    a departure could be of either; unless the client has one message under way at a time
    (`in_turn`).
    """
    arrived, left = (_keyed(packets, key or number()) for packets in (arrivals, departures))
    # Not by `groupby`, whose differences lose the last digits of a time in ns.
    steps = arrived.sort_values("key", kind="stable")[["key", "time"]].diff()
    again = (steps["key"] == 0) & (steps["time"] <= longest_ns) & (not in_turn)
    arrived["repeated"] = again | again.shift(-1, fill_value=False)
    found = pd.merge_asof(
        *(left, arrived),
        on="time",
        by="key",
        tolerance=longest_ns,
        suffixes=("_left", ""),
    ).dropna()
    found = found[~found["repeated"].astype(bool)].drop_duplicates("place").sort_values("place")
    arrival, departure = (found[name].to_numpy(np.int64) for name in ("place", "place_left"))
    paired, repeated = len(found), int(arrived["repeated"].sum())
    unmatched = len(arrivals) - paired, len(departures) - paired
    reasons = {
        "lost": (len(arrived) - repeated - paired, "arrivals did not leave"),
        "repeated": (repeated, "arrivals are left out, since their number came again too soon"),
        "without number": (len(arrivals) - len(arrived), "arrivals have none in the capture"),
        "unmatched": (unmatched[1], "departures have no arrival, or no other one than theirs"),
    }
    return Paired(
        departures.times_ns[departure] - arrivals.times_ns[arrival],
        arrival,
        departure,
        unmatched,
        tuple(f"{name}: {count} {text}" for name, (count, text) in reasons.items() if count),
    )


def _keyed(packets: Packets, key: Key) -> pd.DataFrame:
    """Return key, time and place of the packets that have a key, by time."""
    keys, known = (values.to_numpy() for values in key(packets))
    table = {"key": keys, "time": packets.times_ns, "place": np.arange(len(packets))}
    return pd.DataFrame(table)[known].sort_values("time", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Drops:
    """Counts of tcpdump at its end: packets written, and dropped by kernel and interface."""

    captured: int
    kernel: int
    interface: int

    @property
    def flags(self) -> tuple[str, ...]:
        """A flag where packets were dropped: what the file lacks was then not lost by the SUT."""
        if not self.kernel + self.interface:
            return ()
        kernel = f"{self.kernel} of {self.captured + self.kernel} packets dropped by the kernel"
        return (f"lossy capture: {kernel}, {self.interface} by the interface",)


def parse_drops(text: str) -> Drops:
    """Read tcpdump's closing lines from its standard error; earlier counts are ignored."""
    words = ("captured", "dropped by kernel", "dropped by interface")
    counts = [re.findall(rf"(?<![\w.,-])(\d+) packets? {words}\b", text) for words in words]
    if not counts[0] or not counts[1]:
        raise ToolOutput(
            "cannot read tcpdump's closing lines",
            why=f"no count of packets; it wrote: {text.strip()[-600:] or '(nothing)'}",
            remedy="end tcpdump with SIGINT or SIGTERM, and wait until it has ended",
            evidence={"stderr": text[-4000:]},
        )
    # tcpdump prints the interface's count only if there are drops.
    return Drops(*(int(values[-1]) if values else 0 for values in counts))
