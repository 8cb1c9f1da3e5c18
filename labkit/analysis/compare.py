"""Comparisons of conditions: ratios with intervals, tests and a verdict in words.

The trial is the unit of replication. Samples are reduced to one number a trial, trials of one
condition in one block (A/A replicates) are averaged on the log scale, and conditions are compared
with the baseline inside blocks: a paired t test and interval on log ratios, which in simulations
keeps the nominal error where tests on pooled samples are wrong in up to 87 % of null experiments
(`benchmarks/simulate.py`).

Methods: ratio of geometric means by t on logs, paired by block or Welch (1947) when unpaired;
equivalence by two one-sided tests (Schuirmann 1987; Lakens 2017); family-wise error by Holm (1979),
with intervals at the level of each row's step (Serlin 1993). The signed-rank test (Wilcoxon 1945)
is run as a check and noted where it disagrees; `labkit.analysis.robust` checks for serial
correlation, outlying blocks and skewness.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.analysis.estimates import (
    Estimate,
    exp_or_inf,
    holm,
    join_notes,
    mean_and_error,
    signed_rank,
)
from labkit.analysis.power import blocks_for, least_blocks
from labkit.analysis.robust import SERIAL, checked, trimmed_mean, unpaired_note
from labkit.analysis.trials import (
    groups,
    is_categorical,
    numbers,
    reduce_trials,
    require_columns,
    require_names,
)
from labkit.answers import SAME
from labkit.errors import UsageError, suggestion
from labkit.units import plural

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LogTable:
    """Logs of trials, averaged over A/A replicates.

    `failed` tells for each condition the blocks in which a trial was run but has no value.
    """

    logs: pd.DataFrame
    notes: dict[Hashable, str]
    failed: dict[Hashable, NDArray[np.bool_]]


def log_table(trials: pd.DataFrame, *, value: str, condition: str) -> LogTable:
    """Return the logs of trial-level values by block and condition."""
    require_columns(trials, [value, condition, "block"])
    values = numbers(trials, value).astype(np.float64)
    bad = ~np.isnan(values) & ~((values > 0) & np.isfinite(values))
    if bad.any():
        first = trials[[condition, "block"]].iloc[int(np.argmax(bad))].to_dict()
        raise UsageError(
            f"{int(bad.sum())} values of {value!r} are zero, negative or infinite: no ratio",
            where=f"first in {first}, {values[bad][0]}",
            remedy="a value of a failed trial is NaN; compare other values by their difference",
        )
    cell, blocks, names = _cells(trials["block"], trials[condition])
    shape, known = (len(blocks), len(names)), ~np.isnan(values)
    logs = np.log(values)
    # Deviations from one value of the cell are summed: the mean of equal numbers is then exact.
    centre = np.full(len(blocks) * len(names), np.nan)
    centre[cell[known]] = logs[known]
    count = np.bincount(cell[known], minlength=len(centre))
    total = np.bincount(cell[known], (logs - centre[cell])[known], minlength=len(centre))
    means = (centre + total / np.maximum(count, 1)).reshape(shape)
    size = np.bincount(cell, minlength=len(centre)).reshape(shape)
    # Names that are tuples stay names, and do not become levels of an index.
    index, columns = (pd.Index(labels, tupleize_cols=False) for labels in (blocks, names))
    table = pd.DataFrame(means, index=index, columns=columns)
    counts = count.reshape(shape)
    failed = dict(zip(names, (size > counts).T, strict=True))
    return LogTable(table, _averaging_notes(names, size, counts), failed)


def _cells(
    block: pd.Series[Any], condition: pd.Series[Any]
) -> tuple[NDArray[np.int64], list[Hashable], list[Hashable]]:
    """Return each row's cell, counted block by block, and the names of blocks and conditions.

    Conditions are in the order of a categorical or of appearance; blocks are sorted, or in
    the order of appearance where their names cannot be sorted.
    """
    rows, names = pd.factorize(condition, sort=is_categorical(condition))
    try:
        places, blocks = pd.factorize(block, sort=True)
    except TypeError:
        places, blocks = pd.factorize(block)
    if min(rows.min(), places.min()) < 0:
        raise UsageError(f"{condition.name!r} or {block.name!r} is missing in some rows")
    return places * len(names) + rows, list(blocks), list(names)


def _averaging_notes(
    names: Sequence[Hashable], sizes: NDArray[np.int64], counts: NDArray[np.int64]
) -> dict[Hashable, str]:
    """Return, for each condition, how many trials were averaged and how many have no value."""
    notes: dict[Hashable, str] = {}
    for name, size, count in zip(names, sizes.T, counts.T, strict=True):
        parts = []
        if size.max() > 1:
            parts.append(f"{name}: up to {size.max()} trials a block, averaged on the log scale")
        if lost := int((size - count).sum()):
            parts.append(f"{name}: {lost} of {size.sum()} trials without a value")
        notes[name] = "; ".join(parts)
    return notes


#: Fewer blocks than this are called a pilot.
PILOT_BLOCKS = 5


#: How the note of a pair begins that lacks a level which was not measured.
NO_TRIAL = "no trial with "

COLUMNS = (
    *("condition", "n_blocks", "value", "base"),
    *("estimate", "low", "high", "confidence", "equal_low", "equal_high", "equal_confidence"),
    *("difference", "difference_low", "difference_high"),
    *("p_value", "p_adjusted", "p_equivalence"),
    *("differs", "equivalent", "verdict", "blocks_missing", "needed_blocks", "sd", "note"),
)


#: Where a condition failed in more blocks than its counterpart, equivalence must also be shown with
#: these blocks at so many times the value: what failed may be what was slow.
FAILED_FACTOR = 2.0


def compare(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    margin: float = 0.02,
    alpha: float = 0.05,
    paired: bool = True,
    trim: float = 0.0,
) -> pd.DataFrame:
    """Compare every condition with a baseline, inside blocks, as ratios.

    Parameters
    ----------
    frame : DataFrame
        One row a trial, its block in the column ``block``. `labkit.analysis.summarise` reduces the
        samples of each trial to a row, with NaN for a quantile that takes more samples.
    value : str
        Column of positive numbers; NaN stands for a trial that failed.
    condition : str
        Column that names the condition.
    baseline : hashable
        The condition that the others are divided by.
    margin : float
        Equivalence margin: a ratio between 1/(1 + margin) and 1 + margin counts as equal.
    alpha : float
        Level of the tests; intervals have 1 - alpha.
    paired : bool
        Pair by block. False compares independent groups of blocks (Welch).
    trim : float
        Share of the blocks with the lowest and with the highest log ratios that are left out
        (0.2: 20 % at each end; Yuen 1974, paired). State it in the plan: chosen after the fact it
        raises the error rate. Paired only. It estimates the centre of most blocks, not the mean.

    Returns
    -------
    DataFrame
        One row for each other condition, in the order of a categorical or of appearance:

        - ``condition``; ``n_blocks``, those compared (unpaired: the smaller number of the two);
        - ``value``, ``base``: the typical values of condition and baseline over these blocks
          (geometric means), whose ratio is the estimate;
        - ``estimate``: ratio to the baseline; ``low, high``: its interval at ``confidence``, 1
          minus the level at which Holm's procedure tests this row (at most `alpha`), so that it
          excludes 1 exactly where the row ``differs``; NaN on too few blocks for a verdict;
        - ``equal_low, equal_high``: the interval at ``equal_confidence``, 1 - 2 `alpha`, which lies
          inside the margin where the two one-sided tests call the row equivalent;
        - ``difference, difference_low, difference_high``: in the unit of `value`, at
          ``confidence``;
        - ``p_value``, two-sided; ``p_adjusted``, Holm over the rows of this call that have a
          variance; ``p_equivalence``, the larger of the two one-sided tests, not adjusted;
        - ``differs`` (``p_adjusted < alpha``), ``equivalent`` (``p_equivalence < alpha``): both
          may hold; ``verdict``: ``different``, ``equivalent``, ``different within margin`` or
          ``undecided``, which it always is on too few blocks for `alpha`
          (`least_blocks`: 5 at 0.05, 7 at 0.01). Where one of the two failed in more
          blocks, equivalence must also be shown with these at `FAILED_FACTOR` times the value;
        - ``blocks_missing``: a tuple of blocks in which the condition or the baseline lacks a
          value, so that they could not be paired;
        - ``needed_blocks``: how many it takes to call equal conditions equivalent at this margin
          with power 0.8, allowing for the uncertainty of the spread seen (`blocks_for`); never
          fewer than any verdict takes, which is all that can be said when no variance was seen
          (missing when beyond planning);
        - ``sd``: standard deviation between blocks of the log ratio;
        - ``note``: what to know, such as failed trials, too few blocks, serial correlation of
          the blocks (whose errors are then wider), outlying blocks, or that the signed-rank test
          finds what the t test does not (or the reverse).

    Raises
    ------
    UsageError
        For missing columns, an empty frame, an unknown baseline, options out of range, or values
        that have no logarithm (zero, negative, infinite): a ratio says nothing of those.

    Examples
    --------
    >>> from labkit import compare, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "docker host"}
    >>> table = compare(trials, value="rtt_ns_median", **names).set_index("condition")
    >>> str(table.loc["docker bridge", "verdict"])
    'different'
    """
    rows = contrasts(
        log_table(frame, value=value, condition=condition),
        baseline,
        margin=margin,
        alpha=alpha,
        paired=paired,
        trim=trim,
    )
    return decide([{"condition": name, **row} for name, row in rows.items()], alpha=alpha)


def contrasts(
    table: LogTable,
    baseline: Hashable,
    *,
    margin: float,
    alpha: float,
    paired: bool = True,
    trim: float = 0.0,
) -> dict[Hashable, dict[str, Any]]:
    """Return, for each other condition, the fields of its row before the correction."""
    if not (margin > 0 and math.isfinite(margin)) or not 0 < alpha < 0.5:
        raise UsageError(
            f"invalid margin or alpha: margin={margin!r}, alpha={alpha!r}",
            remedy="margin > 0 (0.02 for 2 %) and 0 < alpha < 0.5",
        )
    if not 0 <= trim < 0.5 or (trim and not paired):
        raise UsageError(
            f"invalid trim: {trim!r}{'' if paired else ' of unpaired blocks'}",
            remedy="0 <= trim < 0.5, with paired blocks only",
        )
    logs = table.logs
    if not pd.api.types.is_hashable(baseline) or baseline not in logs.columns:
        raise UsageError(
            f"unknown baseline: {baseline!r}",
            remedy=suggestion(baseline, logs.columns),
        )
    rows: dict[Hashable, dict[str, Any]] = {}
    for name in logs.columns:
        if name != baseline:
            row = contrast(logs[baseline], logs[name], margin, alpha, paired=paired, trim=trim)
            refused = _refused(table, baseline, name, row, margin, alpha)
            averaged = (table.notes.get(side, "") for side in (name, baseline))
            note = join_notes(row["note"], refused, *averaged)
            rows[name] = {**row, "refused": refused, "note": note}
    return rows


def _refused(
    table: LogTable,
    baseline: Hashable,
    name: Hashable,
    row: Mapping[str, Any],
    margin: float,
    alpha: float,
) -> str:
    """Return why failed trials forbid a verdict of equivalence; empty where they do not."""
    lost = {side: int(np.sum(table.failed.get(side, 0))) for side in (baseline, name)}
    worse = max(lost, key=lambda side: lost[side])
    other = baseline if worse == name else name
    extra, n = lost[worse] - lost[other], row["n_blocks"]
    if not extra or not row["p_equivalence"] < alpha:
        return ""
    # Mean and variance of the blocks with the extra ones, further from 1 than those were.
    distance = abs(row["mean"]) + math.log(FAILED_FACTOR)
    blocks = n + extra
    mean = abs(row["mean"]) + extra / blocks * math.log(FAILED_FACTOR)
    squares = (n - 1) * row["sd"] ** 2 + n * extra / blocks * (distance - abs(row["mean"])) ** 2
    error = math.sqrt(squares / (blocks - 1) / blocks)
    bound = math.log1p(margin)
    if Estimate(mean, error, blocks - 1.0).p_within(-bound, bound) < alpha:
        return ""
    failed = f"{worse} failed in {plural(lost[worse], 'block')}, {other} in {lost[other]}"
    return f"{failed}: what failed may be what was slow, so no equivalence is claimed"


def decide(
    rows: Sequence[dict[str, Any]], *, alpha: float, keys: Sequence[str] = ("condition",)
) -> pd.DataFrame:
    """Return contrasts as a frame, adjusted by Holm as one family, with verdicts in words.

    Rows without variance (constants that were set, not measured) are not in the family.
    """
    table = pd.DataFrame.from_records(list(rows), columns=[*keys, *COLUMNS[1:]])
    p_value = table["p_value"].to_numpy(dtype=np.float64)
    constant = np.array([row["error"] == 0 for row in rows], dtype=bool)
    family = adjust_family(p_value, constant, alpha)
    enough = table["n_blocks"].to_numpy(dtype=np.int64) >= least_blocks(alpha)
    differs = enough & (family.adjusted < alpha)
    refused = np.array([bool(row.get("refused")) for row in rows], dtype=bool)
    p_equivalence = table["p_equivalence"].to_numpy(dtype=np.float64)
    equivalent = enough & (p_equivalence < alpha) & ~refused
    table["p_adjusted"] = family.adjusted
    table["differs"], table["equivalent"] = differs, equivalent
    table["verdict"] = verdicts(differs, equivalent)
    table["confidence"], table["equal_confidence"] = 1 - family.levels, 1 - 2 * alpha
    names = [f"{name}{end}" for name in ("", "difference_", "equal_") for end in ("low", "high")]
    bounds = [
        _intervals(row, level, alpha) if decidable else [math.nan] * len(names)
        for row, level, decidable in zip(rows, family.levels, enough, strict=True)
    ]
    table[names] = np.array(bounds, dtype=np.float64).reshape(len(rows), len(names))
    table["needed_blocks"] = table["needed_blocks"].astype("Int64")
    only_alone = enough & (p_value < alpha) & ~differs
    table.loc[only_alone, "note"] = [
        join_notes(note, "differs alone, not after Holm's correction")
        for note in table.loc[only_alone, "note"]
    ]
    return table


def verdicts(differs: NDArray[np.bool_], equivalent: NDArray[np.bool_]) -> NDArray[np.str_]:
    """Return the verdicts in words of rows that differ, are equivalent, both or neither."""
    words = np.array(["undecided", "different", "equivalent", "different within margin"])
    return words[differs + 2 * equivalent]


def with_verdict_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison whose bounds are those that each verdict rests on.

    As `labkit.answers.interval_of` of a row; a table without ``equal_low`` stays as it is.
    """
    if "equal_low" not in table:
        return table
    equal = table["verdict"].isin(SAME)
    bounds = ("low", "high", "confidence")
    return table.assign(**{x: table[x].mask(equal, table[f"equal_{x}"]) for x in bounds})


