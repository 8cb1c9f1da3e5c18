"""How numbers and verdicts of a summary are written on the pages (the templates' filters)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2

UNSTATED = "not stated"
#: Verdicts that decide nothing come first: "not decidable" also holds the word "decidable".
TONES = {
    "open": ("not decidable", "undecid", "inconclusive", "pilot", "not stated", "unsuitable"),
    "bad": ("contradict", "not replicated", "refuted", "failed"),
    "good": ("replicated", "different", "equivalent", "supported", "confirmed"),
}


def stated(value: Any) -> str:
    """Return a value as text; `UNSTATED` where there is none."""
    if value is None or value == "" or isinstance(value, jinja2.Undefined):
        return UNSTATED
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(one) for one in value)
    return number(value) if isinstance(value, float) else str(value)


def number(value: Any) -> str:
    """Return a number with three significant digits, as a person writes it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return stated(value)
    if not math.isfinite(value):
        return "unbounded" if math.isinf(value) else UNSTATED
    if value == 0 or isinstance(value, int):
        return f"{value:,}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 9)}f}"


def relative(value: Any) -> str:
    """Return a relative quantity (0.05) as per cent (5.00 %); text stays as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return stated(value)
    return f"{number(float(value) * 100)} %" if math.isfinite(value) else number(value)


def quantity(headline: Mapping[str, Any]) -> str:
    """Return a headline's estimate with its interval and unit."""
    if headline.get("estimate") is None:
        return "no estimate"
    unit = f" {headline['unit']}" if headline.get("unit") else ""
    text = f"{number(headline['estimate'])}{unit}"
    if headline.get("low") is None or headline.get("high") is None:
        return f"{text}, interval {UNSTATED}"
    return f"{text} [{number(headline['low'])} to {number(headline['high'])}]"


def noise(floor: Mapping[str, Any]) -> str:
    """Return one condition's noise: its spread, and its ratio to itself."""
    text = f"sd {relative(floor.get('sd'))}"
    if floor.get("low") is None or floor.get("high") is None:
        return text
    return f"{text}, ratio to itself {number(floor['low'])} to {number(floor['high'])}"


def tone(verdict: Any) -> str:
    """Return which of `TONES` a verdict has, or an empty string."""
    words = stated(verdict).lower()
    return next((name for name, keys in TONES.items() if any(key in words for key in keys)), "")


def by_reason(refusals: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each reason with the conditions that it refuses."""
    found: dict[str, list[str]] = {}
    for refusal in refusals:
        reason = stated(refusal.get("reason"))
        found.setdefault(reason, []).append(stated(refusal.get("condition")))
    return [(reason, "; ".join(dict.fromkeys(names))) for reason, names in found.items()]


def origin(summary: Mapping[str, Any]) -> str:
    """Return where and when a study's numbers were measured."""
    when = f" on {summary['measured']}" if summary.get("measured") else ""
    if summary.get("reference") is None:
        return f"origin {UNSTATED}{when}"
    if summary["reference"]:
        return f"not measured here: reference campaign{when}"
    return f"measured here{when}"


FILTERS: dict[str, Callable[..., Any]] = {
    "stated": stated,
    "relative": relative,
    "quantity": quantity,
    "noise": noise,
    "tone": tone,
    "by_reason": by_reason,
    "origin": origin,
}
