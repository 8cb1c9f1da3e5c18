"""UDP sockets as the kernel tells of them: which a process holds, and what each has dropped.

A datagram that finds its socket's queue full, or that the socket's filter lets not through, is
counted at that socket: the last column of ``/proc/PID/net/udp`` (Linux, ``net/ipv4/udp.c``). The
counters of ``/proc/PID/net/snmp`` hold the same for all sockets of a network namespace together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from labkit.errors import ToolOutput

#: A shell function for scripts: ``sockets PID`` prints what `drops` reads.
SHOW = r"""
sockets() {
    readlink "/proc/$1/fd/"* 2>/dev/null || true
    cat "/proc/$1/net/udp" "/proc/$1/net/udp6" 2>/dev/null || true
}
"""

_HELD = re.compile(r"^socket:\[(\d+)\]$", re.MULTILINE)
_ROW = re.compile(r"^\s*\d+:\s.*$", re.MULTILINE)
#: Fields of a row, and where the inode and the drops are among them.
_FIELDS, _INODE, _DROPS = 13, 9, 12
#: The kernel's counter wraps around here.
_WRAP = 1 << 32


def drops(text: str) -> dict[str, int]:
    """Return how many datagrams each UDP socket of a process has dropped so far."""
    held = set(_HELD.findall(text))
    found = {}
    for line in _ROW.findall(text):
        row = line.split()
        if len(row) != _FIELDS or not (row[_INODE].isdigit() and row[_DROPS].isdigit()):
            raise ToolOutput(
                "the kernel's table of UDP sockets cannot be read",
                why=f"not a row of it: {line.strip()!r}",
                evidence={"sockets": text[-4000:]},
            )
        if row[_INODE] in held:
            found[row[_INODE]] = int(row[_DROPS])
    return found


def dropped_between(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Return how many datagrams were dropped between two measurements of `drops`.

    A socket that was not there before counts from 0; what one dropped that is gone is not known.
    """
    return sum((count - before.get(inode, 0)) % _WRAP for inode, count in after.items())
