"""The errors of labkit: what went wrong, where, why, and what to do, with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LabkitError(Exception):
    """Base of all errors; ``exit_code`` is the exit status of the command line.

    Parameters
    ----------
    what : str
        What went wrong, in one sentence.
    where : str, optional
        The host, file or trial concerned.
    why : str, optional
        The cause, as far as it is known.
    remedy : str, optional
        What the reader can do about it.
    evidence : mapping, optional
        What was observed, such as a command and its output; JSON-serialisable values only.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        why: str = "",
        remedy: str = "",
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        self.what, self.where, self.why, self.remedy = what, where, why, remedy
        self.evidence: dict[str, Any] = dict(evidence or {})
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [("where", self.where), ("why", self.why), ("remedy", self.remedy)]
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in parts if text)])

    def as_record(self) -> dict[str, Any]:
        """Return the error as a failed trial stores it: JSON-serialisable fields."""
        names = ("what", "where", "why", "remedy", "evidence")
        return {"type": type(self).__name__} | {name: getattr(self, name) for name in names}


class Interrupted(KeyboardInterrupt):
    """An interrupt by the user, after everything was taken down; IPython shows one sentence."""

    def __init__(self, kept: str = "") -> None:
        kept = kept or "what was measured is kept, and the same command goes on"
        super().__init__(f"interrupted; {kept}")

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class UsageError(LabkitError):
    """The library or the command line was used wrongly (exit code 2)."""

    exit_code = 2


class PlanMismatch(UsageError):
    """A campaign on disk has another identity than the plan that is to resume it."""


class CommandFailed(LabkitError):
    """A command ended with a status other than zero; the evidence holds its result."""


class CommandTimeout(CommandFailed):
    """A command exceeded its time limit and was ended, also on the host."""


class HostUnreachable(LabkitError):
    """A host cannot be reached or trusted, or its connection dropped during a command."""


class ToolMissing(LabkitError):
    """A required program is not on the host."""


class ToolOutput(LabkitError):
    """The output of a program cannot be parsed; the evidence holds the output."""


class PlacementError(LabkitError):
    """A placement could not be started, or ended unexpectedly."""


class ManipulationError(PlacementError):
    """A placement or treatment is not what its label says: verification found something else."""


class RigError(LabkitError):
    """A rig cannot be described, brought up, changed or restored."""


class FenceError(LabkitError):
    """Load was to be sent to an address that does not belong to the rig."""


class DatasetError(LabkitError):
    """A dataset on disk is missing, damaged or of a newer format."""
