"""socat: one hop of a chain that forwards the payload of UDP datagrams, one way.

Neither end connects. ``UDP4-RECV`` takes datagrams from whoever sends them and never answers, where
``UDP-LISTEN`` would connect back to the first sender and ignore all others (or, with ``fork``, run
a process for each sender). ``UDP4-SENDTO`` sends without a connection too, so that a next hop that
is not up yet costs its datagrams and does not end the process, as it does with ``UDP4``. Version
1.7.4.4 makes 16 system calls per datagram, most of which ask whether a signal has come: it is the
processor of the paper, and not a fast one.
"""

from __future__ import annotations

import ipaddress

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import check_integers
from labkit.tools.parsing import version

#: The largest payload in bytes that a hop takes: more than fits into an Ethernet frame.
BLOCK = 1500


def probe(host: Host) -> str:
    """Return socat's version on the host."""
    return version(host, ("socat", "-V"), r"socat version (\S+)")


def forwarder(port: int, next_address: str, next_port: int) -> Workload:
    """Return a hop: what arrives at a port goes on to the next, in new datagrams.

    Parameters
    ----------
    port : int
        UDP port that it listens on, on all its addresses.
    next_address, next_port : str, int
        The next hop, or the sink at the end; an IPv4 address.
    """
    check_integers("socat", port=port, next_port=next_port)
    if max(port, next_port) >= 1 << 16:
        raise UsageError(f"invalid UDP port: {max(port, next_port)}", remedy="1 to 65535")
    try:
        address = ipaddress.IPv4Address(next_address)
    except ValueError:
        raise UsageError(
            f"invalid IPv4 address {next_address!r}",
            remedy="name the next hop by its address in the lab",
        ) from None
    ends = (f"UDP4-RECV:{port}", f"UDP4-SENDTO:{address}:{next_port}")
    return Workload(("socat", "-u", "-b", str(BLOCK), *ends), port, image="net")
