"""Lines of ``name=value``, as several tools print them, read strictly."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from labkit.errors import ToolMissing, ToolOutput
from labkit.hosts import Host

#: A number as these tools print it in the locale C; a decimal comma is none.
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def fields(text: str) -> dict[str, str]:
    """Return the value of each line that is ``name=value``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, middle, value in pairs if middle}


def unreadable(tool: str, why: str, text: str, **evidence: str) -> ToolOutput:
    """Return the error for output that cannot be read; it shows what there was."""
    return ToolOutput(
        f"{tool}'s output cannot be read",
        why=f"{why}; it printed: {text.strip()[-600:] or '(nothing)'}",
        remedy="see the trial's outputs; run the same command in the image by hand",
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
        It is no number in the locale C, or not above 0.
    """
    if not NUMBER.fullmatch(text):
        raise unreadable(tool, f"{name} is {text!r}, no number", whole)
    value = float(text)
    if not value > 0 or not math.isfinite(value):
        raise unreadable(tool, f"{name} is {text}, not above 0", whole)
    return value


def numbers(stdout: str, names: tuple[str, ...], *, tool: str) -> dict[str, float]:
    """Return fields that must all be there as positive numbers; raise `ToolOutput` otherwise."""
    found = fields(stdout)
    lacking = [name for name in names if name not in found]
    if lacking:
        raise unreadable(tool, f"there is no {', '.join(lacking)}", stdout)
    return {name: number(found[name], tool=tool, name=name, whole=stdout) for name in names}


def version(
    host: Host, argv: Sequence[str], pattern: str, *, install: str = "", remedy: str = ""
) -> str:
    """Return the version that a tool says on a host.

    Parameters
    ----------
    host : Host
        Where it is asked.
    argv : sequence of str
        The tool, and what makes it say its version, on whichever stream.
    pattern : str
        Its group is the version.
    install : str
        What ``apt-get install`` is to be given; the tool's own name by default.
    remedy : str
        What to do where no package has the tool.

    Raises
    ------
    ToolMissing
        It is not there, or did not say one.
    """
    result = host.run(*argv, check=False)
    found = re.search(pattern, result.stdout + result.stderr)
    if result.status == 127 or found is None:
        raise ToolMissing(
            f"{argv[0]} is not installed",
            where=f"host {host.name}",
            remedy=remedy or f"apt-get install {install or argv[0]}",
        )
    return found[1]
