"""What a paper's words state, recomputed from its own tables.

A statement is an expression over values of a published table, evaluated by simpleeval: arithmetic,
comparisons, conditions, lists, comprehensions and `FUNCTIONS`. A name in it stands for a constant,
a list of constants, or the rows that a selector chooses. What no table can be held against, words,
names of options, numbers of figures, stands in the same file as a disagreement of two places.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from simpleeval import EvalWithCompoundTypes  # type: ignore[import-untyped]

from labkit.claims.published import default_root, keys, published
from labkit.claims.toml_file import Mistakes, read_toml
from labkit.errors import UsageError

Kind = Literal["percentage", "ratio", "order", "bound", "product", "average", "limit", "count"]
KINDS = get_args(Kind)
#: The words that a place begins with, for one and for several.
_PLACES = {
    f"{kind}{end}": kind for kind in ("section", "table", "figure", "listing") for end in ("", "s")
}
_PLACES |= {"appendix": "appendix", "appendices": "appendix"}
#: The columns of `recompute`.
COLUMNS = (
    *("id", "source", "place", "says", "kind", "stated", "computed", "shown"),
    *("difference", "tolerance", "unit", "follows", "note"),
)


def _number(value: object) -> object:
    if value is not True and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("must be a number or true")
    return value


#: A number as a paper states it, or true for an order or a bound. (1 is not true here.)
Number = Annotated[float | bool, BeforeValidator(_number)]
#: What a name stands for: one number, or the numbers of several rows in the order of the file.
Value = float | list[float]
#: A published table, an array a column.
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Stated:
    """One thing that a paper's words state, and what its tables have."""

    id: str
    source: str
    place: str
    says: str
    kind: str
    #: As stated and as recomputed, in `unit`; truths for an order or a bound.
    stated: float | bool
    computed: float | bool
    #: The number to show: `computed`, or for a truth the number that it rests on.
    shown: float
    #: How far `computed` may lie from `stated`; 0 for a truth.
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


class _File(BaseModel):
    """A file of statements; its entries are checked one by one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal[1]
    source: str
    #: All sections, tables, figures and listings of the document, as `places_in` reads them.
    places: str
    stated: list[dict[str, Any]] = []
    disagreement: list[dict[str, Any]] = []

    def unknown(self, place: str) -> list[str]:
        """Return the places that the document does not have."""
        known = set(places_in(self.places))
        return [f"place: the document has no {one}" for one in places_in(place) if one not in known]


class _Entry(BaseModel):
    """A statement as it is written."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str
    place: str = Field(min_length=1)
    says: str = Field(min_length=1)
    kind: Kind
    stated: Number
    unit: str | None = None
    tolerance: float | None = Field(None, ge=0)
    compute: str = Field(min_length=1)
    shown: str | None = Field(None, min_length=1)
    note: str = ""
    names: dict[str, Any] = Field(alias="from", min_length=1)

    def mistakes(self, source: str) -> list[str]:
        """Return what is wrong between the keys."""
        messages = []
        if not self.id.startswith(f"{source}-"):
            messages.append(f"id: does not start with {source}-")
        if self.stated is True and self.shown is None:
            messages.append("shown: missing; a truth is shown by a number")
        for key in ("tolerance", "unit"):
            if self.stated is not True and getattr(self, key) is None:
                messages.append(f"{key}: missing; a number is compared within its tolerance")
        return messages


