"""Validity: sessions, noise floor, drift, dependence inside trials, odd trials, flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit import power
from labkit.analysis import checks, plots
from labkit.analysis.noise import margins, noise_floor
from labkit.analysis.readable import blank
from labkit.analysis.summary import STATISTICS
from labkit.chapters.show import put, say

if TYPE_CHECKING:
    from labkit.chapters.page import Page

_FLOOR = ("n_blocks", "ratio", "low", "high", "sd", "decidable_margin", "detectable_difference")
_PLURAL = {"median": "medians", "mean": "means", "p99": "99 % quantiles", "std": "deviations"}
_SESSIONS = """### Sessions

A session is one life of the rig. Where a campaign was interrupted inside a block and resumed on a \
rig made anew, conditions of that block differ by more than what they are: such a block is in the \
tables and distributions, and in no paired comparison."""
_NOISE = """### The noise floor

Some conditions ran twice in every block. Their ratio to themselves is what this laboratory \
reports where there is nothing to find; its spread between blocks (`sd`, of the log ratio of a \
pair) says what can be decided. `decidable_margin` is the smallest margin within which equal \
conditions are found equivalent with 80 % power, `detectable_difference` the smallest difference \
that is found."""
_GROUPS = """ Groups of conditions may differ in noise, so both are said for each of them; a \
comparison between two groups is as good as the noisier of them."""
_DRIFT = """### Drift, dependence, odd trials

Drift over the campaign is the slope of the log value on the order of the blocks. What all \
conditions share is removed by pairing; a drift of one condition alone is not."""
_INSIDE = """`effective` is how many independent samples a trial is worth. A trial changes inside \
when the medians of its batches differ between its first half and its second (5 %, corrected by \
Holm over the trials); a trial that is worth too few independent samples cannot be asked, and is \
not among those that were. Changes are shares of the level, whatever their sign. Such a change is \
no reason to leave a trial out: what a trial is summed up as is compared between trials, whose \
spread holds it."""
_FLAGS = """### Flags

Flags by the laboratory's validity rules, and attempts that failed. They are counted and shown, \
and nothing is removed because of its outcome."""


def _words(level: Any) -> str:
    """Return a level, or several, as a heading has them."""
    return ", ".join(map(str, level)) if isinstance(level, list) else str(level)


def validity(page: Page, value: str, within: Mapping[str, Any] | None, by: str | None) -> None:
    """Show every check of one value; those that do not depend on it the first time only."""
    first = not page.shown
    page.shown.add(value)
    if first:
        say(_SESSIONS)
        say(_sessions(page))
    which = "".join(f", {name} {_words(level)}" for name, level in (within or {}).items())
    say(_NOISE + (_GROUPS if by else "") if first else f"### `{value}`{which}")
    paired, trials = (page.part(_usable(one, value), within) for one in (page.paired, page.trials))
    if not trials[value].notna().any():
        say(f"No trial has a value of `{value}` that could be compared{which}.")
    else:
        _noise(page, paired, value, by, which)
        _drift(page, trials, value, within, by, first=first)
    if first:
        say(_FLAGS)
        _flags(page, by)


