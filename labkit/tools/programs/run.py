"""Runs of a command, once or again and again, each in a new directory, whose files are kept."""

import os
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from signal import SIGKILL
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired, run
from tempfile import TemporaryDirectory
from typing import Any


def cpu_ns() -> int:
    """Return the CPU time of all processes that have ended here."""
    used = getrusage(RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1e9)


def once(command: tuple[str, ...], deadline: int) -> dict[str, Any]:
    """Run a command; one that still runs at a deadline is killed, with all that it started."""
    streams: dict[str, Any] = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
    streams |= {"encoding": "utf-8", "errors": "replace"}
    with TemporaryDirectory(prefix="labkit-") as folder:
        # Nobody can set this clock, which all containers of a host share.
        used, start, cut = cpu_ns(), time.monotonic_ns(), False
        process = Popen(command, cwd=folder, start_new_session=True, **streams)
        try:
            out, err = process.communicate(timeout=max(0.0, (deadline - start) / 1e9))
        except TimeoutExpired:
            os.killpg(process.pid, SIGKILL)
            out, err = process.communicate()
            cut = True
        found = {"start_ns": start, "end_ns": time.monotonic_ns(), "cpu_ns": cpu_ns() - used}
        paths = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        files = "".join(path.read_text("utf-8", "replace") for path in paths)
    found |= {"cut": cut, "status": process.returncode}
    return {**found, "stdout": out, "stderr": err, "files": files}


def main(
    *command: str, seconds: float, grace: float = 0.0, at_most: int = 0, first: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run a command `at_most` so often (0: any number), and fail as soon as a run does."""
    os.environ["LC_ALL"] = "C"
    if first:
        run(first, stdout=DEVNULL, stderr=DEVNULL, timeout=10)
    late = time.monotonic_ns() + round(seconds * 1e9)
    deadline, runs = late + round(grace * 1e9), list[dict[str, Any]]()
    while time.monotonic_ns() < deadline and len(runs) != (at_most or -1):
        one = once(command, deadline)
        # What starts in the grace time is a load for a neighbour whose run has not ended.
        runs.append({**one, "late": one["start_ns"] >= late})
        if one["status"] != 0 and not one["cut"]:
            # A negative status is a signal: -9 as by hand or for want of memory.
            ended = f"run {len(runs)} ended with status {one['status']}:"
            sys.exit(f"{ended}\n{one['stdout']}\n{one['stderr']}")
    return {"cpus": len(os.sched_getaffinity(0)), "runs": runs}
