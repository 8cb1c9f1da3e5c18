"""From notebooks to the report: sections of an analysis page, HTML pages, the index.

An analysis notebook displays one output of the type `html.SUMMARY_MIME`, a mapping for the index:
``study``, ``title``, ``headlines`` (each ``text``, ``amount``, ``verdict``, ``estimate``, ``low``,
``high``, ``unit``), ``noise_floor`` (each ``condition``, ``sd``, relative, and ``low`` and
``high``, the interval of the ratio of a condition to itself), ``decidable_margin`` (relative),
``blocks``, ``trials``, ``failed``, ``infeasible`` (each ``condition``, ``reason``), ``rig``
(`Rig.describe`), ``dataset``, ``measured`` (ISO date), ``profile``, ``reference`` and
``provenance`` (`labkit.report.provenance`). The index shows "not stated" for missing entries.
Pages embed the mapping, so the index needs only the pages.
"""