@dataclass(frozen=True)
class Family:
    """P-values of one family, adjusted by Holm, and each one's level.

    An interval at 1 - level excludes the null exactly where Holm's p-value is below `alpha`.
    """

    adjusted: Floats
    levels: Floats


def adjust_family(p_values: Floats, constant: NDArray[np.bool_], alpha: float) -> Family:
    """Adjust p-values; constants, which have no variance, and NaN are not in the family."""
    tested = np.where(constant, np.nan, p_values)
    steps = holm(tested, cap=math.inf)
    levels = np.full(len(tested), alpha)
    known = np.isfinite(tested)
    # A p-value that underflowed to 0 was tested at the first step.
    levels[known] = alpha / max(1, int(known.sum()))
    positive = known & (steps > 0)
    levels[positive] = alpha * tested[positive] / steps[positive]
    return Family(np.where(constant, p_values, np.minimum(steps, 1.0)), levels)


def _intervals(row: Mapping[str, Any], level: float, alpha: float) -> list[float]:
    """Return the bounds of ratio and difference at a level, and those of equivalence."""
    ratio = Estimate(row["mean"], row["error"], row["df"], "log")
    change = Estimate(row["difference"], row["difference_error"], row["difference_df"])
    return [*ratio.interval(level), *change.interval(level), *ratio.interval(2 * alpha)]


