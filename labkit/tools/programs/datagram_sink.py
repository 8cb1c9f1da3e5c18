"""Drops UDP datagrams: a socket whose filter accepts none.

Runs as ``python3 -c TEXT PORT``. Each datagram is dropped and counted by the kernel as it arrives
(the last column of ``/proc/net/udp``): none is queued, copied or answered, and no process wakes up.
"""

from __future__ import annotations

import array
import signal
import socket
import struct
import sys

#: Python has no name for it; Linux has this number on all but a few old architectures.
SO_ATTACH_FILTER = getattr(socket, "SO_ATTACH_FILTER", 26)


def sink(port: int) -> socket.socket:
    """Return a socket on a port of all addresses that drops everything."""
    # A classic BPF program of one instruction: return 0, accept no byte of the packet.
    program = array.array("B", struct.pack("HBBI", 0x06, 0, 0, 0))
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # The filter is set before the port, so that not one datagram is queued.
    described = struct.pack("HP", 1, program.buffer_info()[0])
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)
    receiver.bind(("0.0.0.0", port))
    return receiver


def main(port: str) -> None:
    """Hold the socket until killed."""
    with sink(int(port)):
        while True:
            signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
