"""The one command line that both kinds of host run: time limit and environment on the host itself.

The limit is kept by ``timeout`` beside the command, so the command's processes end in time even
where nobody is left to ask for it, and the harness sleeps without waking up to look at a clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from labkit.errors import UsageError

#: Seconds between asking a command to end (TERM) and ending it (KILL).
GRACE = 2.0
#: Seconds that an answer may be late before the harness stops to wait for it.
PATIENCE = 10.0
#: Exit statuses of a command that ran out of time; None where ``timeout`` fell with its group.
ENDED_BY_LIMIT = (124, 137, None)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# The TERM trap keeps `timeout` waiting for the shell, so its KILL reaches the whole process group:
# without it, a grandchild that ignores TERM would outlive a child that obeys. A trap, unlike an
# ignored signal, is not inherited. `env` keeps the shell's builtins out of the way, and what the
# shell itself says of a child that a signal ended stays out of the command's output.
_LIMITED = """
trap "exec sleep 60" TERM
exec 3>&2 2>/dev/null
(exec env -- "$@" 2>&3 3>&-)
"""


def limited(
    argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the argument list that runs `argv` for at most `timeout` seconds, with `env` added.

    Raises
    ------
    UsageError
        For an empty command, a NUL, a variable name that is none, or a limit that is none.
    """
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    if not argv or not argv[0] or "=" in argv[0]:
        raise UsageError(f"{list(argv)!r} names no program to run")
    if bad := [name for name in env or {} if not _VARIABLE.match(name)]:
        raise UsageError(f"{bad[0]!r} is not the name of an environment variable")
    if any("\0" in text for text in (*argv, *variables)):
        raise UsageError("an argument or variable contains a NUL, which no command can receive")
    if not (timeout >= 0.001 and math.isfinite(timeout)):
        raise UsageError(f"a time limit of {timeout!r} s is none", remedy="give positive seconds")
    limit = ("timeout", "-k", f"{GRACE:g}", f"{timeout:.3f}")
    return (*limit, "sh", "-c", _LIMITED, "labkit", *variables, *argv)


def ran_out_of_time(status: int | None, seconds: float, timeout: float) -> bool:
    """Tell whether a command that took `seconds` was ended by its limit."""
    return seconds >= timeout and status in ENDED_BY_LIMIT


def decode(data: bytes) -> str:
    """Return what a program printed as text; bytes that are not UTF-8 become U+FFFD."""
    return data.decode("utf-8", errors="replace")
