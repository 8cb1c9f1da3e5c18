"""From the time between two stamps to the time that a device kept a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import UsageError

#: Frame check sequence, which captures leave out, and the shortest frame without it (802.3).
_CHECK, _SHORTEST = 4, 60


def store_forward(
    residence_ns: ArrayLike,
    wire_bytes: ArrayLike,
    rate_bit_per_s: int,
    stamped: str,
) -> NDArray[np.int64]:
    """Return the latency from a frame's last byte in to its first byte out.

    So the forwarding study counts (struye2017), and RFC 1242 for devices that store a frame before
    they forward it: as its generator sees it, from its own last byte out to the first byte back.
    Stamps at one end of the link mark one point of every frame, so their difference holds the
    frame's own time on the wire once more than that, and it is taken away:

    * ``start``: the stamps mark the first byte, as stamping hardware does. The last byte in came
      later, by the time of the frame that arrived.
    * ``end``: the stamps mark the last byte, as those of a host that had received the frame. The
      first byte out went earlier, by the time of the frame that left.

    A frame runs here from its destination address to its frame check sequence, where 802.3 has its
    time stamps too. So its bytes are those of the capture (60 at least, since Ethernet fills up
    shorter ones) and 4 of frame check sequence. Preamble and start delimiter (8 bytes) come before
    its first byte and the gap (12) after its last: neither is part of the time of a frame.

    Stamps that the system itself gives, to what it has received and to what it is about to send,
    are of the last byte in and the first byte out already: those need no correction, and neither
    do links without a rate, such as veth.

    Parameters
    ----------
    residence_ns : (n,) array_like of int
        From a packet's arrival to its departure, such as `Paired.residence_ns`.
    wire_bytes : array_like of int
        Length of each frame as captures have it (`Packets.wire`), without frame check sequence:
        of those that arrived for ``start``, of those that left for ``end``. One length for all, or
        one each.
    rate_bit_per_s : int
        Rate of the link on which they were stamped, such as 10**9.
    stamped : {"start", "end"}
        The point that the stamps mark.

    Returns
    -------
    (n,) int64
        Latency in ns, rounded to whole ones. Negative where a device began to send a frame before
        it had all of it, or where the stamps mark another point.

    Raises
    ------
    UsageError
        For an unknown point, a rate or lengths that are not above 0, or times that are not whole.
    """
    if stamped not in ("start", "end"):
        raise UsageError(f"stamps at {stamped!r} of a frame", remedy="'start' or 'end'")
    residence, wire = _whole(residence_ns, "times"), _whole(wire_bytes, "lengths")
    if not isinstance(rate_bit_per_s, int) or rate_bit_per_s < 1:
        raise UsageError(f"no link has {rate_bit_per_s!r} bit/s", remedy="a whole one, as 10**9")
    if (wire < 1).any():
        raise UsageError(f"no frame has {wire.min()} bytes")
    if residence.shape != wire.shape and wire.ndim:
        raise UsageError(f"{residence.size} times and {wire.size} lengths do not go together")
    bits = 8 * (np.maximum(wire, _SHORTEST) + _CHECK)
    # In integers, rounded to the nearest: a float has no room for times of days in ns.
    taken = (2 * bits * 1_000_000_000 + rate_bit_per_s) // (2 * rate_bit_per_s)
    return np.asarray(residence - taken, dtype=np.int64)


def _whole(values: ArrayLike, name: str) -> NDArray[np.int64]:
    found: NDArray[Any] = np.asarray(values)
    if found.dtype.kind not in "iu" and found.size:
        raise UsageError(f"{name} are whole numbers", why=f"these are of type {found.dtype}")
    return found.astype(np.int64)
