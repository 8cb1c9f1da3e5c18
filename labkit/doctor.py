"""The checks of `labkit doctor`: of this machine, or of the machines of a rig.toml."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labkit.errors import LabkitError
from labkit.hosts import LocalHost
from labkit.paths import project
from labkit.rig import kernel_probe, machines
from labkit.rig.checks import Check, Seen, check, look
from labkit.rig.rigfile import read_rigfile


def check_machine() -> list[Check]:
    """Return the results of all checks of this machine, which the virtual rig is made of."""
    fault, remedy = kernel_probe.no_namespaces(), "run as root, in a container with --privileged"
    found = "no" if fault else "can be made"
    rig = Check("virtual rig", found, not fault, fault, remedy, needed=True)
    return [rig, *check(look(LocalHost()))]


def check_rig(path: Path | str) -> dict[str, list[Check]]:
    """Return the results of a rig file's hosts, asked at the same time, and of the rig, by role."""
    found = machines.each(path, machines.look, at_once=True)
    results = {}
    for role, seen in found.items():
        if isinstance(seen, LabkitError):
            why = f"{seen.what}: {seen.why}"
            results[role] = [Check("reached", "no", False, why, seen.remedy, needed=True)]
        else:
            results[role] = check(seen)
    if all(isinstance(seen, Seen) for seen in found.values()):
        reasons = machines.missing(read_rigfile(project(path)), found)
        results["rig"] = [Check(name, "infeasible", False, why) for name, why in reasons.items()]
    return results


def measurable(checks: Iterable[Check]) -> bool:
    """Tell whether nothing is missing that every study needs."""
    return not any(check.needed and not check.ok for check in checks)


def machine_table() -> str:
    """Return a short Markdown table: whether this machine can be a rig, and every fault."""
    first, *others = check_machine()
    lines = ["| | this machine | what to do |", "| --- | --- | --- |"]
    for row in [first, *(row for row in others if not row.ok)]:
        texts = (row.title, row.found, "") if row.ok else (row.title, row.fault, row.remedy)
        cells = (text.replace("|", r"\|").replace("<", "&lt;") for text in texts)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`labkit doctor` shows all {len(others) + 1} checks."])
