"""The same study from several rigs: what differs between them, each effect on each, and over all.

An effect is a condition's ratio to the baseline of its cell, paired by block inside each dataset.
The blocks of two rigs have nothing in common, so that two effects are compared as independent
groups (Welch 1947) of log ratios, one a block. Over rigs, blocks are nested in rigs and the rig is
the unit of replication: `over_rigs` states the mean effect with a t interval over the rigs' means,
the interval of prediction for another rig of the kind (Higgins, Thompson & Spiegelhalter 2009;
IntHout et al. 2016), and how much the rigs differ: Cochran's Q and I2, with the variance between
rigs of Paule & Mandel (1982) and the p-value of Welch's test (1951), which allows for rigs with
few blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.checks import blocks_across_sessions
from labkit.analysis.compare import adjust_family, contrast, decide, log_table, verdicts
from labkit.analysis.estimates import Estimate, mean_over_blocks
from labkit.dataset import Dataset
from labkit.design import condition_label, difference, short_text
from labkit.errors import UsageError
from labkit.units import about_column, plural

_SIDES = ("first", "second")
_NUMBERS = ("estimate", "low", "high", "n_blocks")
COLUMNS = (
    *("value", "unit", "kind", "condition", "baseline"),
    *(f"{side}_{name}" for side in _SIDES for name in _NUMBERS),
    *("ratio", "ratio_low", "ratio_high", "p_value", "p_adjusted", "p_equivalence"),
    *("verdict", "needed_blocks", "note"),
)
#: The parts of a plan in the order in which differences are listed.
_PARTS = (
    *("rig", "settings", "blocks", "seed", "margin"),
    *("labkit", "measurement_version", "images", "tools", "protocol", "hosts"),
)
#: Fewest rigs for a verdict over rigs, or for what another one would show.
LEAST_RIGS = 3
_FACTS = ("cpu.model", "cpu.count", "kernel.release", "distribution", "engine.version")


@dataclass(frozen=True)
class Side:
    """One dataset's trials of one value, on the log scale.

    Parameters
    ----------
    logs : DataFrame
        A row a block, a column a condition.
    cells : mapping of str to str or None
        The baseline of each condition; None where its cell has none.
    """

    logs: pd.DataFrame
    cells: Mapping[str, str | None]

    def effect(self, name: str) -> pd.Series[float]:
        """Return the log ratio to the baseline, a block each; empty where it was not measured."""
        base = self.cells.get(name)
        if base is None or not {name, base} <= set(self.logs.columns):
            return pd.Series(dtype=np.float64)
        ratios: pd.Series[float] = self.logs[name] - self.logs[base]
        return ratios.dropna()

    def level(self, name: str) -> pd.Series[float]:
        """Return the log of the value itself, a block each."""
        if name not in self.logs.columns:
            return pd.Series(dtype=np.float64)
        levels: pd.Series[float] = self.logs[name].dropna()
        return levels


def values_of(data: Dataset) -> list[str]:
    """Return what a dataset's trials measured, the medians of samples first."""
    done = [record for record in data.records if record["status"] == "ok"]
    names = dict.fromkeys(name for record in done for name in record["metrics"])
    return sorted(names, key=lambda name: not name.endswith("_median"))


def without_ratio(*datasets: Dataset) -> list[str]:
    """Return the medians that are zero or negative in some trial: of these there is no ratio."""
    names = [
        name
        for data in datasets
        for name in values_of(data)
        if name.endswith("_median") and (data.ok[name] <= 0).any()
    ]
    return list(dict.fromkeys(names))


def differences(first: Dataset, second: Dataset) -> pd.DataFrame:
    """Return what differs between the rigs, settings and versions of two datasets."""
    rows = difference(
        *({"labkit": one.plan.get("labkit"), **one.plan["identity"]} for one in (first, second))
    )

    def place(name: str) -> tuple[int, bool]:
        part, _, rest = name.partition(".")
        where = _PARTS.index(part) if part in _PARTS else len(_PARTS)
        return where, not rest.partition(".")[2].startswith(_FACTS)

    kept = [row for row in rows if row[0].partition(".")[0] not in ("order", "conditions")]
    kept.sort(key=lambda row: place(row[0]))
    return pd.DataFrame(kept, columns=["what", *_SIDES])


def difference_lines(rows: pd.DataFrame, most: int | None = None) -> list[str]:
    """Return differences as lines, of which at most `most` are shown."""
    if rows.empty:
        return ["rig, settings and versions are the same"]
    shown = [
        f"  {row['what']}: {short_text(row['first'])} | {short_text(row['second'])}"
        for row in rows.iloc[:most].to_dict("records")
    ]
    rest = len(rows) - len(shown)
    more = [f"  ... and {rest} more differences (--all)"] if rest else []
    return [f"different in A and B ({len(rows)}):", *shown, *more]


