"""Every error of labkit: what went wrong, where, why, and what to do, with its evidence.

An error that a person sees is one of these. ``evidence`` holds what was observed (a command, its
output, a read-back value) so that a failed trial can keep it as a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LabkitError(Exception):
    """Base of all errors; ``exit_code`` is what the command line returns for it.

    Parameters
    ----------
    what : str
        What went wrong, in one sentence.
    where : str, optional
        The host, file or trial concerned.
    why : str, optional
        The cause as far as it is known.
    remedy : str, optional
        What the reader can do about it.
    evidence : mapping, optional
        What was observed; JSON-serialisable values only.
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
        """Return the error as JSON-serialisable fields, as a failed trial stores it."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "remedy": self.remedy,
            "evidence": self.evidence,
        }


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a kernel's interrupt, after what was up has been taken down.

    A notebook shows it as one sentence: where the interrupt fell is nothing to mend.
    """

    def __init__(self, kept: str = "") -> None:
        kept = kept or "what was measured is kept, and the same command goes on"
        super().__init__(f"interrupted; {kept}")

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback."""
        return [str(self)]


class UsageError(LabkitError):
    """The library or the command line was used wrongly (exit code 2)."""

    exit_code = 2


class PlanMismatch(UsageError):
    """A campaign on disk has another identity than the plan that asks to resume it."""


class CommandFailed(LabkitError):
    """A command ended with a status other than zero; the evidence holds its result."""


class CommandTimeout(CommandFailed):
    """A command was ended, on the host too, because its time was up."""


class HostUnreachable(LabkitError):
    """No connection to a host could be made."""


class HostKeyMismatch(HostUnreachable):
    """A host showed an unknown or changed key."""


class ConnectionLost(HostUnreachable):
    """A connection dropped in mid-command; the evidence holds what had arrived."""


class ToolMissing(LabkitError):
    """A program that is needed is not on the host."""


class ToolOutput(LabkitError):
    """A program printed something that cannot be read; the evidence holds what it printed."""


class PlacementError(LabkitError):
    """A placement could not be started, or ended by itself."""


class ManipulationError(PlacementError):
    """A placement is not what its label says: the manipulation check read something else."""


class RigError(LabkitError):
    """A rig cannot be described, brought up or taken down."""


class FenceError(LabkitError):
    """Load was about to be sent to an address that the rig does not own."""


class TuningConflict(LabkitError):
    """A host setting was changed by somebody else, so it was not restored."""


class DatasetError(LabkitError):
    """A dataset on disk is missing, damaged or of a newer format."""
