"""The headers of all packets at once: link, VLAN tags, IPv4, UDP and TCP, gathered as columns.

Only what was captured is believed: a header that the capture cut short is none. Checksums are not
looked at, since devices fill them in after the packet was captured.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.capture.records import Bools, Bytes, Ints, number, take
from labkit.errors import ToolOutput

EN10MB, RAW, SLL, IPV4, SLL2 = 1, 101, 113, 228, 276
#: Where a link's header names what it carries, and how long it is.
_LINKS = {EN10MB: (12, 14), SLL: (14, 16), SLL2: (0, 20)}
#: Links without a header; 12 and 14 are what some systems wrote for RAW.
_BARE = (RAW, IPV4, 12, 14)
_ETHERTYPE_IPV4 = 0x0800
_TAGS = (0x8100, 0x88A8, 0x9100)
UDP, TCP = 17, 6
#: Packets whose headers are read together: few enough that what is gathered of them stays near.
_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class Fields:
    """What the headers of each packet say; arrays of one length, zeros where it does not apply.

    Parameters
    ----------
    ipv4 : (n,) bool
        It carries IPv4, and the capture holds the first 20 bytes of that header.
    fragment : (n,) bool
        It is a part of an IPv4 datagram, the first one too: it has no ports and no payload here.
    src, dst : (n,) uint32
        IPv4 addresses as numbers.
    protocol : (n,) uint8
        IPv4's number of what it carries: 17 is UDP, 6 is TCP.
    identification : (n,) uint16
        IPv4's number of the datagram.
    sport, dport : (n,) uint16
        UDP's or TCP's ports.
    payload : (n,) int64
        Where in the buffer UDP's or TCP's payload begins, -1 where there is none.
    payload_length : (n,) int64
        Its bytes, as the headers say: padding of short frames is not counted.
    payload_captured : (n,) int64
        Those of them that the capture holds.
    """

    ipv4: Bools
    fragment: Bools
    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    protocol: NDArray[np.uint8]
    identification: NDArray[np.uint16]
    sport: NDArray[np.uint16]
    dport: NDArray[np.uint16]
    payload: Ints
    payload_length: Ints
    payload_captured: Ints

    def select(self, which: NDArray[Any]) -> Fields:
        """Return the fields of some packets, by a mask or by their numbers."""
        return Fields(**{one.name: getattr(self, one.name)[which] for one in fields(self)})


def decode(data: Bytes, offsets: Ints, captured: Ints, link: int) -> Fields:
    """Read the headers of packets.

    Parameters
    ----------
    data : (size,) uint8
        The buffer that holds them.
    offsets, captured : (n,) int64
        Where each packet begins, and how many bytes of it there are.
    link : int
        The link type, as the capture names it.

    Returns
    -------
    Fields

    Raises
    ------
    ToolOutput
        Headers of that link are not known here.
    """
    starts = range(0, max(1, len(offsets)), _BLOCK)
    parts = [
        _decode(data, offsets[at : at + _BLOCK], captured[at : at + _BLOCK], link) for at in starts
    ]
    names = [one.name for one in fields(Fields)]
    return Fields(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})


def _decode(data: Bytes, offsets: Ints, captured: Ints, link: int) -> Fields:
    ends = offsets + captured
    kind, ip = _network(data, offsets, link)
    rows = take(data, ip, 20)
    header, total = 4 * (rows[:, 0] & 15).astype(np.int64), number(rows, 2, 2).astype(np.int64)
    ipv4 = (kind == _ETHERTYPE_IPV4) & (rows[:, 0] >> 4 == 4) & (ip + 20 <= ends)
    ipv4 &= (header >= 20) & (total >= header)
    # Of other packets nothing is said.
    if not ipv4.all():
        rows[~ipv4] = 0
    fragment = number(rows, 6, 2) & 0x3FFF != 0  # more follow, or not the first
    carried = np.where(fragment, 0, rows[:, 9])
    ports, payload, length = _transport(data, ip + header, ends, total - header, carried)
    return Fields(
        ipv4=ipv4,
        fragment=fragment,
        src=number(rows, 12, 4),
        dst=number(rows, 16, 4),
        protocol=rows[:, 9].copy(),
        identification=number(rows, 4, 2),
        sport=number(ports, 0, 2),
        dport=number(ports, 2, 2),
        payload=payload,
        payload_length=length,
        payload_captured=np.maximum(np.minimum(ends - payload, length), 0),
    )


def _network(data: Bytes, offsets: Ints, link: int) -> tuple[NDArray[Any], Ints]:
    """Return what each link header says that it carries, and where that begins."""
    if link in _BARE:
        return np.full(len(offsets), _ETHERTYPE_IPV4, dtype=np.uint16), offsets
    if link not in _LINKS:
        raise ToolOutput(
            f"packets of link type {link} cannot be read here",
            why=f"known are Ethernet ({EN10MB}), Linux cooked ({SLL}, {SLL2}) and raw IP ({RAW})",
            remedy="capture on an Ethernet device",
        )
    at, size = _LINKS[link]
    rows = take(data, offsets + at, 10)
    kind, begins = number(rows, 0, 2), offsets + size
    if at + 2 != size:
        return kind, begins
    # The type stands last in the header, so each tag before it moves it by four bytes.
    outer = np.isin(kind, _TAGS)
    if not outer.any():
        return kind, begins
    inner = outer & np.isin(number(rows, 4, 2), _TAGS)
    kind = np.where(inner, number(rows, 8, 2), np.where(outer, number(rows, 4, 2), kind))
    return kind, begins + 4 * outer + 4 * inner


def _transport(
    data: Bytes, begins: Ints, ends: Ints, inside: Ints, protocol: NDArray[Any]
) -> tuple[Bytes, Ints, Ints]:
    """Return the bytes of ports, where the payload begins (-1: nowhere), and how long it is.

    `inside` is how many bytes IPv4 says that there are from `begins` on.
    """
    rows = take(data, begins, 13)
    said, words = number(rows, 4, 2).astype(np.int64), 4 * (rows[:, 12] >> 4).astype(np.int64)
    udp = (protocol == UDP) & (begins + 8 <= ends) & (said >= 8) & (said <= inside)
    payload, length = begins + 8, said - 8
    if not udp.all():
        tcp = (protocol == TCP) & (begins + 20 <= ends) & (words >= 20) & (words <= inside)
        payload[tcp], length[tcp] = (begins + words)[tcp], (inside - words)[tcp]
        none = ~(udp | tcp)
        payload[none], length[none], rows[none] = -1, 0, 0
    return rows[:, :4], payload, length
