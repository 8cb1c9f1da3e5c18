"""Read what tools print, strictly: numbers, lines of ``name=value``, versions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from labkit.errors import ToolMissing, ToolOutput
from labkit.hosts import Host
from labkit.tools.base import PYTHON

#: A number as tools print it in the locale C, without a decimal comma.
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def fields(text: str) -> dict[str, str]:
    """Return the value of each line that is ``name=value``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, middle, value in pairs if middle}


def unreadable(tool: str, why: str, text: str, **evidence: str) -> ToolOutput:
    """Return the error for output that cannot be read; it shows what there was."""
    shown = text.strip() or "(nothing)"
    shown = shown if len(shown) < 1000 else f"{shown[:300]} ... {shown[-600:]}"
    return ToolOutput(
        f"cannot read the output of {tool}",
        why=f"{why}; it printed: {shown}",
        remedy="see the trial's raw output; run the same command in the image by hand",
        evidence={"stdout": text[-4000:], **evidence},
    )


def number(text: str, *, tool: str, name: str, whole: str) -> float:
    """Return a positive number that a tool printed.

    Parameters
    ----------
    text : str
        The number alone.
    tool, name : str
        Whose it is, and what, for the error.
    whole : str
        The output that it is from, for the error.

    Raises
    ------
    ToolOutput
        It is not a number, or not positive.
    """
    if not NUMBER.fullmatch(text):
        raise unreadable(tool, f"{name} is {text!r}, not a number", whole)
    value = float(text)
    if not value > 0 or not math.isfinite(value):
        raise unreadable(tool, f"{name} is {text}, not positive", whole)
    return value


def numbers(stdout: str, names: tuple[str, ...], *, tool: str) -> dict[str, float]:
    """Return fields that must all be there as positive numbers; raise `ToolOutput` otherwise."""
    values = fields(stdout)
    missing = [name for name in names if name not in values]
    if missing:
        raise unreadable(tool, f"there is no {', '.join(missing)}", stdout)
    return {name: number(values[name], tool=tool, name=name, whole=stdout) for name in names}


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
