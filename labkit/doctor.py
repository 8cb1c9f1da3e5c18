"""The checks of `labkit doctor`: of this machine, of the machines of a rig.toml, of a release."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from labkit.errors import LabkitError
from labkit.rig import machines
from labkit.rig.checks import Check, Seen, check, look
from labkit.rig.rigfile import read_rigfile
from labkit.rig.virtual import check_machine

__all__ = ["check_machine", "check_release", "check_rig", "summary"]


def check_rig(path: Path | str) -> dict[str, list[Check]]:
    """Return the results of a rig file's hosts, asked at the same time, and of the rig, by role."""
    results, found = dict[str, list[Check]](), machines.each(path, look, at_once=True)
    for role, seen in found.items():
        if isinstance(seen, LabkitError):
            why = f"{seen.what}: {seen.why}"
            results[role] = [Check("reached", "no", False, why, seen.remedy, needed=True)]
        else:
            results[role] = [*check(seen)]
    if all(isinstance(seen, Seen) for seen in found.values()):
        reasons = machines.missing(read_rigfile(path), found)
        rows = [Check(name, "infeasible", False, why) for name, why in reasons.items()]
        results["rig"] = [machines.kernels(found), *rows]
    return results


def summary() -> str:
    """Return whether this machine can be a rig, and each fault, as `labkit doctor` prints them."""
    first, *others = check_machine()
    lines = [one.line() for one in [first, *(one for one in others if not one.ok)]]
    return "\n".join([*lines, f"`labkit doctor` shows all {len(others) + 1} checks."])


def check_release(folder: Path) -> list[str]:
    """Return what a release still lacks in CITATION.cff, and where .zenodo.json differs from it."""
    citation = yaml.safe_load((folder / "CITATION.cff").read_text())
    deposit = json.loads((folder / ".zenodo.json").read_text())
    people = [author for author in citation["authors"] if "name" not in author]
    lacks = {
        "a person among the authors": not people,
        "a DOI (a deposit can reserve one before it is published)": not citation.get("doi"),
        "repository-code, the address of the repository": not citation.get("repository-code"),
    }
    for one in people:
        one["name"] = f"{one['family-names']}, {one['given-names']}"
        lacks[f"the ORCID of {one['name']}"] = "orcid" not in one
    # Zenodo reads this file first.
    ours = {**citation, "creators": [one["name"] for one in citation["authors"]]}
    theirs = {**deposit, "creators": [one["name"] for one in deposit["creators"]]}
    shared = ("title", "version", "license", "keywords", "doi", "creators")
    different = [name for name in shared if ours.get(name) != theirs.get(name)]
    return [
        *(f"CITATION.cff: {what}" for what, lacking in lacks.items() if lacking),
        *(f".zenodo.json: another {name} than CITATION.cff" for name in different),
    ]
