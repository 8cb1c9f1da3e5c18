"""A sink of UDP datagrams: the kernel drops and counts each, and no process wakes up."""

import array
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any


def hold(port: int) -> None:
    """Hold a socket that drops everything, on a port of all addresses, until killed."""
    # A classic BPF program of one instruction: return 0, accept no byte of the packet.
    program = array.array("B", struct.pack("HBBI", 0x06, 0, 0, 0))
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # The filter is set before the port, so that not one datagram is queued.
    described = struct.pack("HP", 1, program.buffer_info()[0])
    receiver.setsockopt(socket.SOL_SOCKET, 26, described)  # SO_ATTACH_FILTER, not in Python
    receiver.bind(("0.0.0.0", port))
    signal.pause()


def drops(pid: int) -> dict[str, int]:
    """Return the datagrams that each UDP socket of a process has dropped, by inode."""
    process = Path("/proc", str(pid))
    try:
        held = {str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()}
        rows = [line.split() for line in (process / "net/udp").read_text().splitlines()]
    except OSError:  # it has ended
        return {}
    return {row[9]: int(row[12]) for row in rows if f"socket:[{row[9]}]" in held}


def count(pid: int, settle: float, middle: float, end: float) -> dict[str, Any]:
    """Return the counts after `settle` seconds and after `middle` more, with the time of each."""
    time.sleep(settle)
    first = time.monotonic_ns(), drops(pid)
    time.sleep(middle)
    second = time.monotonic_ns(), drops(pid)
    time.sleep(end)
    # It ends once nothing has arrived for 0.3 s (a hop may wait for its CPU meanwhile).
    seen = [drops(pid)]
    while len(seen) < 100 and seen[-4:] != [seen[-1]] * 4:
        time.sleep(0.1)
        seen.append(drops(pid))
    return {"looks": [first, second]}
