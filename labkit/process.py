"""Progress that bypasses papermill, and signals handled like Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

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


def boot() -> str:
    """Return the identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def ended_as_by_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Let signals raise `KeyboardInterrupt` in a ``with`` block, as Ctrl-C does.

    Schedulers send SIGTERM and a closed terminal SIGHUP, which by default end a process without any
    cleanup. Further signals after the first are ignored, so that cleanup is not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    interrupt = signal.getsignal(signal.SIGINT)

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
