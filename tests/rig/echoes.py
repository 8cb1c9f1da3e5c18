"""A client of sockperf's server for tests that only need an answer.

It takes milliseconds; the tool's own client sleeps for two seconds and sends for whole seconds.
"""

from __future__ import annotations

import sys

from labkit.tools.base import Client, Measurement

# The header: number, flags (from a client, answer expected), length.
_CODE = """
import socket, struct, sys
address, messages = sys.argv[1], int(sys.argv[2])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.settimeout(5)
    end.connect((address, 11111))
    for number in range(1, messages + 1):
        end.send(struct.pack(">QHI", number, 3, 64).ljust(64, b"\\0"))
        assert struct.unpack_from(">Q", end.recv(64)) == (number,)
print(messages)
"""


def echoes(address: str, messages: int = 200) -> Client:
    """Return a client of ``sockperf server`` that sends one message at a time."""

    def parse(stdout: str, log: str) -> Measurement:
        return Measurement({}, {}, int(stdout))

    argv = (sys.executable, "-c", _CODE, address, str(messages))
    return Client(argv, address, 1.0, parse)
