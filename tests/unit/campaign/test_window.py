"""A window that labkit could not attend to: it was stopped, or its machine slept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.campaign import window
from labkit.campaign.counters import Kernel
from labkit.campaign.window import Load
from labkit.hosts import LocalHost
from labkit.tools.base import Client, Measurement

ALL = f"0-{(os.cpu_count() or 1) - 1}"


def test_labkit_is_stopped_in_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, since a test cannot stop and continue itself.

    The client lasts until labkit was stopped, and labkit is stopped when it waits for the client.
    """
    stopped, flags = tmp_path / "stopped", tmp_path / "flags"
    monkeypatch.setattr(window, "LATE", 1.0)
    argv = ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done', str(stopped))
    client = Client(argv, "", 60.0, lambda out, log: Measurement({}))
    folder, load = str(tmp_path / "window"), Load("tool", client, argv, "", ALL)
    pid = os.fork()
    if not pid:
        try:
            own = [Kernel(LocalHost(), {})]
            found = window.measure([load], own, folder=folder, label="lkt-window")
            flags.write_text("; ".join(found.flags))
        finally:
            os._exit(0)

    def stop() -> None:
        while not (tmp_path / "window" / "tool.err").exists():
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


def run(tmp_path: Path, *loads: tuple[str, ...], cache_line: Sequence[str] = ()) -> window.Window:
    """Run a window with some loads on this machine."""
    found = [
        Load(str(number), Client(argv, "", 5.0, lambda out, log: Measurement({})), argv, "", ALL)
        for number, argv in enumerate(loads)
    ]
    own = [Kernel(LocalHost(), {"": os.getpid()})]
    folder = str(tmp_path / "window")
    return window.measure(found, own, folder=folder, label="lkt-window", cache_line=cache_line)


def test_a_window_fails_with_the_first_load_that_fails(tmp_path: Path) -> None:
    loads = [
        ("sh", "-c", text) for text in ("echo out; echo err >&2", "sleep 0.2; exit 3", "exit 4")
    ]
    found = run(tmp_path, *loads)
    assert (found.job.status, found.job.timed_out) == (3, False)
    assert not (tmp_path / "window").exists()
    assert (found.texts["0.out"], found.texts["0.err"]) == ("out\n", "err\n")
    ((_, (before, after)),) = found.snapshots
    assert after["clock_ns"] - before["clock_ns"] > 0.2e9 and before["ran_ns"] <= after["ran_ns"]


_TIMING = "trap 'echo 95; exit' TERM; echo 90; while :; do sleep 0.01; done"


@pytest.mark.parametrize(
    ("timing", "printed"), [(_TIMING, "90\n95\n"), ("echo 90", "90\n"), ("false", "")]
)
def test_a_cache_line_is_timed_from_before_the_loads_to_after_them(
    tmp_path: Path, timing: str, printed: str
) -> None:
    found = run(tmp_path, ("cat", "line"), cache_line=["sh", "-c", timing])
    assert found.texts["line"] == printed and found.job.status == 0
    assert found.texts["0.out"] == printed[:3]
