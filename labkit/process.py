"""Processes: which one it was, whether it still runs, and how one is asked to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def boot() -> str:
    """Return the identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def ended_as_by_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Have signals interrupt a ``with`` block as Ctrl-C does, and once.

    Schedulers send SIGTERM, a terminal that goes SIGHUP; both would end a process before it has
    taken anything down. Where several processes are sent one, they interrupt each other too, so
    everything after the first is let pass: what is taken down is taken down whole.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [one for one in numbers if signal.getsignal(one) is signal.SIG_DFL]
    interrupt = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        for one in (*mine, signal.SIGINT):
            signal.signal(one, _pass)
        raise KeyboardInterrupt

    for one in mine:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one in mine:
            signal.signal(one, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is _pass:
            signal.signal(signal.SIGINT, interrupt)


def _pass(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike a signal that is ignored, that is not inherited by a program's start."""
