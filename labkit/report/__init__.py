"""From notebooks to the report: sections of an analysis page, HTML pages, the index.

An analysis notebook displays one output of the type `SUMMARY_MIME`, a mapping for the index:
``study``, ``title``, ``headlines`` (each ``text``, ``verdict``, ``estimate``, ``low``, ``high``,
``unit``), ``noise_floor`` (each ``condition``, ``sd``, relative, and ``low`` and ``high``, the
interval of the ratio of a condition to itself), ``decidable_margin`` (relative), ``blocks``,
``trials``, ``failed``, ``infeasible`` (each ``condition``, ``reason``), ``rig`` (`Rig.describe`),
``dataset``, ``measured`` (ISO date), ``profile``, ``reference`` and ``provenance``
(`labkit.report.provenance`). The index shows "not stated" for missing entries. Pages embed the
mapping, so the index needs only the pages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.report.execution import check_parameters, execute
    from labkit.report.html import SUMMARY_MIME
    from labkit.report.ledger_page import build_ledger, counted
    from labkit.report.pages import build_glossary, build_index, build_page, read_summary
    from labkit.report.rig_page import build_rig

#: The module of each name, imported when it is first used: nbformat alone takes seconds, which
#: neither the ledger nor a page in a notebook needs.
_HOMES = {
    "SUMMARY_MIME": "html",
    "build_glossary": "pages",
    "build_index": "pages",
    "build_ledger": "ledger_page",
    "build_page": "pages",
    "build_rig": "rig_page",
    "check_parameters": "execution",
    "counted": "ledger_page",
    "execute": "execution",
    "read_summary": "pages",
}

__all__ = [
    "SUMMARY_MIME",
    "build_glossary",
    "build_index",
    "build_ledger",
    "build_page",
    "build_rig",
    "check_parameters",
    "counted",
    "execute",
    "read_summary",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.report' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
