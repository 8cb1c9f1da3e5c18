"""Tools that write log files: run in a new directory, whose files become the client's log.

On the generator the log is the window's. A client inside a placement can write no file that the
harness sees: there the files follow what the tool printed, below a separating line.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.hosts import script
from labkit.tools.parsing import unreadable

_MARK = "@@ log"

# A tool that is ended because its time is up has written what there is to be read.
_RUN = rf"""
log=$1 limit=$2
shift 2
if [ "$log" = - ]; then folder=$(mktemp -d); else folder=$log.d; mkdir "$folder"; fi
trap 'cd / && rm -rf "$folder"' EXIT
cd "$folder"
status=0
timeout --foreground -k 1 "$limit" "$@" || status=$?
if [ "$status" != 0 ] && {{ [ "$status" != 124 ] || [ "$limit" = 0 ]; }}; then exit "$status"; fi
files() {{ for one in *; do [ ! -f "$one" ] || cat -- "$one"; done; }}
if [ "$log" = - ]; then printf '\n{_MARK}\n'; files; else files >"$log"; fi
"""

#: A rate counts as reached from this share of what was asked for.
REACHED = 0.99

Column = NDArray[np.int64]


def logged(argv: Sequence[str], *, inside: bool = False, limit: float = 0.0) -> tuple[str, ...]:
    """Return the command that runs a tool in a new directory and keeps the files that it writes.

    Parameters
    ----------
    argv : sequence of str
        The tool; it writes to names without a directory.
    inside : bool
        Whether it runs inside a placement, where the files follow its output.
    limit : float
        Seconds after which it is ended, and what it wrote is read all the same; 0 for none.
    """
    return tuple(script(_RUN, "-" if inside else "{log}", f"{limit:g}", *argv))


def split(stdout: str, log: str) -> tuple[str, str]:
    """Return what a tool printed, and the files that it wrote, wherever it ran."""
    printed, mark, files = stdout.partition(f"\n{_MARK}\n")
    return (printed, files) if mark else (stdout, log)


def rows(text: str, names: Sequence[str], separator: str, *, tool: str) -> dict[str, Column]:
    """Return columns of lines of integers.

    Parameters
    ----------
    text : str
        Lines of numbers, in the order of `names`.
    names : sequence of str
        The columns.
    separator : str
        Between two numbers.
    tool : str
        Whose lines they are, for the error.

    Raises
    ------
    ToolOutput
        There is no line, one is cut off, or a value is not an integer.
    """
    lines, wanted = text.count("\n"), text.count(separator)
    why = ""
    if not lines or not text.endswith("\n"):
        why = "its log is empty" if not text else "its log is cut off"
    elif wanted != lines * (len(names) - 1):
        why = f"its log has not {len(names)} numbers in each of its {lines} lines"
    try:
        if why:
            raise ValueError(why)
        table = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            names=list(names),
            dtype="int64",
            index_col=False,
            skip_blank_lines=False,
        )
    except ValueError as error:
        raise unreadable(tool, str(error), text) from None
    return {name: table[name].to_numpy() for name in names}


def shortfall(achieved: float, requested: float, *, chance: float = 0.0) -> tuple[str, ...]:
    """Return the flag of a rate that was not reached, or none.

    Parameters
    ----------
    achieved, requested : float
        Both a second.
    chance : float
        By how much a load that draws its times may fall short without being late, a second.
    """
    if achieved >= REACHED * requested - chance:
        return ()
    return (f"rate not reached: {achieved:,.1f} of {requested:,.1f} per second",)
