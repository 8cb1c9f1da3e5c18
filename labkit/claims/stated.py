"""What a paper's words state, recomputed from its own tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.claims.checked import Problems, entries
from labkit.claims.expressions import check_names, evaluate, names_in, resolve
from labkit.claims.published import default_root, keys, published
from labkit.errors import UsageError

if TYPE_CHECKING:
    from labkit.claims.reading import Claim

KINDS = ("percentage", "ratio", "order", "bound", "product", "average", "limit", "count")
#: The columns of `recompute`.
COLUMNS = (
    *("id", "source", "place", "says", "kind", "stated", "computed", "shown"),
    *("difference", "tolerance", "unit", "follows", "note"),
)
_TEXT = {"type": "string", "minLength": 1}
SHAPE: dict[str, Any] = {
    "properties": {
        **dict.fromkeys(("id", "place", "says", "compute", "shown"), _TEXT),
        "kind": {"enum": list(KINDS)},
        "unit": {"type": "string"},
        "stated": {"anyOf": [{"type": "number"}, {"const": True}]},
        "tolerance": {"type": "number", "minimum": 0},
        "note": {"type": "string"},
        "from": {"type": "object", "minProperties": 1},
    },
    "required": ["id", "place", "says", "kind", "stated", "compute", "from"],
    # A truth is shown by a number; a number is compared within its tolerance.
    "if": {"properties": {"stated": {"const": True}}},
    "then": {"required": ["shown"]},
    "else": {"required": ["tolerance", "unit"]},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Stated:
    """One thing that a paper's words state, and what its tables have.

    Parameters
    ----------
    id : str
        Unique; starts with the source's key.
    source, place : str
        The document's key, and where in it.
    says : str
        The statement in this project's words.
    kind : str
        One of `KINDS`.
    stated : float or bool
        The number as stated in `unit`, or True for an order or a bound.
    computed : float or bool
        What the expression comes to; a truth where a truth is stated.
    shown : float
        The number to show: `computed`, or for a truth the number that it rests on. In `unit`.
    tolerance : float
        How far `computed` may lie from `stated`, in `unit`; 0 for a truth.
    unit : str
        Short symbol; empty where a truth has none.
    note : str
        What to know about it.
    """

    id: str
    source: str
    place: str
    says: str
    kind: str
    stated: float | bool
    computed: float | bool
    shown: float
    tolerance: float
    unit: str
    note: str = ""

    @property
    def difference(self) -> float:
        """How far the computed number lies above the stated one; NaN for a truth."""
        return math.nan if self.stated is True else self.computed - self.stated

    @property
    def follows(self) -> bool:
        """Whether the statement follows from the paper's own tables."""
        if self.stated is True:
            return self.computed is True
        # Decimals as printed are not exact in binary: 0.3 - 0.2 is not above 0.1.
        slack = 1e-9 * max(abs(self.stated), abs(self.computed))
        return abs(self.difference) <= self.tolerance + slack

    @property
    def detail(self) -> str:
        """Both numbers in one phrase."""
        shown = with_unit(self.shown, self.unit)
        if self.stated is True:
            return f"stated; its tables have {shown}"
        return f"stated {with_unit(self.stated, self.unit)}; its tables give {shown}"


def with_unit(value: float, unit: str) -> str:
    """Return a number with four significant digits (above 1,000 with all whole ones) and unit."""
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text if unit in ("", "1") else f"{text} {unit}"


def stated_path(key: str, root: Path | str | None = None) -> Path:
    """Return where the statements of a document are written."""
    return (default_root() if root is None else Path(root)) / f"{key}.stated.toml"


def load_stated(key: str, root: Path | str | None = None) -> tuple[Stated, ...]:
    """Return every statement of a document that its own tables can be held against.

    Parameters
    ----------
    key : str
        The document's key.
    root : path, optional
        Folder of ``<key>.csv`` and ``<key>.stated.toml``; by default ``data/published``.

    Raises
    ------
    DatasetError
        If the file is missing or an entry is wrong: its shape, a name, a selector, an expression.
        The first ten problems are shown, each with the entry's id; the evidence has all.
    """
    table = published(key, root)
    table.attrs = {}  # pandas would copy the schema with every comparison
    path = stated_path(key, root)
    document, problems = entries(path, "stated", ("source",))
    if document["source"] != key:
        problems.add("source", f"is {document['source']!r} and not {key!r}")
    found: list[Stated] = []
    seen: set[str] = set()
    for number, entry in enumerate(document["stated"], start=1):
        name = str(entry.get("id", f"entry {number}"))
        if name in seen:
            problems.add(name, "the id is used twice; choose another")
        seen.add(name)
        if not name.startswith(f"{key}-"):
            problems.add(name, f"the id does not start with {key}-")
        if problems.shape(name, entry, SHAPE):
            found += _computed(entry, key, table, problems)
    problems.stop(f"correct these entries of {path.name}")
    return tuple(found)


