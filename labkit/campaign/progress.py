"""Progress with an estimate of the end, drawn between trials only."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

import tqdm
import tqdm.auto

#: Names a file (a terminal) that progress is drawn to; ``labkit run`` sets it, since the notebook's
#: own output is not seen before it has ended. What is no terminal gets the lines of the log.
VARIABLE = "LABKIT_PROGRESS"


class Progress:
    """A bar over the trials of a campaign; it is touched between trials, never inside one."""

    def __init__(self, total: int, done: int, title: str) -> None:
        # The library's monitor is a thread that wakes up by the clock, also inside a window.
        tqdm.tqdm.monitor_interval = 0
        self._file = _opened(os.environ.get(VARIABLE))
        #: Where whole lines are written to instead of a bar: a file or pipe keeps what was drawn.
        self.lines = self._file if self._file and not self._file.isatty() else None
        self._nowhere = _opened(os.devnull) if self.lines else None
        kind: Any = tqdm.tqdm if self._file or not _in_notebook() else tqdm.auto.tqdm
        self._bar = kind(
            total=total,
            initial=done,
            desc=title,
            unit="trial",
            file=self._nowhere or self._file or sys.stderr,
            mininterval=0,
            smoothing=0.1,
            dynamic_ncols=True,
        )

    def before(self, text: str) -> None:
        """Say which trial comes next."""
        self._bar.set_postfix_str(text, refresh=True)

    def after(self) -> None:
        """Count a trial that is done."""
        self._bar.update(1)

    def left(self) -> float | None:
        """Return how many seconds the bar says are left; None before the first trial has ended."""
        found = self._bar.format_dict
        measured = found["n"] - found["initial"]
        rate = found["rate"] or (measured / found["elapsed"] if measured else 0)
        return (found["total"] - found["n"]) / rate if rate else None

    def note(self, text: str, *, bad: bool = False) -> None:
        """Print a line without breaking the bar; a notebook shows in red what is bad, not all."""
        plain = sys.stdout if _in_notebook() and not bad else sys.stderr
        self._bar.write(text, file=self._file or plain)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
        for file in (self._file, self._nowhere):
            if file:
                file.close()


def _opened(name: str | None) -> TextIO | None:
    if not name:
        return None
    try:
        # A kernel leads a session of its own: the terminal is not to become that session's.
        return os.fdopen(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY), "a")
    except OSError:
        return None


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
