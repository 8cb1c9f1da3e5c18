"""Single file operations inside a placement: writing, opening, first writes, traversal.

The program is ``programs/file_operations.py``, which Debian's python3 runs; it prints the time of
each operation when all have ended.
"""

from __future__ import annotations

import json
from typing import Any

from labkit.hosts import Host
from labkit.tools.base import PYTHON, Client, Measurement, one_of, python
from labkit.tools.parsing import json_in, reading, rows, version

#: ``flush`` hands what was written to the kernel; ``fsync`` waits until it is on the disk. Each
#: with an upper bound of its duration in seconds.
_FLUSHES = {"flush": 1e-5, "fsync": 5e-3}
FLUSHES = tuple(_FLUSHES)
#: The starting time of the program in a placement, in seconds.
_START = 0.3


def probe(host: Host) -> str:
    """Return the version of the host's python3."""
    remedy = "apt-get install python3"
    return version(host, (PYTHON, "--version"), r"Python (\S+)", remedy=remedy)


def write(*, size_b: int, count: int, flush: str = "flush", path: str = "/data/written") -> Client:
    """Return the client that writes to one open file repeatedly, and removes it.

    `flush` (or fsync) follows each write and is timed with it; `count` are kept after a warm-up.
    """
    one_of("flush", flush, FLUSHES)
    warm_up = _warm_up(count)
    options = {"path": path, "size_b": size_b, "count": count, "warm_up": warm_up, "flush": flush}
    return _client("write", options, (count + warm_up) * (_FLUSHES[flush] + size_b / 200e6))


def open_close(*, count: int, path: str) -> Client:
    """Return the client that opens and closes one file, with Python's open() and without it."""
    warm_up = _warm_up(count)
    options = {"path": path, "count": count, "warm_up": warm_up}
    return _client("open", options, 2 * (count + warm_up) * 100e-6)


def first_write(*, folder: str, size_b: int, files: int) -> Client:
    """Return the client that writes 1,024 bytes to the start of each file, for the first time.

    The folder holds nothing but so many files of `size_b` bytes.
    """
    options = {"folder": folder, "written_b": 1024}
    return _client("first write", options, files * (0.02 + 2 * size_b / 100e6))


def traverse(path: str, *, files: int, count: int = 0) -> Client:
    """Return the client that runs ``ls -R`` `count` times after a warm-up; 0 for once, cold.

    For cold caches the host drops them just before the window (`treatments.ColdCache`). `files`
    are to be listed, over all layers.
    """
    options = {"path": path, "count": count or 1, "warm_up": 1 if count else 0}
    once = 0.01 + files * 8e-6 if count else 0.5 + files * 60e-6
    return _client("traverse", options, (count + 1) * once)


def _warm_up(count: int) -> int:
    return min(100, max(5, count // 20))


def _client(operation: str, options: dict[str, Any], seconds: float) -> Client:
    argv = python("file_operations", operation, json.dumps(options))
    return Client(argv, "", _START + seconds, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read a line of JSON, a row of times per operation, and ``end`` with their number.

    ``latency_ns`` is of each operation; opening has ``close_ns`` and ``call_ns`` too, a first write
    ``again_ns``. The mechanism ``reference_ns`` is how long it took to open and close /dev/null:
    the longest of the times before, between and after the operations.
    """
    head, _, rest = stdout.partition("\n")
    with reading("file operations", stdout):
        summary = json_in(head)
        names, count = summary["columns"], summary["count"]
        body, _, end = rest.strip().rpartition("\n")
        if end.split() != ["end", str(count)] or count < 1:
            raise ValueError(f"it breaks off before the end of {count} operations")
        samples = rows(f"{body}\n", names, " ")
        wrong = any((values <= 0).any() for values in samples.values())
        if wrong or any(len(values) != count for values in samples.values()):
            raise ValueError(f"it has not {count} positive times in each column")
        # Not in the output of earlier versions.
        timed = "reference_ns" in summary
        speed = {"reference_ns": float(summary["reference_ns"])} if timed else {}
        done = int(summary["done"])
    return Measurement(samples, messages=done, mechanisms=speed)
