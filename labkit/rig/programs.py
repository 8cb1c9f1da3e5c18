"""The programs that labkit runs on hosts, as ``programs.txt`` lists them."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple


class Program(NamedTuple):
    """A program (or a file, by its path) that hosts need."""

    name: str
    package: str
    #: Every study needs it.
    needed: bool
    roles: tuple[str, ...]
    purpose: str


def programs() -> list[Program]:
    """Return the programs that labkit runs on hosts."""
    text = resources.files("labkit.rig").joinpath("programs.txt").read_text("utf-8")
    rows = [line.split(":", 4) for line in text.splitlines() if not line.startswith("#")]
    return [
        Program(name, package, kind == "needed", tuple(filter(None, roles.split(","))), purpose)
        for name, package, kind, roles, purpose in rows
    ]