def _usable(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return a table whose value is a positive number or missing: only these have a ratio."""
    if value not in table:
        return table.assign(**{value: math.nan})
    numbers = pd.to_numeric(table[value], errors="coerce").astype(float)
    return table.assign(**{value: numbers.where((numbers > 0) & np.isfinite(numbers))})


def _sessions(page: Page) -> str:
    if not page.spanned:
        return "Every block was measured within one session; all are compared."
    left, which = page.n_blocks - len(page.spanned), ", ".join(map(str, page.spanned))
    return (
        f"**Left out of every paired comparison: block {which}**, whose trials span more than one "
        "session, so that a difference inside it may be one between sessions. "
        f"{left} of {page.n_blocks} blocks are compared."
    )


def _noise(page: Page, paired: pd.DataFrame, value: str, by: str | None, which: str) -> None:
    condition = list(dict.fromkeys([*page.factors, *([by] if by else [])]))
    floor = noise_floor(paired, value=value, condition=condition)
    if by:
        floor[by] = pd.Categorical(floor[by], _levels(page.trials[by]))
    put(
        blank(floor.set_index(page.factors)[list(_FLOOR)], 4),
        instead=f"No condition ran twice in a block{which}: the noise floor is not known.",
    )
    page.floors.append(floor.assign(of=value))
    found = margins(floor, by) if by else {"": floor["decidable_margin"].max()}
    known = {str(name): one for name, one in found.items() if math.isfinite(one)}
    unknown = [f"`{name}`" for name, one in found.items() if by and not math.isfinite(one)]
    page.margins |= {f"{value}{which}, {name}": one for name, one in known.items()}
    say(_decidable(page, floor, value, known, unknown))


def _levels(column: pd.Series[Any]) -> list[Any]:
    known = column.dtype
    return list(known.categories if isinstance(known, pd.CategoricalDtype) else pd.unique(column))


def _decidable(
    page: Page, floor: pd.DataFrame, value: str, known: dict[str, float], unknown: list[str]
) -> str:
    """Return in words what margins these blocks decide, and how many the page's margin takes."""
    if not known:
        return "No spread is known: a margin cannot be stated before a campaign with more blocks."
    sd = floor["sd"].max()
    needed = power.blocks_for(page.margin, sd) if sd > 0 else 2
    needed = needed and max(needed, power.least_blocks())
    each = " of each group" if len(known) + len(unknown) > 1 else ""
    said = [f"`{name}` {one:.1%}" if name else f"{one:.1%}" for name, one in known.items()]
    text = f"Decidable margins on {_PLURAL.get(value, f'`{value}`')} (80 % power, "
    text += f"{floor['n_blocks'].max()} blocks, the noisiest condition{each} that ran twice): "
    text += f"{', '.join(said)}. "
    text += f"The largest, {max(known.values()):.1%}, is the one in the report's index; "
    text += f"{page.margin:.1%} everywhere takes {needed or 'too many'} blocks."
    if unknown:
        text += f" Not known for {', '.join(unknown)}: no condition ran twice in enough blocks."
    return text


def _drift(
    page: Page,
    trials: pd.DataFrame,
    value: str,
    within: Mapping[str, Any] | None,
    by: str | None,
    *,
    first: bool,
) -> None:
    """Show drift over the blocks, and inside trials where there are samples of this value."""
    sampled = page.samples is not None and value in STATISTICS
    if first:
        say(f"{_DRIFT} {_INSIDE}" if sampled else _DRIFT)
    drift = checks.drift(trials, value=value, condition=page.factors)
    drifting = drift[drift["drifts"]]
    say(f"{len(drifting)} of {len(drift)} conditions drift (5 %, corrected by Holm).")
    if len(drifting):
        put(drifting.round(4))
    series = page.part(page.series, within) if sampled else pd.DataFrame()
    if len(series):
        _inside(page, series, by or page.factors[0])
    odd = checks.outliers(trials, value=value, condition=page.factors)
    say(f"{int(odd['outlier'].sum())} of {len(odd)} trials are unlike the others of their kind.")


def _inside(page: Page, series: pd.DataFrame, by: str) -> None:
    """Show how far samples of a trial depend on each other, and whether trials change inside."""
    options: dict[str, Any] = {"by": ["trial", by], "value": page.value}
    dependence = checks.dependence(series, **options)
    worth = dependence.groupby(by, observed=True)[["n", "lag1", "effective"]]
    put(worth.agg(["median", "min"]).round(3))
    inside = checks.stationarity(series, **options)
    inside["size"] = inside["change"].abs()
    inside["changing"] = (~inside["stationary"]).astype("Int64")
    groups = inside.groupby(by, observed=True)
    put(
        pd.DataFrame(
            {
                "trials": groups["trial"].size(),
                "asked": groups["stationary"].count(),
                "changing": groups["changing"].sum(),
                "median_change": groups["size"].median(),
                "largest_change": groups["size"].max(),
            }
        ).round(3)
    )


def _flags(page: Page, by: str | None) -> None:
    """Show how many trials carry which flag, and every attempt that failed."""
    across, trials = by or page.factors[0], page.trials
    found = trials.assign(flag=trials["flags"].str.replace(r"[0-9.,%]+", "…", regex=True))
    flags = found[found["flag"] != ""].groupby(["flag", across], observed=True).size()
    put(flags.unstack(fill_value=0) if len(flags) else flags, instead="No trial carries a flag.")
    bad = page.attempts[page.attempts["status"] != "ok"]
    columns = ["trial", "attempt", *page.factors, "status", "problems"]
    source = "attempts whose status is not ok (labkit.load(...).trials)"
    put(bad[columns], instead="No attempt failed.", source=source)


def block_plot(
    page: Page,
    value: str,
    within: Mapping[str, Any] | None,
    hue: str,
    col: str | None,
    unit: str | None,
) -> None:
    """Draw every trial over the blocks, odd ones ringed."""
    trials = page.part(_usable(page.trials, value), within)
    if not trials[value].notna().any():
        say(f"No trial has `{value}`.")
        return
    checked = checks.outliers(trials, value=value, condition=page.factors)
    if unit is None and page.samples is not None and page.value.endswith("_ns"):
        unit = "ns"
    put(plots.block_plot(checked, value=value, hue=hue, col=col, flagged="outlier", unit=unit))