def contrast(
    base: pd.Series[float],
    other: pd.Series[float],
    margin: float,
    alpha: float,
    *,
    paired: bool,
    trim: float = 0.0,
) -> dict[str, Any]:
    """Compare two series of logs indexed by block; the fields of a row before the correction.

    `decide` adds the intervals, whose level depends on the other rows.
    """
    both = base.notna() & other.notna()
    missing = tuple(base.index[~both])
    used = (base[both], other[both]) if paired else (base.dropna(), other.dropna())
    x, y = (np.asarray(logs, dtype=np.float64) for logs in used)
    n = min(len(x), len(y))
    mean, error, df = mean_and_error(x, y, paired, size=1.0)
    change, change_error, change_df = mean_and_error(np.exp(x), np.exp(y), paired)
    checks = ""
    if paired and error > 0:
        found = checked(y - x)
        checks = found.note if n >= least_blocks(alpha) else ""
        if trim:
            mean, error, df = trimmed_mean(y - x, trim)
            change, change_error, change_df = trimmed_mean(np.exp(y) - np.exp(x), trim)
            trimmed = f"mean without the {trim:.0%} of blocks at each end"
            checks = join_notes(trimmed, SERIAL if found.widening > 1 else "")
        error, df = error * found.widening, min(df, found.df)
        change_error, change_df = change_error * found.widening, min(change_df, df)
    elif error > 0 and n >= least_blocks(alpha):
        checks = join_notes(unpaired_note(x), unpaired_note(y))
    ratio, bound = Estimate(mean, error, df), math.log1p(margin)
    p_value, p_equivalence = ratio.p_outside(0, 0), ratio.p_within(-bound, bound)
    sd = error * math.sqrt(n) if n else math.nan
    needed = blocks_for(margin, sd, alpha=alpha, pilot=n) if math.isfinite(sd) else 2
    needed = needed and max(needed, least_blocks(alpha))
    notes = [_few(n, alpha, needed), _spread(len(missing) if paired else 0, error), checks]
    if paired and error > 0 and not trim:
        notes.append(_disagreement(p_value, signed_rank(y - x), n, alpha))
    typical = exp_or_inf(float(x.mean())) if len(x) else math.nan
    return {
        "n_blocks": n,
        "value": typical * exp_or_inf(mean),
        "base": typical,
        "estimate": exp_or_inf(mean),
        "difference": change,
        "p_value": p_value,
        "p_equivalence": p_equivalence,
        "blocks_missing": missing,
        "needed_blocks": needed,
        "sd": sd,
        "note": join_notes(*notes),
        # Not columns: from these `decide` computes the intervals.
        "mean": mean,
        "error": error,
        "df": df,
        "difference_error": change_error,
        "difference_df": change_df,
    }


