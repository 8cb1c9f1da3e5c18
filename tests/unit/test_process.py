"""Signals handled like Ctrl-C, and progress that goes past papermill."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from labkit.process import TERMINAL, announce, ended_as_by_ctrl_c


def test_only_the_first_signal_interrupts() -> None:
    taken_down = False
    with pytest.raises(KeyboardInterrupt), ended_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        try:
            signal.raise_signal(signal.SIGTERM)  # nohup ignores SIGHUP
        finally:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            taken_down = True
    assert taken_down
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_and_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen: list[object] = []

    def inside() -> None:
        with ended_as_by_ctrl_c(signal.SIGTERM):
            seen.append(signal.getsignal(signal.SIGTERM))

    try:
        with ended_as_by_ctrl_c(signal.SIGHUP):
            signal.raise_signal(signal.SIGHUP)
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_DFL]


def test_progress_goes_to_the_notebook_and_to_who_executes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = tmp_path / "terminal"
    terminal.write_text("before\n")
    announce("one")
    monkeypatch.setenv(TERMINAL, str(terminal))
    announce("two")
    monkeypatch.setenv(TERMINAL, str(tmp_path / "no" / "such"))
    announce("three")
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert terminal.read_text() == "before\nlabkit: two\n"
