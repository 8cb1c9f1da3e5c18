"""What makes a packet the same packet on both sides: its key.

A key is a function from packets to a number each, and to where there is one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labkit.capture.packets import Packets
from labkit.capture.records import Bools, take
from labkit.errors import UsageError

Keys = tuple[NDArray[np.uint64], Bools]
Key = Callable[[Packets], Keys]

#: Multipliers of splitmix64 (Steele, Lea & Flood 2014), which spread every bit over all.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def number(at: int = 0, size: int = 8, order: str = "big") -> Key:
    """Return the key that is a number in the payload of UDP or TCP.

    The default is sockperf's: its header begins with a message's number, in 8 bytes and network
    byte order, which its server sends back as it came.

    Parameters
    ----------
    at, size, order
        Where it stands; see `Packets.unsigned`.
    """

    def key(packets: Packets) -> Keys:
        return packets.unsigned(at, size, order)

    return key


def identification(packets: Packets) -> Keys:
    """Return IPv4's number of each datagram, for what forwards datagrams as they are.

    It has 16 bits, so it comes again after 65,536 packets at most, and some systems write 0 into
    every datagram that must not be fragmented. A program that receives and sends anew, such as
    socat or an echo server, makes a new number.
    """
    there = packets.fields.ipv4 & ~packets.fields.fragment
    return packets.fields.identification.astype(np.uint64), there


def payload(most: int = 64) -> Key:
    """Return the key that is the payload itself, for messages that bear no number.

    Two payloads that differ have one key with probability 2**-64, so some two of a million do with
    less than 1e-7. Payloads that are alike are told apart by nothing: `pair` flags them.

    Parameters
    ----------
    most : int
        Look at so many bytes from the front, and at the payload's whole length. A packet of which
        the capture holds fewer of them has no key, so choose no more than the snapshot length
        leaves on both sides.

    Raises
    ------
    UsageError
        Fewer than one byte.
    """
    if most < 1:
        raise UsageError(f"a key of {most} bytes tells nothing apart", remedy="1 at least")

    def key(packets: Packets) -> Keys:
        found = packets.fields
        wanted = np.minimum(found.payload_length, most)
        there = (found.payload_length > 0) & (found.payload_captured >= wanted)
        begins, left = found.payload[there], wanted[there]
        mixed = _mix(found.payload_length[there].astype(np.uint64))
        for done in range(0, int(left.max(initial=0)), 8):
            live = left > done
            words = take(packets.buffer, begins[live] + done, 8).view("<u8")[:, 0]
            # Beyond its end a word is padding, or another packet.
            unused = 8 * (8 - np.minimum(left[live] - done, 8)).astype(np.uint64)
            words = (words << unused) >> unused
            mixed[live] = _mix(mixed[live] ^ words)
        values = np.zeros(len(packets), dtype=np.uint64)
        values[there] = mixed
        return values, there

    return key


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def alike(packets: Packets) -> Keys:
    """Return one and the same key for all packets: only of use with ``pair(..., in_turn=True)``."""
    return np.zeros(len(packets), dtype=np.uint64), np.ones(len(packets), dtype=np.bool_)
