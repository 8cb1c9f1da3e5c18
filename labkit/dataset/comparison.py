"""One comparison of a campaign as an answer: what is compared follows from its plan."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.analysis.checks import blocks_across_sessions, spanned_note
from labkit.analysis.compare import compare
from labkit.analysis.estimates import join_notes
from labkit.analysis.sequential import Looks
from labkit.analysis.trials import sort_samples, trial_statistic
from labkit.answers import Answer
from labkit.errors import UsageError, suggestion
from labkit.units import METRICS, metric_of

if TYPE_CHECKING:
    from labkit.dataset import Dataset

#: The level at which a treatment is not applied, as `labkit.treatments` name it.
OFF = "off"


def compare_conditions(
    data: Dataset,
    condition: object,
    baseline: object | None,
    *,
    levels: Mapping[str, object],
    metric: str | None,
    statistic: str | None,
    margin: float | None,
    alpha: float,
) -> Answer:
    """Compare two levels of one factor, the others being held; see `Dataset.compare`."""
    trials, where = data.ok, str(data.path)
    if trials.empty:
        raise UsageError("no trial of the campaign succeeded", where=where)
    factors = data.levels
    held = {name: _held_level(factors, name, level, where) for name, level in levels.items()}
    others = {name: of for name, of in factors.items() if name not in held}
    factor = _factor(others, condition, baseline, data.plan.get("baseline") or {}, where)
    if baseline is None:
        baseline = _planned(data, factor)
    sides = [_held_level(factors, factor, level, where) for level in (condition, baseline)]
    if sides[0] == sides[1]:
        raise UsageError(
            f"{condition!r} is compared with itself",
            where=f"{factor} of {where}",
            remedy=f"name another baseline, {suggestion('', factors[factor])}",
        )
    chosen = _matching(trials, held)
    chosen = chosen[chosen[factor].isin(sides)]
    held |= _only_cell(chosen, factor, sides, [name for name in others if name != factor], where)
    held = {name: held[name] for name in factors if name in held}
    chosen = _matching(chosen, held)
    column, statistic = _column(data, chosen, metric, statistic)
    frame = _values(data, chosen, column, statistic, factor)
    # A trial that never succeeded may have been a slow one: `compare` allows for those.
    lost = _matching(data.lost, held)
    lost = lost[lost[factor].isin(sides)]
    if len(lost):
        frame = pd.concat([frame, lost[["trial", factor, "block"]]], ignore_index=True)
    spanned = blocks_across_sessions(chosen)
    value = statistic or column
    frame = frame[~frame["block"].isin(spanned)].assign(**{value: pd.to_numeric(frame[value])})
    margin = data.margin if margin is None else margin
    level, looked = _level(data, frame.dropna(subset=[value]), alpha)
    names: dict[str, Any] = {"condition": factor, "baseline": sides[1]}
    table = compare(frame, value=value, margin=margin, alpha=level, **names)
    row = {str(name): value for name, value in table.iloc[0].items()}
    at = ", ".join(f"{name} {level}" for name, level in held.items() if len(factors[name]) > 1)
    note = join_notes(f"with {at}" if at else "", spanned_note(spanned), looked, str(row["note"]))
    row["note"] = note
    return Answer.from_comparison(
        row, metric=column, statistic=statistic, baseline=str(sides[1]), margin=margin
    )


def _level(data: Dataset, frame: pd.DataFrame, alpha: float) -> tuple[float, str]:
    """Return the level of a test after the looks that the plan has, and what to say of it."""
    planned = data.plan.get("looks")
    if not planned or len(planned) == 1:
        return alpha, ""
    at = ", ".join(map(str, planned[:-1]))
    level = level_of(data, alpha, frame["block"].nunique())
    return level, f"the campaign could stop after {at} blocks, which counts"


def level_of(data: Dataset, alpha: float, n_blocks: int) -> float:
    """Return the level of tests on so many blocks, with the looks at which conditions ended.

    It is `alpha` where no looks were planned, or no block was measured.
    """
    planned = data.plan.get("looks")
    if not planned or not n_blocks:
        return alpha
    ends = [look["blocks"] for look in data.looks if look["dropped"]]
    return Looks(tuple(planned)).level(alpha, *ends, n_blocks)


def _held_level(
    factors: Mapping[str, Sequence[Hashable]], name: str, level: object, where: str
) -> Hashable:
    """Return a level as the dataset has it (``20`` finds ``"20"``)."""
    if name not in factors:
        raise UsageError(f"no factor {name!r}", where=where, remedy=suggestion(name, factors))
    for known in factors[name]:
        if str(known) == str(level):
            return known
    raise UsageError(
        f"{name} has no level {level!r}", where=where, remedy=suggestion(level, factors[name])
    )


def _factor(
    factors: Mapping[str, Sequence[Hashable]],
    condition: object,
    baseline: object | None,
    planned: Mapping[str, object],
    where: str,
) -> str:
    """Return the factor that has both levels; of several that of the plan's baseline."""
    wanted = {str(level) for level in (condition, baseline) if level is not None}
    found = [name for name, of in factors.items() if wanted <= set(map(str, of))]
    if baseline is None and len(found) > 1:
        found = [name for name in found if name in planned] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"several factors have the level {condition!r}: {', '.join(found)}",
            where=where,
            remedy=f"hold all but one of them, such as {found[0]}=...",
        )
    everything = [level for of in factors.values() for level in of]
    for level in (condition, baseline):
        if level is not None and str(level) not in map(str, everything):
            raise UsageError(
                f"no factor has the level {level!r}",
                where=where,
                remedy=suggestion(level, everything),
            )
    raise UsageError(
        f"{condition!r} and {baseline!r} are not levels of one factor",
        where=where,
        remedy="compare levels of one factor; hold the others as keywords",
    )


