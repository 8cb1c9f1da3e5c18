"""Runs a command repeatedly for a window; prints a line of JSON for each iteration.

Runs as ``python3 -c TEXT SECONDS GRACE AT_MOST COMMAND...`` in containers; needs only Python's
standard library. Times are of the kernel's monotonic clock, which all containers of a host share.
Iterations that start within SECONDS count; it goes on for GRACE more, so that slow ones end while a
neighbour still runs. An iteration that still runs then is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_KEPT = 20_000


def once(command: Sequence[str], deadline: int) -> dict[str, Any]:
    """Run the command until it ends or the deadline comes; return its times and output."""
    start = time.monotonic_ns()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    cut = False
    try:
        out, err = process.communicate(timeout=max(0.0, (deadline - start) / 1e9))
    except subprocess.TimeoutExpired:
        cut = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return {
        "start_ns": start,
        "end_ns": time.monotonic_ns(),
        "cut": cut,
        "status": process.returncode,
        "stdout": out.decode(errors="replace")[-_KEPT:],
        "stderr": err.decode(errors="replace")[-_KEPT:],
    }


def main(seconds: str, grace: str, at_most: str, *command: str) -> None:
    """Repeat the command, `at_most` times unless that is 0, and stop at a failure."""
    count, late = 0, time.monotonic_ns() + int(float(seconds) * 1e9)
    deadline = late + int(float(grace) * 1e9)
    while time.monotonic_ns() < deadline and count != (int(at_most) or -1):
        result = once(command, deadline)
        result["late"] = result["start_ns"] >= late
        print(json.dumps(result), flush=True)
        if result["status"] != 0 and not result["cut"]:
            break
        count += 1
    print(json.dumps({"end": time.monotonic_ns()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
