"""Packet captures: read as arrays, and paired into how long each packet stayed inside.

    packets = capture.read("eth2.pcap")
    requests = packets.where(dst="198.18.0.2", protocol="udp")
    replies = packets.where(src="198.18.0.2", protocol="udp")
    paired = capture.pair(requests, replies, capture.number())     # sockperf's number
    paired.residence_ns, paired.flags

Nothing here runs a tool or touches a host: bytes in, arrays out. Times are int64 ns, all of the
clock that stamped the packets.
"""

from labkit.capture.drops import Drops, parse_drops
from labkit.capture.forwarding import store_forward
from labkit.capture.headers import Fields
from labkit.capture.keys import Key, alike, identification, number, payload
from labkit.capture.packets import Packets
from labkit.capture.pairing import Paired, pair
from labkit.capture.reading import read

__all__ = ["Drops", "Fields", "Key", "Packets", "Paired", "alike", "identification", "number"]
__all__ += ["pair", "parse_drops", "payload", "read", "store_forward"]
