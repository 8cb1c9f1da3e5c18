"""The rate of virtual links: a token bucket at both ends of each link, in the way out of it.

A link between a host and the switch is full duplex, so each end has a bucket of its own. Frames are
counted with the 24 bytes that Ethernet adds to each on the wire (preamble, check sum and gap).

A bucket is not a wire. A frame that finds tokens passes at once: its own time on the link is not
added to its latency, and nothing is to be taken off for it. Only what comes faster than the rate
waits, or is dropped where `_QUEUE_MS` of frames wait already. A frame that the kernel carries for
several is counted as one. A capture at the switch sees a frame after its sender's bucket, and
before that of the port that it leaves by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost, script
from labkit.rig import netns

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: What passes without waiting: as much as the kernel carries at once, and half a millisecond.
_BURST = 65536
_QUEUE_MS = 10
#: Bytes that a frame takes on the wire beside those that the kernel counts.
_OVERHEAD = "24"

_SET = """
rate=$1 burst=$2 queue=$3 overhead=$4
shift 4
for device in "$@"; do
    tc qdisc replace dev "$device" root tbf rate "$rate" burst "$burst" latency "$queue" \\
        overhead "$overhead"
done
"""
_UNSET = """
for device in "$@"; do
    tc qdisc show dev "$device" root | grep -q '^qdisc tbf' || continue
    tc qdisc del dev "$device" root
done
"""


def bits(rate: str) -> int:
    """Return a rate such as ``"1gbit"`` in bits per second.

    Raises
    ------
    UsageError
        It is no number with one of the units ``kbit``, ``mbit`` and ``gbit``.
    """
    found = re.fullmatch(r"([1-9]\d*)(kbit|mbit|gbit)", rate)
    if not found:
        raise UsageError(
            f"no rate {rate!r} of virtual links",
            remedy='a whole number with kbit, mbit or gbit, such as "virtual:1gbit"',
        )
    return int(found[1]) * _UNITS[found[2]]


def limit(local: LocalHost, rate: str, roles: Iterable[str]) -> None:
    """Give the links of some hosts a rate; "" takes it away again.

    Raises
    ------
    RigError
        The kernel does not have the queueing discipline.
    """
    burst = max(_BURST, bits(rate) // 8 // 2000) if rate else 0
    values = (f"{rate}", f"{burst}", f"{_QUEUE_MS}ms", _OVERHEAD)
    for role in roles:
        for number, port in enumerate(netns.ports(role)):
            ends = ((netns.SWITCH, netns.plug(role, number)), (netns.PREFIX + role, port.interface))
            for name, device in ends:
                text = script(_SET, *values, device) if rate else script(_UNSET, device)
                done = local.run("nsenter", f"--net=/run/netns/{name}", *text, check=False)
                if done.status != 0:
                    raise RigError(
                        f"the link of {role} cannot be given the rate {rate or 'of before'}",
                        where=f"{device} in {name}",
                        why=done.stderr.strip()[-400:],
                        remedy="use a kernel with the token bucket filter (tbf), or the rig "
                        '"virtual", whose links have no rate',
                    )


def words(rate: str) -> str:
    """Return what a rig says of its links' rate; "" where they have none."""
    return f", {bits(rate) / 1e6:g} Mbit/s each way, by a token bucket at each end" if rate else ""


def caveats(rate: str) -> tuple[str, ...]:
    """Return what numbers of links with a rate cannot say; none where they have none."""
    if not rate:
        return ()
    text = (
        f"the links' {bits(rate) / 1e6:g} Mbit/s are token buckets, not wires: a frame that finds "
        "tokens takes no time of its own, and a capture at the switch sees a frame before it waits "
        "in the port that it leaves by"
    )
    return (text,)
