"""Citations of labkit, of datasets and of the studies that labkit repeats, in BibTeX and APA.

They come from CITATION.cff. Known converters read its entry of the software, not its references.
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
from labkit.paths import SHIPPED

#: The author in CITATION.cff, which requires one, of a document that states none.
_NOBODY = "Authors not stated"
_PUBLISHED = {"software": "Computer software", "dataset": "Data set"}
_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


@dataclass(frozen=True)
class Entry:
    """One entry of a bibliography.

    Parameters
    ----------
    key : str
        Its key in BibTeX.
    kind : {"software", "dataset", "thesis", "article"}
        The kind of work.
    title : str
        As printed.
    authors : sequence of mapping
        Persons and entities as in the Citation File Format; may be empty.
    year, month, version, form, institution, journal, doi, note : str
        Empty where unknown. `form` is the kind of a thesis.
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
        """Return the reference in the style of APA, 7th edition, without italics."""
        thesis = ", ".join(filter(None, [self.form, self.institution]))
        bracket = _PUBLISHED.get(self.kind, thesis)
        title = self.title + (f" (Version {self.version})" if self.version else "")
        title += f" [{bracket}]" if bracket else ""
        names = _listed([_apa_name(author) for author in self.authors])
        date = f"({self.year or 'n.d.'})."
        # Without an author the title takes its place.
        parts = [names + ("" if names.endswith(".") else "."), date, f"{title}."]
        parts = parts if names else [f"{title}.", date]
        parts += [f"{self.journal}."] if self.journal else []
        return " ".join(parts + ([f"https://doi.org/{self.doi}"] if self.doi else []))

    def bibtex(self) -> str:
        """Return the entry in BibTeX, with entry types of the classic styles."""
        article = "article" if self.journal else "unpublished"
        kinds = {"thesis": "mastersthesis", "article": article}
        version = f"version {self.version}" if self.version else ""
        fields = {
            "author": " and ".join(_bibtex_name(author) for author in self.authors),
            "title": f"{{{_tex(self.title)}}}",
            "school": _tex(self.institution),
            "type": _tex(self.form),
            "journal": _tex(self.journal),
            "year": self.year,
            "month": self.month,
            "howpublished": _PUBLISHED.get(self.kind, ""),
            "doi": self.doi,
            "note": _tex("; ".join(filter(None, [version, self.note]))),
        }
        lines = [f"  {name} = {{{text}}}" for name, text in fields.items() if text]
        return f"@{kinds.get(self.kind, 'misc')}{{{self.key},\n" + ",\n".join(lines) + "\n}"


@cache
def citation(path: Path = SHIPPED / "CITATION.cff") -> dict[str, Any]:
    """Return the content of CITATION.cff."""
    try:
        return dict(yaml.safe_load(path.read_text()))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise LabkitError("CITATION.cff cannot be read", where=str(path), why=str(error)) from None


def full_name(author: Mapping[str, str]) -> str:
    """Return the name of a person or entity."""
    return author.get("name") or f"{author.get('given-names', '')} {author['family-names']}".strip()


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
    """Return the entries of the studies that labkit repeats."""
    return [_study(reference) for reference in citation()["references"]]


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
    parts = [_family(one), one.get("name-suffix"), one.get("given-names")]
    return _tex(", ".join(filter(None, parts)))


def _apa_name(one: Mapping[str, str]) -> str:
    if "name" in one:
        return one["name"]
    given = [
        "-".join(f"{part[0]}." for part in name.split("-") if part)
        for name in one.get("given-names", "").split()
    ]
    return ", ".join(filter(None, [_family(one), " ".join(given), one.get("name-suffix")]))


def _listed(names: Sequence[str]) -> str:
    """Return names as APA lists them: up to twenty, else nineteen and the last."""
    if len(names) > 20:
        return f"{', '.join(names[:19])}, ... {names[-1]}"
    return ", & ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
