"""Captures of tcpdump: datagrams of UDP as a table, and pairs of an arrival and a departure.

labkit starts tcpdump itself, so a file has one format: Ethernet, times in ns, little-endian
(the manual page pcap-savefile(5)), and it captures UDP only.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import ToolOutput

#: Magic number of times in ns, version 2.4, and the link type of Ethernet.
_FORMAT = (0xA1B23C4D, 2, 4, 1)
#: Bytes of the file's header, of that before each packet, and of all headers of a datagram; and
#: the most bytes of UDP's payload in a frame.
_HEADER, _RECORD, _HEADERS, _MOST = 24, 16, 42, 1472
#: A packet with the header before it: Ethernet, IPv4 without options, UDP, a message's number.
_PACKET = np.dtype(
    [
        *[("s", "<u4"), ("ns", "<u4"), ("captured", "<u4"), ("length", "<u4")],
        *[("macs", "V12"), ("kind", ">u2"), ("version", "u1"), ("service", "u1"), ("total", ">u2")],
        *[("id", ">u2"), ("part", ">u2"), ("ttl", "u1"), ("protocol", "u1"), ("check", ">u2")],
        *[("src", ">u4"), ("dst", ">u4"), ("sport", ">u2"), ("dport", ">u2")],
        *[("udp", ">u2"), ("udp_check", ">u2"), ("number", ">u8")],
    ]
)


@dataclass(frozen=True, eq=False)
class Capture:
    """Packets in the order of a capture, how many tcpdump lost, and flags of what it lacks.

    A row of `packets` is a packet: `time_ns` (since 1970), and of a datagram `src`, `dst` (IPv4 as
    numbers), `sport`, `dport`, `size` (bytes of payload), `number` (its first 8 bytes) and
    `numbered` (whether the capture holds these). Anything else has zeros, and is flagged.
    """

    packets: pd.DataFrame
    dropped: int
    flags: tuple[str, ...]


def _flags(counts: dict[str, Any]) -> tuple[str, ...]:
    return tuple(text.format(count) for text, count in counts.items() if count)


def read(content: bytes, summary: str) -> Capture:
    """Read tcpdump's file, and what it printed at its end.

    A file that was not written to its end keeps its whole packets, and is flagged.
    """
    if len(content) < _HEADER or struct.unpack_from("<IHH12xI", content) != _FORMAT:
        why = f"{len(content)} bytes that begin with: {content[:32].hex(' ')}"
        remedy = "capture Ethernet by `tcpdump --time-stamp-precision=nano -w FILE`"
        raise ToolOutput("this is not a capture of labkit", why=why, remedy=remedy)
    # Its closing lines come last; it prints the interface's count only if there are drops.
    words = ("captured", "dropped by kernel", "dropped by interface")
    found = [re.findall(rf"(?<![\w.,-])(\d+) packets? {one}\b", summary) for one in words]
    if not found[0] or not found[1]:
        why = f"no count of packets; it wrote: {summary.strip()[-600:] or '(nothing)'}"
        remedy = "end tcpdump with SIGINT or SIGTERM, and wait until it has ended"
        raise ToolOutput("cannot read tcpdump's closing lines", why=why, remedy=remedy)
    written, by_kernel, by_interface = (int(counts[-1]) if counts else 0 for counts in found)
    starts, end = list[int](), _HEADER
    while (start := end) + _RECORD <= len(content):
        end += _RECORD + int.from_bytes(content[start + 8 : start + 12], "little")
        starts += [start]
    if end > len(content):
        end = starts.pop()
    padded = np.frombuffer(content + bytes(_PACKET.itemsize), dtype=np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(padded, _PACKET.itemsize)[starts]
    raw = rows.copy().view(_PACKET)[:, 0]
    size = raw["udp"].astype(np.int64) - 8
    known = (raw["kind"] == 0x0800) & (raw["version"] == 0x45) & (raw["protocol"] == 17)
    known &= (raw["part"] & 0x3FFF == 0) & (raw["captured"] >= _HEADERS)
    known &= (size >= 0) & (size <= raw["total"].astype(np.int64) - 28)
    # The bytes after a short packet are those of the next one.
    numbered = known & (np.minimum(size, raw["captured"].astype(np.int64) - _HEADERS) >= 8)
    columns = {name: np.where(known, raw[name], 0) for name in ("src", "dst", "sport", "dport")}
    columns |= {"size": np.where(known, size, 0), "number": np.where(numbered, raw["number"], 0)}
    packets = pd.DataFrame({name: values.astype(np.int64) for name, values in columns.items()})
    packets["numbered"] = numbered
    packets["time_ns"] = raw["s"].astype(np.int64) * 1_000_000_000 + raw["ns"]
    dropped = f"{by_kernel} of {written + by_kernel} packets dropped by the kernel"
    counts = {
        "truncated: {} bytes after the last whole packet": len(content) - end,
        "empty: no packet was captured": not starts,
        "undecoded: {} packets are not whole datagrams of UDP": (~known).sum(),
        "merged: {} datagrams are longer than a frame, by an offload": (size[known] > _MOST).sum(),
        f"lossy capture: {dropped}, {by_interface} by the interface": by_kernel + by_interface,
    }
    return Capture(packets, by_kernel + by_interface, _flags(counts))


def pair(
    arrivals: pd.DataFrame,
    departures: pd.DataFrame,
    *,
    longest_ns: int = 1_000_000_000,
    in_turn: bool = False,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Pair each packet's arrival at a system with its departure, both stamped by one clock.

    A departure belongs to the last arrival of its number that is at most `longest_ns` before it; of
    several the first one counts. Numbers that start over are thus distinguished by time. Where a
    number arrives twice within `longest_ns`, neither is paired, as a departure could be of either.
    With `in_turn` one message is under way at a time, and its number does not matter.

    Return the pairs in the order of arrival, with `time_ns` of that and the `residence_ns` until
    the departure, and a flag for each reason why packets have no pair.
    """
    arrived, left = (
        (one.assign(number=0) if in_turn else one[one["numbered"]])[["number", "time_ns"]]
        .sort_values("time_ns", kind="stable")
        .reset_index(drop=True)
        for one in (arrivals, departures)
    )
    arrived["arrival"] = arrived.index
    by_number = arrived.sort_values("number", kind="stable")
    steps = {name: np.diff(by_number[name], prepend=-1) for name in ("number", "time_ns")}
    soon = (steps["number"] == 0) & (steps["time_ns"] <= longest_ns) & (not in_turn)
    again = pd.Series(soon, by_number.index)
    repeated = (again | again.shift(-1, fill_value=False)).sort_index()
    found = pd.merge_asof(left, arrived, on="time_ns", by="number", tolerance=longest_ns)
    found = found.dropna().astype(np.int64)
    found = found[~repeated[found["arrival"]].to_numpy()].drop_duplicates("arrival")
    found = found.sort_values("arrival")
    times = arrived["time_ns"].to_numpy()[found["arrival"]]
    pairs = pd.DataFrame({"time_ns": times, "residence_ns": found["time_ns"].to_numpy() - times})
    counts = {
        "lost: {} arrivals did not leave": len(arrived) - repeated.sum() - len(pairs),
        "repeated: {} arrivals whose number came again too soon are left out": repeated.sum(),
        "without number: {} arrivals have none in the capture": len(arrivals) - len(arrived),
        "unmatched: {} departures are not those of an arrival": len(departures) - len(pairs),
    }
    return pairs, _flags(counts)
