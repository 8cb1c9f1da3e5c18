"""Read what tools print, strictly: numbers, lines of ``name=value``, tables, versions."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import ToolMissing, ToolOutput
from labkit.hosts import Host
from labkit.tools.base import LOG_MARK, PYTHON

#: A number as tools print it in the locale C, without a decimal comma.
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
#: The least pause between messages that is flagged, and how many times longer it is than others.
_PAUSE_NS, _LONGER = 500_000_000, 10
#: A rate counts as reached from this share of the requested one.
REACHED = 0.99
#: How the flag of a rate that was not reached begins.
NOT_REACHED = "rate not reached"

Column = NDArray[np.int64]


def unreadable(tool: str, why: str, text: str, log: str = "") -> ToolOutput:
    """Return the error for output that cannot be read, with its text."""
    shown = text.strip() or "(nothing)"
    shown = shown if len(shown) < 1000 else f"{shown[:300]} ... {shown[-600:]}"
    return ToolOutput(
        f"cannot read the output of {tool}",
        why=f"{why}; it printed: {shown}",
        remedy="see the trial's raw output; run the same command in the image by hand",
        evidence={"stdout": text[-4000:]} | ({"log": log[:2000]} if log else {}),
    )


@contextmanager
def reading(tool: str, text: str, log: str = "") -> Iterator[None]:
    """Turn what goes wrong while output is taken apart into `ToolOutput`."""
    try:
        yield
    except (
        *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
        RecursionError,  # of JSON
    ) as error:
        raise unreadable(tool, f"there is no result ({error!r})", text, log) from None


def fields(text: str) -> dict[str, str]:
    """Return the value of each line that is ``name=value``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, middle, value in pairs if middle}


def number(text: str, *, tool: str, name: str, output: str) -> float:
    """Return a positive number of a tool's output; raise `ToolOutput` for anything else."""
    if not _NUMBER.fullmatch(text):
        raise unreadable(tool, f"{name} is {text!r}, not a number", output)
    value = float(text)
    if not value > 0 or not math.isfinite(value):
        raise unreadable(tool, f"{name} is {text}, not positive", output)
    return value


def numbers(stdout: str, names: tuple[str, ...], *, tool: str) -> dict[str, float]:
    """Return fields that must all be there as positive numbers; raise `ToolOutput` otherwise."""
    values = fields(stdout)
    missing = [name for name in names if name not in values]
    if missing:
        raise unreadable(tool, f"there is no {', '.join(missing)}", stdout)
    return {name: number(values[name], tool=tool, name=name, output=stdout) for name in names}


def split(stdout: str, log: str) -> tuple[str, str]:
    """Return what a tool of `labkit.tools.base.logged` printed, and the files that it wrote."""
    printed, mark, files = stdout.partition(f"\n{LOG_MARK}\n")
    return (printed, files) if mark else (stdout, log)


def rows(text: str, names: Sequence[str], separator: str, *, tool: str) -> dict[str, Column]:
    """Return the columns of lines of integers, which are in the order of `names`.

    Raises
    ------
    ToolOutput
        There is no line, one is cut off, or a value is not an integer.
    """
    lines = text.count("\n")
    if not lines or not text.endswith("\n"):
        raise unreadable(tool, "its log is cut off" if text else "its log is empty", text)
    if text.count(separator) != lines * (len(names) - 1):
        why = f"its log has not {len(names)} numbers in each of its {lines} lines"
        raise unreadable(tool, why, text)
    try:
        table = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            names=list(names),
            dtype="int64",
            index_col=False,
            skip_blank_lines=False,
        )
    except (ValueError, OverflowError) as error:
        raise unreadable(tool, str(error), text) from None
    return {name: table[name].to_numpy() for name in names}


def csv_rows(text: str, names: Sequence[str], *, tool: str) -> dict[str, Column]:
    """Return the columns of a CSV of integers that begins with their names; as `rows`."""
    head, _, body = text.partition("\n")
    if head != ",".join(names):
        raise unreadable(tool, f"its log has not the columns {', '.join(names)}", text)
    return rows(body, names, ",", tool=tool)


def shortfall(achieved: float, requested: float, *, chance: float = 0.0) -> tuple[str, ...]:
    """Return the flag of a rate that was not reached, or none.

    Parameters
    ----------
    achieved, requested : float
        Both per second.
    chance : float
        By how much a load with random intervals may fall short without being late, per second.
    """
    if achieved >= REACHED * requested - chance:
        return ()
    return (f"{NOT_REACHED}: {achieved:,.1f} of {requested:,.1f} per second",)


def paused(times: Column) -> tuple[str, ...]:
    """Return the flag of the longest pause in the times of messages in ns, or none.

    One end may have been stopped. 99 % of the pauses must be much shorter.

    Examples
    --------
    >>> import numpy as np
    >>> from labkit.tools.parsing import paused
    >>> regular = np.arange(1000) * 1_000_000
    >>> paused(regular), paused(np.where(regular < 4e8, regular, regular + 1_500_000_000))
    ((), ('pause of 1.50 s, 0.40 s after the first message: was an end stopped?',))
    """
    times = np.sort(times)
    gaps = np.diff(times)
    if len(gaps) < 100 or gaps.max() < max(_PAUSE_NS, _LONGER * np.quantile(gaps, 0.99)):
        return ()
    at = (times[gaps.argmax()] - times[0]) / 1e9
    return (
        f"pause of {gaps.max() / 1e9:.2f} s, {at:.2f} s after the first message: was an end "
        "stopped?",
    )


def too_few(count: int, requested: int | None) -> tuple[str, ...]:
    """Return the flag of fewer messages than were requested, or none."""
    if requested is None or count >= requested:
        return ()
    return (f"short: {count} of {requested} messages",)


def version(
    host: Host, argv: Sequence[str], pattern: str, *, install: str = "", remedy: str = ""
) -> str:
    """Return the version that a tool reports on a host.

    Parameters
    ----------
    host : Host
        Where it is run.
    argv : sequence of str
        The command that prints its version, on whichever stream.
    pattern : str
        Its group is the version.
    install : str
        Its Debian package; the tool's own name by default.
    remedy : str
        What to do where no package has the tool.

    Raises
    ------
    ToolMissing
        It is not installed, or printed no version.
    """
    result = host.run(*argv, check=False)
    match = re.search(pattern, result.stdout + result.stderr)
    if result.status == 127 or match is None:
        raise ToolMissing(
            f"{argv[0]} is not installed",
            where=f"host {host.name}",
            remedy=remedy or f"apt-get install {install or argv[0]}",
        )
    return match[1]


def python_version(host: Host) -> str:
    """Return the version of the interpreter that runs labkit's programs on a host."""
    return version(host, (PYTHON, "--version"), r"Python (\S+)", install="python3-minimal")
