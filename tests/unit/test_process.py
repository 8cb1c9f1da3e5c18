"""Signals handled like Ctrl-C, locks, and the project's folder."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit import paths
from labkit.errors import RigInUse, UsageError
from labkit.paths import MARK, project
from labkit.process import ended_as_by_ctrl_c, holder, locked


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    file, refusal = tmp_path / "run" / "lock", RigInUse("in use")
    assert holder(file) == ""
    if (other := os.fork()) == 0:
        try:
            with locked(file, refusal):
                time.sleep(300)
        finally:
            os._exit(1)
    while not holder(file):
        time.sleep(0.01)
    with pytest.raises(RigInUse, match="in use") as caught, locked(file, refusal, patience=0.3):
        pass
    assert caught.value.why == f"{holder(file)} has it"
    assert holder(file).startswith(f"process {other} on ")
    threading.Timer(0.3, os.kill, (other, signal.SIGKILL)).start()
    with locked(file, refusal, patience=60):
        assert holder(file).startswith(f"process {os.getpid()} on ")
    assert holder(file) == "" and os.waitpid(other, 0)


def test_only_the_first_signal_interrupts():
    taken_down = False
    with pytest.raises(KeyboardInterrupt), ended_as_by_ctrl_c():
        try:
            signal.raise_signal(signal.SIGTERM)  # nohup ignores SIGHUP
        finally:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            taken_down = True
    assert taken_down
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_and_threads_are_left_alone():
    def handler():
        with ended_as_by_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
            return signal.getsignal(signal.SIGTERM)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert handler() is not signal.SIG_DFL
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(handler).result() is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_project_is_the_nearest_folder_upwards_then_the_clone(tmp_path, monkeypatch):
    clone, outer, inner = project(), tmp_path / "outer", tmp_path / "outer/inner"
    for folder in (outer, inner):
        (folder / MARK).parent.mkdir(parents=True)
        (folder / MARK).touch()
    monkeypatch.chdir(tmp_path)
    assert project("data") == clone / "data" and (clone / "labkit").is_dir()
    monkeypatch.chdir(inner / "notebooks")
    assert project("data/local") == inner / "data/local" and project(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "SHIPPED", tmp_path)
    with pytest.raises(UsageError, match="no clone of labkit here"):
        project()
