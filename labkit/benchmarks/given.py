"""What an adapter is given, checked before it becomes a command."""

from __future__ import annotations

import math

from labkit.errors import UsageError


def whole(tool: str, *, least: int = 1, **given: object) -> None:
    """Raise `UsageError` unless all that is given are whole numbers of at least `least`."""
    wrong = {
        name: value
        for name, value in given.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    }
    if wrong:
        raise UsageError(
            f"{tool}: {_shown(wrong)}: whole numbers are needed, at least {least}",
            remedy="write 100000, not 1e5",
        )


def above_zero(tool: str, **given: object) -> None:
    """Raise `UsageError` unless all that is given are finite numbers above 0."""
    wrong = {
        name: value
        for name, value in given.items()
        if not isinstance(value, int | float) or not value > 0 or not math.isfinite(value)
    }
    if wrong:
        raise UsageError(f"{tool}: {_shown(wrong)}: numbers above 0 are needed")


def one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    """Raise `UsageError` unless the value is among those that are known."""
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}", remedy=f"one of {known}")


def _shown(given: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
