"""The checks of `labkit doctor`: of this machine, of the machines of a rig.toml, of a release."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from labkit.errors import LabkitError
from labkit.paths import project
from labkit.rig import machines
from labkit.rig.checks import Check, Seen, check, look
from labkit.rig.rigfile import read_rigfile
from labkit.rig.virtual import check_machine

__all__ = ["check_machine", "check_release", "check_rig", "summary"]


def check_rig(path: Path | str) -> dict[str, list[Check]]:
    """Return the results of a rig file's hosts, asked at the same time, and of the rig, by role."""
    found = machines.each(path, look, at_once=True)
    results = {}
    for role, seen in found.items():
        if isinstance(seen, LabkitError):
            why = f"{seen.what}: {seen.why}"
            results[role] = [Check("reached", "no", False, why, seen.remedy, needed=True)]
        else:
            results[role] = check(seen)
    if all(isinstance(seen, Seen) for seen in found.values()):
        reasons = machines.missing(read_rigfile(project(path)), found)
        rows = [Check(name, "infeasible", False, why) for name, why in reasons.items()]
        results["rig"] = [machines.kernels(found), *rows]
    return results


def summary() -> str:
    """Return whether this machine can be a rig, and each fault, as `labkit doctor` prints them."""
    first, *others = check_machine()
    lines = [one.line() for one in [first, *(one for one in others if not one.ok)]]
    return "\n".join([*lines, f"`labkit doctor` shows all {len(others) + 1} checks."])


def check_release(folder: Path) -> list[str]:
    """Return what a release of a folder with CITATION.cff and .zenodo.json still lacks."""
    citation = yaml.safe_load((folder / "CITATION.cff").read_text())
    deposit = json.loads((folder / ".zenodo.json").read_text())
    people = [author for author in citation["authors"] if "family-names" in author]
    missing = [] if people else ["CITATION.cff: a person among the authors"]
    names = {"family-names": "", "given-names": "", "name": "", "orcid": ""}
    authors = []
    for author in ({**names, **author} for author in citation["authors"]):
        person = f"{author['family-names']}, {author['given-names']}"
        orcid = author["orcid"].rpartition("/")[2]
        authors.append((author["name"] or person, orcid))
        if not author["name"] and not orcid:
            missing.append(f"CITATION.cff: the ORCID of {person}")
    if not citation.get("doi"):
        missing.append("CITATION.cff: a DOI (a deposit can reserve one before it is published)")
    if not citation.get("repository-code"):
        missing.append("CITATION.cff: repository-code, the address of the repository")
    ours = {name: citation.get(name) for name in ("title", "version", "license", "keywords")}
    ours |= {"creators": authors, "doi": citation.get("doi")}
    creators = [(one["name"], one.get("orcid", "")) for one in deposit["creators"]]
    for name, value in ours.items():
        other = creators if name == "creators" else deposit.get(name)
        if other != value:
            missing.append(f".zenodo.json: {name} {other!r}, CITATION.cff has {value!r}")
    return missing
