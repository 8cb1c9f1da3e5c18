"""Detached jobs on hosts, and finding and ending processes by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.hosts.host import Host, Result


def labelled(host: Host, prefix: str) -> list[tuple[int, str, str]]:
    """Return pid, label and command of the processes whose label starts with `prefix`.

    End the prefix with a separator if one label may be the beginning of another.
    """
    return [tuple(row) for row in host.call("labelled", prefix=prefix)]


def stop_labelled(host: Host, prefix: str, *, grace: float = 2.0) -> list[str]:
    """End every process whose label starts with `prefix`; return a line about each."""
    found = host.call("labelled", prefix=prefix, grace=grace, timeout=60 + grace)
    return [" ".join(map(str, row)) for row in found]


@dataclass(frozen=True)
class Job:
    """A job on a host, with ``stdout`` and ``stderr`` in a directory there; see `start_job`."""

    host: Host
    directory: str
    #: 0 if only the directory is known.
    pid: int = 0

    def running(self) -> bool:
        """Return whether the job is running."""
        return bool(self.host.call("leader", folder=self.directory))

    def stop(self, grace: float = 2.0) -> None:
        """End the job and all its descendants (TERM, then KILL), and wait until they are gone."""
        self.host.call("stop", folder=self.directory, grace=grace, timeout=60 + grace)

    def remove(self, grace: float = 2.0) -> None:
        """End the job and all its descendants, and remove its directory."""
        options = {"grace": grace, "remove": True, "timeout": 60 + grace}
        self.host.call("stop", folder=self.directory, **options)

    def stdout(self) -> str:
        """Return the job's output so far."""
        return str(self.host.call("read", path=f"{self.directory}/stdout"))

    def stderr(self) -> str:
        """Return the job's error stream so far."""
        return str(self.host.call("read", path=f"{self.directory}/stderr"))

    def await_output(self, pattern: str) -> Result:
        """Wait up to 10 seconds until the job has printed a pattern; otherwise the status is 1."""
        found = self.host.call("await_output", folder=self.directory, pattern=pattern)
        return Result(("job",), self.host.name, 0 if found else 1, "", self.stderr(), 0.0)


def start_job(host: Host, argv: Sequence[str], *, directory: str, label: str) -> Job:
    """Start a detached job without input; its descendants inherit the label.

    `directory` is its working directory, and for its output.
    """
    return Job(host, directory, host.call("start", folder=directory, argv=argv, label=label))
