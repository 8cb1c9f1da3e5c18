"""From a file, or its bytes, to packets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from labkit.capture import pcap, pcapng
from labkit.capture.packets import Packets
from labkit.capture.records import Bytes, damaged
from labkit.errors import ToolOutput

#: First bytes of what a capture is often packed into, and what unpacks it.
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz"}
_PACKED |= {b"BZh": "bunzip2", b"\x04\x22\x4d\x18": "unlz4"}


def read(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Packets:
    """Read a packet capture: classic pcap, or pcapng.

    Classic captures are read in microseconds and nanoseconds and in both byte orders, pcapng with
    each interface's own clock. Packets may be cut short by the capture's snapshot length. A file
    that was not written to its end keeps its whole packets, and says in `Packets.left_over` and in
    a flag how many bytes followed.

    Parameters
    ----------
    source : bytes-like, str or path
        The capture itself, or where it is: a str is a path.

    Returns
    -------
    Packets

    Raises
    ------
    ToolOutput
        There is no such file, it is empty, no capture, or damaged, or has what is not read here;
        the error shows its bytes and names what to do.
    """
    data, where = _load(source)
    if not len(data):
        raise ToolOutput(
            "a capture is empty",
            where=where,
            why="it has no byte, not even a header",
            remedy="was tcpdump ended before it wrote? -U writes each packet at once",
        )
    head = data[:4].tobytes()
    if head in pcap.MAGICS:
        return pcap.read(data, where)
    if head == pcapng.MAGIC:
        return pcapng.read(data, where)
    packed = [tool for magic, tool in _PACKED.items() if data[:8].tobytes().startswith(magic)]
    why = f"it is packed: unpack it with `{packed[0]}` first" if packed else "its mark is unknown"
    raise damaged("this is no packet capture", where=where, why=why, data=data)


def _load(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> tuple[Bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return np.frombuffer(source, dtype=np.uint8), f"{len(source):,} bytes in memory"
    path = Path(source)
    try:
        return np.fromfile(path, dtype=np.uint8), str(path)
    except OSError as error:
        raise ToolOutput(
            "a capture cannot be opened",
            where=str(path),
            why=str(error),
            remedy="did the capturing program start, and write there?",
        ) from None
