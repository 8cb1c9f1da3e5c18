"""From notebooks to the report: execute them, render self-contained pages, write the index.

An analysis notebook displays one output of the type `SUMMARY_MIME`, a mapping with what the index
shows of it: ``study``, ``title``, ``headlines`` (each ``text``, ``verdict``, ``estimate``,
``low``, ``high``, ``unit``), ``noise_floor`` (each ``condition``, ``sd``, relative, and ``low``
and ``high``, the interval of the ratio of a condition to itself), ``decidable_margin``
(relative), ``blocks``, ``trials``, ``failed``, ``refusals`` (each ``condition``, ``reason``),
``rig`` (`Rig.describe`), ``dataset``, ``measured`` (ISO date), ``profile`` and ``reference``.
Whatever is missing is shown as not stated. Pages carry it along, so that the index is made from
pages alone.
"""

from labkit.report.cells import SUMMARY_MIME
from labkit.report.ledger import build_ledger, counted
from labkit.report.pages import build_index, build_page, read_summary
from labkit.report.rig_page import build_rig
from labkit.report.running import check_parameters, declared_parameters, execute

__all__ = [
    "SUMMARY_MIME",
    "build_index",
    "build_ledger",
    "build_page",
    "build_rig",
    "check_parameters",
    "counted",
    "declared_parameters",
    "execute",
    "read_summary",
]
