"""Runs a tool in a new directory, in the locale C, and adds its CPU time and files to its output.

Runs as ``python3 -c TEXT OPTIONS COMMAND...``; OPTIONS is JSON of ``log`` (``-``, or the path that
the files go to) and ``first`` (a command that runs before it, whose lines are marked "once: ").
Times are of the monotonic clock, which nobody can set. A tool that coreutils' ``timeout`` ends is
read all the same.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def cpu_s() -> float:
    """Return the CPU time of all processes that have ended here, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(options: str, *command: str) -> int:
    """Run the commands, and return the status of the tool."""
    log, first = (json.loads(options)[name] for name in ("log", "first"))
    os.environ["LC_ALL"] = "C"
    own = None if log == "-" else Path(log).parent
    with tempfile.TemporaryDirectory(prefix="labkit-", dir=own) as folder:
        if first:
            before = subprocess.run(first, cwd=folder, capture_output=True, text=True, timeout=10)
            lines = (f"once: {line}\n" for line in before.stdout.splitlines())
            print("".join(lines), end="", flush=True)
        used, began = cpu_s(), time.monotonic_ns()
        status = subprocess.run(command, cwd=folder).returncode
        spent = {"elapsed_ns": time.monotonic_ns() - began, "cpu_ns": round((cpu_s() - used) * 1e9)}
        spent["cpus"] = len(os.sched_getaffinity(0))
        print("\n@@ spent", json.dumps(spent))
        status = 0 if command[0] == "timeout" and status == 124 else status
        files = b"".join(
            one.read_bytes() for one in sorted(Path(folder).iterdir()) if one.is_file()
        )
        if own is None:
            print("\n@@ log", flush=True)
            sys.stdout.buffer.write(files)
        elif status == 0:
            Path(log).write_bytes(files)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
