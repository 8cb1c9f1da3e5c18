"""Single file operations inside a placement: writing, opening, first writes, traversal.

The program is ``programs/file_operations.py``, which Debian's python3 runs; it prints the time of
each operation when all have ended.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pandas as pd

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, python, whole
from labkit.tools.parsing import python_version, unreadable

TOOL = "file operations"
#: Where a container's storage is, and the files of its image.
DATA = "/data"
#: ``flush`` hands what was written to the kernel; ``fsync`` waits until it is on the disk.
FLUSHES = ("flush", "fsync")
#: Where the program listens that drops a host's caches.
DROP_PORT = 11112
#: What starting the program in a placement takes, in seconds.
_START = 0.3
_HEAD = re.compile(r"^\{.*\}$", re.MULTILINE)


def probe(host: Host) -> str:
    """Return the version of the host's python3; raise `ToolMissing` where it is not."""
    return python_version(host)


def write(
    *, size_b: int, count: int, flush: str = "flush", path: str = f"{DATA}/written"
) -> Client:
    """Return the client that writes to one open file, again and again, and removes it.

    Parameters
    ----------
    size_b : int
        Bytes a write.
    count : int
        Writes that are kept, after a few that are not.
    flush : {"flush", "fsync"}
        What follows each write, and is timed with it.
    path : str
        The file, made anew.
    """
    one_of("flush", flush, FLUSHES)
    whole(TOOL, size_b=size_b, count=count)
    warm_up = _warm_up(count)
    options = {"path": path, "size_b": size_b, "count": count, "warm_up": warm_up, "flush": flush}
    slow = 5e-3 if flush == "fsync" else 1e-5
    return _client("write", options, (count + warm_up) * (slow + size_b / 200e6))


def open_close(*, count: int, path: str) -> Client:
    """Return the client that opens and closes one file, with Python's open() and without it."""
    whole(TOOL, count=count)
    warm_up = _warm_up(count)
    options = {"path": path, "count": count, "warm_up": warm_up}
    return _client("open", options, 2 * (count + warm_up) * 100e-6)


def first_write(*, folder: str, size_b: int, files: int, written_b: int = 1024) -> Client:
    """Return the client that writes to the start of each file of a folder, for the first time.

    Parameters
    ----------
    folder : str
        Holds nothing but the files.
    size_b, files : int
        What they are, for the expected duration.
    written_b : int
        Bytes written.
    """
    whole(TOOL, size_b=size_b, files=files, written_b=written_b)
    options = {"folder": folder, "written_b": written_b}
    return _client("first write", options, files * (0.02 + 2 * size_b / 100e6))


def traverse(
    path: str, *, count: int, files: int, dropper: tuple[str, int] | None = None
) -> Client:
    """Return the client that runs ``ls -R``.

    Parameters
    ----------
    path : str
        The root.
    count : int
        How often, after one that is not kept where caches are warm.
    files : int
        How many there are to list, over all layers, for the expected duration.
    dropper : (str, int), optional
        Address and port of a `cache_dropper`, for cold caches.
    """
    whole(TOOL, count=count, files=files)
    warm_up = 0 if dropper else 1
    options = {"path": path, "count": count, "warm_up": warm_up, "dropper": dropper}
    once = 0.5 + files * 60e-6 if dropper else 0.01 + files * 8e-6
    return _client("traverse", options, (count + warm_up) * once)


def cache_dropper(address: str, *, port: int = DROP_PORT) -> Workload:
    """Return the program that drops a host's caches for whoever connects; as root, on the host.

    All caches of the machine go, whoever's they are: of the other hosts of a virtual rig too, and
    of whatever else runs there.
    """
    return Workload(python("drop_caches", address, str(port)), port, "tcp")


def _warm_up(count: int) -> int:
    return min(100, max(5, count // 20))


def _client(operation: str, options: dict[str, Any], seconds: float) -> Client:
    argv = python("file_operations", operation, json.dumps(options))
    return Client(argv, "", _START + seconds, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read what the program printed.

    Parameters
    ----------
    stdout : str
        A line of JSON, a row of times an operation, and ``end`` with their number.
    log : str, optional
        Not used: the program writes none.

    Returns
    -------
    Measurement
        ``latency_ns`` of each operation, and beside it ``close_ns`` and ``call_ns`` (opening),
        or ``again_ns`` (the second write to the same file). Its messages are all operations that
        were done, those that were not kept included.

    Raises
    ------
    ToolOutput
        It is not whole, with what there was.
    """
    head = _HEAD.search(stdout)
    try:
        summary = json.loads(head[0]) if head else {}
        names, count, done = (
            list(map(str, summary["columns"])),
            int(summary["count"]),
            int(summary["done"]),
        )
    except (KeyError, TypeError, ValueError):
        raise unreadable(TOOL, "it has no head", stdout) from None
    body, _, end = stdout[head.end() if head else 0 :].strip().rpartition("\n")
    if end.split() != ["end", str(count)]:
        raise unreadable(TOOL, f"it breaks off before the end of {count} operations", stdout)
    if not count:
        raise unreadable(TOOL, "there was no operation", stdout)
    try:
        table = pd.read_csv(io.StringIO(body), sep=" ", header=None, dtype="int64")
    except ValueError as error:
        raise unreadable(TOOL, str(error), stdout) from None
    values = table.to_numpy(dtype=np.int64)
    if values.shape != (count, len(names)) or (values <= 0).any():
        raise unreadable(TOOL, f"{values.shape} times instead of {count} x {len(names)}", stdout)
    samples = {name: values[:, number].copy() for number, name in enumerate(names)}
    return Measurement(samples, messages=done)
