"""Files written by hand: read, held against their shape, and all their problems shown at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from labkit.errors import DatasetError

#: How many problems an error shows; its evidence holds all of them.
SHOWN = 10


class Problems:
    """What is wrong with one file, collected entry by entry.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[str] = []

    def add(self, owner: str, problem: str) -> None:
        """Note a problem of the entry called `owner`."""
        self.found.append(f"{owner}: {problem}")

    def shape(self, owner: str, entry: object, schema: Mapping[str, Any]) -> bool:
        """Return whether an entry has the shape of a JSON Schema; note each way it has not."""
        errors = sorted(Draft202012Validator(schema).iter_errors(entry), key=lambda e: e.json_path)
        for error in errors:
            self.add(owner, _in_words(error))
        return not errors

    def stop(self, remedy: str) -> None:
        """Raise `DatasetError` with the first problems if there are any."""
        if not self.found:
            return
        shown = [*self.found[:SHOWN], *(["..."] if len(self.found) > SHOWN else [])]
        raise DatasetError(
            f"{self.path.name} has {len(self.found)} problems",
            where=str(self.path),
            why="\n    ".join(shown),
            remedy=remedy,
            evidence={"problems": list(self.found)},
        )


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file; raise `DatasetError` when it is missing or cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(
            f"{path.name} cannot be opened", where=str(path), why=error.strerror or str(error)
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{path.name} is not TOML", where=str(path), why=str(error), remedy="mend that line"
        ) from None


def entries(path: Path, name: str, tables: tuple[str, ...] = ()) -> tuple[dict[str, Any], Problems]:
    """Return a TOML file of format 1 whose entries are ``[[name]]``, and its (first) problems.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        The array of entries; it may be absent or empty.
    tables : tuple of str
        What else stands at the top of the file and must be there.
    """
    document, problems = read_toml(path), Problems(path)
    top = {"format": {"const": 1}, name: {"type": "array", "items": {"type": "object"}}}
    shape = {
        "properties": top | {table: {} for table in tables},
        "required": ["format", *tables],
        "additionalProperties": False,
    }
    problems.shape("the file", document, shape)
    problems.stop("labkit reads format = 1; mend the head of the file")
    document.setdefault(name, [])
    return document, problems


def _in_words(error: ValidationError) -> str:
    """Return a violation in words that say what to write."""
    place = error.json_path.removeprefix("$").removeprefix(".")
    schema: Any = error.schema
    known, said = sorted(schema.get("properties", ())), error.message
    given: Any = error.instance
    rule: Any = error.validator_value
    if error.validator == "additionalProperties" and known:
        said = f"unknown {', '.join(sorted(given.keys() - set(known)))}; known are {known}"
    elif error.validator == "required":
        lacking = [key for key in rule if key not in given]
        said = f"{', '.join(lacking)} missing; write it"
    elif error.validator == "anyOf":
        wanted = [name for option in rule for name in option.get("required", [])]
        said = f"one of {wanted} is missing; write it" if wanted else said
    return f"{place}: {said}" if place else said
