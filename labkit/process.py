"""Processes: which one it was, whether it still runs, and how one is asked to end."""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


def boot() -> str:
    """Return the identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity() -> dict[str, Any]:
    """Return what tells this process from every other: host, boot, process id, and its start.

    Ids are used again; the start, in ticks since the boot, is not.
    """
    pid = os.getpid()
    return {"host": platform.node(), "boot": boot(), "pid": pid, "started": _started(pid)}


def runs(found: Mapping[str, Any]) -> bool | None:
    """Tell whether the process with an `identity` still runs; None where only its host can tell."""
    if found.get("host") != platform.node():
        return None
    started = _started(found.get("pid"))
    return found.get("boot") == boot() and started is not None and started == found.get("started")


def _started(pid: object) -> int | None:
    """Return when a living process began, in ticks since the boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@contextmanager
def ended_as_by_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Have signals interrupt a ``with`` block as Ctrl-C does, and once.

    Schedulers send SIGTERM, a terminal that goes SIGHUP; both would end a process before it has
    taken anything down. Where several processes are sent one, they interrupt each other too, so
    everything after the first is let pass: what is taken down is taken down whole.

    Parameters
    ----------
    *numbers : signal.Signals
        Which; one that is ignored (``nohup``) or handled otherwise stays so. Outside of the main
        thread, which alone may handle signals, none is.
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
