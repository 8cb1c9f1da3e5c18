"""Tables of the papers, each printed number next to the same quantity of a campaign.

``data/published/<paper>.csv`` has the printed numbers. A ``[[table]]`` of ``<paper>.toml`` maps
``items`` (tables or sections) to a ``study``: ``values`` names a column for each printed metric,
``levels`` has our conditions by factor and printed level, ``where`` those of factors that the paper
does not vary, and ``baseline`` is the condition, as printed, that ratios are to. ``ratio`` has
intercept and slope of such a ratio over the printed number; counts become shares with ``share_of``,
a setting.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from labkit.analysis import words
from labkit.analysis.claims import Evidence
from labkit.analysis.stats import Cell, NotMeasured
from labkit.data import Campaign, refuse_unknown
from labkit.errors import UsageError
from labkit.paths import project
from labkit.units import column


def side_by_side(campaign: Campaign, paper: str, tables: Sequence[str]) -> pd.DataFrame:
    """Return the printed numbers of some tables, with unit and ratio, next to a campaign's."""
    folder = project("data/published")
    refuse_unknown("paper", [paper], sorted(one.stem for one in folder.glob("*.toml")))
    printed = pd.read_csv(folder / f"{paper}.csv", na_values=[""], keep_default_na=False)
    printed = printed[printed["item"].isin(tables)]
    entries = tomllib.loads((folder / f"{paper}.toml").read_text())["table"]
    entries = [entry for entry in entries if entry["study"] == campaign.study]
    known = dict.fromkeys(item for entry in entries for item in entry["items"])
    if not set(tables) <= set(known):
        what = f"{campaign.study} does not repeat {', '.join(tables)} of {paper}"
        raise UsageError(what, remedy=f"it repeats {', '.join(known) or 'none'}")
    evidence = Evidence(campaign)
    return pd.DataFrame([row for entry in entries for row in _rows(evidence, printed, entry)])


def _rows(evidence: Evidence, printed: pd.DataFrame, entry: Any) -> Iterator[dict[str, str]]:
    """Yield a row a printed quantity and condition here, of one entry of the mapping."""
    quantities = _quantities(evidence, printed, entry)
    for (levels, *about, statistic), (value, low, high, spread) in quantities.items():
        table, metric, unit = about
        at = dict(levels)
        to = {**at, **entry.get("baseline", {})}
        number = f"{low:g} to {high:g}" if math.isnan(value) else f"{value:g}"
        number += "" if math.isnan(spread) else f" ± {spread:g}"
        if "ratio" in entry:
            intercept, slope = entry["ratio"]
            value, *ends = (intercept + slope * one for one in (value, low, high))
            low, high = ends if slope > 0 else reversed(ends)
        else:
            base = quantities.get((tuple(to.items()), *about, statistic), [math.nan])[0]
            value, low = math.nan if to == at else value / base, math.nan
        ratio = "" if math.isnan(low) else f"{words.ratio(low)} to {words.ratio(high)}"
        name = entry["values"][metric].format(statistic=statistic)
        for cell in _cells(at, entry):
            cells = [cell] if to == at else [cell, _cells(to, entry)[0]]
            here, ratio_here = _here(evidence, name, cells, entry)
            yield {
                "table": table,
                "quantity": column(name).text + ", as a share" * ("share_of" in entry),
                "condition": words.level([*cell], [*cell.values()]),
                "paper": f"{number} {unit.removeprefix('1')}".strip(),
                "here [95 % interval]": here,
                "ratio, paper": ratio if math.isnan(value) else words.ratio(value, low, high),
                "ratio, here": ratio_here,
            }


def _quantities(evidence: Evidence, printed: pd.DataFrame, entry: Any) -> dict[Any, list[float]]:
    """Return numbers, or the two ends of ranges, and standard deviations, by what they are of."""
    table = printed[
        printed["item"].isin(entry["items"]) & printed["metric"].isin([*entry["values"]])
    ]
    if "share_of" in entry:
        table = table.assign(value=table["value"] / table["n"])
    factors, found = [name for name in table if name in evidence.campaign.factors], {}
    groups: Any = table.groupby([*factors, "item", "metric", "unit"], sort=False, dropna=False)
    for key, group in groups:
        levels = tuple(one for one in zip(factors, key, strict=False) if pd.notna(one[1]))
        values = dict(zip(group["statistic"], group["value"], strict=True))
        # The deviation of a mean belongs to it; that of single samples is a quantity.
        spread = values.pop("std", math.nan) if "mean" in values else math.nan
        others = values.pop("low", math.nan), values.pop("high", math.nan), spread
        for statistic, value in (values or {"": math.nan}).items():
            found[levels, *key[len(factors) :], statistic] = [value, *others]
    return found


def _cells(levels: Cell, entry: Any) -> list[dict[str, Any]]:
    """Return the conditions of a campaign that a printed one stands for."""
    known = entry.get("levels", {})
    choices = [known.get(name, {}).get(one, [{name: one}]) for name, one in levels.items()]
    products = itertools.product(*choices)
    return [{name: part[name] for part in parts for name in part} for parts in products]


def _here(evidence: Evidence, name: str, cells: Sequence[Cell], entry: Any) -> tuple[str, str]:
    """Return the value that a condition has here, or the reason that it has none, and its ratio."""
    at, *to = ({**entry.get("where", {}), **cell} for cell in cells)
    per = float(evidence.campaign.settings.get(entry.get("share_of"), 1))
    here = ratio = ""
    try:
        mean = evidence.cells(name, at).estimate()
        low, high = mean.interval()
        here = words.amount(mean.value / per, name, low / per, high / per)
        if to and (found := evidence.cells(name, at, *to).estimate()).n:
            ratio = words.ratio(found.value, *found.interval())
    except NotMeasured as reason:
        here = here or f"not measured: {reason}"
    return here, ratio
