"""Progress with an estimate of the end, drawn between trials only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TextIO

import tqdm
import tqdm.auto

#: Names a file (a terminal) that progress is drawn to; ``labkit run`` sets it, since the notebook's
#: own output is not seen before it has ended.
VARIABLE = "LABKIT_PROGRESS"


class Progress:
    """A bar over the trials of a campaign; it is touched between trials, never inside one."""

    def __init__(self, total: int, done: int, title: str) -> None:
        # The library's monitor is a thread that wakes up by the clock, also inside a window.
        tqdm.tqdm.monitor_interval = 0
        self._file: TextIO | None = _file()
        kind: Any = tqdm.tqdm if self._file or not _in_notebook() else tqdm.auto.tqdm
        self._bar = kind(
            total=total,
            initial=done,
            desc=title,
            unit="trial",
            file=self._file or sys.stderr,
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

    def note(self, text: str) -> None:
        """Print a line without breaking the bar."""
        self._bar.write(text, file=self._file or sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
        if self._file:
            self._file.close()


def _file() -> TextIO | None:
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    try:
        return Path(name).open("a")
    except OSError:
        return None


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
