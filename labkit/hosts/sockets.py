"""Datagrams dropped by UDP sockets, counted by the kernel for each socket.

A datagram is dropped if its socket's queue is full or the socket's filter rejects it: the last
column of ``/proc/PID/net/udp`` (Linux, ``net/ipv4/udp.c``). ``/proc/PID/net/snmp`` has the sum over
all sockets of a network namespace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from labkit.errors import ToolOutput

#: A shell function for scripts: ``sockets PID`` prints the input of `drops`.
SHOW = r"""
sockets() {
    readlink "/proc/$1/fd/"* 2>/dev/null || true
    cat "/proc/$1/net/udp" "/proc/$1/net/udp6" 2>/dev/null || true
}
"""

_OPEN = re.compile(r"^socket:\[(\d+)\]$", re.MULTILINE)
_ROW = re.compile(r"^\s*\d+:\s.*$", re.MULTILINE)
#: The number of fields of a row, and the indices of the inode and the drops.
_FIELDS, _INODE, _DROPS = 13, 9, 12
#: The kernel's counter has 32 bits.
_WRAP = 1 << 32


def drops(text: str) -> dict[str, int]:
    """Return the datagrams dropped so far by each UDP socket of a process, by inode."""
    inodes = set(_OPEN.findall(text))
    counts = {}
    for line in _ROW.findall(text):
        row = line.split()
        if len(row) != _FIELDS or not (row[_INODE].isdigit() and row[_DROPS].isdigit()):
            raise ToolOutput(
                "the kernel's table of UDP sockets cannot be read",
                why=f"not a row of it: {line.strip()!r}",
                evidence={"sockets": text[-4000:]},
            )
        if row[_INODE] in inodes:
            counts[row[_INODE]] = int(row[_DROPS])
    return counts


def dropped_between(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return the datagrams dropped between two results of `drops`.

    A new socket counts from 0; the drops of a socket closed meanwhile are unknown.
    """
    return sum((count - before.get(inode, 0)) % _WRAP for inode, count in after.items())
