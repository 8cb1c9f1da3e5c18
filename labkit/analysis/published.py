"""The papers' tables as data: long form, checked against the table schema beside each file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.errors import DatasetError

_TYPES = {"string": "str", "number": "float64", "integer": "int64"}


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

    Raises
    ------
    DatasetError
        If the files are missing, or the values do not follow their schema.
    """
    folder = default_root() if root is None else Path(root)
    table, schema = folder / f"{key}.csv", folder / f"{key}.schema.json"
    if not table.is_file() or not schema.is_file():
        known = sorted(path.stem for path in folder.glob("*.csv")) if folder.is_dir() else []
        raise DatasetError(
            f"nothing published is known as {key!r}",
            where=str(folder),
            remedy=f"one of {known}, or give root=",
        )
    described: dict[str, Any] = json.loads(schema.read_text(encoding="utf-8"))
    text = pd.read_csv(table, dtype="str", keep_default_na=False)
    problems = violations(text, described)
    if problems:
        raise DatasetError(
            f"{table.name} does not follow its schema",
            where=str(table),
            why="; ".join(problems[:5]),
            evidence={"problems": problems},
        )
    frame = text.astype({field["name"]: _TYPES[field["type"]] for field in described["fields"]})
    frame.attrs["schema"] = described
    return frame


def default_root() -> Path:
    """Return ``data/published`` of the repository around this package."""
    return Path(__file__).resolve().parents[2] / "data" / "published"


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
        if numbers.isna().any() or not whole:
            found.append(f"{name}: some values are no {field['type']}")
        if (numbers < limits.pop("minimum", -float("inf"))).any():
            found.append(f"{name}: some values are below the minimum")
        if (numbers > limits.pop("maximum", float("inf"))).any():
            found.append(f"{name}: some values are above the maximum")
    limits.pop("enum", None)
    return found + [f"{name}: unknown constraint {word!r}" for word in limits]
