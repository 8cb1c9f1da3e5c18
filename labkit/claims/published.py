"""The papers' tables as frames, in long form, with the columns that their schemas name.

Whether the values follow the constraints of their Table Schemas is for the tests to check, with
frictionless: the tables are part of the repository and do not change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import DatasetError, suggestion
from labkit.paths import project

_SCHEMA = ".schema.json"
#: The columns that every table ends with, after the factors of its source.
TAIL = ("item", "label", "metric", "statistic", "value", "unit", "n")


def published(key: str, root: Path | str | None = None) -> pd.DataFrame:
    """Return every table value of a published document."""
    folder = default_root() if root is None else Path(root)
    table, path = folder / f"{key}.csv", folder / f"{key}{_SCHEMA}"
    if not table.is_file() or not path.is_file():
        raise DatasetError(
            f"no published document {key!r}",
            where=str(folder),
            remedy=f"{suggestion(key, keys(folder))}; or give root=",
        )
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        fields = {field["name"]: field for field in schema["fields"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path.name} is not a table schema", where=str(path), why=repr(error)
        ) from None
    if tuple(fields)[-len(TAIL) :] != TAIL:
        raise DatasetError(
            f"the last columns of {path.name} are not {', '.join(TAIL)}", where=str(path)
        )
    frame = read_text(table, tuple(fields))
    for name, field in fields.items():
        try:
            frame[name] = _typed(frame[name], field)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DatasetError(
                f"a value of {table.name} is not of its type",
                where=f"{table}, column {name}",
                why=repr(error),
            ) from None
    frame.attrs["schema"] = schema
    return frame


def keys(root: Path | str | None = None) -> list[str]:
    """Return the keys of the documents that are published in a folder, sorted."""
    folder = default_root() if root is None else Path(root)
    return sorted(path.name.removesuffix(_SCHEMA) for path in folder.glob(f"*{_SCHEMA}"))


def default_root() -> Path:
    """Return ``data/published`` of the repository around this package."""
    return project("data/published")


def read_text(path: Path, columns: tuple[str, ...] | None = None) -> pd.DataFrame:
    """Return a CSV file as text, with nothing taken for missing."""
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


def _typed(column: pd.Series[str], field: dict[str, Any]) -> pd.Series[Any]:
    if field["type"] == "string":
        return column
    numbers = pd.to_numeric(column.where(column != ""))
    if np.isinf(numbers).any() or (numbers.isna() & (column != "")).any():
        raise ValueError("a number is not finite")
    if field["type"] == "number":
        return numbers.astype("float64")
    required = field.get("constraints", {}).get("required", False)
    return numbers.astype("int64" if required else "Int64")
