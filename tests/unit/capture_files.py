"""Captures made byte by byte, for tests of what reads them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

CLIENT, SERVER = "198.18.0.1", "198.18.0.2"
#: A packet of a capture: ns since 1970, and its bytes.
Stamped = tuple[int, bytes]
MAGICS = {1_000: 0xA1B2C3D4, 1: 0xA1B23C4D}


def udp(payload: bytes, sport: int = 40_000, dport: int = 11_111) -> bytes:
    return struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload


def tcp(payload: bytes, sport: int = 40_000, dport: int = 80, options: bytes = b"") -> bytes:
    words = 5 + len(options) // 4
    return struct.pack(">HHIIBBHHH", sport, dport, 1, 2, words << 4, 24, 512, 0, 0) + (
        options + payload
    )


def ipv4(
    inner: bytes,
    *,
    src: str = CLIENT,
    dst: str = SERVER,
    protocol: int = 17,
    identification: int = 7,
    part: int = 0,
    options: bytes = b"",
) -> bytes:
    first = 0x45 + len(options) // 4
    total = 20 + len(options) + len(inner)
    head = struct.pack(">BBHHHBBH", first, 0, total, identification, part, 64, protocol, 0)
    return head + socket.inet_aton(src) + socket.inet_aton(dst) + options + inner


def ethernet(inner: bytes, *, kind: int = 0x0800) -> bytes:
    return bytes(6) + bytes(6) + struct.pack(">H", kind) + inner


def message(number: int, size: int = 14, **addresses: str) -> bytes:
    """Return a frame as sockperf's: its header is a number, flags and a length."""
    payload = struct.pack(">QHI", number, 1, size) + bytes(size - 14)
    return ethernet(ipv4(udp(payload), **addresses))


def pcap(
    packets: Iterable[Stamped],
    *,
    order: str = "<",
    scale: int = 1,
    link: int = 1,
    snaplen: int = 262_144,
) -> bytes:
    made = [struct.pack(order + "IHHiIII", MAGICS[scale], 2, 4, 0, 0, snaplen, link)]
    for time, packet in packets:
        held, (seconds, ns) = packet[:snaplen], divmod(time, 10**9)
        made.append(struct.pack(order + "IIII", seconds, ns // scale, len(held), len(packet)))
        made.append(held)
    return b"".join(made)
