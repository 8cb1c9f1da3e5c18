"""Variables of the environment from a command to its kernel, and signals handled like Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

#: Environment variable: where it is set, opening a rig waits for the process that uses it.
WAIT = "LABKIT_WAIT"
#: Environment variable with the file that progress is written to: a bar on a terminal, else lines.
#: ``labkit run`` sets it, as a notebook's output is seen only after its end.
TERMINAL = "LABKIT_PROGRESS"
#: Environment variable with the numbers of the only blocks to measure, separated by commas.
BLOCKS = "LABKIT_BLOCKS"
#: Environment variable with the time of the monotonic clock by which the last block is to end.
UNTIL = "LABKIT_UNTIL"


def selected_blocks() -> frozenset[int] | None:
    """Return the only blocks that this process is to measure; None for all."""
    text = os.environ.get(BLOCKS)
    return frozenset(map(int, text.split(","))) if text else None


def seconds_left() -> float:
    """Return the seconds until the last block is to end, infinite without a limit."""
    until = os.environ.get(UNTIL)
    return float(until) - time.monotonic() if until else math.inf


def announce(text: str) -> None:
    """Print a line of progress, in a notebook that `labkit run` executes also to its terminal."""
    print(text, flush=True)
    if file := open_progress():
        with file:
            file.write(f"labkit: {text}\n")


def open_progress(name: str | None = None) -> TextIO | None:
    """Open the file that `TERMINAL` names, or another one; None where there is none."""
    name = name or os.environ.get(TERMINAL)
    if not name:
        return None
    try:
        # A kernel leads its own session, whose controlling terminal this must not become.
        return os.fdopen(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "a")
    except OSError:
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
