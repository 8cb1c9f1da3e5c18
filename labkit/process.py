"""Progress that bypasses papermill, signals handled like Ctrl-C, and files that are locked."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


def open_progress() -> TextIO | None:
    """Open the file that `TERMINAL` names; None where there is none."""
    try:
        # A kernel leads its own session, whose controlling terminal this must not become.
        return os.fdopen(
            os.open(os.environ[TERMINAL], os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "a"
        )
    except (KeyError, OSError):
        return None


@contextmanager
def locked(path: Path, busy: LabkitError, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a file's lock, which names this process; raise `busy` if another has it.

    The kernel releases it when its process ends, on shared storage too.
    """
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
                    file.seek(0)
                    busy.why = f"{file.read() or 'another process'} has it"
                    raise busy from None
                time.sleep(0.05)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield


def holder(path: Path) -> str:
    """Return the words of the process that has a file's lock now, or ""."""
    if not path.is_file():
        return ""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return ""


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt` in a ``with`` block, as Ctrl-C does.

    Schedulers send the one and a closed terminal the other, which by default end a process without
    any cleanup. Further signals after the first are ignored, so that cleanup is not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both, interrupt = (signal.SIGTERM, signal.SIGHUP), signal.getsignal(signal.SIGINT)
    handled = [number for number in both if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        for other in (*handled, signal.SIGINT):
            # Not SIG_IGN, which child processes would inherit.
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
