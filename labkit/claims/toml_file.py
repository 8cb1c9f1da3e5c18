"""TOML files written by hand: read, and checked so that one error tells all mistakes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from labkit.errors import DatasetError
from labkit.units import plural

#: How many mistakes an error shows; its evidence holds all of them.
SHOWN = 10
_T = TypeVar("_T")


class Mistakes:
    """The mistakes of one file, collected entry by entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[str] = []

    def add(self, owner: str, *messages: str) -> None:
        """Add mistakes of the entry called `owner`."""
        self.messages += [f"{owner}: {message}" for message in messages]

    def validate(self, owner: str, entry: object, model: type[_T] | TypeAdapter[_T]) -> _T | None:
        """Return an entry as its model; add its mistakes and return None where it has any."""
        adapter: TypeAdapter[_T] = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        try:
            return adapter.validate_python(entry)
        except ValidationError as error:
            self.add(
                owner, *(_message(detail, entry) for detail in error.errors(include_url=False))
            )
            return None

    def stop(self, remedy: str) -> None:
        """Raise `DatasetError` if there are any mistakes."""
        if self.messages:
            shown = [*self.messages[:SHOWN], *(["..."] if len(self.messages) > SHOWN else [])]
            raise DatasetError(
                f"{self.path.name} has {plural(len(self.messages), 'mistake')}",
                where=str(self.path),
                why="\n    ".join(shown),
                remedy=remedy,
                evidence={"mistakes": list(self.messages)},
            )


def read_toml(path: Path, model: type[_T]) -> tuple[_T, Mistakes]:
    """Return a TOML file as its model, and a collector for the mistakes of its entries."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise DatasetError(f"{path.name} cannot be opened", where=str(path), why=why) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DatasetError(
            f"{path.name} is not TOML", where=str(path), why=str(error), remedy="correct that line"
        ) from None
    mistakes = Mistakes(path)
    content = mistakes.validate("the file", document, model)
    mistakes.stop("correct the keys at the top of the file; labkit reads format = 1")
    assert content is not None
    return content, mistakes


def _message(error: ErrorDetails, entry: object) -> str:
    """Return a validation error in words that say what to write."""
    # The first part of the place is the kind of the entry where several kinds are possible.
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    place = error["loc"][1:] if error["loc"][:1] == (kind,) else error["loc"]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    name = name.removeprefix(".").removesuffix(".[key]")
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{name}: missing; write it"
        case "extra_forbidden":
            return f"{name}: unknown key"
        case "union_tag_not_found":
            return "kind: missing; write it"
        case "union_tag_invalid":
            return f"kind: {context['tag']!r} is unknown; known are {context['expected_tags']}"
        case "tuple_type":
            text = "must be a list"
        case "too_short":
            text = f"needs at least {context['min_length']}"
        case "value_error":
            text = str(context["error"])
        case _:
            text = error["msg"].replace("Input should", "must")
    value = error["input"]
    shown = "" if isinstance(value, Mapping | list | BaseModel) else f", not {value!r}"
    return f"{name}: {text}{shown}"