def _few(n: int, alpha: float, needed: int | None) -> str:
    """Return what to know about the number of blocks; empty when there are enough."""
    least = least_blocks(alpha)
    if n >= max(least, PILOT_BLOCKS):
        return ""
    parts = [f"{'pilot' if n < PILOT_BLOCKS else 'too few'}: {plural(n, 'block')}"]
    if n < least:
        parts.append(f"a verdict at alpha={alpha:g} takes at least {least}")
    if n > 1 and needed is not None and needed > max(n, least):
        parts.append(f"about {plural(needed, 'block')} decide the margin")
    return "; ".join(parts)


def _spread(missing: int, error: float) -> str:
    parts = [f"{plural(missing, 'block')} without a value of both"] if missing else []
    if error == 0:
        parts.append("no variance between blocks: constant or coarsely rounded values")
    return "; ".join(parts)


def _disagreement(p_value: float, p_rank: float, n: int, alpha: float) -> str:
    """Return a note where the signed-rank test, if it can reach `alpha`, decides otherwise."""
    if 2.0 ** (1 - n) >= alpha or (p_value < alpha) == (p_rank < alpha):
        return ""
    return f"the signed-rank test disagrees (p = {p_rank:.2g})"


def factor_effect(
    frame: pd.DataFrame,
    factor: str,
    levels: Sequence[Hashable],
    within: Sequence[str],
    *,
    value: str,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare levels of one factor inside every cell of the other factors, as one family.

    Parameters
    ----------
    frame : DataFrame
        As for `compare`.
    factor : str
        Column of the factor.
    levels : sequence
        The baseline level first, then the levels compared with it.
    within : sequence of str
        Columns of the other factors; each combination that occurs is a cell.
    value, margin, alpha
        As for `compare`.

    Returns
    -------
    DataFrame
        `within`, ``contrast`` (such as ``spin / block``), then the columns of `compare` from
        ``n_blocks`` on, with Holm's correction over all rows. A cell that lacks a level has a row
        with 0 blocks and says so: nothing is dropped in silence.

    Raises
    ------
    UsageError
        As `compare`, and for fewer than two levels.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok.query("capture == 'off'")
    >>> table = analysis.factor_effect(
    ...     trials, "wait", ["block", "spin"], ["placement", "affinity"], value="rtt_ns_median"
    ... )
    >>> table.loc[0, ["placement", "affinity", "contrast", "verdict"]].tolist()
    ['docker host', 'split', 'spin / block', 'different']
    """
    if len(levels) < 2:
        raise UsageError("an effect needs at least two levels", remedy="the baseline level first")
    pairs = [(level, levels[0]) for level in levels[1:]]
    return pair_effects(frame, factor, pairs, within, value=value, margin=margin, alpha=alpha)


def _cell_contrasts(
    table: LogTable, levels: Sequence[Hashable], factor: str, margin: float, alpha: float
) -> dict[Hashable, dict[str, Any]]:
    """Return the contrasts of one cell, the first level's with the others, before the correction.

    A level that was not run has a row that says so.
    """
    lacking = [level for level in levels if level not in table.logs.columns]
    logs = table.logs.copy()
    for level in lacking:
        logs[level] = math.nan
    rows = contrasts(replace(table, logs=logs), levels[0], margin=margin, alpha=alpha)
    for level in levels[1:]:
        absent = [name for name in (levels[0], level) if name in lacking]
        if absent:
            lacks = " or ".join(f"{factor}={name}" for name in absent)
            rows[level] = {**rows[level], "blocks_missing": (), "note": f"{NO_TRIAL}{lacks}"}
    return {level: rows[level] for level in levels[1:]}


def pair_effects(
    frame: pd.DataFrame,
    factor: str,
    pairs: Sequence[tuple[Hashable, Hashable]],
    within: Sequence[str],
    *,
    value: str,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare pairs of levels of one factor inside every cell of other factors, as one family.

    Parameters
    ----------
    frame : DataFrame
        As for `compare`.
    factor : str
        Column of the factor.
    pairs : sequence of (level, baseline)
        What is compared with what; any level may be the baseline of others.
    within : sequence of str
        Columns of the other factors.
    value, margin, alpha
        As for `compare`.

    Returns
    -------
    DataFrame
        As of `factor_effect`: `within`, ``contrast``, the columns of
        `compare`; a pair that a cell lacks has 0 blocks and says why.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok.query("capture == 'off'")
    >>> table = analysis.pair_effects(
    ...     trials.query("affinity == 'split'"),
    ...     "placement",
    ...     [("docker host", "bare cgroup"), ("docker bridge", "docker host")],
    ...     ["wait"],
    ...     value="rtt_ns_median",
    ... )
    >>> table.query("verdict == 'different'")["contrast"].unique().tolist()
    ['docker bridge / docker host']
    """
    require_columns(frame, [factor, value, "block", *within])
    require_names(frame, [factor])
    frame = frame[frame[factor].isin([level for pair in pairs for level in pair])]
    others: dict[Hashable, list[Hashable]] = {}
    for level, base in pairs:
        others.setdefault(base, []).append(level)
    rows: list[dict[str, Any]] = []
    for cell, index in groups(frame, within):
        logs = log_table(frame.iloc[index], value=value, condition=factor)
        for base, levels in others.items():
            contrasts_of_base = _cell_contrasts(logs, [base, *levels], factor, margin, alpha)
            for level, row in contrasts_of_base.items():
                rows.append({**cell, "contrast": f"{level} / {base}", **row})
    return decide(rows, alpha=alpha, keys=[*within, "contrast"])


def ranking(
    frame: pd.DataFrame,
    factor: str,
    within: Sequence[str],
    *,
    value: str,
    lowest_first: bool = True,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare every two levels of a factor in every cell, in the order of their means.

    Parameters
    ----------
    frame, factor, within, value, margin, alpha
        As for `pair_effects`.
    lowest_first : bool
        Whether the lowest geometric mean is the first of the order. Neighbours that were measured
        in different blocks are ordered by the blocks that they share.

    Returns
    -------
    DataFrame
        `within`, ``contrast`` (the later of the order over the earlier), ``earlier``, ``later``,
        ``steps`` between them (1: neighbours), the columns of `compare`; Holm's correction is over
        all pairs of all cells. A cell with fewer than two levels has no row.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok.query("capture == 'off'")
    >>> table = analysis.ranking(
    ...     trials.query("affinity == 'split'"), "placement", ["wait"], value="rtt_ns_median"
    ... )
    >>> analysis.format_ranking(table, ["wait"])["spin"]
    'bare clean < bare rules ~ docker host ~ bare cgroup ~ bare chroot < docker bridge'
    """
    require_columns(frame, [factor, value, "block", *within])
    require_names(frame, [factor])
    rows: list[dict[str, Any]] = []
    for cell, index in groups(frame, within):
        table = log_table(frame.iloc[index], value=value, condition=factor)
        order = _order(table.logs, lowest_first)
        for place, earlier in enumerate(order):
            rest = replace(table, logs=table.logs[order[place:]])
            compared = contrasts(rest, earlier, margin=margin, alpha=alpha)
            for steps, (later, row) in enumerate(compared.items(), start=1):
                names = {"earlier": earlier, "later": later, "steps": steps}
                rows.append({**cell, "contrast": f"{later} / {earlier}", **names, **row})
    return decide(rows, alpha=alpha, keys=[*within, "contrast", "earlier", "later", "steps"])


def _order(logs: pd.DataFrame, lowest_first: bool) -> list[Hashable]:
    """Return levels in the order of their means, neighbours by the blocks that they share."""
    order: list[Hashable] = []
    sign = 1 if lowest_first else -1
    for level in logs.mean().dropna().sort_values(ascending=lowest_first, kind="stable").index:
        place = len(order)
        # Means may be over different blocks, where a level failed or was dropped.
        while place and sign * (logs[order[place - 1]] - logs[level]).mean() > 0:
            place -= 1
        order.insert(place, level)
    return order


#: Deciles, and the tail as far as 1,000 samples a trial carry.
QUANTILES = (
    *("q0.1", "q0.2", "q0.3", "q0.4", "median", "q0.6", "q0.7", "q0.8", "q0.9"),
    *("p95", "p99", "q0.999"),
)


def shift(
    samples: pd.DataFrame,
    *,
    condition: str,
    baseline: Hashable,
    value: str = "rtt_ns",
    quantiles: Sequence[str] = QUANTILES,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare every quantile of every condition with the baseline's, inside blocks.

    Parameters
    ----------
    samples : DataFrame
        One row a sample, or what `sort_trials` made of them.
    condition, baseline, value, margin, alpha
        As for `compare`.
    quantiles : sequence of str
        Names of quantiles, such as ``median``, ``p99``, ``q0.999``. A quantile for which some trial
        has too few samples is left out.

    Returns
    -------
    DataFrame
        ``condition``, ``quantile`` (its name), then the columns of `compare` from ``n_blocks`` on;
        Holm's correction over all rows.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> samples = load("data/reference/rps").series("latency_ns")
    >>> samples = samples.query("rps == 'off'")
    >>> options = {"condition": "placement", "baseline": "docker host", "value": "latency_ns"}
    >>> table = analysis.shift(samples, quantiles=["median", "p99"], **options)
    >>> table["quantile"].unique().tolist()
    ['median', 'p99']
    """
    by = list(dict.fromkeys(["trial", condition, "block"]))
    trials = reduce_trials(samples, value=value, by=by, statistics=list(quantiles))
    rows = []
    for name in quantiles:
        if trials.loc[trials["n"] > 0, name].isna().any():
            continue
        table = log_table(trials, value=name, condition=condition)
        for other, row in contrasts(table, baseline, margin=margin, alpha=alpha).items():
            rows.append({"condition": other, "quantile": name, **row})
    return decide(rows, alpha=alpha, keys=["condition", "quantile"])
