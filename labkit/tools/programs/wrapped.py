"""Runs a tool in a new directory, in the locale C, and adds its CPU time and files to its output.

Runs as ``python3 -c TEXT OPTIONS COMMAND...``; OPTIONS is JSON of ``log`` (``-``, or the path that
the files go to), ``limit`` (seconds after which the tool is ended, and its output is read all the
same; 0 for none) and ``first`` (a command that runs before it, whose lines are marked "once: ").
Times are of the monotonic clock, which nobody can set.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Seconds that a first command may take, and between TERM and KILL of a tool.
_FIRST, _GRACE = 10.0, 1.0


def cpu_ns() -> int:
    """Return the CPU time of all processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def run_first(command: Sequence[str], folder: str) -> None:
    """Run a command, and print its lines with a mark; a failure shows in the tool's own run."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(command, cwd=folder, timeout=_FIRST, text=True, check=False, **pipes)
        print("".join(f"once: {line}\n" for line in ended.stdout.splitlines()), end="", flush=True)


def run(command: Sequence[str], folder: str, limit: float) -> int:
    """Run the tool; return its status, which is 0 where its time was up."""
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            status = process.wait(timeout=limit or None)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    return 0


def main(options: str, *command: str) -> int:
    """Run the commands, and return the status of the tool."""
    given = json.loads(options)
    os.environ["LC_ALL"] = "C"
    log = Path(given["log"])
    parent = None if given["log"] == "-" else log.parent
    with tempfile.TemporaryDirectory(prefix="labkit-", dir=parent) as folder:
        if given["first"]:
            run_first(given["first"], folder)
        before, began = cpu_ns(), time.monotonic_ns()
        status = run(command, folder, given["limit"])
        elapsed, spent = time.monotonic_ns() - began, cpu_ns() - before
        cpus = len(os.sched_getaffinity(0))
        print("\n@@ spent", json.dumps({"cpus": cpus, "elapsed_ns": elapsed, "cpu_ns": spent}))
        paths = (path for path in sorted(Path(folder).iterdir()) if path.is_file())
        files = b"".join(path.read_bytes() for path in paths)
        if parent is None:
            print("\n@@ log", flush=True)
            sys.stdout.buffer.write(files)
        elif status == 0:
            log.write_bytes(files)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