def compare_datasets(
    first: Dataset,
    second: Dataset,
    *,
    values: Iterable[str] = (),
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare two datasets of one study, condition by condition."""
    _check_study([first, second])
    tables = []
    for value in _chosen([first, second], list(values)):
        sides = [_side(one, value) for one in (first, second)]
        tables += [
            _decided(rows, alpha).assign(value=value, kind=kind, unit=unit)
            for kind, unit, rows in _kinds(value, sides, margin, alpha)
            if rows
        ]
    return pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS))


def _chosen(data: Sequence[Dataset], values: list[str]) -> list[str]:
    """Return the values to compare: those given, or the medians that all datasets have."""
    names = set.intersection(*(set(values_of(one)) for one in data))
    shared = [name for name in values_of(data[0]) if name in names]
    medians = [name for name in shared if name.endswith("_median")]
    chosen = values or [name for name in medians if name not in without_ratio(*data)]
    missing = [name for name in chosen if name not in shared]
    if missing or not chosen:
        raise UsageError(
            f"not measured in all: {', '.join(missing)}" if missing else "no median of samples",
            where=str(data[0].plan.get("study")),
            remedy=f"name values with --value: {', '.join(shared) or 'there is none in all'}",
        )
    return chosen


def _check_study(data: Sequence[Dataset]) -> None:
    studies = list(dict.fromkeys(str(one.plan.get("study")) for one in data))
    if len(studies) > 1:
        raise UsageError(f"different studies cannot be compared: {' and '.join(studies)}")


OVER_COLUMNS = (
    *("value", "condition", "baseline", "n_rigs"),
    *("estimate", "low", "high", "prediction_low", "prediction_high"),
    *("p_value", "p_adjusted", "p_equivalence", "verdict"),
    *("q", "i2", "tau", "p_heterogeneity", "note"),
)


def over_rigs(
    data: Sequence[Dataset],
    *,
    values: Iterable[str] = (),
    margin: float = 0.02,
    alpha: float = 0.05,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return each effect over rigs, and on each rig.

    Parameters
    ----------
    data : sequence of Dataset
        Campaigns of one study, each of another rig.
    values : iterable of str
        Columns of trials; the medians of samples when omitted.
    margin : float
        Relative difference that counts as equal.
    alpha : float
        Level of the tests; intervals have 1 - alpha, over rigs that of the row's step in Holm's
        procedure.

    Returns
    -------
    over, each : DataFrame
        `over` has a row for each effect: the ratio over rigs with its interval, the 95 % interval
        of prediction for another rig, verdict (undecided below `LEAST_RIGS`), and heterogeneity:
        Cochran's ``q``, ``i2``, ``tau`` (standard deviation between rigs of the log ratio) and
        ``p_heterogeneity``. ``each`` has a row for each effect and rig: ``rig``, ``estimate``,
        ``low``, ``high``, ``n_blocks``.

    Raises
    ------
    UsageError
        The campaigns are of different studies, or have no value in common.
    """
    _check_study(data)
    over, each = [], []
    for value in _chosen(data, list(values)):
        sides = [_side(one, value) for one in data]
        for name, base in _cells(sides).items():
            if base in (None, name):
                continue
            about = {"value": value, "condition": name, "baseline": base}
            logs = [np.array(side.effect(name), dtype=np.float64) for side in sides]
            each += [
                about | {"rig": _rig_name(one, number)} | _of_rig(log, alpha)
                for number, (one, log) in enumerate(zip(data, logs, strict=True), start=1)
            ]
            over.append(about | _over(logs, margin))
    table = pd.DataFrame.from_records(over, columns=[*OVER_COLUMNS, "error"])
    family = adjust_family(
        table["p_value"].to_numpy(dtype=np.float64), (table["error"] == 0).to_numpy(), alpha
    )
    table["p_adjusted"] = family.adjusted
    bounds = [
        Estimate(mean, error, n - 1.0, "log").interval(level)
        for mean, error, n, level in zip(
            np.log(table["estimate"]), table["error"], table["n_rigs"], family.levels, strict=True
        )
    ]
    table[["low", "high"]] = np.array(bounds, dtype=np.float64).reshape(len(table), 2)
    # What two rigs have in common may be chance, however alike their numbers are.
    enough = table["n_rigs"] >= LEAST_RIGS
    differs = enough & (table["p_adjusted"] < alpha)
    equal = enough & (table["p_equivalence"] < alpha)
    table["verdict"] = verdicts(differs.to_numpy(), equal.to_numpy())
    return table.drop(columns="error"), pd.DataFrame.from_records(each)


def _rig_name(data: Dataset, number: int) -> str:
    return f"{number} {data.rig.get('name', '')}".strip()


def _of_rig(logs: NDArray[np.float64], alpha: float) -> dict[str, Any]:
    """Return one rig's effect or level, from one log a block."""
    mean = mean_over_blocks(logs, scale="log")
    return dict(zip(_NUMBERS, (mean.value, *mean.interval(alpha), len(logs)), strict=True))


def _over(logs: Sequence[NDArray[np.float64]], margin: float) -> dict[str, Any]:
    """Return one effect over rigs, before the correction for the number of effects."""
    used = [log for log in logs if len(log) >= 2]
    notes = [f"left out: {plural(len(logs) - len(used), 'rig')} with fewer than 2 blocks"]
    notes = notes if len(used) < len(logs) else []
    mean = mean_over_blocks(np.array([log.mean() for log in used]), scale="log")
    row = {
        "n_rigs": len(used),
        "estimate": mean.value,
        "error": mean.error,
        "p_value": mean.p_outside(1, 1),
        "p_equivalence": mean.p_within(1 / (1 + margin), 1 + margin),
    }
    if len(used) < 2:
        notes.append("one rig says nothing of others")
    return row | _heterogeneity(used, mean) | {"note": "; ".join(notes)}


def _heterogeneity(logs: Sequence[NDArray[np.float64]], mean: Estimate) -> dict[str, float]:
    """Return how much rigs differ, and the bounds of another rig's effect."""
    names = ("q", "i2", "tau", "p_heterogeneity", "prediction_low", "prediction_high")
    variances = np.array([log.var(ddof=1) / len(log) for log in logs])
    if len(logs) < 2 or not (variances > 0).all():
        return dict.fromkeys(names, math.nan)
    # Imported here: it takes most of a second.
    from statsmodels.stats.meta_analysis import combine_effects
    from statsmodels.stats.oneway import anova_oneway

    with np.errstate(divide="ignore"):  # equal means have no heterogeneity
        combined = combine_effects(
            np.array([log.mean() for log in logs]), variances, method_re="iterated"
        )
    tau = math.sqrt(max(float(combined.tau2), 0.0))
    p_value = float(anova_oneway(list(logs), use_var="unequal").pvalue)
    bounds = [math.nan, math.nan]
    if len(logs) >= LEAST_RIGS:
        bounds = [*replace(mean, error=math.hypot(tau, mean.error)).interval()]
    i2 = max(float(combined.i2), 0.0)
    return dict(zip(names, (float(combined.q), i2, tau, p_value, *bounds), strict=True))


def over_lines(over: pd.DataFrame) -> list[str]:
    """Return effects over rigs as lines of text."""
    rows = over.to_dict("records")
    shown = pd.DataFrame(
        {
            "condition": over["condition"],
            "over rigs": [_number(row, "estimate", "low", "high") for row in rows],
            "another rig": [_range(row) for row in rows],
            "rigs differ": [
                "cannot tell"
                if not np.isfinite(row["p_heterogeneity"])
                else f"{'yes' if row['p_heterogeneity'] < 0.05 else 'not shown'}, "
                f"Q {row['q']:.3g}, I2 {row['i2']:.0%}, p {row['p_heterogeneity']:.2g}"
                for row in rows
            ],
            "rigs": over["n_rigs"],
            "verdict": over["verdict"],
        }
    )
    text = []
    for value, part in shown.groupby(over["value"], sort=False):
        title = f"{value}: effects over rigs, ratio to the baseline of the cell"
        text += _section(title, part, over.loc[part.index, "note"])
    return text


def _section(title: str, table: pd.DataFrame, notes: pd.Series[str]) -> list[str]:
    """Return a table as lines of text under its title, followed by the notes with their counts."""
    counts = notes[notes != ""].value_counts()
    lines = [f"{count} of these: {note}" for note, count in counts.items()]
    return ["", title, *table.to_string(index=False).splitlines(), *lines]


def _range(row: Mapping[Any, Any]) -> str:
    low, high = row["prediction_low"], row["prediction_high"]
    return f"{low:.4g} to {high:.4g}" if np.isfinite(low) else f"needs {LEAST_RIGS} rigs"


def _kinds(
    value: str, sides: list[Side], margin: float, alpha: float
) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the rows of levels, and those of effects, each with their unit."""
    cells = _cells(sides)
    alone = [name for name, base in cells.items() if base in (None, name)]
    levels = [_row(name, [one.level(name) for one in sides], margin, alpha) for name in alone]
    effects = [
        _row(name, [one.effect(name) for one in sides], margin, alpha) | {"baseline": cells[name]}
        for name in cells
        if name not in alone
    ]
    return [("level", about_column(value)[0], levels), ("effect", "1", effects)]


def _cells(sides: Sequence[Side]) -> dict[str, str | None]:
    """Return the baseline of each condition, from any of the campaigns that measured it."""
    cells: dict[str, str | None] = {}
    for side in sides:
        for name, base in side.cells.items():
            cells[name] = cells.get(name) or base
    return cells


def _side(data: Dataset, value: str) -> Side:
    """Return one dataset's logs by condition, and the baseline of each condition."""
    factors = list(data.plan["factors"])
    rows = data.ok.dropna(subset=[value])
    rows = rows[~rows["block"].isin(blocks_across_sessions(rows))]
    if rows.empty:
        return Side(pd.DataFrame(), {})
    fixed = {name: str(level) for name, level in (data.plan.get("baseline") or {}).items()}
    planned = [one["levels"] for one in data.plan.get("conditions", [])]
    seen = rows[factors].drop_duplicates().to_dict("records")
    levels = [{name: str(one[name]) for name in factors} for one in [*planned, *seen]]
    measured = [condition_label(row) for row in rows[factors].astype(str).to_dict("records")]
    baselines = {condition_label(one): condition_label(one | fixed) for one in levels}
    names = {name: base for name, base in baselines.items() if name in set(measured)}
    cells = {name: base if base in names else None for name, base in names.items()}
    frame = rows.assign(condition=pd.Categorical(measured, categories=list(cells)))
    return Side(log_table(frame, value=value, condition="condition").logs, cells)


def _row(name: str, logs: list[pd.Series[float]], margin: float, alpha: float) -> dict[str, Any]:
    """Return one condition of both datasets, and their ratio before the correction."""
    blocks = logs[0].index.union(logs[1].index)
    first, second = (values.reindex(blocks) for values in logs)
    row = {"condition": name, **contrast(first, second, margin, alpha, paired=False)}
    for side, series in zip(_SIDES, logs, strict=True):
        numbers = _of_rig(np.array(series, dtype=np.float64), alpha)
        row |= {f"{side}_{name}": number for name, number in numbers.items()}
    return row


def _decided(rows: list[dict[str, Any]], alpha: float) -> pd.DataFrame:
    """Return rows with verdicts, as one family."""
    table = decide(rows, alpha=alpha).rename(
        columns={"estimate": "ratio", "low": "ratio_low", "high": "ratio_high"}
    )
    counts = [f"{side}_n_blocks" for side in _SIDES]
    extra = [f"{side}_{name}" for side in _SIDES for name in _NUMBERS] + ["baseline"]
    table = table.join(pd.DataFrame.from_records(rows, columns=extra))
    one_only = (table[counts] == 0).any(axis=1)
    table.loc[one_only, ["verdict", "note"]] = ["not in both", ""]
    return table


def table_lines(table: pd.DataFrame) -> list[str]:
    """Return a comparison as lines of text: a table a value and kind, with its notes."""
    text = []
    for (value, kind, unit), part in table.groupby(["value", "kind", "unit"], sort=False):
        what = "ratio to the baseline of its cell" if kind == "effect" else f"in {unit}"
        rows = part.to_dict("records")
        shown = pd.DataFrame(
            {
                "condition": part["condition"].to_numpy(),
                "A": [_number(row, "first_estimate", "first_low", "first_high") for row in rows],
                "B": [_number(row, "second_estimate", "second_low", "second_high") for row in rows],
                "B / A": [_number(row, "ratio", "ratio_low", "ratio_high") for row in rows],
                "verdict": part["verdict"].to_numpy(),
            }
        )
        text += _section(f"{value}: {kind}s, {what}", shown, part["note"])
    return text


def _number(row: Mapping[Any, Any], *names: str) -> str:
    estimate, low, high = (
        f"{row[name]:,.0f}" if abs(row[name]) >= 1000 else f"{row[name]:.4g}" for name in names
    )
    if not np.isfinite(row[names[0]]):
        return "not measured"
    bounds = f" [{low}, {high}]" if np.isfinite(row[names[1]]) else ", no interval"
    return f"{estimate}{bounds}"
