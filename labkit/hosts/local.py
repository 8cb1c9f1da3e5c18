"""The machine of the harness as a host."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.errors import CommandFailed
from labkit.hosts.host import GRACE, PATIENCE, Result, decode, limited, ran_out_of_time


class LocalHost:
    """The machine of the harness, as the user who runs the harness.

    Parameters
    ----------
    name : str
        The name that results and errors carry.
    """

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
        """Run a command and wait for it, asleep; see `labkit.hosts.Host.run`.

        A child that a command leaves behind holding its output keeps the call waiting, until the
        command's time is up: use `labkit.hosts.start_job` for what is to go on.
        """
        line = limited(argv, timeout, env)
        begin = time.monotonic()
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        data = None if input is None else input.encode("utf-8", "surrogateescape")
        out, err, seen = _finish(process, data, timeout + GRACE + PATIENCE)
        seconds = time.monotonic() - begin
        status = None if not seen else process.returncode
        if status is not None and status < 0:
            status = 128 - status  # as a shell says it, and as SSH hosts do
        late = not seen or ran_out_of_time(status, seconds, timeout)
        result = Result(argv, self.name, status, decode(out), decode(err), seconds, late)
        return result.check() if check else result

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file to another place; raise `CommandFailed` where that fails."""
        self._copy(local, remote)

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file from another place; raise `CommandFailed` where that fails."""
        self._copy(remote, local)

    def _copy(self, source: Path | str, target: Path | str) -> None:
        try:
            shutil.copy(source, target)
        except shutil.SameFileError:
            return
        except OSError as error:
            raise CommandFailed(
                f"cannot copy {source} to {target}", where=f"host {self.name}", why=str(error)
            ) from error

    def close(self) -> None:
        """Do nothing; there is no connection to close."""


def _finish(
    process: subprocess.Popen[bytes], data: bytes | None, patience: float
) -> tuple[bytes, bytes, bool]:
    """Wait for a process; return its output and whether it was seen to end by itself."""
    try:
        out, err = process.communicate(data, timeout=patience)
        return out, err, True
    except subprocess.TimeoutExpired as error:
        # Either `timeout` itself was stopped, or it ended and an escaped child holds the pipes.
        seen = process.poll() is not None
        return error.output or b"", error.stderr or b"", seen
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
