"""What CITATION.cff says, as BibTeX and APA: of labkit, of a dataset, of the studies it repeats.

The kept converters read the software's entry alone, not its references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from labkit.errors import LabkitError
from labkit.paths import ROOT

#: CITATION.cff wants an author; a document that states none has this one.
_NOBODY = "Authors not stated"
_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


@dataclass(frozen=True)
class Entry:
    """One thing to cite.

    Parameters
    ----------
    key : str
        Its key in BibTeX.
    kind : {"software", "dataset", "thesis", "article"}
        What it is.
    title : str
        As printed.
    authors : sequence of mapping
        Persons and entities as in the Citation File Format; empty where none is stated.
    year, month, version, form, institution, journal, doi, note : str
        What is known; empty where it is not. `form` is the kind of a thesis.
    """

    key: str
    kind: str
    title: str
    authors: Sequence[Mapping[str, str]] = ()
    year: str = ""
    month: str = ""
    version: str = ""
    form: str = ""
    institution: str = ""
    journal: str = ""
    doi: str = ""
    note: str = ""

    def apa(self) -> str:
        """Return the reference in the style of APA, 7th edition, without its italics."""
        what = {"software": "Computer software", "dataset": "Data set"}.get(self.kind, "")
        bracket = what or ", ".join(filter(None, [self.form, self.institution]))
        title = self.title + (f" (Version {self.version})" if self.version else "")
        title += f" [{bracket}]" if bracket else ""
        names = _listed([_apa_name(one) for one in self.authors])
        date = f"({self.year or 'n.d.'})."
        # Without an author the title takes its place.
        parts = [names + ("" if names.endswith(".") else "."), date, f"{title}."]
        parts = parts if names else [f"{title}.", date]
        parts += [f"{self.journal}."] if self.journal else []
        return " ".join(parts + ([f"https://doi.org/{self.doi}"] if self.doi else []))

    def bibtex(self) -> str:
        """Return the entry in BibTeX, of types that classic styles know."""
        article = "article" if self.journal else "unpublished"
        kinds = {"thesis": "mastersthesis", "article": article}
        made = {"software": "Computer software", "dataset": "Data set"}.get(self.kind, "")
        version = f"version {self.version}" if self.version else ""
        fields = {
            "author": " and ".join(_bibtex_name(one) for one in self.authors),
            "title": f"{{{_tex(self.title)}}}",
            "school": _tex(self.institution),
            "type": _tex(self.form),
            "journal": _tex(self.journal),
            "year": self.year,
            "month": self.month,
            "howpublished": made,
            "doi": self.doi,
            "note": _tex("; ".join(filter(None, [version, self.note]))),
        }
        lines = [f"  {name} = {{{text}}}" for name, text in fields.items() if text]
        return f"@{kinds.get(self.kind, 'misc')}{{{self.key},\n" + ",\n".join(lines) + "\n}"


@cache
def citation(path: Path = ROOT / "CITATION.cff") -> dict[str, Any]:
    """Return what CITATION.cff says."""
    try:
        return dict(yaml.safe_load(path.read_text()))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise LabkitError("CITATION.cff cannot be read", where=str(path), why=str(error)) from None


def authors() -> list[str]:
    """Return the names of labkit's authors, as a person writes them."""
    return [
        one.get("name") or " ".join(filter(None, [one.get("given-names"), one["family-names"]]))
        for one in citation()["authors"]
    ]


def software() -> Entry:
    """Return the entry of labkit itself."""
    about = citation()
    return Entry(
        "labkit",
        "software",
        about["title"],
        about["authors"],
        year=str(about["date-released"])[:4],
        version=str(about["version"]),
        doi=about.get("doi", ""),
        note=f"Licence: {about['license']}",
    )


def studies() -> list[Entry]:
    """Return the entries of the studies that labkit measures again."""
    return [_study(about) for about in citation()["references"]]


def _study(about: Mapping[str, Any]) -> Entry:
    notes = about.get("notes", "")
    sentence = re.search(r" ?Cited in this project as (\w+)(?:\.|; *)", notes)
    note = (notes[: sentence.start()] + " " + notes[sentence.end() :]) if sentence else notes
    note = note.strip()
    return Entry(
        sentence[1] if sentence else re.sub(r"\W+", "", about["title"].lower())[:20],
        about["type"],
        about["title"],
        [one for one in about["authors"] if one.get("name") != _NOBODY],
        year=str(about.get("year", "")),
        month=str(about.get("month", "")),
        form=about.get("thesis-type", ""),
        institution=about.get("institution", {}).get("name", ""),
        journal=about.get("journal", ""),
        doi=about.get("doi", ""),
        note=note[:1].upper() + note[1:],
    )


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


def _family(one: Mapping[str, str]) -> str:
    return " ".join(filter(None, [one.get("name-particle"), one["family-names"]]))


def _bibtex_name(one: Mapping[str, str]) -> str:
    if "name" in one:
        return f"{{{_tex(one['name'])}}}"
    return _tex(", ".join(filter(None, [_family(one), one.get("name-suffix"), one["given-names"]])))


def _apa_name(one: Mapping[str, str]) -> str:
    if "name" in one:
        return one["name"]
    given = [
        "-".join(f"{part[0]}." for part in name.split("-") if part)
        for name in one["given-names"].split()
    ]
    return ", ".join(filter(None, [_family(one), " ".join(given), one.get("name-suffix")]))


def _listed(names: Sequence[str]) -> str:
    """Return names as APA lists them: up to twenty, else nineteen and the last."""
    if len(names) > 20:
        return f"{', '.join(names[:19])}, ... {names[-1]}"
    return ", & ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
