"""Helpers that inspect processes, and wait for what they do."""

import time
from contextlib import suppress

import psutil


def alive(pid):
    """Return whether a process has not ended; init may reap it later."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition, seconds=10.0):
    """Wait for a condition, a function."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