def _computed(
    entry: Mapping[str, Any], key: str, table: pd.DataFrame, problems: Problems
) -> list[Stated]:
    truth = entry["stated"] is True
    try:
        computed = compute(entry["compute"], entry["from"], table, also=entry.get("shown"))
        shown = compute(entry.get("shown", entry["compute"]), entry["from"], table, every=False)
    except UsageError as error:
        problems.add(entry["id"], f"{error.what}: {error.why}" if error.why else error.what)
        return []
    if isinstance(computed, bool) is not truth:
        problems.add(entry["id"], f"states {entry['stated']} and computes {computed}: two kinds")
    if isinstance(shown, bool):
        problems.add(entry["id"], "shown is a truth and not a number")
    texts = {name: entry[name] for name in ("id", "place", "says", "kind")}
    return [
        Stated(
            **texts,
            source=key,
            stated=True if truth else float(entry["stated"]),
            computed=computed,
            shown=float(shown),
            tolerance=float(entry.get("tolerance", 0)),
            unit=entry.get("unit", ""),
            note=entry.get("note", ""),
        )
    ]


def compute(
    expression: str,
    given: Mapping[str, Any],
    table: pd.DataFrame,
    *,
    also: str | None = None,
    every: bool = True,
) -> float | bool:
    """Return what an expression comes to over the rows of a published table.

    Parameters
    ----------
    expression : str
        See `labkit.claims.expressions`.
    given : mapping
        What each name stands for: a number, a list of numbers, or a selector of rows.
    table : DataFrame
        A published table.
    also : str, optional
        Another expression over the same names.
    every : bool
        Whether each name must be used, in `expression` or in `also`.

    Raises
    ------
    UsageError
        With all that is wrong with the names, or else with the expression.
    """
    wrong = check_names([expression, *([also] if also else [])], given) if every else []
    names, problems = resolve(given, table)
    if wrong + problems:
        raise UsageError("; ".join(wrong + problems))
    return evaluate(expression, {name: names[name] for name in names_in(expression)})


def recompute(key: str | None = None, root: Path | str | None = None) -> pd.DataFrame:
    """Return what the papers' words state beside what their own tables give.

    Parameters
    ----------
    key : str, optional
        One document; by default all that are published.
    root : path, optional
        As for `load_stated`.

    Returns
    -------
    DataFrame
        One row a statement, with the columns `COLUMNS`. ``stated`` and ``computed`` are numbers in
        ``unit``, or truths for an order or a bound; ``shown`` is always the number to show;
        ``difference`` is computed minus stated, NaN for a truth; ``follows`` is a boolean.

    Raises
    ------
    DatasetError
        As `load_stated`.
    """
    chosen = keys(root) if key is None else [key]
    rows = [stated for name in chosen for stated in load_stated(name, root)]
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    mixed = {name: pd.Series(columns.pop(name), dtype=object) for name in ("stated", "computed")}
    frame = pd.DataFrame(columns | mixed, columns=list(COLUMNS))
    return frame.astype({"shown": float, "difference": float, "tolerance": float, "follows": bool})


@dataclass(frozen=True)
class PublishedValue:
    """What a paper has for the quantity that a claim is about.

    Parameters
    ----------
    unit : str
        Short symbol; ``1`` for a ratio.
    stated : float, bool or None
        As the words state it; None where they give no number.
    computed : float, bool or None
        From the paper's tables; None where nothing is computed.
    """

    unit: str
    stated: float | bool | None = None
    computed: float | bool | None = None


def published_value(claim: Claim) -> tuple[float | None, str]:
    """Return what a paper has for a claim: the number, or None, and a phrase with all of it.

    The number is the one from the paper's tables, or else the stated one. A truth is no number.
    """
    paper = claim.published
    if paper is None:
        return None, ""
    parts = []
    for word, value in (("stated", paper.stated), ("from its tables", paper.computed)):
        if isinstance(value, bool):
            parts.append(f"{word}: {'yes' if value else 'no'}")
        elif value is not None:
            parts.append(f"{with_unit(value, paper.unit)} {word}")
    numbers = [v for v in (paper.computed, paper.stated) if v is not None and v is not True]
    number = next((float(v) for v in numbers if not isinstance(v, bool)), None)
    return number, "; ".join(parts)
