"""Captures made byte by byte, for tests of what reads them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence

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


def ethernet(inner: bytes, *, kind: int = 0x0800, tags: Sequence[int] = ()) -> bytes:
    tagged = b"".join(struct.pack(">HH", tag, 5) for tag in tags)
    return bytes(6) + bytes(6) + tagged + struct.pack(">H", kind) + inner


def sll(inner: bytes, *, kind: int = 0x0800) -> bytes:
    return struct.pack(">HHH8sH", 0, 1, 6, bytes(8), kind) + inner


def sll2(inner: bytes, *, kind: int = 0x0800) -> bytes:
    return struct.pack(">HHIHBB8s", kind, 0, 3, 1, 0, 6, bytes(8)) + inner


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


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(
    order: str = "<", *, link: int = 1, resolution: int | None = 9, offset_s: int = 0
) -> bytes:
    options = option(2, b"eth2", order)
    if resolution is not None:
        options += option(9, bytes([resolution]), order)
    if offset_s:
        options += option(14, struct.pack(order + "q", offset_s), order)
    return block(1, struct.pack(order + "HHI", link, 0, 0) + options + bytes(4), order)


def enhanced(
    ticks: int, packet: bytes, order: str = "<", *, number: int = 0, snaplen: int = 2**18
) -> bytes:
    held = packet[:snaplen]
    lengths = (ticks >> 32, ticks & 0xFFFFFFFF, len(held), len(packet))
    body = struct.pack(order + "IIIII", number, *lengths) + held
    return block(6, body + bytes(-len(body) % 4) + option(2, bytes(4), order) + bytes(4), order)


def statistics(dropped: int, order: str = "<", *, number: int = 0) -> bytes:
    counts = option(4, struct.pack(order + "Q", 900), order)
    counts += option(5, struct.pack(order + "Q", dropped), order) + bytes(4)
    return block(5, struct.pack(order + "III", number, 0, 0) + counts, order)
