"""A window that labkit could not attend to: it was stopped, or its machine slept."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from labkit.campaign import window
from labkit.campaign.counters import Kernel
from labkit.campaign.window import Load
from labkit.hosts import Job, LocalHost, Result
from labkit.tools.base import Client, Measurement


def test_labkit_is_stopped_in_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, since a test cannot stop and continue itself.

    The client lasts until labkit was stopped, and labkit is stopped when it waits for the client.
    """
    waits, stopped, flags = tmp_path / "waits", tmp_path / "stopped", tmp_path / "flags"
    wait = Job.wait

    def wait_and_say_so(job: Job, timeout: float) -> Result:
        waits.touch()
        return wait(job, timeout)

    monkeypatch.setattr(window, "LATE", 1.0)
    monkeypatch.setattr(Job, "wait", wait_and_say_so)
    argv = ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done', str(stopped))
    client = Client(argv, "", 60.0, lambda out, log: Measurement({}))
    folder, load = str(tmp_path / "window"), Load("tool", client, argv, ["true"], "")
    pid = os.fork()
    if not pid:
        try:
            own = [Kernel(LocalHost(), ())]
            found = window.measure([load], own, folder=folder, label="lkt-window")
            flags.write_text("; ".join(found.flags))
        finally:
            os._exit(0)

    def stop() -> None:
        while not waits.exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        stopped.touch()
        while not (tmp_path / "window" / "status").exists():
            time.sleep(0.01)
        time.sleep(3.0)
        os.kill(pid, signal.SIGCONT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    os.waitpid(pid, 0)
    stopping.join()
    assert "labkit was stopped for" in flags.read_text()
