"""The errors of labkit: what went wrong, where, why, and what to do, with evidence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

#: The remedy where a program is missing that no distribution packages.
UNPACKAGED = "no distribution packages it: build it as its project says, and put it on PATH"


def suggestion(given: object, known: Iterable[object]) -> str:
    """Return the remedy for an unknown name: the nearest name, if any, then the first forty."""
    names = {str(name).casefold(): str(name) for name in known}
    near = difflib.get_close_matches(str(given).casefold(), names, n=1)
    listed = ", ".join([*names.values()][:40]) + (", ..." if len(names) > 40 else "")
    if not names:
        return "there is none"
    return f"did you mean {names[near[0]]!r}? One of {listed}" if near else f"one of {listed}"


@dataclass(eq=False, repr=False)
class LabkitError(Exception):
    """An error: what went wrong, where, why, its remedy, and the evidence, as values of JSON.

    ``exit_code`` is the exit status of the command line. A failed trial stores the rest.
    """

    what: str
    _: KW_ONLY
    where: str = ""
    why: str = ""
    remedy: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        parts = [("where", self.where), ("why", self.why), ("remedy", self.remedy)]
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in parts if text)])

    @staticmethod
    def fields(text: str) -> dict[str, str]:
        """Return the parts of an error's text, as keywords of its class."""
        what, *rest = re.split(r"\n  (where|why|remedy): ", text)
        return {"what": what} | dict(zip(rest[::2], rest[1::2], strict=True))

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines: the message says all that the frames could.
        return f"{type(self).__name__}: {self}".splitlines()


class Interrupted(KeyboardInterrupt):
    """An interrupt by the user, after everything was taken down; IPython shows one sentence."""

    def __init__(self, kept: str = "") -> None:
        kept = kept or "what was measured is kept, and the same command goes on"
        super().__init__(f"interrupted; {kept}")

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class UsageError(LabkitError):
    """The library or the command line was used wrongly."""

    exit_code = 2


class CommandFailed(LabkitError):
    """A command failed, or exceeded its time limit; the evidence holds its result."""


class HostUnreachable(LabkitError):
    """A host cannot be reached or trusted, or its connection dropped during a command."""

    @property
    def lasting(self) -> bool:
        """Whether waiting changes nothing: its key is not known, or the known ones not readable."""
        return "known_hosts" in self.evidence


class TimeOver(LabkitError):
    """The time for measuring is over, and planned trials are left."""


class HostLost(LabkitError):
    """A host rebooted or was lost during a campaign, so the rig has to be opened again."""


class ToolOutput(LabkitError):
    """The output of a program cannot be parsed; the evidence holds the output."""


class PlacementError(LabkitError):
    """A placement could not be started, or ended unexpectedly."""


class ManipulationError(PlacementError):
    """A placement or treatment is not what its label says: verification found something else."""


class CpusDisturbed(LabkitError):
    """The CPUs were not as a treatment keeps them: they shared no cache, or were slow."""


class RigError(LabkitError):
    """A rig cannot be described, brought up, changed or restored."""


class RigInUse(RigError):
    """Another process uses this machine's rig."""


class DryRun(LabkitError):
    """A plan was shown on a dry rig, and nothing is measured."""


class DatasetError(LabkitError):
    """A dataset on disk is missing, damaged or of a newer format."""
