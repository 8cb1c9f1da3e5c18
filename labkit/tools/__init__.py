"""Benchmark tools, one file each: ``from labkit.tools import sockperf, thrift_rpc``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.errors import ToolOutput
from labkit.placement import waiting
from labkit.tools.base import Client, Measurement, one_of

if TYPE_CHECKING:
    from labkit.tools.applications import APPLICATIONS, families, with_tools

__all__ = [
    "APPLICATIONS",
    "Client",
    "Measurement",
    "ToolOutput",
    "families",
    "one_of",
    "waiting",
    "with_tools",
]


def __getattr__(name: str) -> Any:
    """Import a tool, or what applications have in common, when it is first used."""
    if name in ("APPLICATIONS", "families", "with_tools"):
        return getattr(import_module("labkit.tools.applications"), name)
    module = f"{__name__}.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"labkit.tools has no {name!r}") from None
