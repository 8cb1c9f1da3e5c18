"""Captures made byte by byte, for tests of what reads them."""

import socket
import struct

CLIENT, SERVER = "198.18.0.1", "198.18.0.2"


def udp(payload: bytes, sport: int = 40_000, dport: int = 11_111) -> bytes:
    return struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload


def ipv4(inner: bytes, *, src: str = CLIENT, dst: str = SERVER, **changes: int) -> bytes:
    given = {"first": 0x45, "total": 20 + len(inner), "part": 0, "protocol": 17} | changes
    first, total, part, protocol = given.values()
    head = struct.pack(">BBHHHBBH", first, 0, total, 7, part, 64, protocol, 0)
    return head + socket.inet_aton(src) + socket.inet_aton(dst) + inner


def ethernet(inner: bytes, *, kind: int = 0x0800) -> bytes:
    return bytes(12) + struct.pack(">H", kind) + inner


def message(number: int, size: int = 14, **addresses: str) -> bytes:
    """Return a frame as sockperf's: its header is a number, flags and a length."""
    payload = struct.pack(">QHI", number, 1, size) + bytes(size - 14)
    return ethernet(ipv4(udp(payload), **addresses))


def pcap(packets) -> bytes:
    """Return a capture of packets, each with its time in ns since 1970."""
    made = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)]
    for time, packet in packets:
        made += [struct.pack("<IIII", *divmod(time, 10**9), len(packet), len(packet)), packet]
    return b"".join(made)