def _planned(data: Dataset, factor: str) -> object:
    """Return the baseline's level of a factor, which the plan states."""
    planned = data.plan.get("baseline") or {}
    if factor not in planned:
        raise UsageError(
            f"the plan has no baseline of {factor}",
            where=str(data.path),
            remedy=f"name the second condition, {suggestion('', data.plan['factors'][factor])}",
        )
    level: object = planned[factor]
    return level


def _matching(trials: pd.DataFrame, held: Mapping[str, Hashable]) -> pd.DataFrame:
    for name, level in held.items():
        trials = trials[trials[name] == level]
    return trials


def _only_cell(
    chosen: pd.DataFrame,
    factor: str,
    sides: Sequence[Hashable],
    others: Sequence[str],
    where: str,
) -> dict[str, Hashable]:
    """Return the levels of the factors left open, which must be one combination of both sides.

    A treatment that is left open is not applied, where that was measured.
    """
    cells = [
        list(dict.fromkeys(map(tuple, chosen[chosen[factor] == side][[*others]].to_numpy())))
        for side in sides
    ]
    both = [cell for cell in cells[0] if cell in set(cells[1])]
    for at in range(len(others)):
        both = [cell for cell in both if cell[at] == OFF] or both
    levels = {
        name: list(dict.fromkeys(cell[at] for cell in both)) for at, name in enumerate(others)
    }
    if len(both) == 1:
        return {name: of[0] for name, of in levels.items()}
    if not both:
        raise UsageError(
            f"{sides[0]!r} and {sides[1]!r} were not measured under the same levels",
            where=where,
            why="; ".join(
                _measured_with(side, of, others) for side, of in zip(sides, cells, strict=True)
            ),
            remedy="hold other levels; `ok` has every condition that was measured",
        )
    several = {name: of for name, of in levels.items() if len(of) > 1}
    told = "; ".join(f"{name}: {', '.join(map(str, of))}" for name, of in several.items())
    raise UsageError(
        f"{', '.join(several)} {'is' if len(several) == 1 else 'are'} left open",
        where=where,
        why=f"conditions that differ in more than {factor} are not pooled; {told}",
        remedy="hold them: " + ", ".join(f"{name}={of[0]!r}" for name, of in several.items()),
    )


def _measured_with(
    side: Hashable, cells: Sequence[tuple[Hashable, ...]], names: Sequence[str]
) -> str:
    """Return the levels of open factors under which a condition was measured."""
    if not cells:
        return f"{side!r} was not measured with the levels that are held"
    levels = {name: dict.fromkeys(cell[at] for cell in cells) for at, name in enumerate(names)}
    told = ", ".join(f"{name} {' or '.join(map(str, of))}" for name, of in levels.items())
    return f"{side!r} was measured with {told}" if told else f"{side!r} was measured"


def _column(
    data: Dataset, chosen: pd.DataFrame, metric: str | None, statistic: str | None
) -> tuple[str, str]:
    """Return the column to compare, and the statistic if it is one of samples."""
    found = [set(data.sampled.get(trial, ())) for trial in chosen["trial"]]
    sampled = set.intersection(*found)
    numbers = _numbers(data, chosen, ["metrics", "mechanisms"])
    if metric is None:
        metric = _outcome(sampled, _numbers(data, chosen, ["metrics"]), str(data.path))
    if metric in sampled:
        return metric, statistic or "median"
    if (column := f"{metric}_{statistic or 'median'}") in numbers:
        return column, ""
    if metric in numbers and statistic is None:
        return metric, ""
    if metric in numbers:
        raise UsageError(
            f"{metric} has one number a trial, and no {statistic}",
            where=str(data.path),
            remedy="leave `statistic` out",
        )
    raise UsageError(
        f"{metric!r} was not measured under these conditions",
        where=str(data.path),
        remedy=suggestion(metric, _names(sampled, numbers)),
    )


def _numbers(data: Dataset, chosen: pd.DataFrame, kinds: Sequence[str]) -> list[str]:
    """Return the ``metrics`` or ``mechanisms`` of which the chosen trials have a number."""
    known = [
        name
        for record in data.records
        for part in (record, *record.get("also", ()))
        for kind in kinds
        for name in part.get(kind, ())
    ]
    columns = [name for name in dict.fromkeys(known) if name in chosen]
    return [name for name in columns if pd.to_numeric(chosen[name], errors="coerce").notna().any()]


def _outcome(sampled: set[str], numbers: Sequence[str], where: str) -> str:
    """Return the only metric of which less or more is better, among samples if there are any."""
    for names in (sampled, {metric_of(name)[0].name for name in numbers}):
        judged = [name for name in METRICS if name in names and METRICS[name].better != "neither"]
        if len(judged) == 1:
            return judged[0]
        if judged:
            break
    raise UsageError(
        f"{'several metrics were' if judged else 'no metric of a known direction was'} measured",
        where=where,
        remedy="name it as `metric`, " + suggestion("", judged or _names(sampled, numbers)),
    )


def _names(sampled: set[str], numbers: Sequence[str]) -> list[str]:
    """Return the names of metrics, without the statistics of samples, sampled columns first."""
    return list(dict.fromkeys([*sorted(sampled), *(metric_of(name)[0].name for name in numbers)]))


def _values(
    data: Dataset, chosen: pd.DataFrame, column: str, statistic: str, factor: str
) -> pd.DataFrame:
    """Return one number a trial, with its factor and block."""
    if not statistic:
        return chosen[["trial", factor, "block", column]].copy()
    names = set(chosen["trial"])
    samples = data.part(lambda record: record["trial"] in names).series(column, reduce=sort_samples)
    return trial_statistic(
        samples, value=column, by=["trial", factor, "block"], statistic=statistic
    )
