"""Single file operations inside a placement: writing, opening, first writes, traversal."""

from labkit.tools import base
from labkit.tools.base import PYTHON, Client, Measurement

#: What hands data to the kernel, or waits until they are on the disk, and at most for how long (s).
FLUSHES = {"flush": 1e-5, "fsync": 5e-3}

probe = base.prober(r"Python (\S+)", PYTHON, "--version", package="python3")


def write(*, size_b: int, count: int, flush: str = "flush") -> Client:
    """Return the client that writes to one open file, flushes each time, and removes it."""
    each, path = FLUSHES[flush] + size_b / 200e6, "/data/written"
    return _client("write", count, each, path=path, size_b=size_b, flush=flush)


def open_close(*, count: int, path: str) -> Client:
    """Return the client that opens and closes one file, with Python's open() and without it."""
    return _client("open_close", count, 200e-6, path=path)


def first_write(*, folder: str, size_b: int, files: int) -> Client:
    """Return the client that first writes to each of a folder's `files` of `size_b` bytes."""
    return _client("first_write", files, 0.02 + 2 * size_b / 100e6, 0, folder=folder)


def traverse(path: str, *, files: int, count: int = 0) -> Client:
    """Return the client that lists `files` by ``ls -R``, `count` times after a warm-up.

    0 is once, cold: the host drops its caches just before the window (`treatments.ColdCache`).
    """
    if not count:
        return _client("traverse", 1, 0.5 + files * 60e-6, 0, path=path)
    return _client("traverse", count, 0.01 + files * 8e-6, 1, path=path)


def _client(
    operation: str, count: int, each: float, warm_up: int | None = None, **options: object
) -> Client:
    warm_up = min(100, max(5, count // 20)) if warm_up is None else warm_up
    runs = {"count": count + warm_up, "warm_up": warm_up}
    argv = base.python("file_operations", "main", operation=operation, **options, **runs)
    return Client(argv, "", 0.3 + runs["count"] * each, parse, samples_in_stdout=True)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the times of each operation, and how fast the CPU was."""
    with base.reading("file operations", stdout):
        found, samples = base.document(stdout)
        metrics = {"reference_ns": float(found["reference_ns"])}
        return Measurement(samples, metrics, int(found["done"]))
