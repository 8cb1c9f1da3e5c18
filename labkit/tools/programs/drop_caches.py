"""Drops the machine's caches (pages, directory entries, inodes) for whoever connects.

Runs as ``python3 -c TEXT ADDRESS PORT`` as root on a host. Dirty pages are written out first,
since they could not be dropped. Answers ``dropped``, or the error.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def drop() -> str:
    """Drop the caches; return the answer."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        return str(error)
    return "dropped"


def main(address: str, port: str) -> None:
    """Serve clients until killed, one after the other."""
    with socket.create_server((address, int(port))) as listening:
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(f"{drop()}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
