"""Single file operations inside a placement: writing, opening, first writes, traversal.

The program is ``programs/file_operations.py``, which Debian's python3 runs; it prints the time of
each operation when all have ended.
"""

from __future__ import annotations

import json
import re
from typing import Any

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers, one_of, python
from labkit.tools.parsing import python_version, reading, rows, unreadable

TOOL = "file operations"
#: ``flush`` hands what was written to the kernel; ``fsync`` waits until it is on the disk.
FLUSHES = ("flush", "fsync")
#: Where the program listens that drops a host's caches.
DROP_PORT = 11112
#: What starting the program in a placement takes, in seconds.
_START = 0.3
_HEAD = re.compile(r"^\{.*\}$", re.MULTILINE)


def probe(host: Host) -> str:
    """Return the version of the host's python3."""
    return python_version(host)


def write(*, size_b: int, count: int, flush: str = "flush", path: str = "/data/written") -> Client:
    """Return the client that writes to one open file repeatedly, and removes it.

    Parameters
    ----------
    size_b : int
        Bytes per write.
    count : int
        Writes that are kept, after a warm-up.
    flush : {"flush", "fsync"}
        What follows each write and is timed with it.
    path : str
        The file, which is created.
    """
    one_of("flush", flush, FLUSHES)
    check_integers(TOOL, size_b=size_b, count=count)
    warm_up = _warm_up(count)
    options = {"path": path, "size_b": size_b, "count": count, "warm_up": warm_up, "flush": flush}
    slow = 5e-3 if flush == "fsync" else 1e-5
    return _client("write", options, (count + warm_up) * (slow + size_b / 200e6))


def open_close(*, count: int, path: str) -> Client:
    """Return the client that opens and closes one file, with Python's open() and without it."""
    check_integers(TOOL, count=count)
    warm_up = _warm_up(count)
    options = {"path": path, "count": count, "warm_up": warm_up}
    return _client("open", options, 2 * (count + warm_up) * 100e-6)


def first_write(*, folder: str, size_b: int, files: int) -> Client:
    """Return the client that writes 1,024 bytes to the start of each file, for the first time.

    Parameters
    ----------
    folder : str
        Holds nothing but the files.
    size_b, files : int
        Their size in bytes and their number, for the expected duration.
    """
    check_integers(TOOL, size_b=size_b, files=files)
    options = {"folder": folder, "written_b": 1024}
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
        How often, after a warm-up where caches are warm.
    files : int
        Files to list, over all layers, for the expected duration.
    dropper : (str, int), optional
        Address and port of a `cache_dropper`, for cold caches.
    """
    check_integers(TOOL, count=count, files=files)
    warm_up = 0 if dropper else 1
    options = {"path": path, "count": count, "warm_up": warm_up, "dropper": dropper}
    once = 0.5 + files * 60e-6 if dropper else 0.01 + files * 8e-6
    return _client("traverse", options, (count + warm_up) * once)


def cache_dropper(address: str, *, port: int = DROP_PORT) -> Workload:
    """Return the program that drops a host's caches for whoever connects; as root, on the host.

    It drops all caches of the machine: also those of the other hosts of a virtual rig.
    """
    return Workload(python("drop_caches", address, str(port)), port, "tcp")


def _warm_up(count: int) -> int:
    return min(100, max(5, count // 20))


def _client(operation: str, options: dict[str, Any], seconds: float) -> Client:
    argv = python("file_operations", operation, json.dumps(options))
    return Client(argv, "", _START + seconds, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read a line of JSON, a row of times per operation, and ``end`` with their number.

    Returns
    -------
    Measurement
        ``latency_ns`` of each operation, with ``close_ns`` and ``call_ns`` (opening) or
        ``again_ns`` (the second write to the same file). Its messages are all operations that
        were done, those of the warm-up included. The mechanism ``reference_ns`` is how long it
        took to open and close /dev/null: the longest of the times before, between and after the
        operations.
    """
    head = _HEAD.search(stdout)
    with reading(TOOL, stdout):
        summary = json.loads(head[0]) if head else {}
        names = [str(name) for name in summary["columns"]]
        count, done = int(summary["count"]), int(summary["done"])
        # Not in the output of earlier versions.
        timed = "reference_ns" in summary
        speed = {"reference_ns": float(summary["reference_ns"])} if timed else {}
    body, _, end = stdout[head.end() if head else 0 :].strip().rpartition("\n")
    if end.split() != ["end", str(count)]:
        raise unreadable(TOOL, f"it breaks off before the end of {count} operations", stdout)
    if not count:
        raise unreadable(TOOL, "there was no operation", stdout)
    samples = rows(f"{body}\n", names, " ", tool=TOOL)
    wrong = any((values <= 0).any() for values in samples.values())
    if wrong or any(len(values) != count for values in samples.values()):
        raise unreadable(TOOL, f"it has not {count} positive times in each column", stdout)
    return Measurement(samples, messages=done, mechanisms=speed)
