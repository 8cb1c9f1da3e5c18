"""socat: one hop of a chain that forwards the payload of UDP datagrams, one way.

Neither end connects. ``UDP4-RECV`` takes datagrams from whoever sends them and never answers, where
``UDP-LISTEN`` would keep to the first sender or run a process for each. With ``UDP4-SENDTO`` a next
hop that is not up yet costs its datagrams and does not end the process, as it does with ``UDP4``.
Version 1.7.4.4 makes 16 system calls per datagram: the processor of the paper, and not a fast one.
"""

from labkit.placement import Workload
from labkit.tools.base import prober

probe = prober(r"socat version (\S+)", "socat", "-V")


def forwarder(port: int, next_address: str, next_port: int) -> Workload:
    """Return a hop: what arrives at its UDP port goes on to the next, in new datagrams."""
    # It takes any payload of an Ethernet frame.
    ends = (f"UDP4-RECV:{port}", f"UDP4-SENDTO:{next_address}:{next_port}")
    return Workload(("socat", "-u", "-b", "1500", *ends), port, image="net")
