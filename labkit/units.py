"""Columns of a campaign: unit, better direction and words of each, from columns.csv."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

#: Endings of a trial's statistics, with their words.
STATISTICS = {"mean": "mean", "median": "median", "min": "lowest", "max": "highest"}
STATISTICS |= {"std": "standard deviation of", "p75": "p75", "p90": "p90", "p95": "p95"}
STATISTICS |= {"p99": "p99", "p999": "p99.9", "p9999": "p99.99"}
#: Endings that name a unit, the longest first.
_UNITS = {"_gbit_per_s": "Gbit/s", "_mbit_per_s": "Mbit/s", "_mb_per_s": "MB/s"}
_UNITS |= {"_gb_per_s": "GB/s", "_per_s": "1/s", "_ns": "ns", "_us": "us", "_ms": "ms", "_s": "s"}
_UNITS |= {"_mb": "MB", "_b": "B"}
#: Words of a prefix; any other one is a placement.
_PREFIXES = {"loaded": "{}, at the offered rate", "tool": "{}, as the tool counts"}


@dataclass(frozen=True)
class Column:
    """One column of a campaign's trials or samples, a row of columns.csv."""

    name: str
    #: Unit in the data: ``1`` for a count or a share, empty for text.
    unit: str
    #: ``lower``, ``higher`` or ``neither``.
    better: str
    #: The quantity in words, for axes, tables and sentences.
    text: str
    #: ``key``, ``metric``, ``share`` (shown as per cent), ``counter``; ``other`` is in no row.
    kind: str


with (files("labkit") / "columns.csv").open(encoding="utf-8") as _file:
    #: Rows of columns.csv by their names.
    COLUMNS = {row["name"]: Column(**row) for row in csv.DictReader(_file)}


@cache
def column(name: str) -> Column:
    """Return a column by its name; a name that nothing describes is read from its ending.

    Examples
    --------
    >>> column("rtt_ns_p999").text, column("neighbour_gflops").unit, column("quota_us").text
    ('p99.9 round-trip time', 'Gflop/s', 'quota')
    """
    if name in COLUMNS:
        return COLUMNS[name]
    if cpu := re.fullmatch(r"cpu(\d+)_(idle|packets)", name):
        known = COLUMNS[f"cpuN_{cpu[2]}"]
        return replace(known, name=name, text=known.text.replace("CPU N", f"CPU {cpu[1]}"))
    base, _, last = name.rpartition("_")
    if last in STATISTICS and base:
        known = column(base)
        better = "neither" if last == "std" else known.better
        return replace(known, name=name, better=better, text=f"{STATISTICS[last]} {known.text}")
    prefix, _, rest = name.partition("_")
    if rest and (known := column(rest)).kind not in ("key", "other"):
        text = _PREFIXES.get(prefix, f"{prefix}'s {{}}").format(known.text)
        return replace(known, name=name, text=text)
    ending = next((one for one in _UNITS if name.endswith(one)), "")
    unit = _UNITS.get(ending, "1")
    rate = " per second" if unit == "1/s" else ""
    better = "lower" if unit.endswith("s") and "/" not in unit else "neither"
    better = "higher" if unit.endswith("/s") else better
    text = name.removesuffix(ending).removeprefix("n_").replace("_", " ") + rate
    return Column(name, unit, better, text, "other")
