"""Captures of tcpdump: datagrams of UDP as a table, and pairs of an arrival and a departure.

labkit starts tcpdump itself, so a file has one format: Ethernet, little-endian, times in ns or, by
an old one, us (the manual page pcap-savefile(5)), and it keeps all headers of UDP, and only UDP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit.errors import ToolOutput

#: Bytes of the file's header, and of that before each packet.
_HEADER, _RECORD = 24, 16
#: The first bytes of a file by its unit of time in ns.
_UNITS = {b"\x4d\x3c\xb2\xa1": 1, b"\xd4\xc3\xb2\xa1": 1000}
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
    numbers), `sport`, `dport`, `size` (bytes of payload) and `number` (its first 8 bytes, or 0).
    Anything else has zeros, and is flagged.
    """

    packets: pd.DataFrame
    dropped: int
    flags: tuple[str, ...]


def read(content: bytes, summary: str, size: int = 1472) -> Capture:
    """Read tcpdump's file, and what it printed at its end; messages have up to `size` bytes.

    A file that was not written to its end keeps its whole packets, and is flagged.
    """
    lines = re.findall(r"^(\d+) packets? (captured|dropped by \w+)$", summary, re.MULTILINE)
    printed = {name: int(count) for count, name in lines}
    if "captured" not in printed or len(printed) < len(lines):
        raise ToolOutput("tcpdump did not end once, by itself", why=summary.strip()[-600:])
    if content and content[:4] not in _UNITS:
        raise ToolOutput("a capture is no pcap file", why=f"it begins with {content[:4].hex()}")
    by_kernel, by_interface = (printed.get(f"dropped by {x}", 0) for x in ("kernel", "interface"))
    starts, end = list[int](), _HEADER
    while end < len(content):
        starts += [end]
        end += _RECORD + int.from_bytes(content[end + 8 : end + 12], "little")
    if end > len(content):
        end = starts.pop() if starts else len(content)  # not even its header was written
    padded = np.frombuffer(content + bytes(_PACKET.itemsize), dtype=np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(padded, _PACKET.itemsize)[starts]
    raw = rows.copy().view(_PACKET)[:, 0]
    length = raw["udp"].astype(np.int64) - 8
    known = (raw["kind"] == 0x0800) & (raw["version"] == 0x45) & (raw["part"] & 0x3FFF == 0)
    known &= (raw["protocol"] == 17) & (length >= 0) & (raw["captured"] >= 42 + length.clip(0, 8))
    columns = {name: np.where(known, raw[name], 0) for name in ("src", "dst", "sport", "dport")}
    # The bytes after a short packet are those of the next one.
    columns["number"] = np.where(known & (length >= 8), raw["number"], 0)
    columns["size"] = np.where(known, length, 0)
    packets = pd.DataFrame({name: values.astype(np.int64) for name, values in columns.items()})
    packets["time_ns"] = raw["s"].astype(np.int64) * 1_000_000_000 + raw["ns"] * _UNITS.get(
        content[:4], 1
    )
    dropped = f"{by_kernel} of {printed['captured'] + by_kernel} packets dropped by the kernel"
    merged = (columns["size"] > size).sum()
    counts = {
        "set clock: time goes back in {} places": (np.diff(packets["time_ns"]) < -1_000_000).sum(),
        "truncated: {} bytes after the last whole packet": len(content) - end,
        "empty: no packet was captured": not starts,
        "undecoded: {} packets are not whole datagrams of UDP": (~known).sum(),
        f"merged: {{}} datagrams are longer than {size} bytes, by an offload": merged,
        f"lossy capture: {dropped}, {by_interface} by the interface": by_kernel + by_interface,
    }
    flags = tuple(text.format(count) for text, count in counts.items() if count)
    return Capture(packets, by_kernel + by_interface, flags)


def pair(
    arrivals: pd.DataFrame, departures: pd.DataFrame, *, in_turn: bool = False
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Pair each packet's arrival at a system with its departure, both stamped by one clock.

    A departure belongs to the last arrival of its number before it; of several the first one
    counts. With `in_turn` one message is under way at a time, for a second at most, and its number
    does not matter.

    Return the pairs in the order of arrival, with `time_ns` of that and the `residence_ns` until
    the departure, and a flag for each reason why packets have no pair.
    """
    arrived, left = (
        (one.assign(number=0) if in_turn else one)[["number", "time_ns"]]
        .sort_values("time_ns", kind="stable")
        .reset_index(drop=True)
        for one in (arrivals, departures)
    )
    arrived["arrival"] = arrived.index
    longest = 1_000_000_000 if in_turn else None
    found = pd.merge_asof(left, arrived, on="time_ns", by="number", tolerance=longest)
    found = found.dropna().astype(np.int64).drop_duplicates("arrival").sort_values("arrival")
    times = arrived["time_ns"].to_numpy()[found["arrival"]]
    pairs = pd.DataFrame({"time_ns": times, "residence_ns": found["time_ns"].to_numpy() - times})
    counts = {
        "lost: {} arrivals did not leave": len(arrivals) - len(pairs),
        "unmatched: {} departures are not those of an arrival": len(departures) - len(pairs),
    }
    return pairs, tuple(text.format(count) for text, count in counts.items() if count)
