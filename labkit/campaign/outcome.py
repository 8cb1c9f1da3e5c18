"""What is said of a trial: the commands it ran, validity rules that it broke, why it failed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import LabkitError

#: Longer arguments are programs of ours, which the plan's identity holds as code.
_LONGEST = 1000


def brief(argv: Sequence[str]) -> list[str]:
    """Return a command for the record, in which a long argument is its length and digest."""
    return [
        word
        if len(word) <= _LONGEST
        else f"<{len(word)} characters, sha256 {hashlib.sha256(word.encode()).hexdigest()[:16]}>"
        for word in argv
    ]


#: Steal on one CPU, as a share of a window whose load is about a third of it.
_STEAL = 0.003


def validity(found: Mapping[str, float], values: Mapping[str, Any]) -> list[str]:
    """Return the validity rules that a measured trial breaks; it is flagged, never dropped."""
    flags = []
    if values.get("affinity") in ("split", "same") and found.get("migrations", 0) > 0:
        flags.append(f"server migrated {found['migrations']:.0f} times")
    if found.get("steal_worst", 0) > _STEAL:
        flags.append(f"steal {found['steal_worst']:.1%} of a CPU")
    if found.get("Udp.RcvbufErrors", 0) > 0:
        flags.append(f"{found['Udp.RcvbufErrors']:.0f} datagrams dropped at the socket")
    if values.get("wait") == "busy_poll" and not found.get("TcpExt.BusyPollRxPackets"):
        flags.append("busy polling took no packet")
    return flags


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as the record of a failed trial keeps it."""
    if isinstance(error, LabkitError):
        return error.as_record()
    return {
        "type": type(error).__name__,
        "what": str(error) or type(error).__name__,
        "evidence": {},
    }
