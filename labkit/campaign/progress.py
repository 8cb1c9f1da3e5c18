"""The progress of a run: a bar with the time left, or a line a trial in a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import tqdm
import tqdm.auto

from labkit.process import open_progress

#: At the level INFO it has a line a trial, at WARNING those that failed.
LOG = logging.getLogger("labkit.campaign")


class _AboveBar(logging.Handler):
    """A handler that writes lines without breaking the bar."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.tqdm.write(self.format(record), file=self._file)
        self._file.flush()


@contextmanager
def shown(title: str, *, total: int, done: int) -> Iterator[Any]:
    """Show the trials of a campaign; yield the bar, to be updated after each of them.

    A terminal and a notebook have a bar, and lines of failed trials. A file has a line a trial.
    """
    # tqdm's monitor is a thread that would wake up inside windows.
    tqdm.tqdm.monitor_interval = 0
    terminal, level = open_progress(), LOG.level
    file = terminal or sys.stderr
    notebook = terminal is None and "ipykernel" in sys.modules
    lines = not notebook and not file.isatty()
    handler = _AboveBar(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOG.addHandler(handler)
    if lines:
        LOG.setLevel(logging.INFO)
    bar = (tqdm.auto.tqdm if notebook else tqdm.tqdm)(
        total=total,
        initial=done,
        desc=title,
        unit="trial",
        file=file,
        disable=lines,
        mininterval=0,
        smoothing=0.1,
        dynamic_ncols=True,
    )
    try:
        with bar:
            yield bar
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)
        if terminal:
            terminal.close()
