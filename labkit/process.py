"""Progress that bypasses papermill, signals handled like Ctrl-C, and files that are locked."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from labkit.errors import LabkitError

#: Environment variable with the file that progress is written to: a bar on a terminal, else lines.
#: ``labkit run`` sets it, as what passes through papermill would wake it up inside windows.
TERMINAL = "LABKIT_PROGRESS"


def announce(text: str) -> None:
    """Print a line of progress, in a notebook that `labkit run` executes also to its terminal."""
    print(text, flush=True)
    if file := open_progress():
        with file:
            file.write(f"labkit: {text}\n")


def say(text: str) -> None:
    """Print a line of progress with the time to standard error."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"labkit: {now} {text}", file=sys.stderr, flush=True)


def open_progress() -> TextIO | None:
    """Open the file that `TERMINAL` names; None where there is none."""
    # A kernel leads its own session, whose controlling terminal this must not become.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY
    try:
        return os.fdopen(os.open(os.environ[TERMINAL], flags), "a")
    except (KeyError, OSError):
        return None


@contextmanager
def locked(path: Path, busy: LabkitError, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a file's lock, until this process ends at most; raise `busy` if another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Longer than `holder` takes.
    end = time.monotonic() + max(patience, 0.2)
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    busy.why = f"{holder(path) or 'another process'} has it"
                    raise busy from None
                time.sleep(0.05)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield


def holder(path: Path) -> str:
    """Return the words of the process that has a file's lock now, or ""."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return ""


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that all is cleaned up as by Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both, interrupt = (signal.SIGTERM, signal.SIGHUP), signal.getsignal(signal.SIGINT)
    handled = [number for number in both if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        # Further signals do not interrupt the cleanup. Child processes would inherit SIG_IGN.
        for other in (*handled, signal.SIGINT):
            signal.signal(other, lambda *_: None)
        raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, interrupt)
