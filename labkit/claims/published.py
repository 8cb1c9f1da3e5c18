"""The papers' tables as data: long form, checked against the table schema beside each file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import DatasetError

_TYPES = ("string", "number", "integer")
_SCHEMA = ".schema.json"
#: The columns of a table of text.
WORDS = ("item", "row", "column", "text")
#: The columns that every table ends with, after the factors of its source.
TAIL = ("item", "label", "metric", "statistic", "value", "unit", "n")


def published(key: str, root: Path | str | None = None) -> pd.DataFrame:
    """Return every table value of a published document.

    Parameters
    ----------
    key : str
        The document's key, such as ``rohprimardho2015``.
    root : path, optional
        Folder of ``<key>.csv`` and ``<key>.schema.json`` (Frictionless Table Schema); by default
        ``data/published`` of the repository that this package was installed from.

    Returns
    -------
    DataFrame
        One row a value: the factors of that source, then ``item`` (table number as printed),
        ``label`` (row and column words as printed), ``metric, statistic, value, unit, n``. The
        attribute ``attrs["schema"]`` holds descriptions and what the source's words mean here.
        An empty number is NaN; a column of integers that may be empty has pandas' ``Int64``.

    Raises
    ------
    DatasetError
        If the files are missing, or the values do not follow their schema.
    """
    folder = default_root() if root is None else Path(root)
    table, schema = folder / f"{key}.csv", folder / f"{key}{_SCHEMA}"
    if not table.is_file() or not schema.is_file():
        raise DatasetError(
            f"nothing published is known as {key!r}",
            where=str(folder),
            remedy=f"one of {keys(folder)}, or give root=",
        )
    described, text = _schema(schema), read_text(table)
    problems = violations(text, described)
    if tuple(text.columns[-len(TAIL) :]) != TAIL:
        problems.append(f"the last columns are not {', '.join(TAIL)}")
    if problems:
        raise DatasetError(
            f"{table.name} does not follow its schema",
            where=str(table),
            why="; ".join(problems[:5]),
            evidence={"problems": problems},
        )
    frame = text.assign(**{f["name"]: _typed(text[f["name"]], f) for f in described["fields"]})
    frame.attrs["schema"] = described
    return frame


def words(key: str, root: Path | str | None = None) -> pd.DataFrame:
    """Return the tables of text of a published document: benchmarks, versions, machines.

    Parameters
    ----------
    key : str
        The document's key.
    root : path, optional
        Folder of ``<key>.words.csv``; by default ``data/published``.

    Returns
    -------
    DataFrame
        One row a cell, with the columns ``item, row, column, text``, all of them text; no rows
        where the document has no such table.

    Raises
    ------
    DatasetError
        If the document is unknown, or the file has other columns, a cell without ``item`` or
        ``text``, or the same cell twice.
    """
    folder = default_root() if root is None else Path(root)
    if key not in keys(folder):
        published(key, folder)  # says what is known
    path = folder / f"{key}.words.csv"
    if not path.is_file():
        return pd.DataFrame(columns=list(WORDS), dtype="str")
    frame = read_text(path, WORDS)
    empty = frame[(frame["item"] == "") | (frame["text"] == "")]
    again = frame[frame.duplicated(["item", "row", "column"])]
    for odd, why in ((empty, "without item or text"), (again, "given before")):
        if len(odd):
            lines = ", ".join(str(number + 2) for number in odd.index[:5])
            raise DatasetError(f"{path.name} has a cell {why}", where=f"{path}, row {lines}")
    return frame


def keys(root: Path | str | None = None) -> list[str]:
    """Return the keys of the documents that are published in a folder, sorted."""
    folder = default_root() if root is None else Path(root)
    return sorted(path.name.removesuffix(_SCHEMA) for path in folder.glob(f"*{_SCHEMA}"))


def default_root() -> Path:
    """Return ``data/published`` of the repository around this package."""
    return Path(__file__).resolve().parents[2] / "data" / "published"


def read_text(path: Path, columns: tuple[str, ...] | None = None) -> pd.DataFrame:
    """Return a CSV file as text, with nothing taken for missing.

    Raises
    ------
    DatasetError
        If it is missing, cannot be read, or has not these columns.
    """
    try:
        frame = pd.read_csv(path, dtype="str", keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        raise DatasetError(f"{path.name} cannot be read", where=str(path), why=str(error)) from None
    if not isinstance(frame.index, pd.RangeIndex):  # what pandas makes of a cell too many
        raise DatasetError(f"{path.name} has rows that are too long", where=str(path))
    if columns is not None and tuple(frame.columns) != columns:
        raise DatasetError(
            f"{path.name} has other columns", where=str(path), why=f"not {', '.join(columns)}"
        )
    return frame


def _schema(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        unknown = sorted({field["type"] for field in described["fields"]} - set(_TYPES))
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path.name} is no table schema", where=str(path), why=repr(error)
        ) from None
    if unknown:
        raise DatasetError(
            f"{path.name} has types that are not checked",
            where=str(path),
            why=", ".join(unknown),
            remedy=f"use {', '.join(_TYPES)}",
        )
    return dict(described)


def _typed(column: pd.Series[str], field: dict[str, Any]) -> pd.Series[Any]:
    """Return a checked column of text as what its field says."""
    if field["type"] == "string":
        return column
    numbers = pd.to_numeric(column.where(column != ""))
    if field["type"] == "number":
        return numbers.astype("float64")
    required = field.get("constraints", {}).get("required", False)
    return numbers.astype("int64" if required else "Int64")


def violations(text: pd.DataFrame, schema: dict[str, Any]) -> list[str]:
    """Return how a table of strings breaks its Table Schema; an empty list when it does not.

    Checked: names and order of the columns, types, ``required``, ``enum``, ``pattern``,
    ``minimum``, ``maximum`` and the primary key. Keywords that are not known are a violation, so
    that no constraint is written down and never checked.
    """
    names = [field["name"] for field in schema["fields"]]
    if list(text.columns) != names:
        return [f"columns are {list(text.columns)}, not {names}"]
    found: list[str] = []
    for field in schema["fields"]:
        found += _field_violations(text[field["name"]], field)
    key = schema.get("primaryKey", [])
    if key and text.duplicated(key).any():
        found.append(f"{int(text.duplicated(key).sum())} rows repeat their key {key}")
    return found


def _field_violations(column: pd.Series[str], field: dict[str, Any]) -> list[str]:
    name, limits = field["name"], dict(field.get("constraints", {}))
    found, given = [], column[column != ""]
    if limits.pop("required", False) and len(given) < len(column):
        found.append(f"{name}: {len(column) - len(given)} values are missing")
    if "enum" in limits and not given.isin(enum := limits.pop("enum")).all():
        found.append(f"{name}: {sorted(set(given) - set(enum))} are not among {enum}")
    if "pattern" in limits:
        pattern = re.compile(limits.pop("pattern"))
        odd = sorted({item for item in given if not pattern.fullmatch(item)})
        found += [f"{name}: {odd} do not match {pattern.pattern}"] if odd else []
    if field["type"] != "string":
        numbers = pd.to_numeric(given, errors="coerce")
        whole = field["type"] == "number" or bool((numbers % 1 == 0).all())
        if not np.isfinite(numbers).all() or not whole:
            found.append(f"{name}: some values are no {field['type']}")
        if (numbers < limits.pop("minimum", -float("inf"))).any():
            found.append(f"{name}: some values are below the minimum")
        if (numbers > limits.pop("maximum", float("inf"))).any():
            found.append(f"{name}: some values are above the maximum")
    limits.pop("enum", None)
    return found + [f"{name}: unknown constraint {word!r}" for word in limits]
