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

from labkit.analysis import stats, words
from labkit.analysis.claims import Evidence
from labkit.data import Campaign, refuse_unknown
from labkit.errors import UsageError
from labkit.paths import project
from labkit.units import column

_PAPER = ("paper", "paper_low", "paper_high", "paper_sd")
_RATIOS = ("paper_ratio", "paper_ratio_low", "paper_ratio_high")


def published(paper: str) -> pd.DataFrame:
    """Return every number that a paper prints: its factors, then ``item`` to ``n``."""
    folder = project("data/published")
    refuse_unknown("paper", [paper], sorted(one.stem for one in folder.glob("*.toml")))
    return pd.read_csv(folder / f"{paper}.csv", na_values=[""], keep_default_na=False)


def side_by_side(campaign: Campaign, paper: str, tables: Sequence[str] = ()) -> pd.DataFrame:
    """Return printed numbers next to a campaign's, of some tables or of all that it repeats.

    A row is a printed quantity and condition here: a number or a range of the paper with its unit,
    ours with its 95 % interval, or why it was not measured, and both ratios to the baseline.
    """
    printed = published(paper)
    entries = tomllib.loads(project(f"data/published/{paper}.toml").read_text())["table"]
    entries = [entry for entry in entries if entry["study"] == campaign.study]
    known = list(dict.fromkeys(item for entry in entries for item in entry["items"]))
    if not known or not set(tables) <= set(known):
        what = f"{campaign.study} does not repeat {', '.join(tables) or 'a table'} of {paper}"
        raise UsageError(what, remedy=f"it repeats {', '.join(known) or 'none'}")
    evidence = Evidence(campaign)
    printed = printed[printed["item"].isin(tables or known)]
    rows = [row for entry in entries for row in _rows(evidence, printed, entry)]
    return pd.DataFrame(rows)


def _rows(evidence: Evidence, table: pd.DataFrame, entry: Any) -> Iterator[dict[str, str]]:
    """Yield the rows of one entry of the mapping."""
    table = table[table["item"].isin(entry["items"]) & table["metric"].isin([*entry["values"]])]
    factors = [name for name in table if name in evidence.campaign.factors]
    for row in _quantities(table, factors, entry).to_dict("records"):
        levels = {name: row[name] for name in factors if pd.notna(row[name])}
        to = {**levels, **entry.get("baseline", {})}
        name = entry["values"][row["metric"]].format(statistic=row["statistic"])
        value, low, high, spread = (row[one] for one in _PAPER)
        printed = f"{low:g} to {high:g}" if math.isnan(value) else f"{value:g}"
        printed += "" if math.isnan(spread) else f" ± {spread:g}"
        value, low, high = (row[one] for one in _RATIOS)
        ratios = "" if math.isnan(low) else f"{words.ratio(low)} to {words.ratio(high)}"
        for cell in _cells(levels, entry):
            cells = [cell] if to == levels else [cell, _cells(to, entry)[0]]
            here, ratio = _here(evidence, name, cells, entry)
            yield {
                "table": row["table"],
                "quantity": column(name).text,
                "condition": words.level([*cell], [*cell.values()]),
                "paper": f"{printed} {row['paper_unit'].removeprefix('1')}".strip(),
                "here [95 % interval]": here,
                "ratio, paper": ratios if math.isnan(value) else words.ratio(value, low, high),
                "ratio, here": ratio,
            }


def _quantities(table: pd.DataFrame, factors: list[str], entry: Any) -> pd.DataFrame:
    """Return a row a printed quantity: a number with its standard deviation, or a range."""
    if "share_of" in entry:
        table = table.assign(value=table["value"] / table["n"])
    rows = []
    for key, group in table.groupby(["item", *factors, "metric", "unit"], sort=False, dropna=False):
        values = dict(zip(group["statistic"], group["value"], strict=True))
        # The deviation of a mean belongs to it; that of single samples is a quantity.
        spread = values.pop("std", math.nan) if "mean" in values else math.nan
        ends = values.pop("low", math.nan), values.pop("high", math.nan)
        rows += [[*key, *one, *ends, spread] for one in (values or {"": math.nan}).items()]
    about = ["table", *factors, "metric", "paper_unit", "statistic"]
    found = pd.DataFrame(rows, columns=[*about, *_PAPER]).assign(**dict.fromkeys(_RATIOS, math.nan))
    baseline = pd.Series(entry.get("baseline", {}), dtype=object)
    if "ratio" in entry:
        intercept, slope = entry["ratio"]
        bounds = ["paper_low", "paper_high"][:: 1 if slope > 0 else -1]
        found[[*_RATIOS]] = intercept + slope * found[["paper", *bounds]]
    elif len(baseline):
        alike = (found[baseline.index] == baseline).all(axis=1)
        same = [name for name in about if name not in baseline]
        bases = found[same].merge(found.loc[alike, [*same, "paper"]], on=same, how="left")
        found["paper_ratio"] = (found["paper"] / bases["paper"]).mask(alike)
    return found


def _cells(levels: stats.Cell, entry: Any) -> list[dict[str, Any]]:
    """Return the conditions of a campaign that a printed one stands for."""
    known = entry.get("levels", {})
    choices = [known.get(name, {}).get(one, [{name: one}]) for name, one in levels.items()]
    products = itertools.product(*choices)
    return [{name: part[name] for part in parts for name in part} for parts in products]


def _here(
    evidence: Evidence, name: str, cells: Sequence[stats.Cell], entry: Any
) -> tuple[str, str]:
    """Return the value that a condition has here, or the reason that it has none, and its ratio."""
    at, *to = ({**entry.get("where", {}), **cell} for cell in cells)
    share_of = entry.get("share_of")
    per = float(evidence.campaign.settings[share_of]) if share_of else 1.0
    here = ratio = ""
    try:
        mean = evidence.cells(name, at).estimate()
        low, high = mean.interval()
        here = words.amount(mean.value / per, name, low / per, high / per)
        if to and (found := evidence.cells(name, at, *to).estimate()).n:
            ratio = words.ratio(found.value, *found.interval())
    except stats.NotMeasured as reason:
        here = here or f"not measured: {reason}"
    return here, ratio
