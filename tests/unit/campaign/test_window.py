"""A window that labkit could not attend to: it was stopped, or its machine slept."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from labkit.campaign import window
from labkit.campaign.window import Load, Window, interruptions
from labkit.hosts import LocalHost
from labkit.tools.base import Client, Measurement


def test_what_befell_is_said() -> None:
    assert interruptions(0.1, 9.0) == ()
    assert interruptions(61.0, 0.3) == ("this machine was suspended for 61 s in the window",)
    assert interruptions(0.0, 60.2) == (
        "labkit was stopped for 60 s in the window or just after it",
    )


def test_labkit_is_stopped_in_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, since a test cannot stop and continue itself."""
    monkeypatch.setattr(window, "LATE", 1.0)
    began = tmp_path / "began"
    client = Client(("touch", str(began)), "", 5.0, lambda out, log: Measurement({}))
    own = Window(LocalHost(), str(tmp_path / "window"), "lkt-window")
    pid = os.fork()
    if not pid:
        try:
            flags = own.run([Load("tool", client, client.argv, ["true"], "")], []).flags
            (tmp_path / "flags").write_text("; ".join(flags))
        finally:
            os._exit(0)

    def stop() -> None:
        while not began.exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        while not (tmp_path / "window" / "status").exists():
            time.sleep(0.01)
        time.sleep(3.0)
        os.kill(pid, signal.SIGCONT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    os.waitpid(pid, 0)
    stopping.join()
    own.close()
    assert "labkit was stopped for" in (tmp_path / "flags").read_text()
