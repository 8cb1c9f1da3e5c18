"""The claims: published statements as testable hypotheses, read from ``data/claims.toml``.

Everything is checked on load, so that a wrong selector is an error that names the claim and never
an empty row of the ledger. The shapes of the kinds are in `labkit.claims.shapes`, the
checks of a claim's words in `labkit.claims.words`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.claims.checked import Problems, entries
from labkit.claims.claim import Cell, Claim, Level, Needs, StudyWords
from labkit.claims.published import published
from labkit.claims.shapes import MARGINS, SHAPES, STUDY
from labkit.claims.stated import PublishedValue, Stated, compute, load_stated, stated_path
from labkit.claims.words import CELLS, word_problems
from labkit.errors import DatasetError, UsageError
from labkit.paths import project

__all__ = ["Cell", "Claim", "Claims", "Level", "Needs", "StudyWords", "load_claims"]

_WRITTEN = {
    *("id", "source", "place", "statement", "study", "kind", "metric", "statistic"),
    *("direction", "low", "high", "over", "unit", "blocks", "note"),
}


@dataclass(frozen=True)
class Claims:
    """All claims with the words they are written in; iterates over the claims.

    Parameters
    ----------
    studies : mapping
        The vocabulary by study.
    claims : tuple of Claim
        In the order of the file.
    stated : mapping
        The statements that claims refer to (`Claim.checks`), by their id.
    """

    studies: Mapping[str, StudyWords]
    claims: tuple[Claim, ...]
    stated: Mapping[str, Stated] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, name: str) -> Claim:
        for claim in self.claims:
            if claim.id == name:
                return claim
        raise UsageError(f"there is no claim {name!r}", remedy="see the ids in data/claims.toml")

    @property
    def sources(self) -> tuple[str, ...]:
        """The documents that have claims, in the order of the file."""
        return tuple(dict.fromkeys(claim.source for claim in self.claims))


def load_claims(path: Path | str | None = None, root: Path | str | None = None) -> Claims:
    """Return the claims, with everything in them checked.

    Parameters
    ----------
    path : path, optional
        The file; by default ``data/claims.toml``.
    root : path, optional
        Folder of the published tables; by default ``data/published``.

    Raises
    ------
    DatasetError
        If the file is missing or anything in it is wrong: the shape of an entry, a word that the
        study does not have, a cell that contradicts ``where``, a selector or an expression. The
        first ten problems are shown, each with the claim's id; the evidence has all.
    """
    place = project("data/claims.toml") if path is None else Path(path)
    document, problems = entries(place, "claim", ("studies",))
    studies = _studies(document["studies"], problems)
    reader = _Reader(studies, problems, root)
    found = [claim for entry in document["claim"] for claim in reader.read(entry)]
    problems.stop(f"correct these entries of {place.name}")
    stated = {name: one for checks in reader.checks.values() for name, one in checks.items()}
    return Claims(studies, tuple(found), stated)


def _studies(tables: Any, problems: Problems) -> dict[str, StudyWords]:
    """Return the vocabulary; a study that has not the right shape is left out."""
    if not problems.shape("studies", tables, {"type": "object"}):
        return {}
    return {
        name: StudyWords(
            name,
            table["text"],
            {
                factor: None if levels == "number" else tuple(levels)
                for factor, levels in table["factors"].items()
            },
            table["metrics"],
        )
        for name, table in tables.items()
        if problems.shape(f"studies.{name}", table, STUDY)
    }


class _Reader:
    """Reads the claims of one file; what is wrong goes to `problems`."""

    def __init__(
        self, studies: Mapping[str, StudyWords], problems: Problems, root: Path | str | None
    ) -> None:
        self.studies, self.problems, self.root = studies, problems, root
        self.seen: set[str] = set()
        self.tables: dict[str, pd.DataFrame | None] = {}
        self.checks: dict[str, dict[str, Stated]] = {}

    def read(self, entry: dict[str, Any]) -> list[Claim]:
        """Return the claim of an entry, or nothing when its shape is wrong."""
        name = str(entry.get("id", f"claim {len(self.seen) + 1}"))
        kind = entry.get("kind")
        if name in self.seen:
            self.problems.add(name, "the id is used twice; choose another")
        self.seen.add(name)
        if kind not in SHAPES:
            self.problems.add(name, f"kind {kind!r} is unknown; known are {list(SHAPES)}")
        elif self.problems.shape(name, entry, SHAPES[kind]):
            problems = self._paper(entry)
            claim = _claim(entry, self._published(entry, problems))
            for problem in [*word_problems(claim, entry, self.studies), *problems]:
                self.problems.add(name, problem)
            return [claim]
        return []

    def _paper(self, entry: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a claim's source and its checks."""
        source, found = entry["source"], []
        if not entry["id"].startswith(f"{source}-"):
            found.append(f"the id does not start with {source}-")
        if source not in self.tables:
            self.tables[source] = None
            try:
                table = published(source, self.root)
                table.attrs = {}  # pandas would copy the schema with every comparison
                self.tables[source] = table
            except DatasetError as error:
                found.append(f"source: {error.what}; {error.why or error.remedy}")
        checks = entry.get("checks", [])
        if checks and source not in self.checks:
            self.checks[source] = {}
            try:
                self.checks[source] = {one.id: one for one in load_stated(source, self.root)}
            except DatasetError as error:
                found.append(f"checks: {error.what}; {error.why or error.remedy}")
        file = stated_path(source, self.root).name
        unknown = [name for name in checks if name not in self.checks[source]]
        return found + [f"checks: {file} has no {name!r}" for name in unknown]

    def _published(self, entry: Mapping[str, Any], problems: list[str]) -> PublishedValue | None:
        """Return what the paper has; what cannot be computed is added to the problems."""
        paper, table = entry.get("published"), self.tables[entry["source"]]
        if paper is None:
            return None
        computed = None
        if "compute" in paper and table is not None:
            try:
                computed = compute(paper["compute"], paper["from"], table)
            except UsageError as error:
                why = f": {error.why}" if error.why else ""
                problems.append(f"published: {error.what}{why}")
        return PublishedValue(paper["unit"], paper.get("stated"), computed)


def _claim(entry: Mapping[str, Any], paper: PublishedValue | None) -> Claim:
    """Return the claim of an entry that has its kind's shape, with cells made complete."""
    where = entry.get("where", {})
    fields: dict[str, Any] = {name: entry[name] for name in entry.keys() & _WRITTEN}
    fields |= {name: {**where, **entry[name]} for name in CELLS if name in entry}
    cells = entry.get("cells", entry.get("conditions", []))
    factor = float(entry.get("at_least", 1))
    # A factor below 1 is how "lower" may be written: 0.8 for "at least a fifth less".
    fields["at_least"] = 1 / factor if entry.get("direction") == "lower" and factor < 1 else factor
    return Claim(
        **fields,
        where=where,
        each={factor: tuple(levels) for factor, levels in entry.get("each", {}).items()},
        cells=tuple({**where, **cell} for cell in cells),
        margin=float(entry.get("margin", MARGINS.get(entry["kind"], math.nan))),
        levels=tuple(entry.get("levels", ())),
        needs=_needs(entry.get("needs", {})),
        same=_needs(entry.get("same", {})),
        published=paper,
        checks=tuple(entry.get("checks", ())),
    )


def _needs(table: Mapping[str, Any]) -> Needs:
    return Needs(**{**table, "capabilities": tuple(table.get("capabilities", ()))})
