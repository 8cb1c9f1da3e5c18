"""socat: one hop of a chain that forwards the payload of UDP datagrams, one way.

Neither end connects. ``UDP4-RECV`` takes datagrams from whoever sends them and never answers, where
``UDP-LISTEN`` would connect back to the first sender and hear nobody else (or, with ``fork``, run a
process a sender). ``UDP4-SENDTO`` sends with no connection either, so that a next hop that is not
up yet costs its datagrams and does not end the process, as it does with the form ``UDP4``. Version
1.7.4.4 makes 16 system calls a datagram, most of which ask whether a signal has come: it is the
processor of the paper, and no fast one.
"""

from __future__ import annotations

import ipaddress

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import whole
from labkit.tools.parsing import version

#: Bytes of a payload that a hop takes at most: more than fits into an Ethernet frame.
BLOCK = 1500


def probe(host: Host) -> str:
    """Return socat's version on the host; raise `ToolMissing` where it is not."""
    return version(host, ("socat", "-V"), r"socat version (\S+)")


def forwarder(port: int, next_address: str, next_port: int, *, image: str = "net") -> Workload:
    """Return a hop: what arrives at a port goes on to the next, in new datagrams.

    Parameters
    ----------
    port : int
        UDP port that it listens on, on every address that it has.
    next_address, next_port : str, int
        The next hop, or the sink at the end; an IPv4 address.
    image : str
        The image that holds socat.
    """
    whole("socat", port=port, next_port=next_port)
    if max(port, next_port) >= 1 << 16:
        raise UsageError(f"invalid UDP port: {max(port, next_port)}", remedy="1 to 65535")
    try:
        address = ipaddress.IPv4Address(next_address)
    except ValueError:
        raise UsageError(
            f"invalid IPv4 address {next_address!r}",
            remedy="name the next hop by its address in the lab",
        ) from None
    taking, sending = f"UDP4-RECV:{port}", f"UDP4-SENDTO:{address}:{next_port}"
    return Workload(("socat", "-u", "-b", str(BLOCK), taking, sending), port, image=image)
