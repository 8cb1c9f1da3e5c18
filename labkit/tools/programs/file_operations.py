"""Times file operations: columns of times in ns, and what was done."""

import os
import tempfile
import timeit
from pathlib import Path
from time import perf_counter_ns as now
from typing import Any

Columns = dict[str, list[int]]
#: How long opening /dev/null took, each time that the CPU was timed, in ns.
_reference_ns: list[float] = []


def time_cpu() -> None:
    """Time opening and closing /dev/null, which a slow CPU slows down as much as operations."""
    times = timeit.repeat("with open(os.devnull, 'rb'): pass", "import os", number=50, repeat=5)
    _reference_ns.append(sorted(times)[2] / 50 * 1e9)


def write(path: str, size_b: int, count: int, flush: str) -> Columns:
    """Write `size_b` bytes at a time to one open file; flush after each, or sync it to the disk."""
    content, times = b"x" * size_b, []
    with Path(path).open("wb") as file:
        for _ in range(count):
            began = now()
            file.write(content)
            file.flush()
            if flush == "fsync":
                os.fsync(file.fileno())
            times.append(now() - began)
    Path(path).unlink()
    return {"latency_ns": times}


def open_close(path: str, count: int) -> Columns:
    """Open and close a file for reading, with Python's open() and with the system call alone."""
    opened, closed, called = list[int](), list[int](), list[int]()
    for _ in range(count):
        began = now()
        file = open(path, "rb")  # noqa: PTH123, SIM115 - this call is what is timed
        between = now()
        file.close()
        ended = now()
        opened.append(between - began)
        closed.append(ended - between)
    for _ in range(count):
        began = now()
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        called.append(now() - began)
        os.close(number)
    return {"latency_ns": opened, "close_ns": closed, "call_ns": called}


def first_write(folder: str, count: int) -> Columns:
    """Open each file of a folder, write 1,024 bytes to its start and flush; then once more."""
    content, columns = b"x" * 1024, {"latency_ns": list[int](), "again_ns": list[int]()}
    paths = [str(path) for path in sorted(Path(folder).iterdir())][:count]
    for path in paths:  # so that a copy need not read from the disk
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            # Memory for all of 16 MiB that was just given back slows down the copy by 4 %.
            while file.read(1 << 20):
                pass
    for times in columns.values():
        for path in paths:
            began = now()
            with open(path, "r+b") as file:  # noqa: PTH123 - this call is what is timed
                file.write(content)
                file.flush()
                times.append(now() - began)
    return columns


def traverse(path: str, count: int) -> Columns:
    """Run ``ls -R``; once before that in an empty folder, which loads ``ls`` from the disk."""
    with tempfile.TemporaryDirectory() as empty:
        listing(empty)
    times = []
    for _ in range(count):
        time_cpu()
        times.append(listing(path))
    return {"latency_ns": times}


def listing(path: str) -> int:
    """Return how long ``ls -R`` takes, without its output."""
    null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    began = now()
    number = os.posix_spawnp("ls", ["ls", "-R", path], os.environ, file_actions=null)
    status = os.waitpid(number, 0)[1]
    ended = now()
    if status != 0:
        raise OSError(f"ls -R {path} ended with the wait status {status}")
    return ended - began


def main(operation: str, warm_up: int, **options: Any) -> dict[str, Any]:
    """Run an operation, after writing dirty pages of others; return its times but the first."""
    os.sync()
    time_cpu()
    columns: Columns = globals()[operation](**options)
    time_cpu()
    done = len(columns["latency_ns"]) * (2 if operation in ("open_close", "first_write") else 1)
    samples = {name: times[warm_up:] for name, times in columns.items()}
    return {"done": done, "reference_ns": max(_reference_ns), "samples": samples}
