"""Single file operations inside a placement: writing, opening, first writes, traversal."""

import json
from typing import Any

from labkit.tools.base import PYTHON, Client, Measurement, one_of, prober, python
from labkit.tools.parsing import json_in, reading, rows

#: ``flush`` hands what was written to the kernel; ``fsync`` waits until it is on the disk. Each
#: with an upper bound of its duration in seconds.
_FLUSHES = {"flush": 1e-5, "fsync": 5e-3}
FLUSHES = tuple(_FLUSHES)

probe = prober(r"Python (\S+)", PYTHON, "--version", package="python3")


def write(*, size_b: int, count: int, flush: str = "flush") -> Client:
    """Return the client that writes to one open file repeatedly, and removes it.

    `flush` (or fsync) follows each write and is timed with it; `count` are kept after a warm-up.
    """
    one_of("flush", flush, FLUSHES)
    warm_up = min(100, max(5, count // 20))
    options = {"path": "/data/written", "size_b": size_b, "count": count, "warm_up": warm_up}
    seconds = (count + warm_up) * (_FLUSHES[flush] + size_b / 200e6)
    return _client("write", options | {"flush": flush}, seconds)


def open_close(*, count: int, path: str) -> Client:
    """Return the client that opens and closes one file, with Python's open() and without it."""
    warm_up = min(100, max(5, count // 20))
    options = {"path": path, "count": count, "warm_up": warm_up}
    return _client("open", options, 2 * (count + warm_up) * 100e-6)


def first_write(*, folder: str, size_b: int, files: int) -> Client:
    """Return the client that writes 1,024 bytes to the start of each file, for the first time.

    The folder holds nothing but so many files of `size_b` bytes.
    """
    options = {"folder": folder, "written_b": 1024}
    return _client("first write", options, files * (0.02 + 2 * size_b / 100e6))


def traverse(path: str, *, files: int, count: int = 0) -> Client:
    """Return the client that lists `files` by ``ls -R``, `count` times after a warm-up.

    0 is once, cold: the host drops its caches just before the window (`treatments.ColdCache`).
    """
    options = {"path": path, "count": count or 1, "warm_up": 1 if count else 0}
    once = 0.01 + files * 8e-6 if count else 0.5 + files * 60e-6
    return _client("traverse", options, (count + 1) * once)


def _client(operation: str, options: dict[str, Any], seconds: float) -> Client:
    argv = python("file_operations", operation, json.dumps(options))
    return Client(argv, "", 0.3 + seconds, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read ``latency_ns`` of each operation; opening has ``close_ns`` and ``call_ns`` too.

    A first write has ``again_ns``. The mechanism ``reference_ns`` is how long it took to open and
    close /dev/null: the longest of the times before, between and after the operations.
    """
    head, _, rest = stdout.partition("\n")
    with reading("file operations", stdout):
        summary = json_in(head)
        count, speed = summary["count"], {"reference_ns": float(summary["reference_ns"])}
        body, _, end = rest.strip().rpartition("\n")
        if end.split() != ["end", str(count)] or count < 1:
            raise ValueError(f"it breaks off before the end of {count} operations")
        samples = rows(f"{body}\n", summary["columns"], " ")
        if any((values <= 0).any() or len(values) != count for values in samples.values()):
            raise ValueError(f"it has not {count} positive times in each column")
        done = int(summary["done"])
    return Measurement(samples, messages=done, mechanisms=speed)
