"""Detached jobs on hosts, and finding and ending processes by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.hosts.host import Host, Result


def labelled(host: Host, prefix: str) -> list[tuple[int, str, str]]:
    """Return pid, label and command of the processes whose label starts with `prefix`.

    The caller's ancestors are left out. End the prefix with a separator if one label may be the
    beginning of another.
    """
    return [tuple(row) for row in host.call("labelled", prefix=prefix)]


def stop_labelled(host: Host, prefix: str, *, grace: float = 2.0) -> list[str]:
    """End every process whose label starts with `prefix`; return a line about each."""
    found = host.call("stop_labelled", prefix=prefix, grace=grace, timeout=60 + grace)
    return [" ".join(map(str, row)) for row in found]


@dataclass(frozen=True)
class Job:
    """A job on a host, with ``stdout`` and ``stderr`` in a directory there; see `start_job`."""

    host: Host
    directory: str
    #: 0 if only the directory is known.
    pid: int = 0
    argv: tuple[str, ...] = ("job",)

    def wait(self, timeout: float) -> Result:
        """Wait for the end of the job, without polling; end it after `timeout` seconds."""
        report = self._call("wait", timeout, seconds=timeout)
        late = report["state"] == "running"
        if report["state"] != "ended":
            self.stop()
            report = self._call("wait")
        texts = report["stdout"], report["stderr"]
        return Result(self.argv, self.host.name, report["status"], *texts, report["seconds"], late)

    def running(self) -> bool:
        """Return whether the job is running."""
        return bool(self._call("wait")["state"] == "running")

    def stop(self, grace: float = 2.0) -> None:
        """End the job and all its descendants (TERM, then KILL), and wait until they are gone."""
        self._call("stop", grace, grace=grace)

    def remove(self, grace: float = 2.0) -> None:
        """End the job and all its descendants, and remove its directory."""
        self._call("remove", grace, grace=grace)

    def stdout(self) -> str:
        """Return the job's output so far."""
        return str(self._call("wait")["stdout"])

    def stderr(self) -> str:
        """Return the job's error stream so far."""
        return str(self._call("wait")["stderr"])

    def await_output(self, pattern: str) -> Result:
        """Wait up to 10 seconds until the job has printed a pattern; otherwise the status is 1."""
        found = self._call("await_output", pattern=pattern, seconds=10)
        return Result(self.argv, self.host.name, 0 if found else 1, "", self.stderr(), 0.0)

    def _call(self, function: str, lasts: float = 0.0, **arguments: Any) -> Any:
        """Call a function of the agent that may last so many seconds."""
        return self.host.call(function, folder=self.directory, timeout=lasts + 60, **arguments)


def start_job(host: Host, argv: Sequence[str], *, directory: str, label: str) -> Job:
    """Start a detached job, and return when it runs.

    It has its own session, no input, `directory` as working directory and for its output, and the
    label in its environment, by which `stop_labelled` finds it.
    """
    pid = host.call("start", folder=directory, argv=list(argv), label=label)
    return Job(host, directory, pid, tuple(argv))
