"""Words and numbers of results: scaled amounts, ratios, directions, one sentence an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.units import column

#: Units of one quantity with their sizes, the smallest first.
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_RATES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}


def scale(largest: float, name: str) -> tuple[float, str]:
    """Return factor and unit that make a column's values up to `largest` readable."""
    known = column(name)
    if known.kind == "share":
        return 100.0, "%"
    for family in (_TIMES, _BITS, _BYTES, _RATES):
        if known.unit in family:
            # From 0.9995 of a unit on, three digits round to it.
            size = abs(largest) * family[known.unit] / 0.9995
            unit = [known.unit, *(one for one in family if family[one] <= size)][-1]
            return family[known.unit] / family[unit], unit
    return 1.0, known.unit.removeprefix("1")


def number(value: float, *, signed: bool = False) -> str:
    """Return a number with three significant digits and separators of thousands."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "unbounded"
    rounded = float(f"{value:.2e}") + 0.0  # no negative zero
    decimals = 2 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{'+' if signed and rounded > 0 else ''}{rounded:,.{max(0, decimals)}f}"


def amount(
    value: float, name: str, low: float = math.nan, high: float = math.nan, *, signed: bool = False
) -> str:
    """Return a column's value, or a signed difference: ``5.93 us``, ``+2.12 us [+1.93, +2.31]``."""
    if math.isnan(value):
        return ""
    finite = [abs(one) for one in (value, low, high) if math.isfinite(one)]
    factor, unit = scale(max(finite, default=0.0), name)
    texts = [number(factor * one, signed=signed) for one in (value, low, high)]
    if not unit and float(value).is_integer() and abs(value) < 1000:
        texts[0] = f"{value:+.0f}" if signed and value else f"{value:.0f}"
    unit = "percentage points" if signed and unit == "%" else unit
    unit = f" {unit}" if unit and not unit.startswith("/") else unit
    return f"{texts[0]}{unit}" + ("" if math.isnan(low) else f" [{texts[1]}, {texts[2]}]")


def ratio(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a ratio: ``1.45x [1.40, 1.49]``, with three decimals where a part is near 1."""
    near = any(0 < abs(one - 1) < 0.005 for one in (value, low, high))
    texts = [f"{one:.3f}" if near and 0 < one < 10 else number(one) for one in (value, low, high)]
    return f"{texts[0]}x" + ("" if math.isnan(low) else f" [{texts[1]}, {texts[2]}]")


def percent(share: float) -> str:
    """Return a share as per cent without needless digits: ``2 %``, ``0.5 %``."""
    return f"{100 * share:.3g} %" if math.isfinite(share) else "unknown"


def word(estimate: float, name: str) -> str:
    """Return the direction of a ratio: slower or faster, more or less, higher or lower."""
    known, over = column(name), estimate > 1
    if known.unit in _TIMES and known.better == "lower":
        return "slower" if over else "faster"
    if known.unit.endswith("/s") and known.better == "higher":
        return "faster" if over else "slower"
    if known.unit in ("1", "1/operation") and known.kind != "share":
        return "more" if over else "less"
    return "higher" if over else "lower"


def heading(name: str, unit: str | None = None) -> str:
    """Return a column or factor in words with its unit, or the unit in which it is drawn."""
    known = column(name)
    text = name.removeprefix("n_").replace("_", " ") if known.kind == "key" else known.text
    unit = known.unit if unit is None else unit
    return text if unit in ("", "1") or unit.startswith(("/", "1/")) else f"{text} ({unit})"


def level(factor: str | Sequence[str], value: Any) -> str:
    """Return a level: its words in columns.csv, a name by itself, or a number after its factor."""
    if not isinstance(factor, str):
        parts = (level(one, part) for one, part in zip(factor, value, strict=True))
        return ", ".join(filter(None, parts))
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    if (named := column(f"{factor}={text}")).kind == "key":
        return named.text
    known = column(factor)
    if known.unit == "B" and not isinstance(value, str):
        whole = [unit for unit, size in _BYTES.items() if value >= size and value % size == 0]
        unit = [known.unit, *whole][-1]
        return f"{known.text} {value / _BYTES[unit]:.10g} {unit}"
    if text[:1].isdecimal():
        return f"{known.text} {text} {known.unit.removeprefix('1')}".strip()
    return f"{known.text} {text}" if text in ("on", "off", "yes", "no", "none") else text


def label(result: Mapping[Any, Any], factor: str | Sequence[str], by: Sequence[str]) -> str:
    """Return the condition of a row in words: ``docker bridge (split, spin)``."""
    place = level(by, [result[one] for one in by])
    return f"{level(factor, result['condition'])}{f' ({place})' if place else ''}"


def row(result: Mapping[Any, Any]) -> dict[str, str]:
    """Return the texts of a row of `Comparison.table` for tables, answers and figures alike."""
    metric, verdict, within = result["metric"], result["verdict"], percent(result["margin"])
    if verdict == "not measured":
        empty = dict.fromkeys(("value", "baseline", "difference", "ratio"), "")
        return empty | {"verdict": f"{verdict}: {result['reason']}", "blocks": "0"}
    direction = word(result["estimate"], metric)
    words = {"differs": direction, "equivalent": f"same within {within}"}
    words["differs within margin"] = f"{direction}, within {within}"
    shown = f"{verdict}: {result['reason']}" if result["reason"] else words.get(verdict, verdict)
    return {
        "value": amount(result["value"], metric),
        "baseline": amount(result["baseline"], metric),
        "difference": amount(result["difference"], metric, signed=True),
        "ratio": ratio(result["estimate"], result["low"], result["high"]),
        # • passes Holm's correction over the table.
        "verdict": f"{shown}\u00a0•" if result["p_adjusted"] < 0.05 else shown,
        "blocks": f"{result['n_blocks']:,.0f}",
    }


def sentence(result: Mapping[Any, Any], factor: str | Sequence[str], by: Sequence[str] = ()) -> str:
    """Return a row as a sentence: direction, values, difference, ratio with interval, blocks."""
    texts, verdict = row(result), result["verdict"]
    subject, baseline = label(result, factor, by), level(factor, result["to"])
    if verdict == "not measured":
        return f"{subject} was {texts['verdict']}"
    direction, within = word(result["estimate"], result["metric"]), percent(result["margin"])
    direction = f"{'has' if direction in ('more', 'less') else 'is'} {direction} than {baseline}"
    opening = {
        "differs": f"{subject} {direction}",
        "differs within margin": f"{subject} {direction}, within the margin of {within}",
        "equivalent": f"{subject} equals {baseline} within {within}",
    }.get(verdict, f"cannot tell whether {subject} differs from {baseline}")
    blocks = f"{texts['blocks']} block{'' if result['n_blocks'] == 1 else 's'}"
    if result["reason"]:
        blocks += f"; {result['reason']}"
    elif verdict == "cannot tell" and result["blocks_needed"] > result["n_blocks"]:
        blocks += f" (about {math.ceil(result['blocks_needed']):,} would tell)"
    ratio = texts["ratio"].replace(" [", ", 95 % interval [")
    values = f"{texts['value']} against {texts['baseline']}, {texts['difference']}, {ratio}"
    return f"{opening}: {column(result['metric']).text} {values}, {blocks}"
