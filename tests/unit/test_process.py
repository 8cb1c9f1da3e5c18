"""Which process it was, whether it lives, and signals that interrupt as Ctrl-C does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labkit import process, standing
from labkit.process import ended_as_by_ctrl_c
from labkit.rig import state


def test_a_process_is_known_until_it_ends() -> None:
    mine = process.identity()
    assert mine["pid"] == os.getpid() and process.runs(mine) is True
    # Its id was given to another process since: only the start tells them apart.
    assert process.runs(mine | {"started": mine["started"] + 1}) is False
    assert process.runs(mine | {"boot": "an earlier one"}) is False
    assert process.runs(mine | {"host": "another machine"}) is None
    assert process.runs({"host": mine["host"]}) is False


def test_a_process_that_ended_does_not_run_even_before_it_is_waited_for() -> None:
    code = "import json; from labkit import process; print(json.dumps(process.identity()))"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    found = json.loads(child.stdout.read())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").exists() and process.runs(found) is False
    child.wait()
    assert process.runs(found) is False


def test_the_first_signal_interrupts_and_what_is_taken_down_is_not_interrupted() -> None:
    taken_down = False
    with pytest.raises(KeyboardInterrupt), ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.raise_signal(number)
            taken_down = True
    assert taken_down
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_stays_ignored_and_a_thread_handles_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c(signal.SIGHUP):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    seen: list[object] = []

    def inside() -> None:
        with ended_as_by_ctrl_c(signal.SIGTERM):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_who_holds_the_rig_is_told_without_taking_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (standing, state):
        for name in ("LOCK", "MACHINE"):
            monkeypatch.setattr(module, name, tmp_path / "lock")
    assert standing.user() is None
    with state.locked():
        assert standing.user() == os.getpid()
    assert standing.user() is None and standing.holder(tmp_path / "lock") == os.getpid()
