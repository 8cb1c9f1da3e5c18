"""What a host can do, whatever the way to it; only `run`, `put` and `get` differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from labkit.errors import CommandFailed, CommandTimeout

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
        how = "took too long and was ended" if self.timed_out else f"failed ({self.status})"
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
        """Run a command and wait for it; a list of arguments, never a line for a shell.

        Raises
        ------
        CommandFailed, CommandTimeout
            With ``check``; the time-out ends the command on the host too, and its children.
        HostUnreachable, HostKeyMismatch, ConnectionLost
            Where the way to the host fails.
        """
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
