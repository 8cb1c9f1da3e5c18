"""The `Host` interface, and the local machine as a host.

Every command runs under ``timeout`` on its host: it ends in time even if the harness has died, and
the harness sleeps until then instead of polling.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from labkit.errors import CommandFailed, CommandTimeout, ToolOutput, UsageError
from labkit.hosts import agent

#: The text of the agent, which every call sends.
_SOURCE = Path(agent.__file__).read_text("utf-8")
#: The first words of every `script`.
SCRIPT = ("sh", "-euc")


@dataclass(frozen=True)
class Result:
    """What a command did; ``status`` is None if its end was not observed."""

    argv: tuple[str, ...]
    host: str
    status: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def command(self) -> str:
        """The command as text; a `script` is shown by its arguments only."""
        if self.argv[:2] == SCRIPT:
            return " ".join(["(script)", *(a for a in self.argv[4:] if "\n" not in a)])
        return " ".join(self.argv)

    def check(self, remedy: str = "") -> Result:
        """Return the result itself, or raise `CommandTimeout` or `CommandFailed` with it."""
        if self.status == 0 and not self.timed_out:
            return self
        kind = CommandTimeout if self.timed_out else CommandFailed
        how = "timed out" if self.timed_out else f"failed ({self.status})"
        # `sh` would say nothing about a script of labkit.
        name = "a script" if self.argv[:2] == SCRIPT else self.argv[0]
        raise kind(
            f"{name} {how}",
            where=f"host {self.host}: {self.command}"[:400],
            why=(self.stderr.strip() or self.stdout.strip())[-800:] or "it printed nothing",
            remedy=remedy,
            evidence=asdict(self),
        )


def json_rows(text: str, what: str) -> list[dict[str, Any]]:
    """Return the objects in the JSON output of `what`; none of no output."""
    try:
        rows = json.loads(text or "[]")
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return rows
        why = "it is no list of objects"
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise ToolOutput(f"{what} cannot be read", why=why, evidence={"output": text[:2000]})


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
        """Run a command, given as separate arguments, and wait for its end."""
        ...

    def call(self, function: str, *, timeout: float = 60.0, **arguments: Any) -> Any:
        """Call a function of `labkit.hosts.agent` on the host; return what it returns.

        Arguments and result are values of JSON.
        """
        request = {"source": _SOURCE, "function": function, "arguments": arguments}
        argv = ("python3", "-ISc", agent.BOOT)
        printed = self.run(*argv, input=json.dumps(request), timeout=timeout).stdout
        try:
            answer = json.loads(printed)
        except ValueError as error:
            raise ToolOutput(
                f"the answer of {function} cannot be read",
                where=f"host {self.name}",
                why=str(error),
                evidence={"output": printed[-2000:]},
            ) from None
        if "error" in answer:
            raise CommandFailed(
                f"{function} failed",
                where=f"host {self.name}",
                why=answer["error"],
                evidence={"arguments": arguments},
            )
        return answer["result"]

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file to the host."""
        ...

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file from the host."""
        ...

    def close(self) -> None:
        """Close the connection; detached jobs keep running."""
        ...


def script(text: str, *args: str) -> Sequence[str]:
    """Return the argument list that runs a POSIX shell script with positional arguments.

    The text is a constant; everything variable is passed as ``$1``, ``$2``, ..., so the shell
    never reads user input as code.
    """
    return (*SCRIPT, text, "labkit", *args)


#: Seconds between TERM and KILL.
GRACE = 2.0
#: Seconds after its time limit for which the harness still waits for a command's result.
PATIENCE = 10.0
#: Exit statuses of a command that timed out; None if ``timeout`` was killed with its group.
_TIMED_OUT = (124, 137, None)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# The TERM trap makes `timeout` wait for the shell, so that its KILL reaches the process group:
# otherwise a grandchild that ignores TERM would survive a child that obeys it. A trap, unlike an
# ignored signal, is not inherited. `env` avoids the shell's builtins, and descriptor 3 keeps the
# shell's own messages about killed children out of the command's output.
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
    for text in (*argv, *variables):
        encode(text)
    if not (timeout >= 0.001 and math.isfinite(timeout)):
        raise UsageError(
            f"invalid timeout: {timeout!r} s", remedy="give a positive number of seconds"
        )
    limit = ("timeout", "-k", f"{GRACE:g}", f"{timeout:.3f}")
    return (*limit, "sh", "-c", _LIMITED, "labkit", *variables, *argv)


def ran_out_of_time(status: int | None, seconds: float, timeout: float) -> bool:
    """Return whether a command that took `seconds` was ended by its time limit."""
    return seconds >= timeout and status in _TIMED_OUT


def encode(text: str) -> bytes:
    """Encode UTF-8, with the bytes that file names may hold; raise `UsageError` for others."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError("a text for a command is not Unicode", why=str(error)) from None


def decode(data: bytes) -> str:
    """Decode UTF-8; invalid bytes become U+FFFD."""
    return data.decode("utf-8", errors="replace")


class LocalHost(Host):
    """The machine and the user that the harness runs on; `name` is shown in results and errors."""

    def __init__(self, name: str = "local") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"LocalHost({self.name!r})"

    def run(
        self,
        *argv: str,
        input: str | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """Run a command and wait for its end; see `Host.run`.

        A background child that keeps the command's output open delays the return until the time
        limit: use `labkit.hosts.start_job` for what is to keep running.
        """
        line, data = limited(argv, timeout, env), None if input is None else encode(input)
        begin = time.monotonic()
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        out, err, ended = _finish(process, data, timeout + GRACE + PATIENCE)
        seconds = time.monotonic() - begin
        status = process.returncode if ended else None
        if status is not None and status < 0:
            status = 128 - status  # the convention of shells and of SSH
        late = not ended or ran_out_of_time(status, seconds, timeout)
        result = Result(argv, self.name, status, decode(out), decode(err), seconds, late)
        return result.check() if check else result

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file; raise `CommandFailed` if that fails."""
        self._copy(local, remote)

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file; raise `CommandFailed` if that fails."""
        self._copy(remote, local)

    def _copy(self, source: Path | str, target: Path | str) -> None:
        try:
            shutil.copy(source, target)
        except shutil.SameFileError:
            return
        except (OSError, ValueError) as error:  # ValueError: a NUL, or not Unicode
            raise CommandFailed(
                f"cannot copy {str(source)!a} to {str(target)!a}",
                where=f"host {self.name}",
                why=str(error),
            ) from error

    def close(self) -> None:
        """Do nothing; there is no connection to close."""


def _finish(
    process: subprocess.Popen[bytes], data: bytes | None, patience: float
) -> tuple[bytes, bytes, bool]:
    """Wait for a process; return its output and whether it ended by itself."""
    try:
        out, err = process.communicate(data, timeout=patience)
        return out, err, True
    except subprocess.TimeoutExpired as error:
        # Either `timeout` itself hangs, or it ended and an escaped child keeps the pipes open.
        return error.output or b"", error.stderr or b"", process.poll() is not None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
