"""Runs a command repeatedly for a window; prints a line of JSON for each iteration.

Runs as ``python3 -c TEXT SECONDS GRACE AT_MOST COMMAND...`` in containers; needs only Python's
standard library. Times are of the kernel's monotonic clock, which all containers of a host share.
Iterations that start within SECONDS count; it goes on for GRACE more, so that slow ones end while a
neighbour still runs. An iteration that still runs then is killed.
"""

import json
import os
import signal
import sys
import time
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

os.environ["LC_ALL"] = "C"
seconds, grace, at_most, *command = sys.argv[1:]
late = time.monotonic_ns() + int(float(seconds) * 1e9)
deadline = late + int(float(grace) * 1e9)
count, failed = 0, False
while time.monotonic_ns() < deadline and count != (int(at_most) or -1) and not failed:
    cut, start = False, time.monotonic_ns()
    process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=max(0.0, (deadline - start) / 1e9))
    except TimeoutExpired:
        cut = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    times = {"start_ns": start, "end_ns": time.monotonic_ns(), "cut": cut, "late": start >= late}
    texts = {"stdout": out, "stderr": err}
    printed = {name: text[-20_000:].decode(errors="replace") for name, text in texts.items()}
    print(json.dumps(times | {"status": process.returncode, **printed}), flush=True)
    count, failed = count + 1, process.returncode != 0 and not cut
print(json.dumps({"end": time.monotonic_ns()}), flush=True)
