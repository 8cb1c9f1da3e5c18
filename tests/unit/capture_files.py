"""Captures made byte by byte, for tests of what reads them."""

import socket
import struct
from functools import partial

CLIENT, SERVER = "198.18.0.1", "198.18.0.2"


def udp(payload, sport=40000, dport=11111):
    return struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload


def ipv4(inner, *, src=CLIENT, dst=SERVER, **changes):
    given = {"first": 0x45, "total": 20 + len(inner), "part": 0, "protocol": 17} | changes
    first, total, part, protocol = given.values()
    head = struct.pack(">BBHHHBBH", first, 0, total, 7, part, 64, protocol, 0)
    return head + socket.inet_aton(src) + socket.inet_aton(dst) + inner


def ethernet(inner, *, kind=2048):
    return bytes(12) + struct.pack(">H", kind) + inner


def message(number, size=14, *, dport=11111, **addresses):
    """Return a frame as sockperf's: its header is a number, flags and a length."""
    payload = struct.pack(">QHI", number, 1, size) + bytes(size - 14)
    return ethernet(ipv4(udp(payload, dport=dport), **addresses))


reply = partial(message, src=SERVER, dst=CLIENT)


def pcap(packets):
    """Return a capture of packets, each with its time in ns since 1970."""
    made = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)]
    for time, packet in packets:
        made += [struct.pack("<IIII", *divmod(time, 10**9), len(packet), len(packet)), packet]
    return b"".join(made)