class Disagreement(BaseModel):
    """Two places of a document that say different things about one subject."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    about: str = Field(min_length=1)
    says: str = Field(min_length=1)
    place: str = Field(min_length=1)
    but: str = Field(min_length=1)
    #: Where the document says the latter.
    but_place: str = Field(min_length=1)

    @property
    def detail(self) -> str:
        """Both sides in one phrase."""
        return f"{self.about}: {self.says} ({self.place}), but {self.but} ({self.but_place})"


def stated_path(key: str, root: Path | str | None = None) -> Path:
    """Return where the statements of a document are written."""
    return (default_root() if root is None else Path(root)) / f"{key}.stated.toml"


def load_stated(
    key: str, root: Path | str | None = None, table: Columns | None = None
) -> tuple[Stated, ...]:
    """Return every statement of a document that its own tables, read already, are held against."""
    table = columns_of(published(key, root)) if table is None else table
    content, mistakes = _read(key, root)
    statements: list[Stated] = []
    names: set[str] = set()
    for number, raw in enumerate(content.stated, start=1):
        name = str(raw.get("id", f"entry {number}"))
        if name in names:
            mistakes.add(name, "id: used twice; choose another")
        names.add(name)
        if (entry := mistakes.validate(name, raw, _Entry)) is None:
            continue
        if messages := entry.mistakes(key) + content.unknown(entry.place):
            mistakes.add(name, *messages)
        else:
            statements += _computed(entry, key, table, mistakes)
    mistakes.stop(f"correct these entries of {mistakes.path.name}")
    return tuple(statements)


def load_disagreements(key: str, root: Path | str | None = None) -> tuple[Disagreement, ...]:
    """Return where two places of a document contradict each other in words."""
    content, mistakes = _read(key, root)
    found = []
    for number, raw in enumerate(content.disagreement, start=1):
        name = f"disagreement {number}"
        if entry := mistakes.validate(name, raw, Disagreement):
            mistakes.add(name, *content.unknown(entry.place), *content.unknown(entry.but_place))
            found.append(entry)
    mistakes.stop(f"correct these entries of {mistakes.path.name}")
    return tuple(found)


def disagreements(root: Path | str | None = None) -> pd.DataFrame:
    """Return the disagreements of all documents, a row each, with its ``source``."""
    rows = [
        {"source": key, **entry.model_dump()}
        for key in keys(root)
        for entry in load_disagreements(key, root)
    ]
    return pd.DataFrame(rows, columns=["source", *Disagreement.model_fields], dtype="str")


def places_in(text: str) -> list[str]:
    """Return each place that a phrase like "sections 4.1 and 5, Table C.1" names."""
    places, kind = [], ""
    for word in re.split(r"[\s,;]+", text):
        if word.lower() in _PLACES:
            kind = _PLACES[word.lower()]
        elif word in ("abstract", "references"):
            places.append(word)
        elif word not in ("and", "to"):
            places.append(f"{kind} {word}")
    return places


def _read(key: str, root: Path | str | None) -> tuple[_File, Mistakes]:
    content, mistakes = read_toml(stated_path(key, root), _File)
    if content.source != key:
        mistakes.add("source", f"is {content.source!r} and not {key!r}")
    return content, mistakes


def _computed(entry: _Entry, key: str, table: Columns, mistakes: Mistakes) -> list[Stated]:
    try:
        # What is computed is what is shown, unless that is another expression.
        computed, *others = compute(
            [entry.compute, *filter(None, [entry.shown])], entry.names, table
        )
        number = others[0] if others else computed
    except UsageError as error:
        mistakes.add(entry.id, f"{error.what}: {error.why}" if error.why else error.what)
        return []
    if isinstance(computed, bool) is not (entry.stated is True):
        mistakes.add(entry.id, f"stated is {entry.stated}, and compute gives {computed}")
    if isinstance(number, bool):
        mistakes.add(entry.id, "shown: gives a truth and not a number")
    return [
        Stated(
            id=entry.id,
            source=key,
            place=entry.place,
            says=entry.says,
            kind=entry.kind,
            stated=entry.stated,
            computed=computed,
            shown=float(number),
            tolerance=entry.tolerance or 0.0,
            unit=entry.unit or "",
            note=entry.note,
        )
    ]


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
    documents = keys(root) if key is None else [key]
    rows = [
        asdict(statement) | {"difference": statement.difference, "follows": statement.follows}
        for name in documents
        for statement in load_stated(name, root)
    ]
    # Numbers and truths stand in the same column.
    frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    text = ("id", "source", "place", "says", "kind", "unit", "note")
    numbers = ("shown", "difference", "tolerance")
    types = dict.fromkeys(text, "str") | dict.fromkeys(numbers, "float")
    return frame.astype(types | {"follows": "bool"})


def with_unit(value: float, unit: str) -> str:
    """Return a number with four significant digits (above 1,000 with all whole ones) and unit."""
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text if unit in ("", "1") else f"{text} {unit}"


def increasing(values: Sequence[float]) -> bool:
    """Return whether each value is above the one before it."""
    if len(values) < 2:
        raise ValueError("fewer than two values have no order")
    return all(a < b for a, b in itertools.pairwise(values))


def decreasing(values: Sequence[float]) -> bool:
    """Return whether each value is below the one before it."""
    return increasing([-value for value in values])


def _zip(*lists: Sequence[float]) -> list[tuple[float, ...]]:
    return list(zip(*lists, strict=True))


#: All that an expression may call. ``zip`` refuses lists of different lengths.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "sum": sum,
    "abs": abs,
    "round": round,
    "sqrt": math.sqrt,
    "log": math.log,
    "len": len,
    "sorted": sorted,
    "zip": _zip,
    "all": all,
    "any": any,
    "increasing": increasing,
    "decreasing": decreasing,
}


def compute(
    expressions: Sequence[str], given: Mapping[str, Any], table: Columns
) -> list[float | bool]:
    """Return what expressions come to over the rows of a published table."""
    used = set().union(*map(names_in, expressions))
    wrong = [f"{name!r} is used and not given in from" for name in sorted(used - given.keys())]
    wrong += [f"{name!r} is given in from and not used" for name in sorted(given.keys() - used)]
    taken = sorted(given.keys() & FUNCTIONS.keys())
    wrong += [f"{name!r} is the name of a function: choose another" for name in taken]
    values: dict[str, Value] = {}
    for name, source in given.items():
        try:
            values[name] = select(table, source) if isinstance(source, dict) else _constant(source)
        except UsageError as error:
            wrong.append(f"{name}: {error.what}" + (f" ({error.why})" if error.why else ""))
    if wrong:
        raise UsageError("; ".join(wrong))
    return [evaluate(expression, values) for expression in expressions]


def standard_error(expression: str, given: Mapping[str, Any], table: Columns) -> float:
    """Return the standard error of an expression of means; NaN where the table has none.

    Each mean has the error of its standard deviation and its number of runs, as printed; errors
    are independent and propagate linearly.
    """
    values = {name: select(table, source) for name, source in given.items()}
    centre, variance = evaluate(expression, values), 0.0
    for name, source in given.items():
        if source.get("statistic") != "mean" or "rows" in source:
            return math.nan
        try:
            spread = select(table, {**source, "statistic": "std"})
        except UsageError:
            return math.nan
        runs = float(np.asarray(select(table, source, "n")))
        if not runs > 0:
            return math.nan
        error = float(np.asarray(spread)) / math.sqrt(runs)
        moved = evaluate(expression, {**values, name: float(np.asarray(values[name])) + error})
        variance += (moved - centre) ** 2
    return math.sqrt(variance)


@functools.cache
def names_in(expression: str) -> frozenset[str]:
    """Return the names that an expression takes from outside; functions are not among them."""
    try:
        nodes = list(ast.walk(ast.parse(" ".join(expression.split()), mode="eval")))
    except SyntaxError as error:
        raise UsageError(f"{expression!r} is not an expression", why=str(error.msg)) from None
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return frozenset({node.id for node in names} - own - FUNCTIONS.keys())


def evaluate(expression: str, names: Mapping[str, Value]) -> float | bool:
    """Return the finite number, or the truth, that an expression comes to."""
    # Also where evaluation would not reach it, behind an `and`.
    if unknown := sorted(names_in(expression) - names.keys()):
        raise UsageError(f"cannot compute {expression!r}", why=f"{unknown[0]!r} is not defined")
    evaluator = EvalWithCompoundTypes(allowed_attrs={})
    # That class adds functions of its own; only those named here are wanted.
    evaluator.functions, evaluator.names = dict(FUNCTIONS), dict(names)
    try:
        result = evaluator.eval(" ".join(expression.split()))
    except Exception as error:  # an expression can raise whatever its functions raise
        raise UsageError(f"cannot compute {expression!r}", why=str(error)) from error
    if isinstance(result, bool):
        return result
    if not isinstance(result, int | float) or not math.isfinite(result):
        raise UsageError(f"{expression!r} gives {result!r}, and not a finite number or a truth")
    return float(result)


def columns_of(table: pd.DataFrame) -> Columns:
    """Return a published table as an array a column: numbers (NaN where empty), or text."""
    return {
        str(name): column.to_numpy(dtype=np.float64, na_value=np.nan)
        if pd.api.types.is_numeric_dtype(column)
        else column.to_numpy(dtype=object)
        for name, column in table.items()
    }


def select(table: Columns, selector: Mapping[str, Any], read: str = "value") -> Value:
    """Return the value of the one row that a selector chooses, or those of ``rows = "all"``.

    `read` is the column that is read. With ``rows = "all"`` a column may have a list of values.
    An empty string chooses what is empty.
    """
    every = selector.get("rows") == "all"
    if "rows" in selector and not every:
        raise UsageError(f"rows = {selector['rows']!r} is unknown", why='it can only be "all"')
    chosen = np.full(len(table["value"]), True)
    for column, wanted in selector.items():
        if column == "rows":
            continue
        if column not in table:
            raise UsageError(f"no column {column!r}", why=f"there are {list(table)}")
        if isinstance(wanted, list) and not every:
            raise UsageError(f"{column} is a list", why='only with rows = "all"')
        options = wanted if isinstance(wanted, list) else [wanted]
        matches = chosen & np.any([_equals(column, table[column], x) for x in options], axis=0)
        if not matches.any():
            levels = sorted({_text(item) for item in table[column][chosen]})
            raise UsageError(f"no row has {column} = {wanted!r}", why=f"there are {levels[:12]}")
        chosen = matches
    values = [float(value) for value in table[read][chosen]]
    if every:
        return values
    if len(values) != 1:
        free = [name for name in table if len({_text(item) for item in table[name][chosen]}) > 1]
        raise UsageError(f"{len(values)} rows match", why=f"they differ in {free}; name one")
    return values[0]


def _equals(name: str, column: NDArray[Any], value: object) -> NDArray[np.bool_]:
    """Return where a column has a value; numbers in a column of text are compared as text."""
    if column.dtype == object:
        return np.asarray(column == str(value), dtype=bool)
    if value == "":
        return np.asarray(np.isnan(column), dtype=bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is a number and not {value!r}")
    return np.asarray(column == value, dtype=bool)


def _text(item: Any) -> str:
    return f"{item:g}" if isinstance(item, float) else str(item)


def _constant(source: Any) -> Value:
    numbers = source if isinstance(source, list) else [source]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise UsageError(f"{source!r} is neither a number nor a selector")
    return [float(n) for n in numbers] if isinstance(source, list) else float(source)
