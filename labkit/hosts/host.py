"""What a host can do, and the command line that every kind of host runs.

``timeout`` runs beside the command on the host, so the command ends in time even where nobody is
left to ask for it, and the harness sleeps without looking at a clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from labkit.errors import CommandFailed, CommandTimeout, UsageError

#: How every `script` begins.
SCRIPT = ("sh", "-euc")


@dataclass(frozen=True)
class Result:
    """What a command did: ``status`` is None where it was not seen to end."""

    argv: tuple[str, ...]
    host: str
    status: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def command(self) -> str:
        """The command for a reader; of a `script` its arguments only."""
        if self.argv[:2] == SCRIPT:
            return " ".join(["(script)", *(a for a in self.argv[4:] if "\n" not in a)])
        return " ".join(self.argv)

    def check(self, remedy: str = "") -> Result:
        """Return the result itself, or raise `CommandTimeout` or `CommandFailed` with it."""
        if self.status == 0 and not self.timed_out:
            return self
        kind = CommandTimeout if self.timed_out else CommandFailed
        how = "timed out" if self.timed_out else f"failed ({self.status})"
        raise kind(
            f"{self.argv[0]} {how}",
            where=f"host {self.host}: {self.command}"[:400],
            why=(self.stderr.strip() or self.stdout.strip())[-800:],
            remedy=remedy,
            evidence=asdict(self),
        )


@runtime_checkable
class Host(Protocol):
    """A machine (or network namespace) that the lab controls."""

    name: str

    def run(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command and wait for it; a list of arguments, never a line for a shell."""
        ...

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file to the host."""
        ...

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file from the host."""
        ...

    def close(self) -> None:
        """Drop the way to the host; detached jobs go on."""
        ...


def script(text: str, *args: str) -> Sequence[str]:
    """Return the argument list that runs a POSIX shell script with positional arguments.

    The text is a constant of the program; everything variable travels as ``$1``, ``$2``, ...,
    so nothing that a user gives is ever read by the shell as code.
    """
    return (*SCRIPT, text, "labkit", *args)


Facts = dict[str, Any]


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
    """Return the argument list that runs `argv` for at most `timeout` seconds, with `env` added."""
    variables = [f"{name}={value}" for name, value in (env or {}).items()]
    if not argv or not argv[0] or "=" in argv[0]:
        raise UsageError(f"empty or invalid command: {list(argv)!r}")
    if bad := [name for name in env or {} if not _VARIABLE.match(name)]:
        raise UsageError(f"invalid name of an environment variable: {bad[0]!r}")
    if any("\0" in text for text in (*argv, *variables)):
        raise UsageError("an argument or variable contains a NUL, which no command can receive")
    if not (timeout >= 0.001 and math.isfinite(timeout)):
        raise UsageError(
            f"invalid timeout: {timeout!r} s", remedy="give a positive number of seconds"
        )
    limit = ("timeout", "-k", f"{GRACE:g}", f"{timeout:.3f}")
    return (*limit, "sh", "-c", _LIMITED, "labkit", *variables, *argv)


def ran_out_of_time(status: int | None, seconds: float, timeout: float) -> bool:
    """Tell whether a command that took `seconds` was ended by its limit."""
    return seconds >= timeout and status in ENDED_BY_LIMIT


def decode(data: bytes) -> str:
    """Return what a program printed as text; bytes that are not UTF-8 become U+FFFD."""
    return data.decode("utf-8", errors="replace")
