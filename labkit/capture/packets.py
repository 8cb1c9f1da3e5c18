"""The packets of a capture, as arrays over one buffer that is never copied."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.capture import headers
from labkit.capture.headers import Fields
from labkit.capture.records import Bools, Bytes, Ints, take
from labkit.errors import UsageError

_PROTOCOLS = {"udp": headers.UDP, "tcp": headers.TCP}


@dataclass(frozen=True, eq=False, repr=False)
class Packets:
    """Packets in the order in which the capture holds them.

    Parameters
    ----------
    times_ns : (n,) int64
        When each was stamped, in ns since 1970 by the clock that did it.
    wire, captured : (n,) int64
        Bytes of the frame as it was sent (without preamble and, as a rule, frame check sequence),
        and those of them that the capture holds.
    offsets : (n,) int64
        Where in the buffer each begins.
    buffer : (size,) uint8
        The whole file.
    link : int
        Link type of all of them; 1 is Ethernet.
    interface : (n,) int64
        Number of the interface that captured it, where the file names several; else 0.
    left_over : int
        Bytes after the last whole packet, of one that was not written to its end.
    flags : tuple of str
        What is not as it should be: cut off, empty, drops that the file itself counts.
    """

    times_ns: Ints
    wire: Ints
    captured: Ints
    offsets: Ints
    buffer: Bytes
    link: int
    interface: Ints
    left_over: int = 0
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.times_ns)

    def __repr__(self) -> str:
        noted = f", {'; '.join(self.flags)}" if self.flags else ""
        return f"<{len(self):,} packets of link type {self.link}{noted}>"

    @cached_property
    def fields(self) -> Fields:
        """What the headers say; raises `ToolOutput` for a link that is not known here."""
        return headers.decode(self.buffer, self.offsets, self.captured, self.link)

    def select(self, which: NDArray[Any]) -> Packets:
        """Return some of the packets, by a mask or by their numbers."""
        if which.dtype == np.bool_:
            which = np.flatnonzero(which)  # numbers are the faster of the two
        names = ("times_ns", "wire", "captured", "offsets", "interface")
        some = replace(self, **{name: getattr(self, name)[which] for name in names})
        # What was read of the headers stays read.
        if "fields" in vars(self):
            vars(some)["fields"] = self.fields.select(which)
        return some

    def where(
        self,
        *,
        src: str | None = None,
        dst: str | None = None,
        sport: int | None = None,
        dport: int | None = None,
        protocol: str | None = None,
        interface: int | None = None,
    ) -> Packets:
        """Return the packets that agree with all that is given, such as one direction.

        Parameters
        ----------
        src, dst : str, optional
            IPv4 addresses. Where an engine translates addresses, those of the captured side.
        sport, dport : int, optional
            Ports; fragments have none.
        protocol : {"udp", "tcp"}, optional
            Whole UDP datagrams or TCP segments: no fragment, and no header that was cut off.
        interface : int, optional
            The interface that captured it.

        Raises
        ------
        UsageError
            For what is no address or no known protocol.
        """
        keep = np.ones(len(self), dtype=np.bool_)
        for name, address in (("src", src), ("dst", dst)):
            if address is not None:
                keep &= self.fields.ipv4 & (getattr(self.fields, name) == _number(address))
        for name, port in (("sport", sport), ("dport", dport)):
            if port is not None:
                keep &= (self.fields.payload >= 0) & (getattr(self.fields, name) == port)
        if protocol is not None:
            if protocol not in _PROTOCOLS:
                raise UsageError(f"unknown protocol {protocol!r}", remedy=f"one of {[*_PROTOCOLS]}")
            keep &= (self.fields.payload >= 0) & (self.fields.protocol == _PROTOCOLS[protocol])
        if interface is not None:
            keep &= self.interface == interface
        return self.select(keep)

    def unsigned(self, at: int, size: int, order: str = "big") -> tuple[NDArray[np.uint64], Bools]:
        """Read an unsigned number at one place of every UDP or TCP payload.

        A segment of TCP is a piece of a stream: a message begins with it only if the sender wrote
        one message at a time, and none of more than a segment.

        Parameters
        ----------
        at : int
            Bytes before it.
        size : int
            Its bytes, 1 to 8.
        order : {"big", "little"}
            Network byte order, or that of most processors.

        Returns
        -------
        values : (n,) uint64
            The numbers; 0 where there is none.
        there : (n,) bool
            Where the capture holds all of its bytes.

        Raises
        ------
        UsageError
            For a place, size or order that cannot be.
        """
        if at < 0 or not 1 <= size <= 8 or order not in ("big", "little"):
            raise UsageError(
                f"no number of {size} bytes at {at}, byte order {order!r}",
                remedy="a place from 0, 1 to 8 bytes, 'big' or 'little'",
            )
        there = self.fields.payload_captured >= at + size
        places = np.flatnonzero(there)
        rows = np.zeros((len(places), 8), dtype=np.uint8)
        columns = slice(8 - size, 8) if order == "big" else slice(0, size)
        rows[:, columns] = take(self.buffer, self.fields.payload[places] + at, size)
        values = np.zeros(len(self), dtype=np.uint64)
        values[places] = rows.view(">u8" if order == "big" else "<u8")[:, 0]
        return values, there


def _number(address: str) -> int:
    try:
        return int(ipaddress.IPv4Address(address))
    except ValueError as error:
        raise UsageError(f"{address!r} is no IPv4 address", why=str(error)) from None


def flags_of(packets: int, left_over: int) -> tuple[str, ...]:
    """Return the flags of a capture that was cut off, or that holds nothing."""
    flags = []
    if left_over:
        flags.append(f"truncated: {left_over} bytes after the last whole packet")
    if not packets:
        flags.append("empty: no packet was captured")
    return tuple(flags)
