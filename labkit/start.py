"""What the first notebook says of the machine at hand: what it can do, and which rig it can have.

`labkit doctor` says all of it, line by line; here is what a first study depends on.
"""

from __future__ import annotations

from collections.abc import Iterable

from labkit import studies
from labkit.doctor import Check, check_machine
from labkit.rig import auto, virtual

#: Instead of a rig: nothing is measured, and the dataset that comes with labkit is read.
REFERENCE = "reference"

#: Findings that say what a first study can compare, and what its numbers are worth.
_SHOWN = (
    *("root", "container engines", "networks of containers", "CPUs", "isolated CPUs"),
    *("clock source", "bare machine"),
)


def machine(checks: Iterable[Check] | None = None) -> str:
    """Return in Markdown, as a short table, what this machine can and cannot do.

    Parameters
    ----------
    checks : iterable of Check, optional
        What `labkit.doctor.check_machine` found; it is asked when omitted.

    Returns
    -------
    str
        A row for each finding that a first study depends on, for the programs that the virtual rig
        needs, and for whatever else is needed and missing.
    """
    found = list(check_machine() if checks is None else checks)
    programs = [one for one in found if one.title in virtual.TOOLS]
    absent = [one for one in programs if not one.ok]
    rest = [one for one in found if one not in programs]
    shown = [one for one in rest if one.title in _SHOWN or (one.needed and not one.ok)]
    rows = [(one.title, _brief(one.found), "" if one.ok else one.remedy) for one in shown]
    there = f"{len(programs) - len(absent)} of {len(programs)}"
    there += f", not {', '.join(one.title for one in absent)}" if absent else ""
    remedies = "; ".join(dict.fromkeys(one.remedy for one in absent))
    rows.insert(1, ("programs of the virtual rig", there, remedies))
    lines = ["| | this machine | what to do, or what follows |", "| --- | --- | --- |"]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    left = len(rest) - len(shown)
    return "\n".join(
        [*lines, "", f"`labkit doctor` says more ({left} findings), with every reason."]
    )


def _brief(found: str) -> str:
    """Return a finding without the reasons of what is absent, and without the CPU map."""
    return found.partition(" (not ")[0].partition("; map")[0]


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def choose(rig: str) -> tuple[str, str]:
    """Return the rig to open, or `REFERENCE` with the reason why nothing is measured.

    Parameters
    ----------
    rig : str
        ``auto`` takes the virtual rig, or else the one-host rig, or else the reference dataset;
        ``reference`` is taken as it is, and so is any other, whose errors are the user's to see.
    """
    if rig == REFERENCE:
        return REFERENCE, "the parameter `rig` asks for it"
    if rig != "auto":
        return rig, ""
    reason = studies.cannot_measure()
    return (REFERENCE, reason) if reason else (auto(), "")
