"""Clients for tests that only need an answer, or to know where a client ran."""

import shutil
import sys

import pytest

from labkit.tools.base import Client, Measurement

# A client of sockperf's server, which takes milliseconds; the tool's own sleeps for two seconds and
# sends for whole ones. The header: number, flags (from a client, answer expected), length.
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


def echoes(address, messages=200):
    """Return a client of ``sockperf server`` that sends one message at a time."""

    def parse(stdout, log):
        return Measurement({}, {}, int(stdout))

    argv = (sys.executable, "-c", _CODE, address, str(messages))
    return Client(argv, address, 1.0, parse)


def count_characters(stdout, log):
    return Measurement({}, {"characters": float(len(stdout or log))}, messages=1)


def shell(text):
    """Return a client that runs a script inside a placement."""
    return Client(("sh", "-euc", text), "", 4.0, count_characters)


def needs(program):
    """Return the mark that skips a test unless a program, which nobody packages, is on PATH."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on PATH")
